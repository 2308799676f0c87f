"""Checks of arguments, and the names and ids of the user's functions."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import types
import uuid
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

__all__ = [
    "MOST_CALLS",
    "check_amount",
    "check_exceptions",
    "check_positive",
    "check_positive_int",
    "check_seconds",
    "id_of",
    "is_found_by_name",
    "is_in_its_module",
    "label_of",
    "lasting_name_of",
    "unwrap",
]

MOST_CALLS: Final = 2**31
"""The maximum of ``concurrency``, of ``Batching(rows)`` and of ``Circuit(failures)``."""


def check_positive_int(name: str, value: object, most: int | None = None) -> int:
    """Return ``value`` if it is an int from 1 to ``most``; else raise an error about ``name``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} must be >= 1, got {value}")
    if most is not None and value > most:
        raise ValueError(f"{name} must be <= {most}, got {value}")
    return value


def check_amount(name: str, value: Any) -> float:
    """Return ``value`` if it is a finite number >= 0; else raise an error about ``name``."""
    try:
        # ``float`` parses text, too.
        amount = None if isinstance(value, bool | str | bytes | bytearray) else float(value)
    except OverflowError:
        amount = math.inf
    except (TypeError, ValueError):
        amount = None
    if amount is None:
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not 0 <= amount < math.inf:
        raise ValueError(f"{name} must be finite and >= 0, got {value!r}")
    return amount


def check_positive(name: str, value: Any) -> float:
    """Return ``value`` if it is a finite number > 0; else raise an error about ``name``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not 0 < value <= sys.float_info.max:
        raise ValueError(f"{name} must be finite and > 0, got {value}")
    return float(value)


def check_seconds(name: str, value: object, *, zero: bool = False) -> float:
    """Return ``value`` if it is a number of seconds > 0; else raise an error about ``name``.

    If ``zero`` is true, 0 is allowed, too.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, got {type(value).__name__}")
    if not (value >= 0 if zero else value > 0):
        raise ValueError(f"{name} must be {'>=' if zero else '>'} 0 seconds, got {value}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be <= {sys.float_info.max} seconds") from None


def unwrap(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def label_of(fn: Callable[..., Any]) -> str:
    """Return the name of a user's function, for messages and metrics."""
    inner = unwrap(fn)
    name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    return str(name).rsplit("<locals>.", 1)[-1]


def is_found_by_name(thing: Any) -> bool:
    """Return whether another process can import ``thing`` by its module and its name.

    The result is ``False`` for anything in ``__main__``, and in modules that are registered with
    cloudpickle to be pickled by value.
    """
    module: str = thing.__module__
    for pickler in ("cloudpickle", "pyspark.cloudpickle"):
        by_value: set[str] = getattr(
            sys.modules.get(pickler), "list_registry_pickle_by_value", set
        )()
        if any(f"{module}.".startswith(f"{name}.") for name in by_value):
            return False
    return module != "__main__" and is_in_its_module(thing)


def is_in_its_module(thing: Any) -> bool:
    """Return whether a look-up of ``thing.__qualname__`` in its module finds ``thing``."""
    found: Any = sys.modules.get(thing.__module__)
    for part in thing.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is thing


_ids: Final[dict[int, tuple[weakref.ref[Any], str]]] = {}


def lasting_name_of(fn: Any) -> str | None:
    """Return the module and name of ``fn``, if they are the same in every process.

    ``None``: ``fn`` is not a Python function, or is a local function or a lambda, or its module is
    the main program.
    """
    if not isinstance(fn, types.FunctionType):
        return None
    # Do not use ``fn.__qualname__``: functools.wraps may have copied it from another function.
    module, name = fn.__globals__.get("__name__"), fn.__code__.co_qualname
    is_in_program = module in (None, "__main__", "__mp_main__")
    return None if is_in_program or "<" in name else f"{module}.{name}"


def id_of(fn: Any) -> str:
    """Return a unique id of the function ``fn``, which is always the same in this process."""
    # Each access to a method creates a new object. So combine the ids of instance and function.
    if isinstance(fn, types.MethodType):
        return f"{id_of(fn.__self__)}.{id_of(fn.__func__)}"
    known = _ids.get(id(fn))
    if known is not None and known[0]() is fn:
        return known[1]
    own, place = uuid.uuid4().hex, id(fn)

    def forget(gone: object) -> None:
        if place in _ids and _ids[place][0] is gone:
            del _ids[place]

    # TypeError: fn does not allow weak references. Then each call of id_of returns a new id.
    with contextlib.suppress(TypeError):
        _ids[place] = weakref.ref(fn, forget), own
    return own


def check_exceptions(name: str, value: Any) -> tuple[type[Exception], ...]:
    kinds = (value,) if isinstance(value, type) else value
    if not isinstance(kinds, Iterable) or isinstance(kinds, str):
        raise TypeError(f"{name} must be exception types, got {kinds!r}")
    kinds = tuple(kinds)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise TypeError(f"{name} must be exception types, got {kind!r}")
    return kinds
