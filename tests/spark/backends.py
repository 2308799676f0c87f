"""The iterator functions of rstreams_fast.spark on each backend of the core, in one process."""

from __future__ import annotations

import importlib
import os

import pytest

BACKENDS = {"c": "_cython", "cffi": "_cffi", "python": "_spec"}
SLOW = [name if name == "c" else pytest.param(name, marks=pytest.mark.slow) for name in BACKENDS]
USERS = (
    "calls.engine",
    "spark.daemon.calls",
    "spark.worker.batches",
    "spark.worker.read_ahead",
    "spark.worker.streams",
    "spark.worker.output_ring",
)
PRIMITIVES = ("CallWindow", "DemandCounter", "SpscRing")


def use_backend(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the stages use the primitives of the backend ``name``."""
    try:
        core = importlib.import_module(f"rstreams_fast.core.{BACKENDS[name]}")
        found = {primitive: getattr(core, primitive) for primitive in PRIMITIVES}
    except (ImportError, AttributeError) as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"the backend {name!r} is not built here ({missing}); run: make build")
    modules = [importlib.import_module(f"rstreams_fast.{user}") for user in USERS]
    for primitive, made in found.items():
        users = [module for module in modules if hasattr(module, primitive)]
        assert users, f"no module of USERS uses {primitive} any more"
        for module in users:
            monkeypatch.setattr(module, primitive, made)


@pytest.fixture(params=SLOW)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The backend of a test; with the others than C it is slow, unless it is of `every_backend`."""
    use_backend(request.param, monkeypatch)
    return str(request.param)


every_backend = pytest.mark.parametrize("backend", BACKENDS, indirect=True)
"""Marks the tests that show in a minute that a backend does what a stage needs."""
