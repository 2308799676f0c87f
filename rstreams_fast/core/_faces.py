"""Where a backend keeps what it has: each class in a module of its own, the same in all of them.

What a class does is written once, in the specification: the others take their docstrings there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

__all__ = ["HOMES", "face_of"]

HOMES: Final = {
    "BurstIterator": "bursts",
    "CallWindow": "window",
    "DemandCounter": "demand",
    "FusedRun": "fused",
    "Latch": "wip",
    "RecordRing": "records",
    "SignalSerializer": "serial",
    "SpscRing": "ring",
    "Wip": "wip",
}
"""The module of each class."""


def face_of(package: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a backend's package: a class is loaded when it is asked for."""

    def load(name: str) -> Any:
        if name not in HOMES:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(f"{package}.{HOMES[name]}"), name)
        specification = getattr(import_module(f"rstreams_fast.core._spec.{HOMES[name]}"), name)
        _describe(package, found, specification)
        for cls in found.__mro__:
            for member in vars(cls).keys() & dir(specification):
                if not member.startswith("_"):
                    _describe(package, vars(cls)[member], getattr(specification, member))
        setattr(sys.modules[package], name, found)  # once is enough
        return found

    return load


def _describe(package: str, described: Any, specification: Any) -> None:
    """Give the docstring of ``specification`` to what has none."""
    if described.__doc__ is None:
        try:
            described.__doc__ = specification.__doc__
        except (AttributeError, TypeError):  # it is compiled, and Python takes it for immutable
            import_module(f"{package}.docs").set_doc(described, specification.__doc__)
