"""Times and traces some calls of a ``CallWindow``, and does not slow down its other calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any, Final

from rstreams_fast.calls.counts import TIMED_EVERY, TIMED_FIRST, CallCounts
from rstreams_fast.calls.traces import Tracer
from rstreams_fast.core import CallWindow

__all__ = ["WindowSamples"]

TRACED_EVERY: Final = 16
"""If more than one of ``TRACED_EVERY`` calls is traced, the ``CallWindow`` makes each call through
the wrapper ``sampled``."""

Call = Callable[..., Awaitable[Any]]


class WindowSamples:
    """Times and traces some of the calls of ``fn`` that a ``CallWindow`` makes.

    The window makes these calls through a wrapper, and all other calls directly. Only the event
    loop's thread may use the object.
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
        """``call_with(function)`` makes the window call ``function`` from now on.

        Without ``counts`` no call is timed. ``traced(timing, *args)`` makes a traced call of
        ``fn``: it wraps the awaitable of the call in ``timing``, to measure the latency.
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
        # With ``_samples_each`` each call comes here. Otherwise, also count the calls that the
        # window has started directly since the last sample, even if they wait for a permit.
        self._tracer.calls_to_skip -= 1 if self._samples_each else started - self._begun
        self._begun = started
        return self._tracer.calls_to_skip < 0

    def sample_next(self) -> None:
        """If the next call is due to be timed or traced, make the window call the wrapper."""
        started, tracer = self._window.started, self._tracer
        if (self._times and started >= max(TIMED_FIRST, self._timed + TIMED_EVERY)) or (
            tracer is not None and started - self._begun >= tracer.calls_to_skip
        ):
            self._call_with(self._sampled)
