"""The ring of objects: bursts, ``None``, destructors, signals, forks; see ``test_rings``, too."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from rstreams_fast.errors import NoneSignalError, RingClosed
from tests.core.conftest import BACKENDS, MODULES, call_once_in_place_of, run_interrupted
from tests.helpers import run_python, start_thread


def test_spec213_none_is_no_element(core: Any) -> None:
    ring = core.SpscRing(3)
    for call in (ring.offer, ring.put, lambda x: ring.offer_many([1, x, 2])):
        with pytest.raises(NoneSignalError, match=r"§2.13"):
            call(None)
    assert len(ring) == 0
    # None beyond what fits is not looked at yet; a full ring looks at the first.
    assert ring.offer_many([1, 2, 3, None]) == 3
    with pytest.raises(NoneSignalError):
        ring.offer_many([None])
    with pytest.raises(NoneSignalError):
        ring.offer(None)
    assert ring.poll_many(9) == [1, 2, 3]
    ring.close()
    for call in (ring.offer, lambda x: ring.offer_many([x])):
        with pytest.raises(RingClosed):
            call(None)
    assert ring.poll_many(3) == []


def test_an_element_whose_destructor_uses_the_ring(core: Any) -> None:
    ring = core.SpscRing(2)
    log: list[Any] = []

    class Noisy:
        def __del__(self) -> None:
            log.append((ring.poll(), ring.offer("from the destructor")))

    ring.offer(Noisy())
    ring.offer("second")
    ring.poll()
    assert log == [("second", True)]
    assert ring.poll_many(2) == ["from the destructor"]


PARKED = """
from rstreams_fast.errors import OverlappingCallsError
ring = importlib.import_module({module!r}).SpscRing(1)
main = threading.main_thread().ident
{prepare}
def place():
    frame = sys._current_frames()[main]
    return frame.f_code.co_name, frame.f_lasti
def wait():
    try:
        while True:
            {probe}
    except OverlappingCallsError:
        pass  # the main thread is inside
    # Parked: where the ring is written in Python, its thread stays at one place below the call.
    before = None
    while {in_python} and before != (before := place()):
        time.sleep(0.02)
def insist():
    while True:
        try:
            return ring.{call}
        except OverlappingCallsError:
            pass
calls = [insist]
"""


@pytest.mark.skipif(os.name == "nt", reason="there are no POSIX signals on Windows")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("prepare", "call", "after"),
    [
        ("", "get()", "ring.offer(1); assert ring.get() == 1"),
        ("ring.offer(1)", "put(2)", "assert ring.poll() == 1; ring.put(3); assert ring.get() == 3"),
        ("", "get(60)", "ring.offer(1); assert ring.get() == 1"),
    ],
)
def test_ctrl_c_interrupts_a_parked_call(
    backend: str, prepare: str, call: str, after: str, promptly: float
) -> None:
    probe = "ring.offer_many([])" if call.startswith("put") else "ring.poll()"
    ring = {"module": MODULES[backend], "in_python": backend != "c"}
    parked = PARKED.format(prepare=prepare, probe=probe, call=call, **ring)
    run_interrupted(parked, after, promptly)


WOKEN = """
import importlib, signal, threading, time
from rstreams_fast.errors import OverlappingCallsError
SpscRing = importlib.import_module({module!r}).SpscRing
for attempt in range(10):
    ring = SpscRing(1)
    {prepare}
    def interrupt_and_wake():
        try:
            while True:
                {probe}
                time.sleep(0.001)
        except OverlappingCallsError:
            pass  # the main thread is inside
        signal.raise_signal(signal.SIGINT)
        {wake}
    thread = threading.Thread(target=interrupt_and_wake)
    returned = False
    try:
        thread.start()
        while True:
            try:
                {call}
                break
            except OverlappingCallsError:
                pass
        returned = True
    except KeyboardInterrupt:
        pass
    thread.join()
    assert len(ring) == {left}, (attempt, returned, len(ring))
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "case",
    [
        "; ring.poll(); ring.get(); ring.offer(1); 1 - returned",
        "ring.offer(0); ring.offer_many([]); ring.put(1); ring.poll(); int(returned)",
    ],
)
def test_ctrl_c_that_meets_a_wake_up_loses_nothing(backend: str, case: str) -> None:
    prepare, probe, call, wake, left = case.split("; ")
    program = WOKEN.format(
        module=MODULES[backend], prepare=prepare, probe=probe, call=call, wake=wake, left=left
    )
    run_python("-c", program)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_may_not_park(core: Any) -> None:
    ring = core.SpscRing(1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ring.get(1)
        except RuntimeError as refused:
            status = 0 if "fork" in str(refused) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ring.offer(1)
    assert ring.get() == 1


@pytest.mark.parametrize("core", [name for name in BACKENDS if name == "cffi"], indirect=True)
def test_a_signal_handler_may_close_it_while_it_is_being_closed(
    core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[core.SpscRing.__module__]
    lib = module.lib

    def interrupted(at: Any) -> Any:
        ring.close()
        return lib.rsf_ring_is_closed(at)

    ring = core.SpscRing(4)
    call_once_in_place_of(monkeypatch, module, "rsf_ring_is_closed", interrupted)
    start_thread(ring.close).result()
    assert module.lib is lib
    assert ring.closed
