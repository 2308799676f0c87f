"""The stages' metrics over time: samples for a bar and a picture, and stalls."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rstreams_fast.spark.metrics import Metrics, StageMetrics

__all__ = ["STALL_SECONDS", "Sample", "Stall", "Watch"]

STALL_SECONDS: Final = 2.0
"""A stage that has calls running, none of which finishes for so long, is reported as stalled."""

RATE_SECONDS: Final = 2.0
"""The rate shown is the mean over so long."""


@dataclass(frozen=True)
class Sample:
    """The metrics of the stages at one moment; several tasks are summed up.

    Attributes:
        seconds: Seconds since the first look.
        rows: Rows that have left the last stage.
        calls: Calls begun, by stage.
        running: Calls in flight, by stage.
        buffered: Bytes held, by stage.
    """

    seconds: float
    rows: int
    calls: dict[str, int]
    running: dict[str, int]
    buffered: dict[str, int]


@dataclass(frozen=True)
class Stall:
    """A stage whose calls are not answered.

    Attributes:
        stage: The name of the stage.
        seconds: Seconds without an answer.
        running: Calls that wait.
    """

    stage: str
    seconds: float
    running: int


class Watch:
    """Looks at the metrics of stages, and keeps every sample.

    For one thread. At four samples a second a job of an hour has some 14 000.

    Args:
        metrics: The ``Metrics`` that the stages were given.
        stages: The names of the stages, in the order in which a row passes them. Default: all, in
            the order of their start.
        clock: Gives the time, in seconds.

    Attributes:
        samples: The samples so far.
        stalls: The stalls of the latest look.
    """

    def __init__(
        self,
        metrics: Metrics,
        stages: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._stages = tuple(stages)
        self._begin: float | None = None
        self._progress: dict[str, tuple[tuple[int, int, int], float]] = {}
        self.samples: list[Sample] = []
        self.stalls: list[Stall] = []
        """The stalls of the latest look."""

    def look(self) -> Sample:
        """Read the metrics now."""
        if self._begin is None:
            self._begin = self._clock()
        now = self._clock() - self._begin
        found = self._metrics.by_stage()
        totals = {stage: found.get(stage, StageMetrics()) for stage in self._stages or found}
        sample = Sample(
            seconds=now,
            rows=list(totals.values())[-1].rows_out if totals else 0,
            calls={stage: total.calls for stage, total in totals.items()},
            running={stage: total.running for stage, total in totals.items()},
            buffered={stage: total.buffered_bytes for stage, total in totals.items()},
        )
        self.samples.append(sample)
        self.stalls = [
            stall for stage, total in totals.items() if (stall := self._stalled(stage, total, now))
        ]
        return sample

    def _stalled(self, stage: str, total: StageMetrics, now: float) -> Stall | None:
        # A call that begins or ends changes one of these, unless one begins for each that ends:
        # then more have begun.
        progress = (total.calls, total.running, total.rows_out)
        before, since = self._progress.get(stage, (None, now))
        if progress != before or not total.running:
            self._progress[stage] = (progress, now)
            return None
        if now - since < STALL_SECONDS:
            return None
        return Stall(stage, now - since, total.running)

    def rate(self) -> float:
        """Rows per second of late."""
        if not self.samples:
            return 0.0
        latest = self.samples[-1]
        first = latest
        for sample in reversed(self.samples):
            first = sample
            if latest.seconds - sample.seconds >= RATE_SECONDS:
                break
        elapsed = latest.seconds - first.seconds
        return (latest.rows - first.rows) / elapsed if elapsed > 0 else 0.0
