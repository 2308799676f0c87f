"""Suite-wide fixtures: no test may leave a thread behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.helpers import DEADLINE


@pytest.fixture
def no_leaked_threads() -> Iterator[None]:
    """Fails the test if a thread it started outlives it."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + DEADLINE
    for thread in set(threading.enumerate()) - before:
        thread.join(max(0.0, deadline - time.monotonic()))
        assert not thread.is_alive(), f"the test left thread {thread.name!r} running"
