"""Helpers for sinks, the subscribers at the end of streams: requests, checks and errors."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Protocol

from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.core import DemandCounter
from rstreams_fast.runtime.at_exit import is_exiting
from rstreams_fast.runtime.executors import WorkDroppedError, process_id
from rstreams_fast.streams.engine.signals import interrupts
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
"""The error of a stream, and the error's traceback at the time of ``on_error``."""


class SerialUpstream(Upstream):
    """An ``Upstream`` for several threads: any thread may request elements, by ``ask``.

    Requests to upstream never overlap or nest (§2.7). While one thread is in ``request``, calls of
    ``ask`` on any thread return immediately. When ``request`` returns, the first thread also
    requests the elements of these calls.
    """

    __slots__ = ("_owed",)

    def __init__(self) -> None:
        super().__init__()
        self._owed = DemandCounter()

    def ask(self, n: int) -> None:
        """Request ``n`` more elements if upstream has not ended.

        If upstream's ``request`` raises an exception, the exception propagates to the caller.
        """
        if self._owed.request(n) != 0:
            return
        try:
            while True:
                n = self._owed.value
                self.request(n)
                # After an unbounded request, no further request to upstream is needed.
                if n >= UNBOUNDED or self._owed.fulfil(n) == 0:
                    return
        except BaseException as raised:
            # ``request`` awaits nothing. So a CancelledError cannot mean that the current task was
            # cancelled: a function of the stream has raised it.
            raise not_a_cancellation(raised, "the stream")  # noqa: B904 - it has a cause


def check_publisher(publisher: object, what: str = "publisher") -> None:
    """Raise a ``TypeError`` if ``publisher`` has no method ``subscribe``.

    ``what`` names the publisher in the error message.
    """
    if not callable(getattr(publisher, "subscribe", None)):
        hint = "; use from_iterable" if hasattr(publisher, "__iter__") else ""
        raise TypeError(
            f"{what} must have a method subscribe(subscriber), got {type(publisher).__name__}{hint}"
        )


def subscribe(publisher: Publisher[Any], subscriber: Subscriber[Any]) -> None:
    """Subscribe to ``publisher``. Signal an exception of ``subscribe`` by ``on_error`` (§1.9).

    The publishers of this package raise nothing of their own, so their exceptions propagate. See
    ``signals.interrupts``.
    """
    try:
        publisher.subscribe(subscriber)
    except Exception as raised:
        if interrupts(raised, type(publisher)):
            raise
        if hasattr(type(publisher), "pipe") and isinstance(raised, AttributeError):
            raised.add_note("rstreams_fast: interop.reactivex.from_observable is for observables")
        subscriber.on_error(raised)


class _End(Subscriber[Any], Protocol):
    """The subscriber at the end of a stream, made by a method such as ``for_each``."""

    def fail(self, error: BaseException) -> None:
        """Cancel upstream, and end the stream with ``error``."""


def subscribe_end(publisher: Publisher[Any], subscriber: _End) -> None:
    """Subscribe to ``publisher``. An ``Exception`` of ``subscribe`` fails the stream (§1.9).

    An asyncio ``CancelledError`` also fails the stream. ``subscribe`` awaits nothing, so no task
    was cancelled here: a function of the stream has raised the ``CancelledError``. A
    ``RecursionError``, and exceptions such as ``KeyboardInterrupt``, propagate to the caller.
    """
    try:
        subscribe(publisher, subscriber)
    except BaseException as raised:
        if not is_async_cancellation(raised):
            raise
        subscriber.fail(not_a_cancellation(raised, "the stream"))


def failure_of(error: BaseException) -> Failure:
    """Return ``error`` with its present traceback. A later ``raise`` would change the traceback."""
    return error, error.__traceback__


def raise_failure(failure: Failure | None) -> None:
    """Raise the error of a stream with its original traceback. Do nothing if there is no error."""
    if failure is not None:
        try:
            raise failure[0].with_traceback(failure[1])
        finally:
            del failure  # avoid a reference cycle: error -> traceback -> frame -> error (§3.13)


def check_process(pid: int) -> None:
    """Raise a ``RuntimeError`` if this process is a forked child of the process ``pid``.

    A child must not wait for a stream that only its parent runs.
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
    """Replace ``error`` by another exception if ``error`` is an asyncio ``CancelledError``.

    Otherwise return ``error``. The reason: the ``CancelledError`` comes from a user's function, but
    would end the awaiting task silently, as if someone had cancelled this task. ``who`` names the
    function in the message of the new exception.
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
