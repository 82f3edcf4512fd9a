"""The suite runs in strict mode: every operand of every program is checked (see ipu_runtime.strict)."""

import os

os.environ.setdefault("IPU_RUNTIME_STRICT", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tests.sweep import pytest_collection_modifyitems, pytest_report_header  # noqa: F401  these are hooks
