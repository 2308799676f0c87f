"""Traces of calls: a traced call reports its attempts, its waits and its end. Few are traced."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final, Protocol

from rstreams_fast.calls.outcome import Outcome

__all__ = ["Trace", "Tracer", "current", "note_wait", "sampled", "traced_call", "waited_before"]


class Trace(Protocol):
    """The trace of one call."""

    counts: object
    """The counts of the call. If its function calls another function with a policy, the inner call
    has other counts."""

    def note_failed_attempt(self, error: BaseException, /) -> None:
        """Note that an attempt has failed with ``error``."""

    def note_failure(self, error: BaseException, /) -> None:
        """Note that the call has failed with ``error``, although it returns an ``Outcome``."""

    def note_wait(self, cause: str, seconds: float, /) -> None:
        """Note that the call has waited before an attempt; ``cause`` is ``limit``, for example."""


class Tracer(Protocol):
    """Begins the traces of a run of a stage. One thread at a time may use the object."""

    calls_to_skip: int
    """How many calls come before the next traced one. The code that makes calls counts it down."""

    every: float
    """One of ``every`` calls is traced, on average."""

    def begin(self) -> AbstractContextManager[Trace]:
        """Choose the next call to trace. Return a context manager for this call, and its trace.

        In the block the trace is ``current``. The end of the block ends the trace.
        """


current: Final[ContextVar[Trace | None]] = ContextVar("current_trace", default=None)
"""The trace of the present call."""

waited_before: Final[ContextVar[float]] = ContextVar("waited_before_trace", default=0.0)
"""Seconds that the present call has waited for its limit, before its trace could begin."""


def note_wait(seconds: float) -> None:
    """Note that the present call has waited ``seconds`` for its limit."""
    if (trace := current.get()) is not None:
        trace.note_wait("limit", seconds)
    else:
        waited_before.set(seconds)


def traced_call(fn: Callable[..., Awaitable[Any]], tracer: Tracer) -> Callable[..., Awaitable[Any]]:
    """Return a wrapper of ``fn`` that traces all calls; it does not pass on its first argument."""

    async def call(_: object, *args: Any) -> Any:
        with tracer.begin():
            return await fn(*args)

    return call


def sampled(fn: Callable[..., Awaitable[Any]], tracer: Tracer) -> Callable[..., Awaitable[Any]]:
    """Return a wrapper of ``fn`` through which the ``tracer`` traces some calls."""

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
