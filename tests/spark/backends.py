"""The iterator functions of rstreams_fast.spark on each backend of the core, in one process."""

from __future__ import annotations

import importlib
import os

import pytest

BACKENDS = {"c": "_cython", "cffi": "_cffi", "python": "_spec"}
USERS = ("batches", "pump", "read_ahead", "streams")
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
    for user in USERS:
        module = importlib.import_module(f"rstreams_fast.spark.worker.{user}")
        for primitive, made in found.items():
            if hasattr(module, primitive):
                monkeypatch.setattr(module, primitive, made)
