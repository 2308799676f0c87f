"""The exceptions that this package raises or signals, the checks of signals, and the reports of
errors that no subscriber can receive.

Each exception class names its rule of the specification, and derives from the built-in exception
that a Python programmer would expect.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import sys
from collections.abc import Callable
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType
from typing import Any, Final

from rstreams_fast._checks import as_int, check_plain, safe_repr

__all__ = [
    "AlreadySubscribedError",
    "BackendUnavailableError",
    "BufferOverflowError",
    "DemandExceededError",
    "InvalidRequestError",
    "InvalidRequestTypeError",
    "NoneSignalError",
    "OverlappingCallsError",
    "RingClosed",
    "ShutDownError",
    "StageReturnedNoneError",
    "WorkDroppedError",
    "check_element",
    "check_error",
    "check_request",
    "check_subscriber",
    "expect",
    "on_dropped_error",
    "report_dropped",
    "report_unraisable",
]


class BackendUnavailableError(ImportError):
    """The backend that ``RSTREAMS_FAST_BACKEND`` names cannot be loaded."""


class RingClosed(RuntimeError):
    """The ring was closed: it takes no more elements, and all its elements were taken out."""


class OverlappingCallsError(RuntimeError):
    """Two calls overlapped on the same side of a single-producer single-consumer ring."""


class DemandExceededError(RuntimeError):
    """More elements were delivered than had been requested (§1.1)."""


class BufferOverflowError(RuntimeError):
    """A bounded buffer was full when another element came."""


class AlreadySubscribedError(RuntimeError):
    """The same subscriber was subscribed twice (§1.10, §2.12), or a one-shot source was reused."""


class ShutDownError(RuntimeError):
    """The publisher shut down when its last subscriber cancelled (§3.14)."""


class InvalidRequestError(ValueError):
    """``request(n)`` was called with ``n <= 0`` (§3.9).

    Args:
        n: The argument of the call.
    """

    def __init__(self, n: object) -> None:
        super().__init__(f"§3.9: request(n) needs n >= 1, got {safe_repr(n)}")


class InvalidRequestTypeError(TypeError):
    """``request(n)`` was called with an argument that is not an ``int`` (§3.9).

    Args:
        n: The argument of the call.
    """

    def __init__(self, n: object) -> None:
        super().__init__(f"§3.9: request(n) needs an int, got {type(n).__name__}")


class NoneSignalError(TypeError):
    """``None`` was given where a subscriber, an element or an error is needed (§1.9, §2.13)."""


class StageReturnedNoneError(TypeError):
    """The function of a stage returned ``None``, which is not an element (§2.13)."""


class WorkDroppedError(RuntimeError):
    """An executor or event loop refused work, or accepted it and will never run it."""


_SIGNALS: Final = ("on_subscribe", "on_next", "on_error", "on_complete")

#: Code flags of functions whose body does not run when they are called.
_RUN_LATER: Final = CO_COROUTINE | CO_ASYNC_GENERATOR | CO_GENERATOR


def check_request(n: object) -> int:
    """Return ``n`` as an ``int``, or raise the error that §3.9 demands for a wrong ``n``."""
    count = as_int(n)
    if count is None:
        raise InvalidRequestTypeError(n)
    if count <= 0:
        raise InvalidRequestError(n)
    return count


def check_element(element: object) -> None:
    """Raise a ``NoneSignalError`` for ``None``, which is not an element (§2.13)."""
    if element is None:
        raise NoneSignalError("§2.13: None is not an element")


def check_subscriber(subscriber: object) -> None:
    """Raise a ``TypeError`` for ``None``, a class, an object that lacks one of the four methods,
    and an async ``on_next``.

    All other failures of ``subscribe`` are signalled, not raised (§1.9).
    """
    if subscriber is None:
        raise NoneSignalError("§1.9: subscriber is None")
    if isinstance(subscriber, type):
        raise TypeError(
            f"§1.9: subscriber must be an object, got the class {subscriber.__name__} itself"
        )
    for name in _SIGNALS:
        if not callable(getattr(subscriber, name, None)):
            raise TypeError(
                f"§1.9: subscriber must have the methods {', '.join(_SIGNALS)}; "
                f"{type(subscriber).__name__} has no {name}"
            )
    code = getattr(subscriber.on_next, "__code__", None)  # type: ignore[attr-defined]
    if isinstance(code, CodeType) and code.co_flags & _RUN_LATER:
        raise TypeError(
            f"§1.9: {type(subscriber).__name__}.on_next must be a plain method, not an async one "
            "or a generator, which would not run when it is called; to await something of each "
            "element, use map_async"
        )


def check_error(error: object) -> None:
    """Raise a ``TypeError`` if ``error`` is no exception instance (for ``None`` see §2.13)."""
    if error is None:
        raise NoneSignalError("§2.13: error is None")
    if not isinstance(error, BaseException):
        raise TypeError(f"error must be an exception instance, got {type(error).__name__}")


DroppedErrorHook = Callable[[BaseException], object]

_log = logging.getLogger("rstreams_fast")
_hook: DroppedErrorHook | None = None
_expected: type[BaseException] | tuple[()] = ()


def on_dropped_error(hook: DroppedErrorHook | None) -> DroppedErrorHook | None:
    """Set the function that is called with every error that no subscriber can receive.

    Such errors are the exceptions of subscribers (§2.13), and errors that arrive after a terminal
    signal or a cancel. They also go to the logger ``rstreams_fast``. Exceptions of the hook go to
    ``sys.unraisablehook``. Any thread may call this function.

    Args:
        hook: A plain function; ``None`` removes the hook.

    Returns:
        The hook that was set before.

    Raises:
        TypeError: ``hook`` cannot be called, is ``async``, or is a generator function.
    """
    global _hook
    if hook is not None:
        check_plain("hook", hook, result_used=False)
    previous, _hook = _hook, hook
    return previous


def expect(kind: type[BaseException]) -> None:
    """Make ``report_dropped`` ignore errors of the class ``kind`` from now on."""
    global _expected  # noqa: PLW0603
    _expected = kind


def report_dropped(error: BaseException, where: str) -> None:
    """Report ``error``, which no subscriber can receive any more (§2.13)."""
    if isinstance(error, _expected):
        return
    if isinstance(error, RecursionError):
        # Do not log the traceback of a RecursionError: it has a thousand frames. The stack may have
        # no room even for this call.
        with contextlib.suppress(RecursionError):
            _log.error("%s: %s: %s", where, type(error).__name__, error)
    else:
        _log.error("%s: %s: %s", where, type(error).__name__, error, exc_info=error)
    hook = _hook
    if hook is not None:
        try:
            hook(error)
        except Exception as raised:
            report_unraisable(raised, "on_dropped_error", hook)


def report_unraisable(error: BaseException, where: str, culprit: object) -> None:
    """Pass ``error``, of a hook or an observer, to ``sys.unraisablehook``. The stream goes on."""
    arguments = (type(error), error, error.__traceback__, f"Exception ignored in {where}", culprit)
    sys.unraisablehook(_unraisable_type()(arguments))


@functools.cache
def _unraisable_type() -> Callable[[tuple[object, ...]], Any]:
    """Return the type of the argument of ``sys.unraisablehook``. Python gives it no public name."""

    class Raising:
        def __del__(self) -> None:
            raise RuntimeError("caught below")

    seen: list[Any] = []
    previous, sys.unraisablehook = sys.unraisablehook, seen.append
    try:
        Raising()
        if not seen:  # this Python has no reference counts
            gc.collect()
    finally:
        sys.unraisablehook = previous
    kind = type(seen[0]) if seen else _Unraisable
    seen.clear()  # the error in `seen` keeps all these frames alive
    return kind


class _Unraisable:
    """An argument for ``sys.unraisablehook``, used if Python's own type is not found."""

    def __init__(self, arguments: tuple[object, ...]) -> None:
        self.exc_type, self.exc_value, self.exc_traceback, self.err_msg, self.object = arguments
