"""Makes the publishers of a stream from its description: a source and parts.

A part is a *stage* (a function for each element) or a *boundary* (such as ``publish_on``, which
holds elements). Neighbouring stages become one fused *run*. A first pass goes from the last part up
to the source. It finds how many elements each part can use. A second pass goes from the source
down, and makes the publishers.
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
    """A stage, such as ``map``. ``op`` tells ``FusedRun`` its name, argument and seed."""

    op: tuple[Any, ...]


Part = Stage | Boundary


class PublisherSource(NamedTuple):
    """A source that is a publisher, unlike a source that is iterated.

    ``trusted`` says that the publisher is internal, and keeps the rules of Reactive Streams.
    ``inside`` has the publishers that ``publisher`` combines, as ``merge`` does. The text of
    ``Stream.describe()`` shows these publishers.
    """

    publisher: Publisher[Any]
    name: str
    trusted: bool
    inside: tuple[Publisher[Any], ...] = ()

    def describe(self) -> str:
        return self.name


Source = PullSource | PublisherSource


class Run(NamedTuple):
    """The facts that ``describe`` shows about a run (fused stages).

    ``above`` describes the source or boundary above the run. ``program`` has the stages of the run.
    ``where`` names the threads on which the stages work.
    """

    above: str
    program: Stages | None
    where: str


def needs(parts: tuple[Part, ...]) -> list[Need]:
    """Return a ``Need`` for each part: how many elements the parts below that part can use.

    ``parts`` must not be empty.
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
    """Builds a run (fused stages): holds the source of the run, and the stages added so far."""

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
        """Return the publisher of the run, and add the run to ``runs``.

        ``guarded`` says that the part below tolerates a publisher that breaks the rules of Reactive
        Streams. Then a run without stages is left out: its only task is to guard the part below.
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
    """Return the publisher of ``source`` with ``parts`` below it, and all runs of fused stages."""
    runs: list[Run] = []
    builder = _RunBuilder(source)
    fails_without_demand = isinstance(source, PublisherSource) and getattr(
        source.publisher, "fails_without_demand", False
    )
    for part, need in zip(parts, needs(parts) if parts else (), strict=True):
        if isinstance(part, Boundary):
            if fails_without_demand and need.total == UNBOUNDED:
                # The source fails the stream if an element comes without demand. So the boundary
                # must request as many elements as it can hold. With the ``need`` of the parts
                # below, the boundary would request fewer elements.
                need = EVERYTHING
            fails_without_demand = part.fails_without_demand or (
                fails_without_demand and part.one_to_one
            )
        if isinstance(part, Stage):
            op = part.op
            if has_seed(op):
                # Replace ``scan(fn, seed)`` by ``scan(fn)`` in a run whose first element is the
                # seed. The results are the same: ``scan(fn)`` emits its first element unchanged.
                # A run sends its seed to its first stage. So ``scan(fn)`` must begin a run.
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
