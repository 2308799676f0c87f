"""A signal handler raises an ``Exception``, as of a job's time limit, at any point of a stream."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rstreams_fast as rsf
from tests.core.test_interrupted import MANY, Interrupt
from tests.helpers import start_thread

# A finalizer, or the function of an observer, may be interrupted, too: this reaches nobody's call.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

EVERY_POINT = (pytest.mark.slow, pytest.mark.timeout(600))

#: The points are in these files; the package's compiled parts have none.
PACKAGE = (str(Path(rsf.__file__).parent),)

FOUR = rsf.range_(4)
PROGRAMS: dict[str, Callable[[], object]] = {
    "name": lambda: FOUR.name("numbers").filter(lambda n: n > 1).to_list(),
    "merge": lambda: rsf.merge(FOUR, FOUR).map(abs).to_list(),
    "zip": lambda: FOUR.zip(FOUR).to_list(),
    "flat_map": lambda: FOUR.flat_map(rsf.range_).to_list(),
    "concat": lambda: rsf.concat(FOUR, FOUR).to_list(),
    # Not at each error: an exception within the source's code counts as the source's.
    "retry": lambda: FOUR.retry(when=lambda error: isinstance(error, OSError)).to_list(),
    "timeout": lambda: FOUR.timeout(9).to_list(),
    "unbatch": lambda: FOUR.batch(2).unbatch().to_list(),
    "share": lambda: FOUR.share().to_list(),
    "window": lambda: FOUR.window(2).flat_map(lambda window: window).to_list(),
    "on_discard": lambda: FOUR.on_discard(id).to_list(),
    "first": lambda: FOUR.name("numbers").first(),
    "iteration": lambda: list(FOUR.name("numbers")),
    "for_each": lambda: FOUR.name("numbers").for_each(id).result(),
}


class TimeLimitError(Exception):
    pass


@pytest.mark.parametrize("step", [29, pytest.param(1, marks=EVERY_POINT)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_end_raises_what_a_signal_handler_raises(program: str, step: int) -> None:
    call = PROGRAMS[program]
    complete = call()

    def interrupted(at: int) -> bool:
        """Whether there was such a point."""
        interrupt = Interrupt(at, PACKAGE, TimeLimitError)
        sys.settrace(interrupt)
        try:
            assert call() == complete
        except TimeLimitError:
            pass
        finally:
            sys.settrace(None)
        return interrupt.left <= 0

    for at in range(1, 10 * MANY, step):
        if not start_thread(lambda at=at: interrupted(at)).result():
            return
    raise AssertionError(f"{program} does not end")
