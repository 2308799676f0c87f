"""A lock of the process is free in a forked child. Another process forks: this one has threads."""

from __future__ import annotations

import os

import pytest

from tests.helpers import run_python

FORK = """
import os, threading
from rstreams_fast.runtime.fork_lock import ForkLock

lock, held, over = ForkLock(), threading.Event(), threading.Event()

def hold():
    with lock:
        held.set()
        over.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if not child:
    with lock, lock:
        os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
over.set()
thread.join()
with lock:
    print("free")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_finds_the_lock_free() -> None:
    done = run_python("-W", "ignore", "-c", FORK, timeout=30)
    assert done.stdout.split() == ["7", "free"]
