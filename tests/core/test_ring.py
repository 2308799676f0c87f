"""The ring, sentence by sentence."""

from __future__ import annotations

import copy
import os
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from rstreams_fast.errors import NoneSignalError, OverlappingCallsError, RingClosed
from tests.core.conftest import BACKENDS, MODULES, call_once_in_place_of, run_interrupted
from tests.helpers import DEADLINE, Problem, run_threads, start_thread


@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 1000])
def test_the_bound_is_exact(core: Any, capacity: int) -> None:
    ring = core.SpscRing(capacity)
    assert ring.capacity == capacity
    for lap in range(3):
        assert [ring.offer((lap, i)) for i in range(capacity + 1)] == [True] * capacity + [False]
        assert len(ring) == capacity
        assert [ring.poll() for _ in range(capacity + 1)] == [
            *((lap, i) for i in range(capacity)),
            None,
        ]
        assert len(ring) == 0


@pytest.mark.parametrize(
    ("capacity", "raises"),
    [
        (0, ValueError),
        (-1, ValueError),
        (2**31 + 1, ValueError),
        (10**40, ValueError),
        (True, TypeError),
        (1.0, TypeError),
        (None, TypeError),
    ],
)
def test_capacity_is_checked_and_named(core: Any, capacity: Any, raises: type[Exception]) -> None:
    with pytest.raises(raises, match="capacity"):
        core.SpscRing(capacity)


@pytest.mark.parametrize("sequence", [list, tuple])
def test_offer_many_takes_what_fits(core: Any, sequence: type) -> None:
    ring = core.SpscRing(5)
    elements = sequence(range(1, 9))
    assert ring.offer_many(elements, 2) == 5
    assert ring.offer_many(elements) == 0
    assert ring.poll_many(2) == [3, 4]
    assert ring.offer_many(elements, 7) == 1
    assert ring.offer_many(elements, 8) == 0
    assert ring.offer_many(elements, 10**40) == 0
    assert ring.poll_many(10**40) == [5, 6, 7, 8]
    assert ring.poll_many(4) == []
    assert ring.offer_many(sequence()) == 0


def test_offer_many_wraps_round(core: Any) -> None:
    ring = core.SpscRing(6)
    expected = 1
    for count in (1, 5, 3, 6, 2, 4) * 4:
        burst = list(range(expected, expected + count))
        assert ring.offer_many(burst) == count
        assert ring.poll_many(count) == burst
        expected += count


@pytest.mark.parametrize("elements", [{1}, "ab", iter([1]), None, 3])
def test_offer_many_takes_lists_and_tuples(core: Any, elements: Any) -> None:
    with pytest.raises(TypeError, match="elements must be a list or tuple"):
        core.SpscRing(2).offer_many(elements)


@pytest.mark.parametrize(("start", "raises"), [(-1, ValueError), (1.0, TypeError)])
def test_offer_many_checks_start(core: Any, start: Any, raises: type[Exception]) -> None:
    with pytest.raises(raises, match="start"):
        core.SpscRing(2).offer_many([1], start)


@pytest.mark.parametrize(("max", "raises"), [(-1, ValueError), ("1", TypeError)])
def test_poll_many_checks_max(core: Any, max: Any, raises: type[Exception]) -> None:
    with pytest.raises(raises, match="max"):
        core.SpscRing(2).poll_many(max)


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


def test_a_closed_ring_lets_nothing_in_and_everything_out(core: Any) -> None:
    ring = core.SpscRing(3)
    ring.offer_many([1, 2, 3])
    assert ring.closed is False
    ring.close()
    ring.close(Problem("too late"))
    assert ring.closed is True
    for call in (ring.offer, ring.put, lambda x: ring.offer_many([x])):
        with pytest.raises(RingClosed, match="closed ring"):
            call(4)
    with pytest.raises(RingClosed):
        ring.offer(None)
    assert ring.get() == 1
    assert ring.poll() == 2
    assert ring.get(0) == 3
    for _ in range(2):
        with pytest.raises(RingClosed, match="closed and empty"):
            ring.get()
    assert ring.poll() is None
    assert ring.poll_many(3) == []


