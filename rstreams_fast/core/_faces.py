"""Where a backend keeps what it has: each class in a module of its own, the same in all of them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

__all__ = ["HOMES", "face_of"]

HOMES: Final = {
    "BurstIterator": "bursts",
    "CallWindow": "window",
    "DemandCounter": "demand",
    "FusedRun": "fused",
    "RecordRing": "records",
    "SignalSerializer": "serial",
    "SpscRing": "ring",
}
"""The module of each class."""


def face_of(package: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a backend's package: a class is loaded when it is asked for."""

    def load(name: str) -> Any:
        if name not in HOMES:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{HOMES[name]}"), name)

    return load
