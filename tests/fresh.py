"""Has this process be as one that has just started, and changes what no user can.

What is imported here is inside the package, and no test needs all of it: so each imports its own.
"""

from __future__ import annotations

import pytest


def forget_journals() -> None:
    """Have this process know no journal, as a new one does."""
    from rstreams_fast.calls.journal import answers, functions

    for each in functions._open_journals.values():
        each.close()
    functions._open_journals.clear()
    answers._answers.clear()


def forget_caches() -> None:
    """Have this process know no cache, as a new one does."""
    from rstreams_fast.calls.memory import cache, stores

    for store in cache._stores._kept.values():
        if isinstance(store, stores.HostStore):
            store.close()
    cache._stores.clear()


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have segments of few answers, which are opened again and again."""
    from rstreams_fast.calls.journal import answers, writer

    for module, name, value in (
        (writer, "SEGMENT_ROWS", 16),
        (answers, "READ_BYTES", 1),
        (answers, "OPEN_SEGMENTS", 1),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def impatient_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the thread that writes a function's journal end as soon as it has nothing to do."""
    from rstreams_fast.calls.journal import functions

    monkeypatch.setattr(functions, "IDLE_SECONDS", 0.01)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have permits of a broken connection come back late, but before a test's deadline.

    A stage that ends while it has no connection cannot give its permits back.
    """
    from rstreams_fast.calls.limits import leases

    monkeypatch.setattr(leases, "BREAK_SECONDS", 10)


@pytest.fixture
def slow_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every source takes longer than a turn for an element."""
    _set_turn(monkeypatch, 0.0)


@pytest.fixture
def fast_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """No source takes longer than a turn, and no burst, however busy the machine is."""
    _set_turn(monkeypatch, 3600.0)


def _set_turn(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    from rstreams_fast.runtime import turns
    from rstreams_fast.streams.engine import defaults, drain, inner_subscriber, upstream

    for module in (defaults, drain, inner_subscriber, turns, upstream):
        monkeypatch.setattr(module, "TURN_SECONDS", seconds)
