"""What a stream will do, in words: sources, runs and how they execute, boundaries and what they
hold.
"""

from __future__ import annotations

from rstreams_fast.core import MISSING, DemandCounter, FusedRun, backend
from rstreams_fast.streams.assembly import Part, Run, Source, assemble
from rstreams_fast.streams.program import describe_stage

__all__ = ["describe"]


def _ignore(_element: object) -> None:
    """Stand in for the subscriber."""


def _describe_run(run: Run) -> list[str]:
    program = run.program
    if program is None:  # the publisher itself
        return [f"  | {run.above}"]
    stages = [describe_stage(stage) for stage in program.stages]
    if program.seed is not MISSING:
        stages.insert(0, f"seed {program.seed!r}")
    execution = FusedRun(None, program.stages, _ignore, DemandCounter()).execution
    return [
        f"  | {run.above}",
        f"    {' -> '.join(stages) or 'as it is'}",
        f"      one run, {execution} ({backend}), on {run.where}",
    ]


def describe(source: Source, parts: tuple[Part, ...]) -> str:
    """One line for each source or boundary, with its bounds, and two for each run below it."""
    _, runs = assemble(source, parts)
    lines = ["Stream"]
    for run in runs:
        lines += _describe_run(run)
    return "\n".join(lines)
