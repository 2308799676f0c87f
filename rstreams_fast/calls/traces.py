"""What a traced call tells: its attempts, its waits, its end. Few calls are traced."""

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
    """The counts of the call. An inner function with a policy has other ones."""

    def attempted(self, error: BaseException, /) -> None:
        """Note that an attempt has failed."""

    def failed(self, error: BaseException, /) -> None:
        """Note that the call has failed, though it raises nothing."""

    def waited(self, cause: str, seconds: float, /) -> None:
        """Note a wait between attempts, or before one."""


class Tracer(Protocol):
    """Begins the traces of a run. Only the loop's thread uses it."""

    left: int
    """How many calls come before the next traced one. The maker of the calls counts it down."""

    every: int
    """One of so many calls is traced."""

    def begin(self) -> AbstractContextManager[Trace]:
        """Set ``left``, and return a context manager around a call.

        A trace is ``current`` in its block. The end of the block, or its error, ends the trace.
        """


current: Final[ContextVar[Trace | None]] = ContextVar("current_trace", default=None)
"""The trace of the present call."""

waited_before: Final[ContextVar[float]] = ContextVar("waited_before_trace", default=0.0)
"""Seconds that the present call has waited for its limit, before its trace could begin."""


def note_wait(seconds: float) -> None:
    """Note that the present call has waited for its limit."""
    if (trace := current.get()) is not None:
        trace.waited("limit", seconds)
    else:
        waited_before.set(seconds)


def traced_call(fn: Callable[..., Awaitable[Any]], tracer: Tracer) -> Callable[..., Awaitable[Any]]:
    """Return ``fn``, whose calls are all traced. They get a first argument, which is ignored."""

    async def call(_: object, *args: Any) -> Any:
        with tracer.begin():
            return await fn(*args)

    return call


def sampled(fn: Callable[..., Awaitable[Any]], tracer: Tracer) -> Callable[..., Awaitable[Any]]:
    """Return ``fn``; the ``tracer`` traces some of its calls."""

    async def traced(*args: Any) -> Any:
        with tracer.begin() as trace:
            result = await fn(*args)
            if isinstance(result, Outcome) and result.error is not None:
                trace.failed(result.error)
            return result

    def call(*args: Any) -> Awaitable[Any]:
        tracer.left -= 1
        return fn(*args) if tracer.left >= 0 else traced(*args)

    return call
