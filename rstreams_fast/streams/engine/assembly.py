"""Makes the publishers of a stream from its description: a source and a list of parts.

A part is a *stage* (a function for each element, as in ``map``) or a *boundary* (an operator that
is not a stage, such as ``publish_on``). Neighbouring stages are fused into one *run*. ``needs``
goes from the last part up to the source, and finds how many elements each part can use.
``assemble`` goes from the source down, and makes the publishers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rstreams_fast.api import UNBOUNDED, Publisher
from rstreams_fast.core import MISSING
from rstreams_fast.streams.engine.boundary import Boundary, StagesBoundary, StagesSource
from rstreams_fast.streams.engine.pull import PullSegment
from rstreams_fast.streams.engine.pull_source import PullSource
from rstreams_fast.streams.engine.push import PushSubscription
from rstreams_fast.streams.engine.stages import EVERYTHING, Need, Stages, has_seed
from rstreams_fast.streams.engine.trampoline import OperatorPublisher

__all__ = ["Part", "PublisherSource", "Run", "Source", "Stage", "assemble", "needs"]


class Stage(NamedTuple):
    """A stage, such as ``map``. ``op`` contains the stage's name, argument and (if any) seed."""

    op: tuple[Any, ...]


Part = Stage | Boundary


class PublisherSource(NamedTuple):
    """A source that is a publisher. (The other kind of source, a ``PullSource``, is iterated.)

    ``trusted`` says that the publisher is internal, and keeps the rules of Reactive Streams. If
    ``publisher`` combines other publishers, as ``merge`` does, ``inside`` contains these
    publishers, and ``Stream.describe()`` shows them.
    """

    publisher: Publisher[Any]
    name: str
    trusted: bool
    inside: tuple[Publisher[Any], ...] = ()

    def describe(self) -> str:
        return self.name


Source = PullSource | PublisherSource


class Run(NamedTuple):
    """What ``describe`` shows about a run (neighbouring stages, fused into one loop).

    ``above`` is a text about the source or boundary directly above the run. ``program`` contains
    the stages. It is ``None`` if no stages follow the source or boundary, and no guard against
    broken rules is needed. ``where`` names the threads on which the stages work.
    """

    above: str
    program: Stages | None
    where: str


def needs(parts: tuple[Part, ...]) -> list[Need]:
    """Return, for each operator in ``parts``, how many of its results downstream can use.

    For example, downstream can use 5 results of ``map`` in ``map(f).take(5)``. ``parts`` are the
    operators of a stream from the source down. ``parts`` must not be empty.
    """
    need = EVERYTHING
    below = [need]
    for part in reversed(parts[1:]):
        if isinstance(part, Stage):
            need = need.before(part.op)
        elif not part.one_to_one:
            need = EVERYTHING
        below.append(need)
    below.reverse()
    return below


class _RunBuilder:
    """Collects the source and the stages of one run (fused stages), and makes its publisher."""

    def __init__(self, source: Source) -> None:
        self.source: Source = source
        self.executor: Any = ...
        self.boundary: StagesBoundary | None = None
        self.need = EVERYTHING
        self.above = source.describe()
        self.stages: list[tuple[Any, ...]] = []
        self.seed: Any = MISSING

    @property
    def pulled(self) -> bool:
        return not isinstance(self.source, PublisherSource)

    def close(self, runs: list[Run], *, guarded: bool = False) -> Publisher[Any]:
        """Return the publisher of this run (a source with its fused stages).

        Append a description of the run to ``runs``. A run without stages is only a guard against a
        source that breaks the rules of Reactive Streams. So for such a run, return the source's own
        publisher if the source is trusted, or if the next operator needs no guard (``guarded``).
        """
        stages = Stages(tuple(self.stages), self.seed)
        source = self.source
        if not isinstance(source, PublisherSource):
            segment: Any = PullSegment(source, stages, self.executor)
        elif self.boundary is not None:
            segment = self.boundary.attach_stages(source.publisher, stages, self.need)
        elif (source.trusted or guarded) and not stages.stages:
            runs.append(Run(self.above, None, ""))
            return source.publisher
        elif isinstance(source.publisher, StagesSource) and self.seed is MISSING:
            segment = source.publisher.with_stages(stages)
        else:
            where = "the threads that upstream signals on"
            segment = OperatorPublisher(source.publisher, PushSubscription, stages, where)
        runs.append(Run(self.above, stages, segment.where))
        return segment  # type: ignore[no-any-return]


def assemble(source: Source, parts: tuple[Part, ...]) -> tuple[Publisher[Any], list[Run]]:
    """Return the publisher of a whole stream, and a list that describes the stream.

    The stream consists of ``source`` and, below the source, ``parts`` (the uppermost part first).
    Each ``Run`` in the list describes neighbouring stages that are fused into one loop.
    """
    runs: list[Run] = []
    builder = _RunBuilder(source)
    fails_without_demand = isinstance(source, PublisherSource) and getattr(
        source.publisher, "fails_without_demand", False
    )
    for part, need in zip(parts, needs(parts) if parts else (), strict=True):
        if isinstance(part, Boundary):
            if fails_without_demand and need.total == UNBOUNDED:
                # The publisher above does not wait for demand, and fails the stream if there is no
                # demand for an element. So this boundary must request as many elements as it can
                # hold, even if the operators downstream can use only a few at a time (``need``).
                need = EVERYTHING
            fails_without_demand = part.fails_without_demand or (
                fails_without_demand and part.one_to_one
            )
        if isinstance(part, Stage):
            op = part.op
            if has_seed(op):
                # Replace ``scan(fn, seed)`` by ``scan(fn)``, which passes its first element on
                # unchanged. The run (the loop of the stages) makes the seed this first element: it
                # sends the seed to its first stage, before the elements of the source. So ``scan``
                # must be the first stage of a run: begin a new run if the current run has stages.
                if builder.stages or builder.boundary is not None or builder.seed is not MISSING:
                    upstream = builder.close(runs)
                    builder = _RunBuilder(PublisherSource(upstream, "the run above", trusted=True))
                builder.seed = op[2]
                op = (*op[:2], MISSING)
            builder.stages.append(op)
        elif builder.pulled and builder.executor is ... and part.resource_above() is not ...:
            builder.executor = part.resource_above()
        else:
            upstream = builder.close(runs, guarded=part.guards)
            if isinstance(part, StagesBoundary):
                builder = _RunBuilder(
                    PublisherSource(upstream, part.describe_within(need), trusted=True)
                )
                builder.boundary = part
                builder.need = need
            else:
                builder = _RunBuilder(
                    PublisherSource(
                        part.attach_within(upstream, need), part.describe(), trusted=True
                    )
                )
    return builder.close(runs), runs
