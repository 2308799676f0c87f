"""Ctrl-C while a thread is being started: it runs already, and its starter does not know."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from rstreams_fast.runtime.executors import Resource, Worker
from rstreams_fast.runtime.loops import LoopThread
from tests.helpers import DEADLINE


@pytest.mark.parametrize("make", [Worker, LoopThread])
def test_a_thread_whose_start_is_interrupted_ends(
    make: Callable[[str], Resource], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    held = make("interrupted")
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        held.execute(lambda: None, lambda _error: None)
    (thread,) = started
    thread.join(DEADLINE)
    assert not thread.is_alive()
