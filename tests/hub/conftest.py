"""These tests need keras-hub, which needs not be there for every Python and TensorFlow."""

import pytest


def why_not() -> str:
    """Why keras-hub cannot be used here; empty if it can."""
    try:
        import keras_hub.models  # noqa: F401
    except ImportError as error:
        return f"keras-hub does not import: {error}"
    except Exception as error:  # of a TensorFlow or Keras that it does not know
        return f"keras-hub fails to import: {type(error).__name__}: {error}"
    return ""


@pytest.fixture(scope="session", autouse=True)
def keras_hub():
    """Without keras-hub the tests of this folder are skipped."""
    if reason := why_not():
        pytest.skip(reason)
