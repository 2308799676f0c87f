"""Makes the text of ``Stream.describe()``: the sources, fused runs and boundaries of a stream.

For a fused run, the text names the stages, how they are executed (for example as a loop in C), and
the threads. For a boundary, the text says how many elements the boundary may hold.
"""

from __future__ import annotations

from itertools import groupby

from rstreams_fast._checks import safe_repr
from rstreams_fast.core import MISSING, DemandCounter, FusedRun, backend
from rstreams_fast.streams.engine.assembly import Part, PublisherSource, Run, Source, assemble
from rstreams_fast.streams.engine.defaults import DESCRIBED_DEPTH
from rstreams_fast.streams.engine.pipeline import as_pipeline
from rstreams_fast.streams.engine.stages import describe_stage

__all__ = ["describe"]


def _ignore(_element: object) -> None:
    """Do nothing. ``_describe_run`` makes a loop with this function, only to describe the loop."""


def _describe_run(run: Run) -> list[str]:
    program = run.program
    if program is None:
        return [f"  | {run.above}"]
    stages = [describe_stage(stage) for stage in program.stages]
    if program.seed is not MISSING:
        stages.insert(0, f"seed {safe_repr(program.seed)}")
    execution = FusedRun(None, program.stages, _ignore, DemandCounter()).execution
    return [
        f"  | {run.above}",
        f"    {' -> '.join(stages) or 'as it is'}",
        f"      one run, {execution} ({backend}), on {run.where}",
    ]


def _describe_inside(source: Source, depth: int) -> list[str]:
    """Return the lines that describe the publishers that ``source`` combines.

    If neighbouring publishers have the same text, it appears once, as in ``"3 times: ..."``.
    """
    if not isinstance(source, PublisherSource) or depth == 0:
        return []
    pipelines = map(as_pipeline, source.inside)
    described = (describe(one.source, one.parts, depth - 1) for one in pipelines)
    lines = []
    for text, alike in groupby(described):
        count = sum(1 for _ in alike)
        lines += (text if count == 1 else f"{count} times: {text}").splitlines()
    return [f"    {line}" for line in lines]


def describe(source: Source, parts: tuple[Part, ...], depth: int = DESCRIBED_DEPTH) -> str:
    """Return a text that describes the stream of ``source`` and ``parts``.

    The text has one line for the source, one for each operator that is not fused (with the number
    of elements that it may hold), and two for each run of fused stages. Indented lines describe the
    publishers that the source combines, if any. ``depth`` limits how many levels are shown.
    """
    _, runs = assemble(source, parts)
    lines = ["Stream"]
    for run in runs:
        lines += _describe_run(run)
    lines[2:2] = _describe_inside(source, depth)
    return "\n".join(lines)
