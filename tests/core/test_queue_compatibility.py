"""The queues where the standard library's are used in unusual ways: hooks of an instance, copies,
the interpreter's exit, greenlets in the place of threads.
"""

from __future__ import annotations

import copy
import importlib
import queue as standard
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.core.test_queues import KINDS, MODULES, needs_compiled
from tests.helpers import DEADLINE, run_python

EXIT = """
import builtins, threading, time
from rstreams_fast.queues import Queue
queue = Queue()
class Late:
    def __del__(self):
        for n in range(20000):
            queue.put(n)
            queue.get(timeout=30)
        print("done", flush=True)
def get(depth):
    return get(depth - 1) if depth else queue.get()
threading.stack_size(64 << 20)
for depth in (0, 1, 5):
    threading.Thread(target=get, args=(depth,), daemon=True).start()
while queue._waiting(1) < 3:
    time.sleep(0.001)
builtins.late = Late()
"""
WAIT = """
import sys
from rstreams_fast import SpscRing
{patch}
try:
    SpscRing(1).get(timeout=10)
except RuntimeError as refused:
    print(refused)
try:
    import rstreams_fast.queues
except ImportError as refused:
    print(refused)
"""


@pytest.fixture(params=[*MODULES, "queue"])
def queues(request: pytest.FixtureRequest) -> Any:
    if request.param == "queue":
        return standard
    return importlib.import_module(f"rstreams_fast.core.{request.param}.queues")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hook", ["_put", "_get", "_qsize"])
def test_hooks_of_an_instance_are_called(queues: Any, kind: str, hook: str) -> None:
    q = getattr(queues, kind)()
    q.put(1)
    called = []
    of_the_class = getattr(q, hook)

    def instead(*element: Any) -> Any:
        called.append(element)
        return of_the_class(*element)

    setattr(q, hook, instead)
    q.put(2)
    assert sorted([q.get(), q.get()]) == [1, 2]
    assert called
    delattr(q, hook)
    q.put(3)
    assert q.get() == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_shares_the_elements(queues: Any, kind: str) -> None:
    class Named(getattr(queues, kind)):  # type: ignore[misc]
        name = ""

    q = Named(maxsize=3)
    q.name = "orders"
    q.put(1)
    other = copy.copy(q)
    assert (type(other), other.name, other.maxsize, other.unfinished_tasks) == (
        Named,
        "orders",
        3,
        1,
    )
    other.put(2)
    q.put(0)
    assert q.full()
    assert sorted([q.get(), other.get(), q.get()]) == [0, 1, 2]
    with pytest.raises(TypeError):
        copy.deepcopy(q)


def test_a_simple_queue_has_no_copy(queues: Any) -> None:
    with pytest.raises(TypeError):
        copy.copy(queues.SimpleQueue())


@needs_compiled
def test_a_finalizer_uses_a_queue_after_the_threads_that_waited_are_gone() -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", EXIT],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            text=True,
        )
        for _ in range(4)
    ]
    try:
        ended = [(run.communicate(timeout=3 * DEADLINE)[0], run.returncode) for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert ended == [("done\n", 0)] * 4


@needs_compiled
def test_greenlets_are_told_that_they_cannot_wait_here(
    patch_of_greenlets: str,
) -> None:
    env = {"RSTREAMS_FAST_BACKEND": "c", "PYTHONWARNINGS": "ignore"}
    refused = run_python("-c", WAIT.format(patch=patch_of_greenlets), env=env).stdout.splitlines()
    assert len(refused) == 2
    assert all("would block every greenlet" in sentence for sentence in refused)
    # Another backend has rings for greenlets, but no queues.
    assert ["RSTREAMS_FAST_BACKEND=python" in sentence for sentence in refused] == [True, False]
