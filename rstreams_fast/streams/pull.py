"""A run of stages over an iterator: pulls as much as is asked for, and not more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from rstreams_fast.api import Subscriber
from rstreams_fast.core import MISSING, FusedRun, RunStatus
from rstreams_fast.runtime.executors import describe_executor, resource
from rstreams_fast.streams.drain import Drain, check_subscriber, silent
from rstreams_fast.streams.origins import Origin, close_source, end_detector
from rstreams_fast.streams.program import Program

__all__ = ["PullSegment"]


class PullSegment:
    """Publishes what ``program`` makes of the elements of ``origin``.

    ``executor`` is ``...`` for a synchronous publisher, which works on whoever calls ``request`` or
    ``subscribe`` (§3.10); else all work is done there.
    """

    def __init__(self, origin: Origin, program: Program, executor: Any = ...) -> None:
        self._origin = origin
        self._program = program
        self._executor = executor

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        """Open the origin for ``subscriber``."""
        check_subscriber(subscriber)
        _PullSubscription(subscriber, self._origin, self._program, self._executor).start()

    @property
    def where(self) -> str:
        """On which resource the work is done."""
        if self._executor is ...:
            return "the caller of request and subscribe"
        return describe_executor(self._executor)


class _PullSubscription(Drain):
    __slots__ = ("_at_end", "_ended", "_origin", "_program", "_seed", "_source")

    def __init__(
        self, subscriber: Subscriber[Any], origin: Origin, program: Program, executor: Any
    ) -> None:
        super().__init__(subscriber, None if executor is ... else resource(executor))
        self._origin: Origin | None = origin
        self._program = program
        self._source: Iterator[Any] | None = None
        self._at_end: Callable[[], bool] | None = None
        self._ended = False
        self._seed = program.seed is not MISSING

    def start(self) -> None:
        if self._introduce():
            self._go()

    def _open(self, origin: Origin) -> FusedRun | None:
        """Make the run; ``None`` if the origin failed."""
        program = self._program
        subscriber = self._subscriber
        if program.takes_nothing:
            source: Iterator[Any] = iter(())
        else:
            try:
                source = origin.open()
            except Exception as raised:
                self._fail(raised)
                return None
            self._source = source
            self._at_end = end_detector(source)
        if subscriber is None:
            return None
        slot = self._slot_by_bursts(subscriber)
        if self._seed:
            source = chain((program.seed,), source)
        self._run = run = FusedRun(source, program.stages, slot, self._demand)
        return run

    def _work(self) -> bool:
        if self._demand.value < 0:
            return self._settle()
        run = self._run
        if run is None:
            origin, self._origin = self._origin, None
            run = None if origin is None else self._open(origin)
            if run is None:
                return self._settle()
        if self._ended:
            return self._finish(run)
        status = self._burst_on(run)
        if status is RunStatus.MORE:
            return True
        if status is RunStatus.IDLE:
            return self._is_over(run) and self._finish(run)
        if status is RunStatus.EXHAUSTED or status is RunStatus.ENDED:
            self._ended = True
            self._close()
            return self._finish(run)
        return self._answer(status, run)

    def _is_over(self, run: FusedRun) -> bool:
        """Whether nothing can follow, though nobody asked: completion comes at the earliest
        moment.
        """
        if self._at_end is None or (self._seed and run.pulled == 0):
            return False
        try:
            self._ended = self._at_end()
        except Exception as raised:
            self._fail(raised)
            return self._settle()
        return self._ended

    def _finish(self, run: FusedRun) -> bool:
        status = self._flush(run)
        return False if status is RunStatus.IDLE else self._answer(status, run)

    def _close(self) -> None:
        source, self._source = self._source, None
        self._at_end = None
        if source is not None:
            silent(close_source, source)

    def _let_go(self) -> None:
        self._origin = None
        self._program = Program()
        self._close()
