"""Helpers for sinks, the subscribers at the end of streams: for requests, checks and errors."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Protocol

from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.core import DemandCounter
from rstreams_fast.runtime.at_exit import is_exiting
from rstreams_fast.runtime.executors import WorkDroppedError, process_id
from rstreams_fast.streams.engine.upstream import Upstream

__all__ = [
    "Failure",
    "SerialUpstream",
    "check_process",
    "check_publisher",
    "failure_of",
    "is_async_cancellation",
    "not_a_cancellation",
    "raise_failure",
    "subscribe",
    "subscribe_end",
]

Failure = tuple[BaseException, TracebackType | None]
"""The error of a stream, and the traceback that the error had when it was signalled."""


class SerialUpstream(Upstream):
    """An ``Upstream`` on which any thread may call ``ask``. Requests never overlap or nest (§2.7).

    While one thread is in ``request``, calls of ``ask`` on any thread return at once. The first
    thread makes their requests when its ``request`` returns.
    """

    __slots__ = ("_owed",)

    def __init__(self) -> None:
        super().__init__()
        self._owed = DemandCounter()

    def ask(self, n: int) -> None:
        """Request ``n`` more elements, unless upstream is over. Errors of ``request`` propagate."""
        if self._owed.request(n) != 0:
            return
        try:
            while True:
                n = self._owed.value
                self.request(n)
                # After an unbounded request, upstream needs no other request.
                if n >= UNBOUNDED or self._owed.fulfil(n) == 0:
                    return
        except BaseException as raised:
            # ``request`` awaits nothing: a CancelledError comes from a function of the stream.
            raise not_a_cancellation(raised, "the stream")  # noqa: B904 - it has a cause


def check_publisher(publisher: object, what: str = "publisher") -> None:
    """Raise a ``TypeError`` if ``publisher`` has no method ``subscribe``.

    ``what`` names the publisher in the message.
    """
    if not callable(getattr(publisher, "subscribe", None)):
        hint = "; use from_iterable" if hasattr(publisher, "__iter__") else ""
        raise TypeError(
            f"{what} must have a method subscribe(subscriber), got {type(publisher).__name__}{hint}"
        )


def subscribe(publisher: Publisher[Any], subscriber: Subscriber[Any]) -> None:
    """Subscribe to ``publisher``. Signal an exception of ``subscribe`` by ``on_error`` (§1.9)."""
    try:
        publisher.subscribe(subscriber)
    except RecursionError:  # a RecursionError: only a caller with more stack can handle it
        raise
    except Exception as raised:
        if hasattr(type(publisher), "pipe") and isinstance(raised, AttributeError):
            raised.add_note("rstreams_fast: interop.reactivex.from_observable is for observables")
        subscriber.on_error(raised)


class _End(Subscriber[Any], Protocol):
    """The subscriber of an end of a stream, such as ``for_each``."""

    def fail(self, error: BaseException) -> None:
        """Cancel upstream, and end with ``error``."""


def subscribe_end(publisher: Publisher[Any], subscriber: _End) -> None:
    """Subscribe to ``publisher``. An exception of ``subscribe`` ends the stream (§1.9).

    Exceptions such as ``KeyboardInterrupt`` propagate, but an asyncio ``CancelledError`` does not:
    ``subscribe`` awaits nothing, so it comes from a function of the stream, not from a cancel.
    """
    try:
        subscribe(publisher, subscriber)
    except BaseException as raised:
        if not is_async_cancellation(raised):
            raise
        subscriber.fail(not_a_cancellation(raised, "the stream"))


def failure_of(error: BaseException) -> Failure:
    """Return ``error`` with its traceback, which a later ``raise`` of ``error`` would change."""
    return error, error.__traceback__


def raise_failure(failure: Failure | None) -> None:
    """Raise a stream's error, with the traceback that the error had when it was signalled."""
    if failure is not None:
        try:
            raise failure[0].with_traceback(failure[1])
        finally:
            del failure  # without this line, the error's traceback keeps the error alive (§3.13)


def check_process(pid: int) -> None:
    """Raise a ``RuntimeError`` if this is a forked child of the process ``pid``.

    The child must not wait for a stream that the parent runs.
    """
    if pid != process_id():
        raise RuntimeError(
            "the process was forked: the streams that ran before live on in the parent only"
        )


def is_async_cancellation(error: BaseException) -> bool:
    """Return whether ``error`` is an ``asyncio.CancelledError``, which is not an ``Exception``."""
    kind = getattr(sys.modules.get("asyncio.exceptions"), "CancelledError", None)
    return kind is not None and isinstance(error, kind)


def not_a_cancellation(error: BaseException, who: str) -> BaseException:
    """Return ``error``, or another exception if ``error`` is an asyncio ``CancelledError``.

    A ``CancelledError`` of the user's function would end the awaiting task silently, as if that
    task had been cancelled. ``who`` names the function in the message of the new exception.
    """
    if not is_async_cancellation(error):
        return error
    replacement: Exception
    if is_exiting():
        replacement = WorkDroppedError(f"{who} was cancelled, as the interpreter exits")
    else:
        replacement = RuntimeError(
            f"{who} raised asyncio.CancelledError, but nobody cancelled the stream: perhaps its "
            "loop ends, as at the end of asyncio.run"
        )
    replacement.__cause__ = error
    return replacement
