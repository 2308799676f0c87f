"""Every exception this package raises or signals, and what becomes of an error nobody can take.

Each type says which rule of the specification it stands for, and derives from the built-in
exception that a Python programmer would expect.
"""

from __future__ import annotations

import functools
import gc
import logging
import sys
from collections.abc import Callable
from typing import Any

__all__ = [
    "AlreadySubscribed",
    "BackendUnavailable",
    "BufferOverflow",
    "DemandExceeded",
    "InvalidRequest",
    "InvalidRequestType",
    "NoneSignal",
    "OverlappingCalls",
    "RingClosed",
    "ShutDown",
    "StageReturnedNone",
    "WorkDropped",
    "check_plain",
    "on_dropped_error",
    "report_dropped",
    "report_unraisable",
    "shown",
]


class BackendUnavailable(ImportError):
    """The backend asked for by ``RSTREAMS_FAST_BACKEND`` cannot be loaded."""


class RingClosed(RuntimeError):
    """The ring was closed: nothing can be put in, and everything put in has been taken out."""


class OverlappingCalls(RuntimeError):
    """Two calls were made on the same side of a single-producer single-consumer ring at once."""


def shown(value: object) -> str:
    """``repr(value)``, for a text that must not fail: a number may have too many digits for it."""
    try:
        return repr(value)
    except Exception:
        if isinstance(value, int):
            return f"{'-' if value < 0 else ''}<an int of {value.bit_length()} bits>"
        return f"<{type(value).__name__} that cannot be shown>"


def check_plain(what: str, fn: object, hint: str = "") -> None:
    """Refuse what cannot be called, and async functions: nobody would await what they return.

    ``hint`` says what a coroutine function is welcome to.
    """
    import inspect  # slow, and there already where there are streams

    if not callable(fn):
        raise TypeError(f"{what} must be callable, got {type(fn).__name__}")
    for call in (fn, type(fn).__call__):
        if inspect.iscoroutinefunction(call):
            raise TypeError(f"{what} must be a plain function, not a coroutine function{hint}")
        if inspect.isasyncgenfunction(call):
            raise TypeError(
                f"{what} must be a plain function, not an async generator function, of which "
                "from_async_iterable makes a stream"
            )


class DemandExceeded(RuntimeError):
    """More elements were delivered than had been requested (§1.1)."""


class BufferOverflow(RuntimeError):
    """A bounded buffer was full and its owner was told not to wait."""


class AlreadySubscribed(RuntimeError):
    """The same subscriber was subscribed twice (§1.10, §2.12), or a one-shot source was reused."""


class ShutDown(RuntimeError):
    """The publisher shut down when its last subscriber cancelled (§3.14)."""


class InvalidRequest(ValueError):
    """``request(n)`` was called with ``n <= 0`` (§3.9)."""

    def __init__(self, n: object) -> None:
        super().__init__(f"§3.9: request(n) needs n >= 1, got {shown(n)}")


class InvalidRequestType(TypeError):
    """``request(n)`` was called with something that is not an ``int`` (§3.9)."""

    def __init__(self, n: object) -> None:
        super().__init__(f"§3.9: request(n) needs an int, got {type(n).__name__}")


class NoneSignal(TypeError):
    """``None`` was given where a subscriber, an element or an error is needed (§1.9, §2.13)."""


class StageReturnedNone(TypeError):
    """The function of a stage returned ``None``, which is no element (§2.13)."""


class WorkDropped(RuntimeError):
    """An executor or event loop refused work, or accepted it and will never run it."""


DroppedErrorHook = Callable[[BaseException], object]

_log = logging.getLogger("rstreams_fast")
_hook: DroppedErrorHook | None = None


def on_dropped_error(hook: DroppedErrorHook | None) -> DroppedErrorHook | None:
    """Set the function that is called with every error which no subscriber can receive.

    Such errors are those of a subscriber that raised (§2.13), and those that arrive after a
    terminal signal or a cancel. They also go to the logger ``rstreams_fast``. Returns the hook
    set before; ``None`` removes it. Thread-safe. What the hook itself raises goes to
    ``sys.unraisablehook``.
    """
    global _hook
    if hook is not None:
        check_plain("hook", hook)
    previous, _hook = _hook, hook
    return previous


def report_dropped(error: BaseException, where: str) -> None:
    """Make ``error``, which no subscriber can receive any more, known (§2.13)."""
    _log.error("%s: %s: %s", where, type(error).__name__, error, exc_info=error)
    hook = _hook
    if hook is not None:
        try:
            hook(error)
        except Exception as raised:
            report_unraisable(raised, "on_dropped_error", hook)


def report_unraisable(error: BaseException, where: str, culprit: object) -> None:
    """Hand ``error`` to ``sys.unraisablehook``: it came from an observer, not from the stream."""
    arguments = (type(error), error, error.__traceback__, f"Exception ignored in {where}", culprit)
    sys.unraisablehook(_unraisable_type()(arguments))


@functools.cache
def _unraisable_type() -> Callable[[tuple[object, ...]], Any]:
    """The type of what ``sys.unraisablehook`` gets; the interpreter shows it nowhere else."""

    class Raising:
        def __del__(self) -> None:
            raise RuntimeError("caught below")

    seen: list[Any] = []
    previous, sys.unraisablehook = sys.unraisablehook, seen.append
    try:
        Raising()
        if not seen:  # there is no reference count here
            gc.collect()
    finally:
        sys.unraisablehook = previous
    kind = type(seen[0]) if seen else _Unraisable
    seen.clear()  # the error in it keeps every frame from here down, by itself and its context
    return kind


class _Unraisable:
    """Stands in where destructors are late: the same attributes."""

    def __init__(self, arguments: tuple[object, ...]) -> None:
        self.exc_type, self.exc_value, self.exc_traceback, self.err_msg, self.object = arguments
