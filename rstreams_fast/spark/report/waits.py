"""Finds what the tasks of a stage wait for, and gives advice about the main cause of waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from rstreams_fast.calls.counts import total_seconds
from rstreams_fast.spark.stage_metrics import StageMetrics

__all__ = ["CAUSES", "Stall", "TaskTime", "advise"]

CAUSES: Final = {
    "service": "the service",
    "limit": "a limit",
    "retry_after": "Retry-After",
    "retry": "retries",
    "loop": "blocked event loop",
    "worker": "Python code",
    "upstream": "upstream (input)",
    "downstream": "downstream (output)",
}
"""What the tasks of a stage spend time on: the names in the code, and the texts in reports."""

ALL_IN_FLIGHT: Final = 0.8
"""If calls in flight reach this fraction of their bound, ``_remedy`` suggests a higher bound."""


@dataclass(frozen=True)
class Stall:
    """A stage that is stalled: it has running calls, and none of them ends.

    Attributes:
        stage: The name of the stage.
        seconds: For how many seconds no call has ended.
        running: The number of running calls.
    """

    stage: str
    seconds: float
    running: int


@dataclass(frozen=True)
class TaskTime:
    """How the tasks and calls of a stage spent time, until one moment or between two moments.

    A task second is a second of one running task.

    Attributes:
        upstream: Task seconds without input.
        calls: Task seconds in which the stage waited for calls, or worked on their results.
        downstream: Task seconds in which results were ready, and Spark did not take them.
        loop: The part of ``calls`` in which a function blocked the event loop.
        service: Seconds that all attempts took together.
        limit: Seconds that all calls together waited for a ``Limit``.
        retry_after: Seconds that all calls together waited because of ``RetryAfter``.
        retry: Seconds that all calls together waited before a retry.
        circuit: Seconds with an open circuit.
    """

    upstream: float = 0.0
    calls: float = 0.0
    downstream: float = 0.0
    loop: float = 0.0
    service: float = 0.0
    limit: float = 0.0
    retry_after: float = 0.0
    retry: float = 0.0
    circuit: float = 0.0

    @classmethod
    def of(cls, stage: StageMetrics, in_flight: float = 0.0) -> TaskTime:
        """Return the times of a stage from its start until now.

        Args:
            stage: The metrics of the stage.
            in_flight: The seconds that all calls together were in flight, estimated from samples.
                It includes attempts that have not ended, which the latencies in ``stage`` lack.
        """
        waited = stage.waited_limit + stage.waited_service + stage.waited_retry
        return cls(
            upstream=stage.waiting_upstream,
            calls=stage.waiting_function,
            downstream=stage.waiting_downstream,
            loop=min(stage.blocked, stage.waiting_function),
            service=max(total_seconds(stage.latencies), in_flight - waited),
            limit=stage.waited_limit,
            retry_after=stage.waited_service,
            retry=stage.waited_retry,
            circuit=stage.circuit_open,
        )

    def since(self, before: TaskTime) -> TaskTime:
        """Return the times between an earlier moment and this moment.

        Args:
            before: The times until the earlier moment.
        """
        names = [field.name for field in fields(TaskTime)]
        # A sum can decrease, if a new attempt of a task replaces an old attempt in the sum.
        spent = {name: max(0.0, getattr(self, name) - getattr(before, name)) for name in names}
        return TaskTime(**{**spent, "loop": min(spent["loop"], spent["calls"])})

    @property
    def seconds(self) -> float:
        """All task seconds: waiting for input, for calls and for Spark to take the output."""
        return self.upstream + self.calls + self.downstream

    def by_cause(self) -> dict[str, float]:
        """Return how the task seconds are divided among ``CAUSES``.

        Several calls are in flight at once, so the seconds of calls are not task seconds. The task
        seconds with calls in flight are divided in proportion to the call seconds: at the service,
        and waiting for the limit, for ``RetryAfter`` and for retries.
        """
        waits = {
            "service": self.service,
            "limit": self.limit,
            "retry_after": self.retry_after,
            "retry": self.retry,
        }
        in_calls = sum(waits.values())
        left = self.calls - self.loop
        # If all calls together took less time than the task, the rest is Python work of the task.
        waited = min(left, in_calls)
        parts = {
            name: waited * part / in_calls if in_calls else 0.0 for name, part in waits.items()
        }
        return parts | {
            "loop": self.loop,
            "worker": left - waited,
            "upstream": self.upstream,
            "downstream": self.downstream,
        }


def advise(
    stages: Mapping[str, StageMetrics],
    times: Mapping[str, TaskTime] | None = None,
    stalls: Sequence[Stall] = (),
) -> str:
    """Return one line of advice: what the job waits for, and which setting would help.

    Args:
        stages: The metrics of the stages, by the names to show, in the order in which a row passes
            them.
        times: For a running job: its recent task seconds by stage, as ``Watch.times_of_late``
            returns them. Default: the task seconds of the whole job.
        stalls: The stalled stages: they have running calls, none of which ends.
    """
    if stalls:
        worst = max(stalls, key=lambda stall: stall.seconds)
        return (
            f"{worst.stage} has had no answer for {worst.seconds:.0f} s: {worst.running:,} calls "
            "wait for the service. A timeout in its Policy would end them."
        )
    running = bool(times) or any(stage.state == "running" for stage in stages.values())
    judged = times or {name: TaskTime.of(stage) for name, stage in stages.items()}
    found = _find_bottleneck(judged)
    if found is None:
        return "No task has waited so far."
    name, cause, share = found
    stage, time = stages[name], judged[name]
    if time.circuit > time.seconds / 2:
        return (
            f"The circuit of {name} {'is' if running else 'was'} open, and {stage.refused:,} "
            "attempts were refused: the service fails. The types of failures say why."
        )
    waits = "waits" if running else "waited"
    what = _WAIT_PHRASES[cause].format(waits=waits, is_="is" if running else "was")
    return f"{name} {what} for {share:.0%} of its time. {_remedy(cause, stage, time)}"


def _find_bottleneck(times: Mapping[str, TaskTime]) -> tuple[str, str, float] | None:
    """Return what takes most of a stage's time: the stage, the cause, and the fraction.

    A stage in the middle waits for input if the stage before it is slow, and for output if the next
    stage is slow. So waits for input count only for the first stage, and waits for output only for
    the last stage.
    """
    busy = [name for name, time in times.items() if time.seconds > 0]
    candidates = [
        (seconds / times[name].seconds, name, cause)
        for name in busy
        for cause, seconds in times[name].by_cause().items()
        if (cause != "upstream" or name == busy[0]) and (cause != "downstream" or name == busy[-1])
    ]
    if not candidates:
        return None
    share, name, cause = max(candidates)
    return name, cause, share


_WAIT_PHRASES: Final = {
    "service": "{waits} for the service",
    "limit": "{waits} for its limit",
    "retry_after": "{waits} because the service said so (Retry-After)",
    "retry": "{waits} before retries",
    "loop": "{waits} for a function that keeps the event loop",
    "worker": "{is_} busy in Python",
    "upstream": "{waits} for its input",
    "downstream": "{waits} for what takes its output",
}


def _remedy(cause: str, stage: StageMetrics, time: TaskTime) -> str:
    """Return a sentence about the setting to change, so that ``stage`` waits less for ``cause``."""
    if cause == "service":
        at_once = (time.service + time.limit + time.retry_after + time.retry) / time.calls
        if at_once >= ALL_IN_FLIGHT * stage.concurrency:
            return (
                f"All {stage.concurrency:,} calls that a task may make are in flight: a higher "
                "concurrency would help, if the service can take it."
            )
        if stage.max_pending_rows and stage.max_pending >= stage.max_pending_rows:
            return (
                f"{at_once:,.0f} of {stage.concurrency:,} calls are in flight, and finished rows "
                "wait for the slowest call: ordered=False would help."
            )
        return (
            f"{at_once:,.0f} of {stage.concurrency:,} calls are in flight: fewer and larger "
            "partitions would help."
        )
    if cause == "loop":
        place = max(stage.blocked_at, key=stage.blocked_at.__getitem__, default="its code")
        return f"An await at {place} would help, or a plain function, which runs on threads."
    if cause == "retry":
        return f"{stage.retries:,} attempts were made again. The types of failures say why."
    return _REMEDIES[cause]


_REMEDIES: Final = {
    "limit": "A larger Limit (concurrency, rate or units) would help, if the service allows it.",
    "retry_after": "A larger quota at the service would help. A Limit below the quota avoids the "
    "refused attempts.",
    "worker": "More tasks at once (cores) would help, or fewer rows through Python.",
    "upstream": "Spark delivers the rows too slowly: more tasks at once (cores) would help.",
    "downstream": "The next step takes the rows too slowly: more tasks at once (cores) would help.",
}
