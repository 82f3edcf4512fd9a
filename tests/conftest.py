"""The suite runs in strict mode: every operand of every program is checked (see ipu_runtime.strict).

A NaN is equal to nothing, in any comparison that does not ask for it. And a test draws the same random numbers
whichever tests ran before it: alone, in another order, or on another worker.
"""

import functools
import gc
import os
import random
import resource
import sys

os.environ.setdefault("IPU_RUNTIME_STRICT", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import pytest

from tests.sweep import pytest_collection_modifyitems, pytest_report_header  # noqa: F401  these are hooks

# NumPy's own default lets a result that is NaN pass where the reference is NaN, too: two models that diverge.
np.testing.assert_allclose = functools.partial(np.testing.assert_allclose, equal_nan=False)


def pytest_collection_finish():
    """Collections need not look at what the imports have made."""
    gc.collect()
    gc.freeze()


_held = [0]
"""Bytes that the process held after the last collection."""

GROWTH = 256 << 20


def _resident() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:  # no Linux: collect after each test
        return _held[0] + GROWTH


@pytest.fixture(autouse=True)
def _memory():
    """Models are cycles of few objects that hold much, which Python does not see: collect where memory has grown."""
    yield
    if _resident() >= _held[0] + GROWTH:
        gc.collect()
        _held[0] = _resident()


@pytest.fixture(autouse=True, scope="module")
def _no_configuration_outlives_its_module():
    """A process has one configuration of the IPU system: the next module's strategies would take it over."""
    yield
    system = sys.modules.get("ipu_keras.config.system")
    if system is not None:
        system.reset_ipu_configuration()


_drawn: dict[str, dict[str, object]] = {}
"""Module -> the state of its generator once it was imported."""


@pytest.fixture(autouse=True, scope="module")
def _same_weights_of_a_module(request):
    """For what a module's own fixtures make: Keras takes the seed of a layer that has none from Python's generator."""
    random.seed(request.module.__name__)


@pytest.fixture(autouse=True)
def _same_numbers(request):
    random.seed(request.node.nodeid)
    for name in ("rng", "RNG"):
        generator = getattr(request.module, name, None)
        if isinstance(generator, np.random.Generator):
            first = _drawn.setdefault(request.module.__name__, generator.bit_generator.state)
            generator.bit_generator.state = first