def test_get_raises_the_error_it_was_closed_with(core: Any) -> None:
    ring = core.SpscRing(2)
    problem = Problem("upstream failed")
    ring.offer(1)
    ring.close(problem)
    assert ring.get() == 1
    for _ in range(2):
        with pytest.raises(Problem) as raised:
            ring.get(1)
        assert raised.value is problem
    with pytest.raises(RingClosed):
        ring.offer(2)


def test_get_raises_an_error_that_is_false(core: Any) -> None:
    class Problems(Exception):
        def __len__(self) -> int:
            return 0

    ring = core.SpscRing(2)
    ring.close(Problems())
    with pytest.raises(Problems):
        ring.get()


@pytest.mark.parametrize("error", [Problem, "problem", 1])
def test_close_checks_its_error(core: Any, error: Any) -> None:
    ring = core.SpscRing(1)
    with pytest.raises(TypeError, match="error must be an exception instance"):
        ring.close(error)
    assert ring.closed is False


def test_timeouts(core: Any) -> None:
    ring = core.SpscRing(1)
    for timeout in (0, 0.0, 0.03):
        begun = time.monotonic()
        with pytest.raises(TimeoutError, match="stayed empty"):
            ring.get(timeout)
        assert time.monotonic() - begun >= timeout
    ring.put(1, timeout=0)
    for timeout in (0, 0.03):
        begun = time.monotonic()
        with pytest.raises(TimeoutError, match="stayed full"):
            ring.put(2, timeout)
        assert time.monotonic() - begun >= timeout
    assert ring.get(float("inf")) == 1
    ring.put(3, 1e300)
    assert ring.get(timeout=10**30) == 3


@pytest.mark.parametrize(
    ("timeout", "raises"),
    [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError), (True, TypeError)],
)
def test_timeout_is_checked_and_named(core: Any, timeout: Any, raises: type[Exception]) -> None:
    ring = core.SpscRing(1)
    for call in (lambda: ring.get(timeout), lambda: ring.put(1, timeout)):
        with pytest.raises(raises, match="timeout"):
            call()
    assert len(ring) == 0


def insist(call: Callable[[], Any]) -> Any:
    """Make ``call``; again when :func:`until_parked` was in its way."""
    while True:
        try:
            return call()
        except OverlappingCallsError:
            continue


