"""What a stream will do, in words: sources, runs and how they execute, boundaries and what they
hold.
"""

from __future__ import annotations

from itertools import groupby

from rstreams_fast.core import MISSING, DemandCounter, FusedRun, backend
from rstreams_fast.errors import shown
from rstreams_fast.streams.assembly import Foreign, Part, Run, Source, assemble
from rstreams_fast.streams.program import describe_stage
from rstreams_fast.streams.tuning import DESCRIBED_DEPTH

__all__ = ["describe"]


def _ignore(_element: object) -> None:
    """Stand in for the subscriber."""


def _describe_run(run: Run) -> list[str]:
    program = run.program
    if program is None:  # the publisher itself
        return [f"  | {run.above}"]
    stages = [describe_stage(stage) for stage in program.stages]
    if program.seed is not MISSING:
        stages.insert(0, f"seed {shown(program.seed)}")
    execution = FusedRun(None, program.for_subscriber(), _ignore, DemandCounter()).execution
    return [
        f"  | {run.above}",
        f"    {' -> '.join(stages) or 'as it is'}",
        f"      one run, {execution} ({backend}), on {run.where}",
    ]


def _describe_inside(source: Source, depth: int) -> list[str]:
    """The publishers that ``source`` combines; those in a row that are alike, once."""
    from rstreams_fast.streams.sources import from_publisher

    if not isinstance(source, Foreign) or depth == 0:
        return []
    streams = map(from_publisher, source.inside)
    described = (describe(stream._source, stream._parts, depth - 1) for stream in streams)
    lines = []
    for text, alike in groupby(described):
        count = sum(1 for _ in alike)
        lines += (text if count == 1 else f"{count} times: {text}").splitlines()
    return [f"    {line}" for line in lines]


def describe(source: Source, parts: tuple[Part, ...], depth: int = DESCRIBED_DEPTH) -> str:
    """One line for each source or boundary, with its bounds, and two for each run below it.

    What a source combines follows it, indented, down to ``depth``.
    """
    _, runs = assemble(source, parts)
    lines = ["Stream"]
    for run in runs:
        lines += _describe_run(run)
    lines[2:2] = _describe_inside(source, depth)
    return "\n".join(lines)
