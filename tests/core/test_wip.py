"""The work-in-progress counter and the latch, sentence by sentence."""

from __future__ import annotations

from typing import Any

import pytest

from rstreams_fast.api import UNBOUNDED
from tests.helpers import run_threads


def test_the_first_to_enter_drains_for_those_that_enter_meanwhile(core: Any) -> None:
    wip = core.Wip()
    assert (wip.missed, repr(wip)) == (0, "<Wip 0>")
    assert [wip.enter(), wip.enter(), wip.enter()] == [True, False, False]
    missed = wip.missed
    assert wip.enter() is False
    assert wip.leave(missed) is False  # one has entered since
    assert wip.leave() is True
    assert wip.enter() is True


def test_it_may_be_held_from_the_start(core: Any) -> None:
    wip = core.Wip(True)
    assert wip.enter() is False
    assert wip.leave(2) is True
    with pytest.raises(TypeError, match="held must be a bool"):
        core.Wip(1)


@pytest.mark.parametrize(
    ("missed", "error"),
    [(2, RuntimeError), (UNBOUNDED + 1, RuntimeError), (-1, ValueError), ("1", TypeError)],
)
def test_leaving_for_more_than_have_entered_is_an_error(
    core: Any, missed: Any, error: type[Exception]
) -> None:
    wip = core.Wip(True)
    with pytest.raises(error):
        wip.leave(missed)
    assert wip.missed == 1


def test_no_entry_is_lost_between_threads_and_one_drains_at_a_time(core: Any) -> None:
    wip, news, seen, inside = core.Wip(), list[int](), list[int](), list[int]()

    def work(thread: int) -> None:
        for n in range(2000):
            news.append(thread * 2000 + n)
            if wip.enter():
                while True:
                    missed = wip.missed
                    inside.append(1)
                    assert len(inside) == 1
                    while news:
                        seen.append(news.pop())
                    inside.pop()
                    if wip.leave(missed):
                        break

    run_threads([lambda t=t: work(t) for t in range(3)])
    assert sorted(seen) == list(range(6000))
    assert wip.missed == 0


def test_one_thread_wins_a_latch(core: Any) -> None:
    for _ in range(50):
        latch = core.Latch()
        assert (latch.won, repr(latch)) == (False, "<Latch open>")
        assert run_threads([latch.win] * 3).count(True) == 1
        assert (latch.won, latch.win(), repr(latch)) == (True, False, "<Latch won>")
