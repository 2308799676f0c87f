"""Helpers for calls that must not raise, and for errors that no subscriber can receive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rstreams_fast.api import Subscriber, Subscription
from rstreams_fast.errors import (
    InvalidRequestError,
    InvalidRequestTypeError,
    NoneSignalError,
    report_dropped,
)
from rstreams_fast.runtime.executors import WorkDroppedError
from rstreams_fast.streams.engine.not_picklable import is_own, not_picklable

__all__ = [
    "Idle",
    "call_all",
    "cancel_silently",
    "check_error_signal",
    "forked",
    "interrupts",
    "propagates",
    "refuse",
    "report_late",
    "silent",
]


def check_error_signal(subscriber: Subscriber[Any], error: object) -> None:
    """Check that ``error``, the argument of an ``on_error`` signal, is an exception.

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
    """Return the error for a stream in a forked child process, which lacks the parent's threads."""
    return WorkDroppedError("the process was forked: its streams live on in the parent only")


def silent(call: Callable[..., object], *args: Any) -> None:
    """Call ``call``, which must not raise (§2.13, §3.15). If it raises, report the exception.

    An exception that ``interrupts`` the stream is re-raised.
    """
    try:
        call(*args)
    except Exception as raised:
        if interrupts(raised, call):
            raise
        report_dropped(raised, f"{getattr(call, '__qualname__', call)!s} must return normally")


def call_all(fns: Iterator[Callable[[], object]]) -> None:
    """Call all ``fns``, as ``silent`` does, even if a call raises, for example, ``SystemExit``."""
    try:
        for fn in fns:
            silent(fn)
    except BaseException:  # after a KeyboardInterrupt, for example, still call the other functions
        call_all(fns)
        raise


def report_late(error: BaseException) -> None:
    """Report to ``on_dropped_error`` an error that came after the end of the stream.

    The error of an invalid ``request`` after the end of the stream is not reported (§3.6).
    """
    if not isinstance(error, (InvalidRequestError, InvalidRequestTypeError)):
        report_dropped(error, "an error after the end of the stream")


def propagates(raised: BaseException) -> bool:
    """Return whether ``raised``, such as a ``KeyboardInterrupt``, must propagate to the caller."""
    return isinstance(raised, RecursionError) or not isinstance(raised, Exception)


def interrupts(raised: BaseException, call: object) -> bool:
    """Return whether ``raised`` interrupts the stream, and so must propagate to the caller.

    ``raised`` has come out of ``call``, such as a subscriber's ``on_next``. If ``call`` belongs to
    this package, it raises no ``Exception`` of its own: a signal handler has raised it, or memory
    is short. Such an exception can leave an operator in the middle of its work, as a
    ``KeyboardInterrupt`` can. So no operator can signal it, and each operator re-raises it.
    """
    return propagates(raised) or is_own(call)


def cancel_silently(subscription: Subscription) -> None:
    """Call ``subscription.cancel()``. If ``cancel`` raises or is missing, report the exception."""
    try:
        subscription.cancel()
    except Exception as raised:
        if interrupts(raised, type(subscription)):
            raise
        report_dropped(raised, "cancel must return normally")


class Idle:
    """The subscription of a subscriber that gets only a terminal signal, and no elements."""

    __slots__ = ("__weakref__",)

    __reduce__ = not_picklable

    def request(self, n: int, /) -> None:
        """Do nothing, because there are no elements to send."""

    def cancel(self) -> None:
        """Do nothing, because there is no work to stop."""


def refuse(subscriber: Subscriber[Any], error: BaseException) -> None:
    """Refuse a subscriber: signal ``on_subscribe``, then ``on_error`` with ``error`` (§1.9)."""
    try:
        subscriber.on_subscribe(Idle())
    except Exception as raised:
        report_dropped(raised, "§2.13: on_subscribe raised")
        return
    silent(subscriber.on_error, error)
