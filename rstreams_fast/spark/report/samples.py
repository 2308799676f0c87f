"""Samples the metrics of stages over time, for progress bars and charts. Finds stalled stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rstreams_fast.spark.metrics import Metrics, StageMetrics
from rstreams_fast.spark.report.waits import Stall, TaskTime

__all__ = ["STALL_SECONDS", "Sample", "Watch", "rates"]

STALL_SECONDS: Final = 2.0
"""A stage is stalled if it has running calls and none of them ends during this time. Calls that
wait for a limit, or before their next attempt, do not count."""

LAG_SECONDS: Final = 0.5
"""The maximum age of the waiting times in the metrics: workers write them a few times a second."""

RATE_SECONDS: Final = 2.0
"""``Watch.rate`` is the mean rate over this number of seconds."""

ADVICE_SECONDS: Final = 10.0
"""The advice about a running job uses only the metrics of the last ``ADVICE_SECONDS``."""

MOST_SAMPLES: Final = 2_400
"""The maximum number of samples. If there are more, every second sample is dropped. With four
samples a second this happens after ten minutes."""


@dataclass(frozen=True)
class Sample:
    """The metrics of all stages at one moment. Each value is the sum over all tasks of a stage.

    Attributes:
        seconds: Seconds since the first sample.
        rows: Rows that the last stage has passed on. If no task was running at the first sample,
            the rows until then belong to earlier actions, and are not included.
        calls: Calls begun, by stage.
        running: Calls in flight, by stage.
        buffered: Bytes of input in memory, by stage.
        most_running: The bound on calls in flight, by stage: the sum over the running tasks.
        failures: Calls that failed after all their attempts, by stage.
        times: How the tasks have spent their seconds so far, by stage.
    """

    seconds: float
    rows: int
    calls: dict[str, int]
    running: dict[str, int]
    buffered: dict[str, int]
    most_running: dict[str, int]
    failures: dict[str, int]
    times: dict[str, TaskTime]


class Watch:
    """Samples the metrics of stages at each call of ``look``, and keeps at most 2 400 samples.

    If there are more samples, every second sample is dropped. Only one thread may call ``look``.

    Args:
        metrics: The ``Metrics`` that the stages were given.
        stages: The names of the stages, in the order in which a row passes them. Default: all
            stages, in the order of their start.
        clock: Returns the time, in seconds.

    Attributes:
        samples: The samples so far.
        stalls: The stages that were stalled at the latest sample.
        stages: The metrics at the latest sample, by stage.
        url: The address of the live page; empty if there is no live page.
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
        self._rows_before = 0
        self._progress: dict[str, tuple[tuple[int, ...], float, float]] = {}
        self._in_flight: dict[str, float] = {}
        self.samples: list[Sample] = []
        self.stalls: list[Stall] = []
        self.stages: dict[str, StageMetrics] = {}
        self.url = ""

    def look(self) -> Sample:
        """Read the metrics now. Keep them as a new sample, and return this sample."""
        is_first = self._begin is None
        if self._begin is None:
            self._begin = self._clock()
        now = self._clock() - self._begin
        found = self._metrics.by_stage()
        totals = {
            stage: found.get(stage, StageMetrics(state="unknown"))
            for stage in self._stages or found
        }
        rows = list(totals.values())[-1].rows_out if totals else 0
        if is_first and not any(total.partitions_running for total in totals.values()):
            self._rows_before = rows
        sample = Sample(
            seconds=now,
            rows=max(0, rows - self._rows_before),
            calls={stage: total.calls for stage, total in totals.items()},
            running={stage: total.running for stage, total in totals.items()},
            buffered={stage: total.buffered_bytes for stage, total in totals.items()},
            most_running={
                stage: total.concurrency * total.partitions_running
                for stage, total in totals.items()
            },
            failures={stage: total.failures for stage, total in totals.items()},
            times=self._times(totals, now),
        )
        # Set ``stages`` before adding the sample: another thread that reads the sample looks up its
        # stages there.
        self.stages = totals
        self.samples.append(sample)
        if len(self.samples) > MOST_SAMPLES:
            self.samples = self.samples[::2]  # a new list: other threads iterate the old
        self.stalls = [
            stall for stage, total in totals.items() if (stall := self._stalled(stage, total, now))
        ]
        return sample

    def _times(self, totals: Mapping[str, StageMetrics], now: float) -> dict[str, TaskTime]:
        elapsed = now - self.samples[-1].seconds if self.samples else 0.0
        for stage, total in totals.items():
            self._in_flight[stage] = self._in_flight.get(stage, 0.0) + total.running * elapsed
        return {
            stage: TaskTime.of(total, self._in_flight[stage]) for stage, total in totals.items()
        }

    def times_of_late(self) -> dict[str, TaskTime]:
        """Return how the tasks have spent the last ten seconds, by stage.

        If no task has worked in these seconds, the result covers the whole job. Any thread may call
        this method.
        """
        samples = self.samples
        if not samples:
            return {}
        latest = samples[-1]
        first = next(s for s in samples if s.seconds >= latest.seconds - ADVICE_SECONDS)
        recent = {
            stage: time.since(first.times.get(stage, TaskTime()))
            for stage, time in latest.times.items()
        }
        return recent if any(time.seconds for time in recent.values()) else latest.times

    def _stalled(self, stage: str, total: StageMetrics, now: float) -> Stall | None:
        # Any progress changes this tuple. If one call begins when another ends, ``running`` stays
        # the same, but ``attempts`` grows.
        progress = (total.attempts, total.calls, total.running, total.rows_out)
        waited = total.waited_limit + total.waited_service + total.waited_retry
        at_service = self._in_flight[stage] - waited
        before, since, at_service_then = self._progress.get(stage, (None, now, at_service))
        if progress != before or not total.running:
            self._progress[stage] = (progress, now, at_service)
            return None
        # If all calls wait for their limit, or before their next attempt, the stage is not stalled.
        # So require that the calls have also spent enough time at the service.
        least = STALL_SECONDS / 2 + total.running * LAG_SECONDS
        if now - since < STALL_SECONDS or at_service - at_service_then < least:
            return None
        return Stall(stage, now - since, total.running)

    def rate(self) -> float:
        """Return the rows per second of the last stage, over the last ``RATE_SECONDS``."""
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


def rates(samples: Sequence[Sample], counts: Sequence[int]) -> list[float | None]:
    """Return the increase of ``counts`` per second at each sample: the mean over the last second.

    Args:
        samples: Samples of a ``Watch``.
        counts: The count at each sample.
    """
    found: list[float | None] = []
    first = 0
    for index, sample in enumerate(samples):
        while first < index - 1 and sample.seconds - samples[first].seconds > 1:
            first += 1
        elapsed = sample.seconds - samples[first].seconds
        found.append((counts[index] - counts[first]) / elapsed if elapsed > 0 else None)
    return found
