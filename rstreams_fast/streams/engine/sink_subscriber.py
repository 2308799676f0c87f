"""Helpers of the subscribers at a stream's end: requests from any thread, checks, and errors."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.core import DemandCounter
from rstreams_fast.runtime.at_exit import exiting
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
]

Failure = tuple[BaseException, TracebackType | None]
"""The error of a stream, and the traceback that it had when it came."""


class SerialUpstream(Upstream):
    """An ``Upstream`` that any thread may ask: its requests never overlap or nest (§2.7).

    A caller that asks while another thread is in ``request`` leaves its number to that thread.
    """

    __slots__ = ("_owed",)

    def __init__(self) -> None:
        super().__init__()
        self._owed = DemandCounter()

    def ask(self, n: int) -> None:
        """Ask for ``n`` more elements, unless upstream is over. Errors of ``request`` propagate."""
        if self._owed.request(n) != 0:
            return
        while True:
            n = self._owed.value
            self.request(n)
            # After an unbounded request no further request is needed.
            if n >= UNBOUNDED or self._owed.fulfil(n) == 0:
                return


def check_publisher(publisher: object, what: str = "publisher") -> None:
    """Raise a ``TypeError`` that names ``what``, if ``publisher`` has no ``subscribe``."""
    if not callable(getattr(publisher, "subscribe", None)):
        hint = "; use from_iterable" if hasattr(publisher, "__iter__") else ""
        raise TypeError(
            f"{what} must have a method subscribe(subscriber), got {type(publisher).__name__}{hint}"
        )


def subscribe(publisher: Publisher[Any], subscriber: Subscriber[Any]) -> None:
    """Subscribe to a publisher that may raise instead of signalling (§1.9)."""
    try:
        publisher.subscribe(subscriber)
    except RecursionError:  # propagates to a caller where the stack has room again
        raise
    except Exception as raised:
        if hasattr(type(publisher), "pipe") and isinstance(raised, AttributeError):
            raised.add_note("rstreams_fast: interop.reactivex.from_observable is for observables")
        subscriber.on_error(raised)


def failure_of(error: BaseException) -> Failure:
    """Note ``error`` and its traceback, before it is raised anywhere else."""
    return error, error.__traceback__


def raise_failure(failure: Failure | None) -> None:
    """Raise a stream's error as itself, each time with the traceback that it came with."""
    if failure is not None:
        try:
            raise failure[0].with_traceback(failure[1])
        finally:
            del failure  # the traceback keeps this frame (§3.13)


def check_process(pid: int) -> None:
    """Refuse to wait, in the child of a fork, for a stream that ran in the process ``pid``."""
    if pid != process_id():
        raise RuntimeError(
            "the process was forked: the streams that ran before live on in the parent only"
        )


def is_async_cancellation(error: BaseException) -> bool:
    """Return whether ``error`` is an ``asyncio.CancelledError``, which is not an ``Exception``."""
    kind = getattr(sys.modules.get("asyncio.exceptions"), "CancelledError", None)
    return kind is not None and isinstance(error, kind)


def not_a_cancellation(error: BaseException, who: str) -> BaseException:
    """Return ``error``, but replace a ``CancelledError`` by another exception.

    If a ``CancelledError`` that a function of the user raised were raised in a task, it would end
    that task silently, as if the task itself had been cancelled.
    """
    if not is_async_cancellation(error):
        return error
    told: Exception
    if exiting():
        told = WorkDroppedError(f"{who} was cancelled, as the interpreter exits")
    else:
        told = RuntimeError(
            f"{who} raised asyncio.CancelledError, but nobody cancelled the stream: perhaps its "
            "loop ends, as at the end of asyncio.run"
        )
    told.__cause__ = error
    return told
