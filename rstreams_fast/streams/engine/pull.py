"""A publisher that iterates a source, and passes the elements through fused stages."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from rstreams_fast.api import Subscriber
from rstreams_fast.core import MISSING, FusedRun, RunStatus
from rstreams_fast.runtime.executors import describe_executor, resource
from rstreams_fast.streams.engine.drain import Drain
from rstreams_fast.streams.engine.pull_source import PullSource, at_end, close_source
from rstreams_fast.streams.engine.stages import Stages

__all__ = ["PullSegment"]


class PullSegment:
    """Iterates ``source``, and publishes the results of the stages in ``program``.

    All work is done on ``executor``. If ``executor`` is ``...`` (Ellipsis), the publisher works on
    the thread that calls ``request`` or ``subscribe`` (§3.10, §3.11).
    """

    def __init__(self, source: PullSource, program: Stages, executor: Any = ...) -> None:
        self._source = source
        self._program = program
        self._executor = executor

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        _PullSubscription(subscriber, self._source, self._program, self._executor)._begin()

    def sequence(self) -> tuple[PullSource, Stages] | None:
        """Return the source and the stages, for a subscriber that iterates the source itself.

        Return ``None`` if the subscriber must subscribe: the source is not a sequence (such as a
        list), there is an executor, or the first result is the initial value (seed) of ``scan``.
        """
        ours = self._executor is ... and self._source.is_sequence
        return (self._source, self._program) if ours and self._program.seed is MISSING else None

    @property
    def where(self) -> str:
        """A text that names the executor, or the threads, that iterate the source."""
        if self._executor is ...:
            return "the caller of request and subscribe"
        return describe_executor(self._executor)


class _PullSubscription(Drain):
    __slots__ = ("_ended", "_is_sequence", "_iterator", "_program", "_seed", "_source")

    def __init__(
        self, subscriber: Subscriber[Any], source: PullSource, program: Stages, executor: Any
    ) -> None:
        super().__init__(subscriber, None if executor is ... else resource(executor))
        self._source: PullSource | None = source
        self._program = program
        self._iterator: Iterator[Any] | None = None
        self._ended = False
        self._seed = program.seed is not MISSING
        self._is_sequence = source.is_sequence

    @property
    def works_in_request(self) -> bool:
        """Whether ``request`` can take long, because it makes the elements before it returns.

        False if an executor does the work. Also false for a sequence (such as a list) without
        stages, because its iteration is quick.
        """
        slow = bool(self._program.stages) or not self._is_sequence
        return slow and super().works_in_request

    def _open(self, source: PullSource) -> bool:
        """Open ``source``, and store its iterator. Return false if the source raised an error."""
        if self._program.takes_nothing:
            self._iterator = iter(())
            return True
        try:
            self._iterator = source.open()
        except Exception as raised:
            self._fail(raised)
            return False
        return True

    def _make_run(self) -> FusedRun | None:
        subscriber, iterator = self._subscriber, self._iterator
        if subscriber is None or iterator is None:
            return None
        program = self._program
        slot = self._slot_by_bursts(subscriber, waits=not self._is_sequence)
        if self._seed:
            iterator = chain((program.seed,), iterator)
        stages = program.stages
        if self.custody is not None:
            stages = self.custody.wrap_stages(stages, enters=True)
        self._run = run = FusedRun(iterator, stages, slot, self._demand)
        return run

    def _work(self) -> bool:
        demand = self._demand.value
        if demand < 0:
            return self._act_on_end()
        run = self._run
        if run is None:
            source, self._source = self._source, None
            if source is not None and not self._open(source):
                return self._act_on_end()
            if demand == 0 and not self._is_over():
                return False  # make no FusedRun yet: many subscribers never request an element
            run = self._make_run()
            if run is None:
                return self._act_on_end()
        if self._ended:
            return self._finish_run(run)
        status = self._burst_on(run)
        if status is RunStatus.MORE:
            return True
        if status is RunStatus.IDLE:
            return self._is_over() and self._finish_run(run)
        if status is RunStatus.EXHAUSTED or status is RunStatus.ENDED:
            self._ended = True
            self._close()
            return self._finish_run(run)
        return self._end_with_status(status, run)

    def _is_over(self) -> bool:
        """Return whether the source has no more elements, so that the stream can complete now.

        Completion needs no demand (§1.2). If the iterator raises, the stream fails.
        """
        iterator, run = self._iterator, self._run
        if iterator is None:
            return False
        if self._seed and not self._program.takes_nothing and (run is None or run.pulled == 0):
            return False  # the first result, the initial value of ``scan``, was not delivered yet
        try:
            self._ended = at_end(iterator)
        except Exception as raised:
            self._fail(raised)
            return self._act_on_end()
        return self._ended

    def _close(self) -> None:
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            close_source(iterator)

    def _drop_references(self) -> None:
        self._source = None
        self._program = Stages()
        self._close()
