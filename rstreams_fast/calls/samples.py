"""Times and traces some calls of a ``CallWindow``; the other calls take no more time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any, Final

from rstreams_fast.calls.counts import TIMED_EVERY, TIMED_FIRST, CallCounts
from rstreams_fast.calls.traces import Tracer
from rstreams_fast.core import CallWindow

__all__ = ["WindowSamples"]

TRACED_EVERY: Final = 16
"""If one of ``TRACED_EVERY`` calls, or more, is traced, the window calls ``sampled`` each time."""

Call = Callable[..., Awaitable[Any]]


class WindowSamples:
    """Times and traces some of the calls of ``fn`` that a ``CallWindow`` makes.

    The window calls ``fn`` itself for all other calls. Only the loop's thread may use the object.
    """

    def __init__(
        self,
        window: CallWindow,
        fn: Call,
        call_with: Callable[[Call], None],
        *,
        counts: CallCounts | None,
        tracer: Tracer | None,
        traced: Call,
    ) -> None:
        """``call_with`` sets the function to call. Without ``counts`` no call is
        timed. ``traced(timing, *args)`` makes a traced call; ``timing`` times an awaitable.
        """
        self._window = window
        self._call_with = call_with
        self._times, self._tracer = counts is not None, tracer
        self._timed = self._begun = 0
        samples_each = self._samples_each = tracer is not None and tracer.every < TRACED_EVERY

        @wraps(fn)
        def sampled(*args: Any) -> Awaitable[Any]:
            started = window.started
            if not (samples_each or (counts is not None and started < TIMED_FIRST)):
                call_with(fn)
            timing: Callable[[Any], Awaitable[Any]] | None = None
            if counts is not None:
                attempts, self._timed = started - self._timed, started
                timing = partial(counts.timing, attempts=attempts)
            if self._is_traced(started):
                return traced(timing, *args)
            return fn(*args) if timing is None else timing(fn(*args))

        self._sampled = sampled
        if self._times or samples_each:
            call_with(sampled)

    def _is_traced(self, started: int) -> bool:
        if self._tracer is None:
            return False
        # Count the calls that the window has started: some of them still wait for the limit.
        self._tracer.calls_to_skip -= 1 if self._samples_each else started - self._begun
        self._begun = started
        return self._tracer.calls_to_skip < 0

    def sample_next(self) -> None:
        """Time or trace the next call, if enough calls were made since the last such call."""
        started, tracer = self._window.started, self._tracer
        if (self._times and started >= max(TIMED_FIRST, self._timed + TIMED_EVERY)) or (
            tracer is not None and started - self._begun >= tracer.calls_to_skip
        ):
            self._call_with(self._sampled)
