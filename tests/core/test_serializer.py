"""The signal serializer, sentence by sentence."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from rstreams_fast.core import Emission
from rstreams_fast.errors import BufferOverflowError, NoneSignalError
from tests.core.conftest import BACKENDS, MODULES, call_once_in_place_of, load, run_interrupted
from tests.helpers import Problem, run_threads, start_thread, wait_for
from tests.rules.probes import ManualPublisher


class Recorder:
    """A subscriber that writes down what it sees, and calls ``react`` with it."""

    def __init__(self, react: Callable[[Any], object] = lambda _: None) -> None:
        self.log: list[Any] = []
        self.react = react

    def on_next(self, signal: Any) -> None:
        self.log.append(signal)
        self.react(signal)

    on_error = on_next

    def on_subscribe(self, subscription: Any) -> None:
        self.on_next("subscribed")

    def on_complete(self) -> None:
        self.on_next("complete")


class Blocker(Recorder):
    """Holds the delivering thread inside ``on_next("block")`` until released."""

    def __init__(self) -> None:
        super().__init__(self._block)
        self.blocked = threading.Event()
        self.release = threading.Event()

    def _block(self, signal: Any) -> None:
        if signal == "block":
            self.blocked.set()
            wait_for(self.release, "the release")


def blocked(core: Any, **options: Any) -> tuple[Blocker, Any, Any]:
    """A serializer whose drain another thread holds, that thread, and the subscriber."""
    subscriber = Blocker()
    serializer = core.SignalSerializer(subscriber, **options)
    thread = start_thread(lambda: serializer.on_next("block"))
    wait_for(subscriber.blocked)
    return subscriber, serializer, thread


def free(subscriber: Blocker, thread: Any) -> None:
    subscriber.release.set()
    thread.result()


# -- arguments ------------------------------------------------------------------------------------
def test_spec109_a_subscriber_is_needed(core: Any) -> None:
    with pytest.raises(NoneSignalError, match=r"§1.9"):
        core.SignalSerializer(None)


@pytest.mark.parametrize("method", ["on_subscribe", "on_next", "on_error", "on_complete"])
def test_a_subscriber_has_four_methods(core: Any, method: str) -> None:
    subscriber = Recorder()
    setattr(subscriber, method, None)
    with pytest.raises(TypeError, match=method):
        core.SignalSerializer(subscriber)


@pytest.mark.parametrize(
    ("options", "raises", "word"),
    [
        ({"capacity": 0}, ValueError, "capacity"),
        ({"capacity": True}, TypeError, "capacity"),
        ({"capacity": 2**31 + 1}, ValueError, "capacity"),
        ({"on_full": "drop"}, ValueError, "on_full"),
        ({"on_full": None}, ValueError, "on_full"),
    ],
)
def test_options_are_checked(
    core: Any, options: dict[str, Any], raises: type[Exception], word: str
) -> None:
    with pytest.raises(raises, match=word):
        core.SignalSerializer(Recorder(), **options)


# -- order ----------------------------------------------------------------------------------------


PROBLEM = Problem("the signal")


@pytest.mark.parametrize(
    ("options", "calls", "then", "log"),
    [
        ({}, [("on_next", n) for n in (1, 2, 3)], Emission.OK, [1, 2, 3, "more"]),
        (
            {},
            [("on_next", 1), ("on_complete",), ("on_complete",)],
            Emission.TERMINATED,
            [1, "complete"],
        ),
        ({}, [("on_next", 1), ("on_error", PROBLEM)], Emission.TERMINATED, [PROBLEM]),
        (
            {"delay_error": True},
            [("on_next", 1), ("on_error", PROBLEM)],
            Emission.TERMINATED,
            [1, PROBLEM],
        ),
        ({}, [("on_next", 1), ("on_complete",), ("cancel",)], Emission.CANCELLED, []),
        ({"capacity": 2}, [("on_next", n) for n in (1, 2)], Emission.FULL, [1, 2]),
        (
            {"capacity": 2, "delay_error": True},
            [("on_next", n) for n in (1, 2, 3)],
            Emission.TERMINATED,
            [1, 2, BufferOverflowError],
        ),
        (
            {"capacity": 1},
            [("on_next", 1), ("on_subscribe", int), ("on_error", PROBLEM)],
            Emission.TERMINATED,
            ["subscribed", PROBLEM],
        ),
        ({"fail_fast": True}, [], Emission.BUSY, []),
        ({"fail_fast": True}, [("on_complete",)], Emission.TERMINATED, ["complete"]),
    ],
)
def test_what_comes_while_another_thread_delivers(
    core: Any, options: Any, calls: list[Any], then: Emission, log: list[Any]
) -> None:
    """Who comes leaves at once; what is queued is delivered in order, or dropped."""
    subscriber, serializer, thread = blocked(core, **options)
    for name, *arguments in calls:
        getattr(serializer, name)(*arguments)
    assert serializer.try_next("more") is then
    assert subscriber.log == ["block"]
    assert serializer.queued <= serializer.capacity
    free(subscriber, thread)
    seen = [
        type(each) if isinstance(each, BufferOverflowError) else each for each in subscriber.log
    ]
    assert seen == ["block", *log]
    assert serializer.queued == 0


def test_an_error_after_the_end_is_reported(core: Any, dropped: Any) -> None:
    late = Problem("late")
    for end, log in (("on_complete", ["complete"]), ("cancel", list[str]())):
        subscriber = Recorder()
        serializer = core.SignalSerializer(subscriber)
        getattr(serializer, end)()
        serializer.on_error(late)
        assert subscriber.log == log
    assert dropped == [late, late]


# -- subscription ---------------------------------------------------------------------------------
def test_spec315_a_cancel_that_raises_is_reported(core: Any, dropped: Any) -> None:
    class Bad(ManualPublisher):
        def cancel(self) -> None:
            raise Problem("cancel")

    serializer = core.SignalSerializer(Recorder())
    serializer.on_subscribe(Bad())
    serializer.on_subscribe(Bad())
    serializer.cancel()
    assert [str(error) for error in dropped] == ["cancel", "cancel"]


# -- a full mailbox -------------------------------------------------------------------------------
def test_several_threads_that_overflow_cancel_once(core: Any, dropped: Any) -> None:
    subscriber, serializer, thread = blocked(core, capacity=1)
    upstream = ManualPublisher()
    serializer.on_subscribe(upstream)

    def signal() -> None:
        for n in range(5):
            serializer.on_next(n)

    run_threads([signal] * 4)
    free(subscriber, thread)
    assert upstream.cancels == 1
    assert [type(signal) for signal in subscriber.log] == [str, str, BufferOverflowError]
    assert dropped == []


def waiting(core: Any) -> tuple[Blocker, Any, Any, Any]:
    """As :func:`blocked`, with a full mailbox and a second thread that waits for room."""
    subscriber, serializer, thread = blocked(core, capacity=1, on_full="wait")
    serializer.on_next(1)
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        serializer.on_next(2)

    waiter = start_thread(wait)
    wait_for(begun)
    assert serializer.try_next(3) is Emission.FULL
    return subscriber, serializer, thread, waiter


def test_wait_ends_when_there_is_room(core: Any) -> None:
    subscriber, _, thread, waiter = waiting(core)
    free(subscriber, thread)
    waiter.result()
    assert subscriber.log == ["block", 1, 2]


@pytest.mark.parametrize("end", ["cancel", "on_complete"])
def test_wait_ends_with_the_stream(core: Any, end: str) -> None:
    subscriber, serializer, thread, waiter = waiting(core)
    getattr(serializer, end)()
    waiter.result()
    free(subscriber, thread)
    assert 2 not in subscriber.log


# -- subscribers that raise -----------------------------------------------------------------------
@pytest.mark.parametrize("raised", [Problem, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_spec213_what_on_next_raises_cancels_and_is_reported(
    core: Any, dropped: Any, raised: type[BaseException]
) -> None:
    """An interrupt and its like are not reported: they leave through the delivering thread."""

    def react(n: Any) -> None:
        if n == 2:
            serializer.on_next(3)
            raised_here.append(raised())
            raise raised_here[0]

    raised_here: list[BaseException] = []
    subscriber, upstream = Recorder(react), ManualPublisher()
    serializer = core.SignalSerializer(subscriber)
    serializer.on_subscribe(upstream)
    serializer.on_next(1)
    with nullcontext() if raised is Problem else pytest.raises(raised):
        serializer.on_next(2)
    serializer.on_next(4)
    assert serializer.try_next(5) is Emission.CANCELLED
    serializer.on_complete()
    assert subscriber.log == ["subscribed", 1, 2]
    assert upstream.cancels == 1
    assert dropped == (raised_here if raised is Problem else [])
    assert serializer.queued == 0


@pytest.mark.parametrize("method", ["on_subscribe", "on_error", "on_complete"])
def test_spec213_what_the_others_raise_is_reported(core: Any, dropped: Any, method: str) -> None:
    problem = Problem()

    def fail(*_: Any) -> None:
        raise problem

    subscriber, upstream = Recorder(), ManualPublisher()
    setattr(subscriber, method, fail)
    serializer = core.SignalSerializer(subscriber)
    serializer.on_subscribe(upstream)
    if method == "on_error":
        serializer.on_error(Problem("the signal"))
    else:
        serializer.on_complete()
    assert dropped == [problem]
    assert upstream.cancels == (method == "on_subscribe")
    assert serializer.queued == 0


def test_what_the_subscriber_raises_surfaces_in_no_other_thread(core: Any, dropped: Any) -> None:
    for _ in range(20):

        def react(n: Any) -> None:
            if n == 7:
                raise Problem

        serializer = core.SignalSerializer(Recorder(react))

        def signal(serializer: Any = serializer) -> None:
            for n in range(20):
                serializer.on_next(n)

        run_threads([signal] * 3)
    assert len(dropped) == 20


WAITING = """
from tests.rules.probes import Plain
holding, release = threading.Event(), threading.Event()
def hold(element):
    if element == "hold":
        holding.set()
        release.wait()
