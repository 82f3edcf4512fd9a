"""The tests here run on the real engine, or on the stand-in with IPU_KERAS_STANDIN=1 (or while there is none)."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest


def _standin() -> bool:
    import ipu_keras.compiler as compiler

    return bool(os.environ.get("IPU_KERAS_STANDIN")) or not hasattr(compiler, "compile_module")


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    """Name of the engine in use."""
    if not _standin():
        return "ipu"
    from tests.keras import standin

    standin.install(monkeypatch)
    return "standin"


@pytest.fixture(autouse=True)
def fresh_keras():
    import keras

    keras.utils.set_random_seed(7)
    yield
    keras.backend.clear_session(free_memory=False)
