"""What the whole suite shares: the environment Spark runs in, Java's absence, leaked threads."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.helpers import DEADLINE

# Spark's Python workers run the interpreter under test, and nothing listens beyond this machine.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

# A suite started in the background by a shell ignores Ctrl-C, and so would all that it starts; but
# what Ctrl-C does is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def why_no_java() -> str | None:
    """Why tests that need Java cannot run here, or None; `make test` has looked more closely."""
    if sentence := os.environ.get("RSTREAMS_FAST_NO_JAVA"):
        return sentence
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return None
    return (
        "there is no Java on this machine; install one with: apt-get install default-jre-headless"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_no_java()
    if reason is None:
        return
    for item in items:
        if item.get_closest_marker("spark") or item.get_closest_marker("java"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def no_leaked_threads() -> Iterator[None]:
    """Fails the test if a thread it started outlives it."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + DEADLINE
    for thread in set(threading.enumerate()) - before:
        thread.join(max(0.0, deadline - time.monotonic()))
        assert not thread.is_alive(), f"the test left thread {thread.name!r} running"