module = importlib.import_module({module!r})
serializer = module.SignalSerializer(Plain(hold), capacity=1, on_full="wait")
holder = threading.Thread(target=lambda: serializer.on_next("hold"))
holder.start()
holding.wait()
serializer.on_next(1)
going = False
def wait():
    while not going:
        pass
def signal_one_more():
    global going
    going = True
    serializer.on_next(2)
calls = [signal_one_more]
"""


@pytest.mark.skipif(os.name == "nt", reason="there are no POSIX signals on Windows")
@pytest.mark.parametrize("backend", BACKENDS)
def test_ctrl_c_interrupts_a_wait_for_room(backend: str, promptly: float) -> None:
    prepare = WAITING.format(module=MODULES[backend])
    run_interrupted(prepare, "release.set(); holder.join(); serializer.on_next(3)", promptly)


def test_a_circle_of_serializers_is_a_recursion_error(core: Any) -> None:
    """Each asks the other for more: that ends at the recursion limit, not at the stack's end."""
    one, other = core.SignalSerializer(Recorder()), core.SignalSerializer(Recorder())
    one.on_subscribe(other)
    other.on_subscribe(one)
    with pytest.raises(RecursionError):
        one.request(1)
    one.cancel()


# -- who comes back for a lock that its own thread holds: a signal handler, a finalizer ------------
@pytest.mark.parametrize("core", [name for name in BACKENDS if name == "cffi"], indirect=True)
@pytest.mark.parametrize(
    ("place", "end"),
    [
        ("rsf_serial_is_cancelled", "on_complete"),  # within on_subscribe
        ("rsf_serial_is_cancelled", "cancel"),
        ("rsf_glue_next", "on_complete"),  # while the end is taken out
    ],
)
def test_a_subscription_that_comes_just_when_it_ends_is_cancelled(
    core: Any, place: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[core.SignalSerializer.__module__]
    lib = module.lib

    def subscribe() -> None:
        start_thread(lambda: serializer.on_subscribe(upstream)).result()

    def interrupted(*args: Any) -> Any:
        found = getattr(lib, place)(*args)
        within()
        return found

    subscriber, upstream = Recorder(), ManualPublisher()
    serializer = core.SignalSerializer(subscriber)
    call, within = subscribe, getattr(serializer, end)
    if place == "rsf_glue_next":
        call, within = within, call
    call_once_in_place_of(monkeypatch, module, place, interrupted)
    call()
    assert module.lib is lib
    assert upstream.cancels == 1
    assert subscriber.log == (["complete"] if end == "on_complete" else [])


def test_a_finalizer_may_cancel_it_while_it_takes_an_element() -> None:
    class Interrupted(load("python").SignalSerializer):  # type: ignore[misc]
        interrupted = False

        def _state(self) -> Any:
            if not self.interrupted:
                self.interrupted = True
                self.cancel()
            return super()._state()

    subscriber, upstream = Recorder(), ManualPublisher()
    serializer = Interrupted(subscriber)
    serializer.on_subscribe(upstream)
    start_thread(lambda: serializer.on_next(1)).result()
    assert subscriber.log == ["subscribed"]
    assert upstream.cancels == 1
