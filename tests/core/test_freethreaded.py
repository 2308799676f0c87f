"""What threads that run Python at the same time do to the core: nothing is lost, nothing breaks.

On an interpreter with a GIL these tests find little; ``make freethreaded`` runs them without.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rstreams_fast.core
from tests.core.conftest import HAS_GIL
from tests.helpers import DEADLINE, run_python, run_threads
from tests.rules.probes import Plain

ROUNDS = 100 if HAS_GIL else 1000  # with a GIL each round may take a switch of threads
LONG = 100.0  # seconds, for a busy machine, on which each switch may take its time


@pytest.mark.skipif(HAS_GIL, reason="this interpreter has a GIL")
@pytest.mark.parametrize(
    "module",
    [p.stem for p in sorted(Path(rstreams_fast.core.__file__).parent.glob("_cython/*.pyx"))],
)
def test_no_compiled_module_turns_the_gil_on(module: str) -> None:
    name = f"rstreams_fast.core._cython.{module}"
    program = f"import sys, {name}; print({name}.__file__); print(sys._is_gil_enabled())"
    file, enabled = run_python("-W", "error", "-c", program).stdout.split()
    assert enabled == "False"
    assert not file.endswith((".py", ".pyx"))


def test_an_armed_waker_survives_others_that_disarm_a_coroutine_s(core: Any) -> None:
    """``disarm`` by anybody leaves alone what ``aget`` waits with."""
    ring = core.SpscRing(4)
    over = threading.Event()

    def disarm() -> None:
        while not over.is_set():
            ring.disarm()

    def produce() -> None:
        for i in range(1, ROUNDS + 1):
            ring.put(i, DEADLINE)

    async def all_of_them() -> None:
        for i in range(1, ROUNDS + 1):
            assert await asyncio.wait_for(ring.aget(), DEADLINE) == i

    def consume() -> None:
        try:
            asyncio.run(all_of_them())
        finally:
            over.set()

    run_threads([produce, consume, disarm], timeout=LONG)


@pytest.mark.parametrize("kind", ["SpscRing", "RecordRing"])
def test_a_size_seen_by_a_third_thread_is_within_the_bounds(core: Any, kind: str) -> None:
    put: Callable[[], object]
    if kind == "SpscRing":
        ring = core.SpscRing(4)
        put, take = partial(ring.offer_many, [0, 0, 0]), ring.poll_many
    else:
        ring = core.RecordRing("i8", 4)
        put, take = partial(ring.write, np.zeros(3, "i8")), ring.read
    over = threading.Event()

    def work() -> None:
        try:
            for _ in range(10 * ROUNDS):
                put()
                take(4)
        finally:
            over.set()

    def look() -> None:
        while not over.is_set():
            assert 0 <= len(ring) <= 4  # a negative one is a ValueError of len

    run_threads([work, look, look], timeout=LONG)


def test_a_list_that_changes_while_it_is_put_in_is_put_in_as_it_was(core: Any) -> None:
    """What goes in is whole: no element that was never in the list, none freed already."""
    ring = core.SpscRing(64)
    over = threading.Event()
    elements: list[Any] = []

    def change() -> None:
        n = 0
        while not over.is_set():
            n += 1
            elements.append(str(n))
            if len(elements) > 40:
                elements.clear()

    def put() -> None:
        try:
            last = 0
            for _ in range(ROUNDS):
                taken = ring.offer_many(elements)
                came = [int(x) for x in ring.poll_many(64)]
                assert len(came) == taken
                assert came == list(range(came[0], came[0] + taken)) if came else True
                assert not came or came[-1] >= last
                last = came[-1] if came else last
        finally:
            over.set()

    run_threads([change, put], timeout=LONG)


async def test_results_taken_by_two_threads_are_taken_once(core: Any) -> None:
    """It is wrong to take from another thread than the loop's, and it must be harmless."""
    if not core.__name__.endswith("_cython"):
        pytest.skip("its window is written in Python: a wrong call breaks nothing but itself")

    async def fn(item: int) -> object:
        return [item]

    loop = asyncio.get_running_loop()
    window = core.CallWindow(
        fn, loop=loop, on_ready=lambda: None, concurrency=64, capacity=64, ordered=False
    )
    got: list[list[Any]] = [[], []]
    over = threading.Event()

    def take(into: list[Any]) -> None:
        while not over.is_set():
            into.extend(window.take(8))

    threads = [threading.Thread(target=take, args=(into,)) for into in got]
    for thread in threads:
        thread.start()
    submitted = loop.create_future()

    def submit() -> None:
        for _ in range(200):
            window.submit_many(list(range(8)))
        submitted.set_result(None)

    loop.call_soon(submit)
    try:
        await asyncio.wait_for(submitted, DEADLINE)
    finally:
        over.set()
        for thread in threads:
            thread.join(DEADLINE)
    taken = [*got[0], *got[1], *window.take(64)]
    assert len({id(x) for x in taken}) == len(taken)  # no reference was given away twice


def test_a_mailbox_that_fills_while_its_holder_looks_makes_it_wait(core: Any) -> None:
    """Who delivers may find that others have filled the mailbox just before its own element."""
    for _ in range(ROUNDS // 10):
        elements: list[tuple[int, int]] = []
        subscriber = Plain(elements.append)
        serializer = core.SignalSerializer(subscriber, capacity=1, on_full="wait")

        def signal(thread: int, serializer: Any = serializer) -> None:
            for n in range(300):
                serializer.on_next((thread, n))

        run_threads([partial(signal, thread) for thread in range(3)], timeout=LONG)
        assert subscriber.error is None
        assert sorted(elements) == [(t, n) for t in range(3) for n in range(300)]
