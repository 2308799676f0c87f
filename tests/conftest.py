"""What the whole suite shares: the environment Spark runs in, Java's absence, leaked
threads, errors that nobody could take.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib.util
import inspect
import os
import shutil
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterator

import pytest

from tests.fresh import fast_sources, slow_sources
from tests.helpers import DEADLINE, freeze
from tests.spark import jvm

__all__ = ["fast_sources", "slow_sources"]

# Spark's Python workers run the interpreter under test, and nothing listens beyond this machine.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
jvm.use_options()

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


def on_a_loop(test: Callable[..., Coroutine[object, object, None]]) -> Callable[..., None]:
    """A test that is a coroutine runs on a loop of its own."""

    @functools.wraps(test)
    def run(**arguments: object) -> None:
        asyncio.run(test(**arguments))

    return run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = on_a_loop(item.obj)
    reason = why_no_java()
    if reason is None:
        return
    for item in items:
        if item.get_closest_marker("spark") or item.get_closest_marker("java"):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """After a module its tests' reports, and what it imported, are for the next ones to skip."""
    result = yield
    if nextitem is not None and nextitem.path != item.path:
        if not gc.get_freeze_count():
            pytest.exit(f"{item.path} has undone the freeze, for all that follows", returncode=1)
        freeze()
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    """On a free-threaded build nothing may have turned the GIL on meanwhile."""
    if sysconfig.get_config_var("Py_GIL_DISABLED") and getattr(sys, "_is_gil_enabled")():  # noqa: B009
        pytest.exit("something that was imported has turned the GIL on", returncode=1)


@pytest.fixture
def no_leaked_threads() -> Iterator[None]:
    """Fails the test if a thread it started outlives it."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + DEADLINE
    while left := set(threading.enumerate()) - before:
        thread = left.pop()
        assert time.monotonic() < deadline, f"the test left thread {thread.name!r} running"
        try:
            thread.join(max(0.0, deadline - time.monotonic()))
        except RuntimeError:  # it is being started just now, by one that is not over yet
            time.sleep(0.001)


@pytest.fixture
def dropped() -> Iterator[list[BaseException]]:
    """The errors that nobody could take."""
    from rstreams_fast.errors import on_dropped_error

    seen: list[BaseException] = []
    previous = on_dropped_error(seen.append)
    yield seen
    on_dropped_error(previous)


@pytest.fixture
def unraisable() -> Iterator[list[sys.UnraisableHookArgs]]:
    """What was raised where nobody could take it."""
    seen: list[sys.UnraisableHookArgs] = []
    previous, sys.unraisablehook = sys.unraisablehook, seen.append
    yield seen
    sys.unraisablehook = previous


GREENLETS = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}


@pytest.fixture(params=sorted(GREENLETS))
def patch_of_greenlets(request: pytest.FixtureRequest) -> str:
    """The first line of a program whose threads are greenlets."""
    if importlib.util.find_spec(request.param) is None:  # an import would stay in this process
        pytest.skip(f"{request.param} is not installed")
    return GREENLETS[request.param]
