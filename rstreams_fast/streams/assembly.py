"""From the description of a stream to the publishers that carry it out.

Stages without a boundary between them become one run. Reading the parts from below tells how many
elements each part can make use of; reading them from above joins them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from rstreams_fast.api import Publisher
from rstreams_fast.core import MISSING
from rstreams_fast.runtime.executors import Trampoline
from rstreams_fast.streams.boundary import Boundary
from rstreams_fast.streams.origins import Origin
from rstreams_fast.streams.peek import Peek
from rstreams_fast.streams.program import EVERYTHING, Need, Program
from rstreams_fast.streams.publish_on import PublishOn, RingSegment
from rstreams_fast.streams.pull import PullSegment
from rstreams_fast.streams.push import PushSegment
from rstreams_fast.streams.stack_break import StackBreak
from rstreams_fast.streams.subscribe_on import SubscribeOn
from rstreams_fast.streams.tuning import STACK_BREAK_EVERY
from rstreams_fast.streams.unbatch import Unbatch, UnbatchSegment

__all__ = ["Foreign", "Part", "Run", "Source", "Stage", "assemble", "needs"]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a fused run, as ``FusedRun`` takes it."""

    op: tuple[Any, ...]


Part = Stage | Boundary


@dataclass(frozen=True, slots=True)
class Foreign:
    """A publisher as a source. ``trusted``: it is ours, and needs no guard against broken rules.
    ``inside``: what it combines, for ``describe``.
    """

    publisher: Publisher[Any]
    name: str
    trusted: bool
    inside: tuple[Publisher[Any], ...] = ()

    def describe(self) -> str:
        """Name the source in one line."""
        return self.name


Source = Origin | Foreign


class Segment(Protocol):
    """A publisher that carries out a run, and says on which threads."""

    @property
    def where(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Run:
    """A run of stages, for ``describe``: what it stands below, what it is made of, where it
    works.
    """

    above: str
    program: Program | None
    where: str


def needs(parts: tuple[Part, ...]) -> list[Need]:
    """For each part: how many elements what is below it can make use of."""
    below: list[Need] = []
    need = EVERYTHING
    for part in reversed(parts):
        below.append(need)
        if isinstance(part, Stage):
            need = need.before(part.op)
        elif not isinstance(part, PublishOn | SubscribeOn | Peek) or not getattr(
            part, "one_to_one", True
        ):
            need = EVERYTHING
    below.reverse()
    return below


class _Joint:
    """What a run under construction stands on."""

    def __init__(self, source: Source) -> None:
        self.source: Source = source
        self.executor: Any = ...
        self.boundary: PublishOn | Unbatch | None = None
        self.need = EVERYTHING
        self.above = source.describe()
        self.stages: list[tuple[Any, ...]] = []
        self.seed: Any = MISSING

    @property
    def pulled(self) -> bool:
        return not isinstance(self.source, Foreign)

    def close(self, runs: list[Run], *, guarded: bool = False) -> Publisher[Any]:
        """Make the publisher of the run. ``guarded``: what follows trusts nobody anyway."""
        program = Program(tuple(self.stages), self.seed)
        source = self.source
        if not isinstance(source, Foreign):
            segment: Any = PullSegment(source, program, self.executor)
        elif isinstance(self.boundary, PublishOn):
            segment = RingSegment(source.publisher, self.boundary, program, self.need)
        elif self.boundary is not None:
            segment = UnbatchSegment(source.publisher, program)
        elif (source.trusted or guarded) and not program.stages:
            runs.append(Run(self.above, None, ""))
            return source.publisher
        else:
            segment = PushSegment(source.publisher, program)
        runs.append(Run(self.above, program, segment.where))
        return segment  # type: ignore[no-any-return]


class _Stack:
    """Counts publishers that stand on each other, and breaks the stack of their calls."""

    def __init__(self, runs: list[Run]) -> None:
        self._runs = runs
        self._height = 0
        self._trampoline: Trampoline | None = None

    def add(self, publisher: Publisher[Any]) -> Publisher[Any]:
        """Return ``publisher``, or, if it is one too many, a break above it."""
        self._height += 1
        if self._height % STACK_BREAK_EVERY:
            return publisher
        if self._trampoline is None:
            self._trampoline = Trampoline()
        self._runs.append(Run(StackBreak.describe(), None, ""))
        return StackBreak(publisher, self._trampoline)


def assemble(source: Source, parts: tuple[Part, ...]) -> tuple[Publisher[Any], list[Run]]:
    """Return the publisher for ``parts`` above ``source``, and the runs it is made of."""
    runs: list[Run] = []
    stack = _Stack(runs)
    joint = _Joint(source)
    for part, need in zip(parts, needs(parts), strict=True):
        if isinstance(part, Stage):
            op = part.op
            if op[0] == "scan" and op[2] is not MISSING:
                # The seed comes out first: it goes in before all elements, to an unseeded scan.
                if joint.stages or joint.boundary is not None or joint.seed is not MISSING:
                    upstream = stack.add(joint.close(runs))
                    joint = _Joint(Foreign(upstream, "the run above", trusted=True))
                joint.seed = op[2]
                op = ("scan", op[1], MISSING)
            joint.stages.append(op)
        elif isinstance(part, SubscribeOn) and joint.pulled and joint.executor is ...:
            joint.executor = part.executor
        elif isinstance(part, PublishOn | Unbatch):
            upstream = stack.add(joint.close(runs, guarded=True))
            joint = _Joint(Foreign(upstream, part.describe(), trusted=True))
            joint.boundary = part
            joint.need = need
            if isinstance(part, PublishOn):
                joint.above = part.describe_within(need)
        else:
            guarded = getattr(part, "guards", False)  # it trusts nobody itself
            upstream = stack.add(joint.close(runs, guarded=guarded))
            joint = _Joint(Foreign(part.attach(upstream), part.describe(), trusted=True))
    return joint.close(runs), runs
