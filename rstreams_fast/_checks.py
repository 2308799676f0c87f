"""Functions that check the arguments of public functions, and name the argument in each error."""

from __future__ import annotations

import contextlib
import inspect
import operator
import threading
from collections.abc import Callable
from functools import partial
from numbers import Real
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final

__all__ = [
    "MAX_CAPACITY",
    "Weigher",
    "add_note",
    "as_int",
    "check_bool",
    "check_capacity",
    "check_choice",
    "check_count",
    "check_plain",
    "check_seconds",
    "check_sync",
    "check_timeout",
    "check_weigher",
    "describe_callable",
    "is_coroutine_function",
    "refuse_coroutine",
    "safe_repr",
    "weigh",
]

Weigher = Callable[[Any], int]
"""A user's function that returns the weight of an element in bytes."""

MAX_CAPACITY: Final = 2**31
"""The largest capacity of a ring or a mailbox (both are bounded queues), in elements."""

_NOT_PLAIN: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_GENERATOR


def add_note(error: BaseException, note: str) -> None:
    """Add ``note`` to the notes of ``error``, unless ``error`` already has the same note."""
    with contextlib.suppress(Exception):  # an exception class with its own ``__notes__`` may raise
        notes = getattr(error, "__notes__", ())
        if note not in notes:
            # ``error.add_note`` would fail if the class of ``error`` is a frozen dataclass.
            BaseException.__setattr__(error, "__notes__", [*notes, note])


def safe_repr(value: object) -> str:
    """Return ``repr(value)``, or another text if ``repr`` raises, as for an int of 5000 digits."""
    try:
        return repr(value)
    except Exception:
        if isinstance(value, int):
            return f"{'-' if value < 0 else ''}<an int of {value.bit_length()} bits>"
        return f"<{type(value).__name__} that cannot be shown>"


def describe_callable(fn: Callable[..., Any]) -> str:
    """Return the name of a user's function, with its module, for error messages."""
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    module = getattr(fn, "__module__", None)
    return f"{module}.{name}" if module and module != "builtins" else str(name)


def as_int(value: object) -> int | None:
    """Return ``value`` as an ``int``, or ``None`` if ``value`` is a ``bool`` or not an integer."""
    if type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def check_count(name: str, value: object, minimum: int = 0) -> int:
    """Return ``value`` if it is an int >= ``minimum``, else raise an error that names ``name``."""
    count = as_int(value)
    if count is None:
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if count < minimum:
        raise ValueError(f"{name} must be >= {minimum}, got {safe_repr(count)}")
    return count


def check_bool(name: str, value: object) -> bool:
    """Return ``value`` if it is a bool, else raise a ``TypeError`` that names ``name``."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
    return value


def check_capacity(name: str, value: object) -> int:
    """Return ``value`` if it is an int from 1 to 2**31, else raise an error that names ``name``."""
    capacity = check_count(name, value, 1)
    if capacity > MAX_CAPACITY:
        raise ValueError(f"{name} must be <= 2**31, got {safe_repr(capacity)}")
    return capacity


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``choices``, else raise an error that names ``name``."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"{name} must be {' or '.join(map(repr, choices))}, got {safe_repr(value)}"
        )
    return value


def check_timeout(timeout: object) -> float | None:
    """Check the argument ``timeout``: a number of seconds >= 0, or ``None`` for no limit.

    Return the seconds, or ``None`` for no limit. For any other ``timeout`` raise an error.
    """
    if timeout is None:
        return None
    seconds = _as_seconds("timeout", timeout)
    if not seconds >= 0:
        raise ValueError(f"timeout must be >= 0 seconds, got {safe_repr(timeout)}")
    # A lock refuses a timeout longer than TIMEOUT_MAX. So replace such a timeout by None.
    return float(seconds) if seconds <= threading.TIMEOUT_MAX else None


def check_seconds(name: str, value: object, *, positive: bool = False) -> float:
    """Return ``value`` as a float, if ``value`` is a number of seconds from 0 to ``TIMEOUT_MAX``.

    If ``positive`` is true, ``value`` must be > 0. For any other ``value`` raise an error. ``name``
    is the name of the argument in the error message.
    """
    seconds = _as_seconds(name, value)
    if not (seconds > 0 if positive else seconds >= 0) or seconds > threading.TIMEOUT_MAX:
        raise ValueError(
            f"{name} must be {'>' if positive else '>='} 0 and <= {threading.TIMEOUT_MAX:.0f} "
            f"seconds (threading.TIMEOUT_MAX), got {safe_repr(value)}"
        )
    return float(seconds)


def _as_seconds(name: str, value: object) -> int | float:
    """Return ``value`` as an int or float, if it is a real number, such as a numpy scalar."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Real)):
        raise TypeError(f"{name} must be a number of seconds, got {type(value).__name__}")
    return value if isinstance(value, int | float) else float(value)


