"""Every scenario on some chances; and that what a scenario must find is found."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import run_python, wait_for
from tests.soak.consumers import Asking
from tests.soak.driver import WARM_UP, Soak, SoakFailed
from tests.soak.ledger import Element, Ledger, Reader
from tests.soak.leftovers import Memory
from tests.soak.place import Chance, Place
from tests.soak.scenarios import SCENARIOS, Upstream


@pytest.mark.parametrize("chance", range(8))
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_scenario_ends_well(name: str, chance: int) -> None:
    place = Place(Chance(chance))
    try:
        SCENARIOS[name](Chance(f"suite {name} {chance}"), place)
    finally:
        place.close()


# -- planted ---------------------------------------------------------------------------------------

kept: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    yield
    for one in kept:
        if isinstance(one, threading.Event):
            one.set()
        elif isinstance(one, int):
            os.close(one)
    kept.clear()


def _through(change: Any) -> Any:
    """All elements of a stream, changed by ``change``, to a reader."""

    def scenario(chance: Chance, place: Place) -> None:
        ledger, reader = Ledger(), Reader()
        elements = rsf.from_iterable(ledger.source("a", 50)).publish_on(prefetch=8).to_list()
        for element in change(elements):
            reader.see(element)
        reader.check(ledger)

    return scenario


def leaks_a_thread(chance: Chance, place: Place) -> None:
    stop = threading.Event()
    kept.append(stop)
    threading.Thread(target=stop.wait, name="planted", daemon=True).start()


def leaks_a_task(chance: Chance, place: Place) -> None:
    async def start() -> None:
        kept.append(asyncio.ensure_future(asyncio.sleep(60)))

    place.on_loop(start())


def raises_in_a_thread(chance: Chance, place: Place) -> None:
    def fail() -> None:
        raise ValueError("planted")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()


def raises_where_nobody_takes_it(chance: Chance, place: Place) -> None:
    class Raising:
        def __del__(self) -> None:
            raise ValueError("planted")

    Raising()


def forgets_a_source(chance: Chance, place: Place) -> None:
    ledger = Ledger(patience=0.2)
    kept.append(ledger.source("a", 3))
    next(kept[-1])
    ledger.await_closed()


PLANTED = {
    "an element is lost": (_through(lambda xs: xs[:20] + xs[21:]), "came too early"),
    "the last element is lost": (_through(lambda xs: xs[:-1]), "50 were sent, 49 came"),
    "an element is doubled": (_through(lambda xs: [*xs, xs[-1]]), "came again"),
    "elements change places": (_through(lambda xs: [xs[1], xs[0], *xs[2:]]), "came too early"),
    "a thread": (leaks_a_thread, "left behind: thread 'planted'"),
    "an object": (
        lambda *_: kept.append(rsf.range_(3)),
        "1 of rstreams_fast.streams.stream.Stream",
    ),
    "an element": (lambda *_: kept.append(Element("a", 0)), "1 of tests.soak.ledger.Element"),
    "a file": (lambda *_: kept.append(os.open(os.devnull, os.O_RDONLY)), "1 open files"),
    "a task": (leaks_a_task, "tasks are left on the loop"),
    "raised in a thread": (raises_in_a_thread, r"ValueError\('planted'\) left thread"),
    "raised in a finalizer": (raises_where_nobody_takes_it, "raised where nobody could take it"),
    "a source": (forgets_a_source, "1 sources were not closed"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_is_found(what: str) -> None:
    scenario, found = PLANTED[what]
    soak = Soak({"planted": scenario}, "1", patience=0.2)
    with pytest.raises(SoakFailed, match=found) as failed:
        soak.run(20)
    assert "python -m tests.soak --seconds 60 --scenario planted --chance 1." in str(failed.value)


def test_nothing_is_found_where_nothing_is_planted() -> None:
    soak = Soak({"sound": _through(list)}, "1")
    while soak.runs["sound"] <= WARM_UP:
        soak.run(1)


def test_growing_memory_is_found_and_where() -> None:
    def grows(chance: Chance, place: Place) -> None:
        kept.append([float(n) for n in range(500)])  # the planted line

    if not sys.getallocatedblocks():
        pytest.skip("Python's allocator is not in use here, or does not say what it has given out")
    with pytest.raises(SoakFailed, match=r"blocks of memory in use(.|\n)*the planted line"):
        Soak({"grows": grows}, "1", memory=Memory(more_blocks=1000)).run(1)


def test_growing_memory_outside_of_python_is_found() -> None:
    memory = Memory()
    for n in range(30):
        memory.blocks.append(1000 + n % 3)
        memory.pages.append(n << 22)
    assert memory.grown() == ["40 MiB more resident"]


def test_looking_at_memory_uses_none() -> None:
    if not sys.getallocatedblocks():
        pytest.skip("Python's allocator is not in use here, or does not say what it has given out")
    memory = Memory()
    for _ in range(2000):
        memory.sample()
    least = min(memory.blocks[:100])
    assert min(memory.blocks[-100:]) - least < 500


def test_a_subscriber_sees_what_breaks_the_rules() -> None:
    reader = Reader()
    asking = Asking(reader)
    asking.on_subscribe(Upstream())
    asking.request(1)
    asking.on_next(Element("a", 0))
    reader.check()
    asking.on_next(Element("a", 1))
    with pytest.raises(AssertionError, match=r"§1.1"):
        reader.check()

    reader = Reader()
    asking = Asking(reader)
    asking.on_complete()
    asking.on_error(ValueError())
    with pytest.raises(AssertionError, match=r"§1.7"):
        reader.check()

    reader = Reader()
    asking = Asking(reader)
    inside, go_on = threading.Event(), threading.Event()

    def see(_element: Any) -> None:
        inside.set()
        wait_for(go_on)

    reader.see = see  # type: ignore[method-assign, assignment]
    thread = threading.Thread(target=asking.on_next, args=(Element("a", 0),))
    thread.start()
    wait_for(inside)
    asking.on_next(Element("a", 1))
    go_on.set()
    thread.join()
    with pytest.raises(AssertionError, match=r"§1.3"):
        reader.check()
    gc.collect()


HANGS = """
import threading
from tests.soak import driver

driver.LIMIT = 0.2
driver.Soak({"hangs": lambda chance, place: threading.Event().wait()}, "7").run(60)
"""


def test_a_scenario_without_end_is_named_with_all_stacks() -> None:
    process = run_python("-c", HANGS, check=False)
    assert process.returncode == 1
    assert "no end after 0.2 s: hangs, backend" in process.stderr
    assert "chance 7.0" in process.stderr
    assert "in wait" in process.stderr
