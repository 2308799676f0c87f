"""Has this process be as one that has just started: without journals, and without caches.

What it changes besides, no user can: how many answers a segment has, how long a thread idles.
"""

from __future__ import annotations

import pytest

from rstreams_fast.calls.journal import answers, functions, writer
from rstreams_fast.calls.limits import leases
from rstreams_fast.calls.memory import cache, stores


def forget_journals() -> None:
    """Have this process know no journal, as a new one does."""
    functions._close_all()
    functions._known.clear()
    answers._known.clear()


def forget_caches() -> None:
    """Have this process know no cache, as a new one does."""
    for store in cache._stores.values():
        if isinstance(store, stores.HostStore):
            store._env.close()
    cache._stores.clear()


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have segments of few answers, which are opened again and again."""
    for module, name, value in (
        (writer, "SEGMENT_ROWS", 16),
        (answers, "READ_BYTES", 1),
        (answers, "OPEN_SEGMENTS", 1),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def impatient_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the thread that writes a function's journal end as soon as it has nothing to do."""
    monkeypatch.setattr(functions, "IDLE_SECONDS", 0.01)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what a broken connection had come back never, or as good as."""
    monkeypatch.setattr(leases, "BREAK_SECONDS", 3600)
