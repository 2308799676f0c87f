"""Traces of some of the calls. A traced call reports its failures and its waits to a ``Trace``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final, Protocol

from rstreams_fast.calls.outcome import Outcome

__all__ = ["Trace", "Tracer", "current", "note_wait", "sampled", "traced_call", "waited_before"]


class Trace(Protocol):
    """The trace of one call. The call reports its failed attempts, its waits and its failure."""

    counts: object
    """The ``CallCounts`` of the traced call. The function of this call may call another function
    with a policy: that inner call has other ``CallCounts``, and does not report to this trace."""

    def note_failed_attempt(self, error: BaseException, /) -> None:
        """Record that an attempt has failed with ``error``."""

    def note_failure(self, error: BaseException, /) -> None:
        """Record that the call has failed with ``error``, even if it returns an ``Outcome``."""

    def note_wait(self, cause: str, seconds: float, /) -> None:
        """Record a wait before an attempt. ``cause``: ``"limit"``, ``"service"`` or ``"retry"``."""


class Tracer(Protocol):
    """Makes the traces of one stage (such as ``rs.lookup``) in one partition.

    Only one thread at a time may use the object.
    """

    calls_to_skip: int
    """The number of calls before the next traced call. The code that makes calls decrements it."""

    every: float
    """On average, one of ``every`` calls is traced."""

    def begin(self) -> AbstractContextManager[Trace]:
        """Return a context manager that traces one call; set ``calls_to_skip`` for the next trace.

        The call must run in the ``with`` block. In the block ``current`` has the trace. The end of
        the block ends the trace.
        """


current: Final[ContextVar[Trace | None]] = ContextVar("current_trace", default=None)
"""The trace of the current call; ``None`` if the call is not traced."""

waited_before: Final[ContextVar[float]] = ContextVar("waited_before_trace", default=0.0)
"""The seconds that the current call waited for a permit of its limit before its trace began."""


def note_wait(seconds: float) -> None:
    """Record that the current call has waited ``seconds`` for a permit of its limit."""
    if (trace := current.get()) is not None:
        trace.note_wait("limit", seconds)
    else:
        waited_before.set(seconds)


def traced_call(fn: Callable[..., Awaitable[Any]], tracer: Tracer) -> Callable[..., Awaitable[Any]]:
    """Return a wrapper of ``fn`` that traces each call, and ignores its first argument (timing)."""

    async def call(_: object, *args: Any) -> Any:
        with tracer.begin():
            return await fn(*args)

    return call


def sampled(fn: Callable[..., Awaitable[Any]], tracer: Tracer) -> Callable[..., Awaitable[Any]]:
    """Return a wrapper of ``fn`` that traces the calls which ``tracer`` chooses."""

    async def traced(*args: Any) -> Any:
        with tracer.begin() as trace:
            result = await fn(*args)
            if isinstance(result, Outcome) and result.error is not None:
                trace.note_failure(result.error)
            return result

    def call(*args: Any) -> Awaitable[Any]:
        tracer.calls_to_skip -= 1
        return fn(*args) if tracer.calls_to_skip >= 0 else traced(*args)

    return call
