"""The table has all that is public."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest

import rstreams_fast as rsf
from rstreams_fast.streams import factories
from tests.helpers import DEADLINE
from tests.operators import ENDS, OPERATORS, SOURCES, USES
from tests.public_names import INTERNAL

FACE = Path(__file__).parents[1] / "typing" / "public_face.py"

#: What neither changes a stream nor ends it.
BESIDE = {"describe", "subscribe"}


def test_every_operator_source_and_end_has_its_entry() -> None:
    """The one test that fails for an operator that is not in the table, or whose type is not
    checked.
    """
    streams = {
        name
        for owner in rsf.Stream.__mro__
        if owner.__module__.startswith("rstreams_fast")
        for name, value in vars(owner).items()
        if inspect.isfunction(value) and name[0] != "_" and name not in BESIDE
    } - INTERNAL["Pipeline"]
    operators = {name for entry in OPERATORS for name in entry.methods}
    ends = {*ENDS, *(f"{name}_async" for name, end in ENDS.items() if end.has_twin)}
    sources = {name for entry in SOURCES for name in entry.functions}
    face = FACE.read_text(encoding="utf-8")
    for name in streams:
        assert name in operators | ends, (
            f"Stream.{name} has no entry: add a class to a file of tests/operators that derives "
            "from Op, or, if it subscribes, a line to ENDS in tests/operators/ends.py"
        )
    public = {name for name in factories.__all__ if name in rsf.__all__}
    for name in public - {f"{name}{end}" for name in operators for end in ("", "_")}:
        assert name in sources, (
            f"rstreams_fast.{name} has no entry: add a class to tests/operators/sources.py that "
            "derives from Source"
        )
    for name in [*(f".{name}(" for name in streams), *(f"rsf.{name}" for name in public)]:
        assert name in face, f"no line of tests/typing/public_face.py has {name}: add one"
    assert (operators | ends) - streams == set(), "an entry is of a method that is not there"
    assert sources - public == set(), "an entry is of a source that is not there"


@pytest.mark.parametrize("name", USES)
def test_an_awaited_stream_may_subscribe_to_it_on_another_thread(name: str) -> None:
    """There it finds the loop on which the stream is awaited, and no loop that runs."""
    use = USES[name][1]
    stream = rsf.defer(lambda: use.same(rsf.range_(3))).subscribe_on()
    got = asyncio.run(asyncio.wait_for(stream.to_list_async(), DEADLINE))
    assert sorted(got) == [0, 1, 2]
