"""Helpers for calls that must not raise, and for errors that no subscriber can receive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rstreams_fast.api import Subscriber, Subscription
from rstreams_fast.errors import (
    InvalidRequestError,
    InvalidRequestTypeError,
    NoneSignalError,
    report_dropped,
)
from rstreams_fast.runtime.executors import WorkDroppedError
from rstreams_fast.streams.engine.not_picklable import not_picklable

__all__ = [
    "Idle",
    "cancel_silently",
    "check_error_signal",
    "forked",
    "propagates",
    "refuse",
    "report_late",
    "silent",
]


def check_error_signal(subscriber: Subscriber[Any], error: object) -> None:
    """Check the argument of ``on_error``.

    If ``error`` is no exception, call ``subscriber.on_error`` with a ``NoneSignalError``, and raise
    the same ``NoneSignalError`` to the publisher (§2.13).
    """
    if not isinstance(error, BaseException):
        wrong = NoneSignalError(
            "§2.13: on_error needs an exception instance, the publisher signalled "
            f"on_error({error!r})"
        )
        subscriber.on_error(wrong)
        raise wrong


def forked() -> WorkDroppedError:
    """Return the error for a stream used in a forked child process, which has no threads for it."""
    return WorkDroppedError("the process was forked: its streams live on in the parent only")


def silent(call: Callable[..., object], *args: Any) -> None:
    """Call ``call``, which must not raise (§2.13, §3.15). If it raises, report the exception.

    A ``RecursionError`` is re-raised: the stack has no room to report it here.
    """
    try:
        call(*args)
    except RecursionError:
        raise
    except Exception as raised:
        report_dropped(raised, f"{getattr(call, '__qualname__', call)!s} must return normally")


def report_late(error: BaseException) -> None:
    """Report an error that no subscriber can receive any more.

    Errors of a wrong ``request`` after the end are not reported (§3.6).
    """
    if not isinstance(error, (InvalidRequestError, InvalidRequestTypeError)):
        report_dropped(error, "an error after the end of the stream")


def propagates(raised: BaseException) -> bool:
    """Return whether ``raised`` must propagate to the caller, as ``KeyboardInterrupt`` must."""
    return isinstance(raised, RecursionError) or not isinstance(raised, Exception)


def cancel_silently(subscription: Subscription) -> None:
    """Call ``subscription.cancel()``. If ``cancel`` raises or is missing, report the exception."""
    silent(_cancel, subscription)


def _cancel(subscription: Subscription) -> None:
    subscription.cancel()


class Idle:
    """The subscription of a subscriber that gets no elements."""

    __slots__ = ("__weakref__",)

    __reduce__ = not_picklable

    def request(self, n: int, /) -> None:
        """Do nothing: no elements will come."""

    def cancel(self) -> None:
        """Do nothing: no work has to stop."""


def refuse(subscriber: Subscriber[Any], error: BaseException) -> None:
    """Refuse a subscriber: signal ``on_subscribe``, then ``on_error`` with ``error`` (§1.9)."""
    try:
        subscriber.on_subscribe(Idle())
    except Exception as raised:
        report_dropped(raised, "§2.13: on_subscribe raised")
        return
    silent(subscriber.on_error, error)