def check_plain(what: str, fn: object, hint: str = "", *, result_used: bool = True) -> None:
    """Raise ``TypeError`` if ``fn`` cannot be called, or is an async function.

    The caller of ``fn`` would not await the coroutine that an async function returns. ``what`` is
    the name of the argument in the error message. ``hint`` is the end of the message, and names a
    method that accepts async functions. If ``result_used`` is false, refuse a generator function,
    too: the caller of ``fn`` would ignore the generator, so the body of ``fn`` would never run.
    """
    if type(fn) is BuiltinFunctionType or (
        type(fn) is FunctionType and not fn.__code__.co_flags & _NOT_PLAIN and not vars(fn)
    ):
        return  # a fast path for plain functions: ``inspect`` would slow down each subscription
    if not callable(fn):
        raise TypeError(f"{what} must be callable, got {type(fn).__name__}")
    if is_coroutine_function(fn):
        raise TypeError(f"{what} must be a plain function, not a coroutine function{hint}")
    for call in (fn, type(fn).__call__):
        if inspect.isasyncgenfunction(call):
            raise TypeError(
                f"{what} must be a plain function, not an async generator function, of which "
                "from_async_iterable makes a stream"
            )
        if not result_used and inspect.isgeneratorfunction(call):
            raise TypeError(
                f"{what} must be a plain function, not a generator function, which would not run "
                "when it is called"
            )


def is_coroutine_function(fn: object) -> bool:
    """Return whether a call of ``fn`` would return a coroutine. ``fn`` is not called."""
    # ``inspect`` does not find an async ``__call__`` if a method or a partial wraps the object.
    while isinstance(fn, MethodType | partial):
        fn = fn.__func__ if isinstance(fn, MethodType) else fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(type(fn), "__call__", None)  # noqa: B004 - the function itself is wanted
    )


def refuse_coroutine(what: str, fn: Callable[..., object], returned: object, hint: str) -> None:
    """Raise ``TypeError`` if ``returned``, the result of ``fn``, is a coroutine.

    A plain function, such as a lambda, can return a coroutine, too. ``what`` and ``hint`` are the
    start and the end of the error message.
    """
    if inspect.iscoroutine(returned):
        returned.close()
        raise TypeError(
            f"{what}: {describe_callable(fn)} returned a coroutine, which nobody awaits{hint}"
        )


def check_sync(
    operator: str, name: str, fn: object, hint: str = "", *, result_used: bool = True
) -> None:
    """Do the same as ``check_plain``. The error names ``operator`` and its argument ``name``."""
    check_plain(f"{operator}({name}): {name}", fn, hint, result_used=result_used)


def check_weigher(max_bytes: object, weigher: object) -> int | None:
    """Return ``max_bytes``, after a check that both arguments are given, or both are ``None``."""
    if (max_bytes is None) != (weigher is None):
        raise ValueError("max_bytes and weigher must be given together")
    if weigher is not None:
        check_plain("weigher", weigher)
    return None if max_bytes is None else check_count("max_bytes", max_bytes, 1)


def weigh(weigher: Weigher, element: Any) -> int:
    """Return ``weigher(element)``, the weight of ``element`` in bytes.

    Exceptions of ``weigher`` propagate. If its result is not an ``int`` >= 0, raise ``TypeError``.
    """
    weight = as_int(weigher(element))
    if weight is None or weight < 0:
        raise TypeError(f"the weigher {describe_callable(weigher)} must return an int >= 0 (bytes)")
    return weight
