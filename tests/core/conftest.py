"""Every test of the core runs on every backend, all in one process."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from rstreams_fast.errors import on_dropped_error

MODULES = {
    "c": "rstreams_fast.core._cython",
    "cffi": "rstreams_fast.core._cffi",
    "python": "rstreams_fast.core._python",
}
BACKENDS = [name for name in MODULES if name != "c" or sys.implementation.name == "cpython"]


def load(name: str) -> Any:
    """The backend's module. One that is not built is an error, never a skip."""
    return importlib.import_module(MODULES[name])


@pytest.fixture(params=BACKENDS)
def core(request: pytest.FixtureRequest) -> Any:
    return load(request.param)


@pytest.fixture
def dropped() -> Any:
    """The errors that no subscriber could receive."""
    errors: list[BaseException] = []
    previous = on_dropped_error(errors.append)
    yield errors
    on_dropped_error(previous)