def until_parked(ring: Any, call: str) -> None:
    """Wait until a thread that insists is inside ``call``: ours is then refused."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        try:
            if call == "get":
                ring.poll()
            else:
                ring.offer_many([])
        except OverlappingCallsError:
            return
    raise AssertionError(f"nobody entered {call}")


def test_a_parked_get_is_woken_by_offer_close_and_offer_many(core: Any) -> None:
    for wake, expected in [
        (lambda ring: ring.offer(1), 1),
        (lambda ring: ring.offer_many([2, 3]), 2),
        (lambda ring: ring.put(4), 4),
    ]:
        ring = core.SpscRing(2)
        thread = start_thread(lambda ring=ring: insist(ring.get))
        until_parked(ring, "get")
        wake(ring)
        assert thread.result() == expected
    ring = core.SpscRing(2)
    thread = start_thread(lambda ring=ring: insist(ring.get))
    until_parked(ring, "get")
    ring.close()
    with pytest.raises(RingClosed):
        thread.result()


def test_a_parked_put_is_woken_by_poll_close_and_get(core: Any) -> None:
    for wake in (lambda ring: ring.poll(), lambda ring: ring.poll_many(1), lambda ring: ring.get()):
        ring = core.SpscRing(1)
        ring.offer(1)
        thread = start_thread(lambda ring=ring: insist(lambda: ring.put(2)))
        until_parked(ring, "put")
        assert wake(ring) in (1, [1])
        thread.result()
        assert ring.poll() == 2
    ring = core.SpscRing(1)
    ring.offer(1)
    thread = start_thread(lambda: insist(lambda: ring.put(2)))
    until_parked(ring, "put")
    ring.close()
    with pytest.raises(RingClosed):
        thread.result()
    assert ring.get() == 1
    with pytest.raises(RingClosed):
        ring.get()


def test_a_get_that_timed_out_leaves_no_wake_behind(core: Any) -> None:
    ring = core.SpscRing(1)
    for n in range(1, 20):
        with pytest.raises(TimeoutError):
            ring.get(0.001)
        ring.offer(n)
        assert ring.get() == n


def test_overlapping_calls_on_one_side_are_refused(core: Any) -> None:
    ring = core.SpscRing(1)
    getter = start_thread(lambda: insist(ring.get))
    until_parked(ring, "get")
    for call in (ring.poll, ring.get, lambda: ring.poll_many(1)):
        with pytest.raises(OverlappingCallsError, match="consumer side"):
            call()
    ring.offer(1)  # the other side is free
    assert getter.result() == 1
    ring.offer(2)
    putter = start_thread(lambda: insist(lambda: ring.put(3)))
    until_parked(ring, "put")
    for call in (lambda: ring.offer(4), lambda: ring.put(4), lambda: ring.offer_many([4])):
        with pytest.raises(OverlappingCallsError, match="producer side"):
            call()
    assert ring.poll() == 2
    putter.result()
    assert ring.poll() == 3


def test_which_thread_calls_does_not_matter(core: Any) -> None:
    ring = core.SpscRing(8)
    for n in range(1, 5):
        assert start_thread(lambda n=n: ring.offer(n)).result() is True
    assert [start_thread(ring.poll).result() for _ in range(4)] == [1, 2, 3, 4]


def test_one_thread_to_another_nothing_lost_nothing_doubled(core: Any) -> None:
    for capacity, count in [(1, 300), (7, 2000), (1024, 20000)]:
        ring = core.SpscRing(capacity)

        def produce(ring: Any = ring, count: int = count) -> None:
            for n in range(count):
                ring.put([n])
            ring.close()

        def consume(ring: Any = ring) -> list[int]:
            seen = []
            try:
                while True:
                    (n,) = ring.get()
                    seen.append(n)
            except RingClosed:
                return seen

        _, seen = run_threads([produce, consume])
        assert seen == list(range(count))


def test_bursts_from_one_thread_to_another(core: Any) -> None:
    ring = core.SpscRing(100)
    count = 5000

    def produce() -> None:
        burst = [str(n) for n in range(count)]
        sent = 0
        while sent < count:
            sent += ring.offer_many(burst[sent : sent + 256])

    def consume() -> list[str]:
        seen: list[str] = []
        while len(seen) < count:
            seen += ring.poll_many(77)
            assert len(ring) <= 100
        return seen

    _, seen = run_threads([produce, consume])
    assert seen == [str(n) for n in range(count)]


def test_what_was_accepted_before_a_close_by_a_third_thread_is_delivered(core: Any) -> None:
    for _ in range(60):
        ring = core.SpscRing(4)

        def produce(ring: Any = ring) -> int:
            accepted = 0
            try:
                while True:
                    ring.put(accepted + 1)
                    accepted += 1
            except RingClosed:
                return accepted

        def consume(ring: Any = ring) -> int:
            taken = 0
            try:
                while True:
                    ring.get()
                    taken += 1
            except RingClosed:
                return taken

        def close(ring: Any = ring) -> None:
            while len(ring) == 0:
                pass
            ring.close()

        accepted, taken, _ = run_threads([produce, consume, close])
        assert accepted == taken


def test_repr_and_no_copy(core: Any) -> None:
    ring = core.SpscRing(3)
    ring.offer(1)
    assert repr(ring) == "<SpscRing 1/3>"
    ring.close()
    assert repr(ring) == "<SpscRing 1/3 closed>"
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="live object"):
            duplicate(ring)


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


INTERRUPTED = """
import importlib, os, signal, sys, threading, time
from rstreams_fast.errors import OverlappingCallsError
ring = importlib.import_module({module!r}).SpscRing(1)
main = threading.main_thread().ident
{prepare}
interrupted = []
def place():
    frame = sys._current_frames()[main]
    return frame.f_code.co_name, frame.f_lasti
def interrupt():
    try:
        while True:
            {probe}
    except OverlappingCallsError:
        pass  # the main thread is inside
    # Parked: where the ring is written in Python, its thread stays at one place below the call.
    before = None
    while {in_python} and before != (before := place()):
        time.sleep(0.02)
    interrupted.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
thread = threading.Thread(target=interrupt)
thread.start()
try:
    while True:
        try:
            ring.{call}
        except OverlappingCallsError:
            continue
        break
except KeyboardInterrupt:
    late = time.monotonic() - interrupted[0]
else:
    raise SystemExit("no KeyboardInterrupt")
