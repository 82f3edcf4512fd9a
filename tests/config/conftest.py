"""Nothing is configured before a test, nor after it, and the environment asks for no model."""

from __future__ import annotations

import pytest

from ipu_keras import config


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch):
    monkeypatch.delenv("TF_POPLAR_FLAGS", raising=False)
    config.reset_ipu_configuration()
    yield
    config.reset_ipu_configuration()


@pytest.fixture
def cfg():
    return config.IPUConfig()


@pytest.fixture
def warned(caplog):
    """The warnings that the package has logged so far."""
    caplog.set_level("WARNING", "ipu_keras")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "ipu_keras" and r.levelname == "WARNING"]
