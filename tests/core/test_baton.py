"""Waiting for one's turn: nothing that calls is missed, whether the waiter spins or sleeps."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import pytest

from tests.helpers import start_thread, wait_for

SPINS = (0.0, 20e-6, 0.001)
spins = pytest.mark.parametrize("spin", SPINS)


@spins
@pytest.mark.parametrize("call", ["announce", "give"])
def test_a_call_before_the_wait_is_not_missed(core: Any, spin: float, call: str) -> None:
    baton = core.Baton(spin)
    getattr(baton, call)()
    start_thread(baton.wait).result()


@spins
@pytest.mark.parametrize("call", ["announce", "give"])
def test_a_call_ends_the_wait(core: Any, spin: float, call: str) -> None:
    baton = core.Baton(spin)
    waiting = start_thread(baton.wait)
    waiting.join(3 * spin)
    assert waiting.is_alive()
    getattr(baton, call)()
    waiting.result()


def test_a_wait_forgets_the_calls_before_it(core: Any) -> None:
    baton = core.Baton(20e-6)
    for _ in range(3):
        baton.announce()
        baton.give()
    baton.wait()
    waiting = start_thread(baton.wait)
    waiting.join(0.01)
    assert waiting.is_alive()
    baton.give()
    waiting.result()


@spins
def test_who_waits_gives_first(core: Any, spin: float) -> None:
    first, second = core.Baton(spin), core.Baton(spin)
    woken = threading.Event()

    def be_woken() -> None:
        second.wait()
        woken.set()
        first.give()

    other = start_thread(be_woken)
    start_thread(lambda: first.wait(second)).result()
    wait_for(woken)
    other.result()


@spins
def test_no_call_is_lost(core: Any, spin: float) -> None:
    """Two threads call, in both ways, and a third takes what they left, for as long as it takes."""
    baton = core.Baton(spin)
    left: deque[int] = deque()
    each = 2000
    callers = 2

    def take() -> list[int]:
        taken: list[int] = []
        while len(taken) < each * callers:
            while not left:
                baton.wait()
            taken.append(left.popleft())
        return taken

    def call(which: int) -> None:
        for i in range(each):
            left.append(which * each + i)
            if i % 3:
                baton.announce()
            if i % 3 != 1:
                baton.give()

    taking = start_thread(take)
    threads = [start_thread(lambda which=which: call(which)) for which in range(callers)]  # type: ignore[misc]
    for thread in threads:
        thread.result()
    taken = taking.result()
    assert sorted(taken) == list(range(each * callers))
    for which in range(callers):
        mine = [x for x in taken if x // each == which]
        assert mine == sorted(mine)


@spins
def test_two_that_take_turns(core: Any, spin: float) -> None:
    """Each announces the other's turn, and gives it by waiting for its own next one."""
    batons = core.Baton(spin), core.Baton(spin)
    turns: list[int] = []

    def play(me: int) -> None:
        owed = None
        for turn in range(me, 1000, 2):
            while len(turns) != turn:
                batons[me].wait(owed)
                owed = None
            turns.append(me)
            owed = batons[1 - me]
            owed.announce()
        if owed is not None:
            owed.give()

    for player in [start_thread(lambda me=me: play(me)) for me in (0, 1)]:  # type: ignore[misc]
        player.result()
    assert turns == [0, 1] * 500


@pytest.mark.parametrize("spin", [True, "1", None])
def test_spin_must_be_a_number(core: Any, spin: Any) -> None:
    with pytest.raises(TypeError, match="spin must be a number of seconds"):
        core.Baton(spin)


@pytest.mark.parametrize("spin", [-1e-9, 0.0011, 1, float("nan"), float("inf"), 10**400])
def test_spin_must_be_short(core: Any, spin: Any) -> None:
    with pytest.raises(ValueError, match=r"spin must be 0 to 0\.001 seconds"):
        core.Baton(spin)
