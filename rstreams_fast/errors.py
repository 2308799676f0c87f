"""The exceptions of this package, functions that check the arguments of signals, and functions that
report errors that no subscriber can receive.

The docstring of an exception class names the rule of the specification that was broken. The base
class is the built-in exception that a Python programmer would expect.
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
    """The ring (a bounded queue) is closed. The consumer gets this error after the last element."""


class OverlappingCallsError(RuntimeError):
    """Two calls overlapped on an object, or a side of a ring, that allows one call at a time."""


class DemandExceededError(RuntimeError):
    """More elements were delivered than had been requested (§1.1)."""


class BufferOverflowError(RuntimeError):
    """An element came while a bounded buffer was full."""


class AlreadySubscribedError(RuntimeError):
    """The subscriber is subscribed already, or the source serves only one (§1.10, §2.12)."""


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
    """The function of a stage (such as ``map``) returned ``None``, which is no element (§2.13)."""


class WorkDroppedError(RuntimeError):
    """An executor or event loop refused work of a stream, or accepted work and then dropped it."""


_SIGNALS: Final = ("on_subscribe", "on_next", "on_error", "on_complete")

#: The ``co_flags`` of generator functions and async functions. A call does not run their bodies.
_RUN_LATER: Final = CO_COROUTINE | CO_ASYNC_GENERATOR | CO_GENERATOR


def check_request(n: object) -> int:
    """Return ``n``, the argument of ``request(n)``, as an ``int``.

    For ``n <= 0``, or an ``n`` that is not an ``int``, raise the error that §3.9 demands.
    """
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
    """Raise a ``TypeError`` if ``subscriber`` is not an object with the four subscriber methods.

    Also raise a ``TypeError`` if its ``on_next`` is an async function or a generator function.
    ``subscribe`` may raise only these errors. ``on_error`` signals all other failures (§1.9).
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
    """Raise a ``TypeError`` if ``error``, the argument of ``on_error``, is no exception (§2.13)."""
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

    These errors are exceptions that a subscriber raises (§2.13), and errors that come after a
    terminal signal or a cancel. They also go to the logger ``rstreams_fast``. Exceptions of
    ``hook`` go to ``sys.unraisablehook``. Any thread may call ``on_dropped_error``.

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
    """Make ``report_dropped`` ignore errors of the class ``kind`` from now on.

    At interpreter exit ``kind`` is ``WorkDroppedError``, because then executors drop work.
    """
    global _expected  # noqa: PLW0603
    _expected = kind


def report_dropped(error: BaseException, where: str) -> None:
    """Log ``error`` and pass it to the hook of ``on_dropped_error``.

    Called for an error that no subscriber can receive (§2.13). ``where`` says what has failed.
    """
    if isinstance(error, _expected):
        return
    if isinstance(error, RecursionError):
        # Log a RecursionError without its traceback, which has a thousand frames. The stack may be
        # so full that the call of the logger raises another RecursionError.
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
    """Pass ``error`` to ``sys.unraisablehook``, so that the stream can go on.

    ``culprit`` is the user's function that raised ``error``, such as a function of ``do_on_next``.
    """
    arguments = (type(error), error, error.__traceback__, f"Exception ignored in {where}", culprit)
    sys.unraisablehook(_unraisable_type()(arguments))


@functools.cache
def _unraisable_type() -> Callable[[tuple[object, ...]], Any]:
    """Return the class of the object that Python passes to ``sys.unraisablehook``.

    The class has no public name. So provoke an unraisable error, and look at the hook's argument.
    """

    class Raising:
        def __del__(self) -> None:
            raise RuntimeError("caught below")

    seen: list[Any] = []
    previous, sys.unraisablehook = sys.unraisablehook, seen.append
    try:
        Raising()
        if not seen:  # without reference counts (PyPy), only the collector runs ``__del__``
            gc.collect()
    finally:
        sys.unraisablehook = previous
    kind = type(seen[0]) if seen else _Unraisable
    seen.clear()  # the traceback of the error in ``seen`` would keep this frame alive
    return kind


class _Unraisable:
    """An argument for ``sys.unraisablehook``, used if Python's own type is not found."""

    def __init__(self, arguments: tuple[object, ...]) -> None:
        self.exc_type, self.exc_value, self.exc_traceback, self.err_msg, self.object = arguments