thread.join()
{after}
print(late)
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
def test_ctrl_c_interrupts_a_parked_call(backend: str, prepare: str, call: str, after: str) -> None:
    probe = "ring.offer_many([])" if call.startswith("put") else "ring.poll()"
    program = INTERRUPTED.format(
        module=MODULES[backend],
        prepare=prepare,
        probe=probe,
        call=call,
        after=after,
        in_python=backend != "c",
    )
    run_interrupted(program)


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


@pytest.mark.parametrize("put_in", ["offer", "offer_many", "put", "close"])
def test_an_armed_consumer_is_woken_once(core: Any, put_in: str) -> None:
    ring = core.SpscRing(4)
    woken: list[int] = []
    assert ring.arm(lambda: woken.append(len(ring)))
    calls: dict[str, Callable[[], Any]] = {
        "offer": lambda: ring.offer("x"),
        "offer_many": lambda: ring.offer_many(["x"]),
        "put": lambda: ring.put("x"),
        "close": ring.close,
    }
    calls[put_in]()
    assert woken == [0 if put_in == "close" else 1]  # after the element is there
    if put_in != "close":
        ring.offer("y")
        ring.close()
    assert len(woken) == 1


def test_arming_is_refused_when_there_is_nothing_to_wait_for(core: Any) -> None:
    ring = core.SpscRing(2)
    ring.offer("x")
    assert ring.arm(pytest.fail) is False
    ring.poll()
    ring.close()
    assert ring.arm(pytest.fail) is False


def test_a_waker_is_something_to_call(core: Any) -> None:
    ring = core.SpscRing(1)
    for waker in (None, 5):
        for arm in (ring.arm, ring.arm_producer):
            with pytest.raises(TypeError, match="waker must be callable, got"):
                arm(waker)


def test_a_disarmed_waker_is_not_called_and_not_kept(core: Any) -> None:
    class Waker:
        def __call__(self) -> None:
            pytest.fail("it was disarmed")

    ring = core.SpscRing(2)
    waker = Waker()
    gone = weakref.ref(waker)
    assert ring.arm(waker)
    del waker
    ring.disarm()
    assert gone() is None
    ring.offer("x")
    assert ring.get(timeout=DEADLINE) == "x"


@pytest.mark.parametrize("drop", ["disarm", "arm", "disarm_producer", "arm_producer"])
def test_a_waker_whose_destructor_uses_the_ring(core: Any, drop: str) -> None:
    """The ring has forgotten it by then."""

    class Side:
        def wake(self) -> None:
            pytest.fail("it was dropped")

        def __del__(self) -> None:
            ring.close()  # which wakes both sides

    ring = core.SpscRing(1)
    if drop.endswith("producer"):
        ring.offer(1)
        assert ring.arm_producer(Side().wake)
    else:
        assert ring.arm(Side().wake)
    getattr(ring, drop)(*[int] if drop.startswith("arm") else [])
    assert ring.closed


def test_get_disarms(core: Any) -> None:
    ring = core.SpscRing(2)
    assert ring.arm(lambda: pytest.fail("get took its place"))
    with pytest.raises(TimeoutError):
        ring.get(timeout=0)
    ring.offer("x")
    assert ring.get(timeout=DEADLINE) == "x"


def test_get_parks_in_place_of_an_armed_waker(core: Any) -> None:
    ring = core.SpscRing(2)
    assert ring.arm(lambda: None)
    consumer = start_thread(lambda: ring.get(timeout=DEADLINE))
    ring.put("x", timeout=DEADLINE)
    assert consumer.result() == "x"


def test_what_a_waker_raises_leaves_through_the_offer(core: Any) -> None:
    def waker() -> None:
        raise Problem

    ring = core.SpscRing(2)
    assert ring.arm(waker)
    with pytest.raises(Problem):
        ring.offer("x")
    assert ring.poll() == "x"


def test_no_wake_is_lost_between_a_producer_and_an_armed_consumer(core: Any) -> None:
    ring = core.SpscRing(3)
    total = 20_000
    taken: list[int] = []

    def produce() -> None:
        for i in range(total):
            ring.put(i, timeout=DEADLINE)

    def consume() -> None:
        while len(taken) < total:
            bell = threading.Event()
            if ring.arm(bell.set):
                assert bell.wait(DEADLINE), f"woken no more after {len(taken)}"
            taken.extend(ring.poll_many(3))

    run_threads([produce, consume], timeout=100)
    assert taken == list(range(total))


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
