"""After the end: nothing is kept, nothing follows, and what nobody can receive is made known."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import run_python
from tests.operators import USES, apart, uses
from tests.operators.entry import NoStream
from tests.rules.probes import ManualPublisher, Plain, send, subscribed
from tests.streams.held import references_alone

#: Each operator and source that works on the thread that asks.
BUILDS: dict[str, Callable[[], Any]] = {
    "range": lambda: rsf.range_(10),
    "generator": lambda: rsf.from_iterable(x for x in range(10)),
    "foreign": lambda: rsf.from_publisher(NoStream(rsf.range_(10))),
    **{name: partial(use.over, rsf.range_(10)) for name, use in apart().items() if not use.threads},
    **{
        f"{name} within": partial(use.within, rsf.range_(10))
        for name, use in apart().items()
        if use.within and not use.threads
    },
}


@pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="only CPython drops objects without a collection"
)
@pytest.mark.parametrize("how", ["complete", "cancel", "bad request", "stage fails"])
@pytest.mark.parametrize("kind", list(BUILDS))
def test_nothing_keeps_the_subscriber_not_even_until_the_next_collection(
    kind: str, how: str
) -> None:
    subscriber = Plain()
    stream = BUILDS[kind]()
    (stream.map(lambda _x: 1 // 0) if how == "stage fails" else stream).subscribe(subscriber)
    subscription = subscriber.subscription
    with references_alone():
        subscription.request(
            {"complete": 100, "cancel": 3, "bad request": -1, "stage fails": 5}[how]
        )
        subscription.cancel()
        error = subscriber.error
        assert (error is not None) == (how in ("bad request", "stage fails"))
        gone = weakref.ref(subscriber)
        subscriber.subscription = None
        subscriber.error = None
        del subscriber
        assert gone() is None, gc.get_referrers(gone())
    assert subscription is not None  # kept on purpose: it must not keep the subscriber


@pytest.mark.parametrize("kind", list(BUILDS))
@pytest.mark.parametrize("signal", ["on_subscribe", "on_next", "on_complete", "on_error"])
def test_what_a_subscriber_raises_cancels_upstream_and_is_made_known(
    kind: str, signal: str, dropped: list[BaseException]
) -> None:
    boom = RuntimeError("the subscriber's own")
    stream = BUILDS[kind]()
    if signal == "on_error":
        stream = stream.map(lambda _x: 1 // 0)
    recorder = subscribed(stream, 100, raises=(signal, boom))
    assert dropped == [boom]
    assert recorder.signals[-1][0] == signal
    recorder.check()


@pytest.mark.parametrize("kind", list(BUILDS))
def test_a_live_subscription_refuses_to_pickle_with_a_sentence(kind: str) -> None:
    recorder = subscribed(BUILDS[kind](), 1)
    with pytest.raises(TypeError, match="live and cannot be pickled"):
        pickle.dumps(recorder.subscription)
    recorder.subscription.cancel()


@pytest.mark.parametrize("how", [lambda s: pickle.loads(pickle.dumps(s)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("name", uses(lambda use: use.chains))
def test_every_description_can_be_pickled_and_copied(
    name: str, how: Callable[[rsf.Stream[Any]], rsf.Stream[Any]]
) -> None:
    op, use = USES[name]
    stream = use.same(rsf.range_(3))
    another = how(stream)
    assert another.describe() == stream.describe()
    assert sorted(another.to_list()) == [0, 1, 2]
    assert op.shared or sorted(stream.to_list()) == [0, 1, 2]  # shared, it may be over


def test_observers_see_the_signals_at_their_place() -> None:
    seen: list[Any] = []
    recorder = subscribed(
        rsf.range_(5)
        .do_on_subscribe(lambda _s: seen.append("subscribe"))
        .do_on_request(lambda n: seen.append(("request", n)))
        .do_on_next(seen.append)
        .do_on_cancel(lambda: seen.append("cancel"))
        .do_on_complete(lambda: seen.append("complete above"))
        .take(2)
        .do_on_complete(lambda: seen.append("complete below"))
    )
    recorder.subscription.request(7)
    recorder.subscription.request(7)
    recorder.subscription.cancel()
    assert seen == ["subscribe", ("request", 2), 0, 1, "cancel", "complete below"]
    assert recorder.terminal == ("on_complete",)


def test_do_on_error_sees_the_errors_from_above_it_only() -> None:
    seen: list[str] = []
    subscribed(
        rsf.range_(5)
        .do_on_error(lambda e: seen.append(f"before {e!r}"))
        .map(lambda x: 1 // (x - 1))
        .do_on_error(lambda e: seen.append(f"after {type(e).__name__}")),
        9,
    )
    assert seen == ["after ZeroDivisionError"]


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("kind", sorted(BUILDS))
def test_after_the_end_the_figures_say_that_nothing_is_held_or_asked_for(
    kind: str, cancelled: bool
) -> None:
    recorder = subscribed(BUILDS[kind]().publish_on("caller").publish_on("caller"))
    recorder.subscription.request(1 if cancelled else 100)
    if cancelled:
        recorder.subscription.cancel()
    else:
        recorder.wait_terminal()
    (nearest,) = rsf.metrics_of(recorder.subscription)
    assert (nearest.held, nearest.demand) == (0, 0)


@pytest.mark.parametrize("name", ["subscribe", "request", "next", "cancel", "complete", "error"])
def test_what_an_observer_raises_goes_to_the_unraisable_hook(
    name: str, unraisable: list[Any]
) -> None:
    boom = OSError("observer")

    def observer(*_args: Any) -> None:
        raise boom

    def source() -> Iterator[int]:
        yield 1
        if name == "error":
            raise ValueError("source")

    stream: Any = getattr(rsf.from_iterable(source()), f"do_on_{name}")(observer)
    recorder = subscribed(stream, 1)
    if name == "cancel":
        recorder.subscription.cancel()
    elif name in ("complete", "error"):
        recorder.subscription.request(1)
        assert recorder.terminal is not None
    assert recorder.elements == [1]
    assert [r.exc_value for r in unraisable] == [boom]
    recorder.check()


def test_an_observer_sees_cancel_once_and_nothing_after_the_end() -> None:
    seen: list[Any] = []
    stream = rsf.range_(5).do_on_cancel(lambda: seen.append("cancel")).do_on_request(seen.append)
    recorder = subscribed(stream, 1)
    for _ in range(3):
        recorder.subscription.cancel()
        recorder.subscription.request(1)
    assert seen == [1, "cancel"]


def leave(*_args: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("call", ["request", "cancel"])
def test_an_interrupt_out_of_an_observer_cancels_upstream(call: str) -> None:
    publisher = ManualPublisher()
    recorder = subscribed(getattr(rsf.from_publisher(publisher), f"do_on_{call}")(leave))
    with pytest.raises(KeyboardInterrupt):
        getattr(recorder.subscription, call)(*[1] * (call == "request"))
    assert (publisher.requests, publisher.cancels) == ([], 1)
    recorder.subscription.cancel()
    recorder.subscription.request(1)
    assert (publisher.requests, publisher.cancels) == ([], 1)


@pytest.mark.parametrize("end", ["error", "complete"])
def test_an_interrupt_out_of_an_observer_keeps_no_end_from_downstream(end: str) -> None:
    publisher = ManualPublisher()
    recorder = subscribed(getattr(rsf.from_publisher(publisher), f"do_on_{end}")(leave))
    error = (OSError("the end"),) * (end == "error")
    with pytest.raises(KeyboardInterrupt):
        getattr(publisher.subscriber, f"on_{end}")(*error)
    assert recorder.terminal == (f"on_{end}", *error)
    recorder.check()


@pytest.mark.usefixtures("fast_sources")
def test_occupancy_demand_and_waiting_time_are_readable_at_any_moment() -> None:
    publisher = ManualPublisher()
    recorder = subscribed(
        rsf.from_publisher(publisher)
        .publish_on("caller", prefetch=8, max_bytes=100, weigher=len)
        .do_on_error(print)
        .map(str)
        .publish_on("caller", prefetch=2)
    )
    send(publisher, *["abc"] * 5)
    near, far = rsf.metrics_of(recorder.subscription)
    assert (near.held, near.max_held, near.held_bytes, near.demand) == (2, 2, None, 0)
    assert (far.held, far.max_held, far.held_bytes, far.demand) == (3, 8, 9, 0)
    assert "at most 8 elements and 100 bytes" in far.name
    recorder.subscription.request(9)
    near, far = rsf.metrics_of(recorder.subscription)
    assert (near.held, near.demand) == (0, 4)
    assert far.held_bytes == 0
    first = rsf.metrics_of(recorder.subscription)[0]
    second = rsf.metrics_of(recorder.subscription)[0]
    assert second.waited_for_upstream > first.waited_for_upstream > 0
    assert second.waited_for_demand == first.waited_for_demand > 0
    publisher.subscriber.on_complete()
    rsf.metrics_of(recorder.subscription)
    assert rsf.metrics_of(publisher) == ()


def test_importing_starts_no_thread_and_pulls_in_nothing_heavy() -> None:
    code = (
        "import sys, threading, rstreams_fast as rsf\n"
        "assert threading.active_count() == 1\n"
        "heavy = {'numpy', 'pandas', 'pyarrow', 'pyspark', 'multiprocessing', 'rich'}\n"
        "if rsf.backend != 'python': heavy.add('asyncio')\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert all(hasattr(rsf, name) for name in rsf.__all__)\n"
    )
    run_python("-c", code)


def test_parked_workers_do_not_keep_the_interpreter_from_exiting() -> None:
    code = (
        "import rstreams_fast as rsf\n"
        "told = lambda error: print(type(error).__name__, flush=True)\n"
        "quiet = rsf.never().publish_on().for_each(abs, told)\n"
        "busy = rsf.range_(10**15).publish_on().for_each(abs, told)\n"
    )
    assert run_python("-c", code).stdout.strip() == "WorkDroppedError"


def test_the_protocols_are_met_and_may_be_checked_at_run_time() -> None:
    recorder = subscribed(rsf.range_(3), 1)
    assert isinstance(rsf.range_(3), rsf.Publisher)
    assert isinstance(recorder, rsf.Subscriber)
    assert isinstance(recorder.subscription, rsf.Subscription)
    assert not isinstance(object(), rsf.Publisher)
