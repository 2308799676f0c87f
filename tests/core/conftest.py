"""Every test of the core runs on every backend, all in one process."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.helpers import DEADLINE, generated_after

MODULES = {
    "c": "rstreams_fast.core._cython",
    "cffi": "rstreams_fast.core._cffi",
    "python": "rstreams_fast.core._spec",
}
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()
if sys.implementation.name != "cpython":
    del MODULES["c"]
elif FREE_THREADED and sys.version_info < (3, 14):  # cffi cannot do without a GIL before that
    del MODULES["cffi"]
BACKENDS = list(MODULES)
#: The names of the classes that each backend has.
CLASSES = (
    "BurstIterator",
    "CallWindow",
    "DemandCounter",
    "FusedRun",
    "Latch",
    "RecordRing",
    "SignalSerializer",
    "SpscRing",
    "Wip",
)


def load(name: str) -> Any:
    """The backend's module. One that is not built is an error, never a skip."""
    return importlib.import_module(MODULES[name])


@pytest.fixture(autouse=True, scope="module")
def at_once() -> Iterator[None]:
    """Let the drain of a run be generated before its first element, to be tested with few."""
    with generated_after(0):
        yield


@pytest.fixture(params=BACKENDS)
def core(request: pytest.FixtureRequest) -> Any:
    return load(request.param)


def call_once_in_place_of(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, call: Callable[..., Any]
) -> None:
    """Have ``call`` made where cffi's ``module`` next calls the C function ``name``."""
    lib = module.lib

    class Once:
        def __getattr__(self, wanted: str) -> Any:
            if wanted != name:
                return getattr(lib, wanted)
            module.lib = lib
            return call

    monkeypatch.setattr(module, "lib", Once())


#: How often a busy machine may keep an interrupted thread from the processor.
TRIES = 5


@pytest.fixture(params=[DEADLINE, pytest.param(0.1, marks=pytest.mark.slow)], ids=["late", "soon"])
def promptly(request: pytest.FixtureRequest) -> float:
    """Seconds that Ctrl-C may take to come out of a parked call."""
    return float(request.param)


INTERRUPTED = """
import importlib, os, signal, sys, threading, time
{prepare}
def interrupt():
    global at
    wait()
    at = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)
late = 0.0
for call in calls:
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        call()
    except KeyboardInterrupt:
        late = max(late, time.monotonic() - at)
    else:
        raise SystemExit("it was not interrupted")
    thread.join()
{after}
print(late)
"""


def run_interrupted(prepare: str, after: str, promptly: float) -> None:
    """Interrupt each of ``calls`` when ``wait()`` in another thread is over; ``prepare`` has both.

    In a process of its own: the signal goes to its main thread alone. The best of some tries
    counts, as what is measured besides is how busy the machine is.
    """
    late = []
    for _ in range(TRIES):
        done = subprocess.run(
            [sys.executable, "-c", INTERRUPTED.format(prepare=prepare, after=after)],
            capture_output=True,
            text=True,
            timeout=3 * DEADLINE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            check=False,
        )
        assert done.returncode == 0, done.stderr
        late.append(float(done.stdout))
        if late[-1] < promptly:
            return
    raise AssertionError(f"the interrupts took {late} s")
