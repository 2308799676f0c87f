"""Finds the classes of a backend. In every backend, a class is in the module named in ``MODULES``.

The docstrings of the classes are written once, in the backend ``python`` (``core/_spec``). The
classes of the other backends get copies of these docstrings.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

__all__ = ["MODULES", "module_getattr"]

MODULES: Final = {
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
"""Maps the name of a class to the name of its module."""


def module_getattr(package: str) -> Callable[[str], Any]:
    """Return the function ``__getattr__`` of a backend's package, such as ``core._cffi``.

    ``package`` is the full name of the package. The function imports the module of a class when the
    class is first used.
    """

    def load(name: str) -> Any:
        if name not in MODULES:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(f"{package}.{MODULES[name]}"), name)
        specification = getattr(import_module(f"rstreams_fast.core._spec.{MODULES[name]}"), name)
        _describe(package, found, specification)
        for cls in found.__mro__:
            for member in vars(cls).keys() & dir(specification):
                if not member.startswith("_"):
                    _describe(package, vars(cls)[member], getattr(specification, member))
        setattr(sys.modules[package], name, found)  # so load() is called only once for this name
        return found

    return load


def _describe(package: str, described: Any, specification: Any) -> None:
    """If ``described`` has no docstring, give it the docstring of ``specification``."""
    if described.__doc__ is None:
        try:
            described.__doc__ = specification.__doc__
        except (AttributeError, TypeError):  # Python code cannot set __doc__ of compiled classes
            import_module(f"{package}.docs").set_doc(described, specification.__doc__)
