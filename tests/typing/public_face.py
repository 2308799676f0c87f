"""What a type checker must know about the public face. mypy and pyright read it; nothing runs it.

A line with ``type: ignore`` must be an error for both.
"""

from __future__ import annotations

import queue
from typing import Any, TypeGuard, assert_type

import numpy as np

import rstreams_fast as rsf
from rstreams_fast import core, queues

# ---- Subscribers and publishers of anybody's --------------------------------------------------


class Base: ...


class Derived(Base): ...


class TakesBase:
    def on_subscribe(self, subscription: rsf.Subscription, /) -> None:
        subscription.request(rsf.UNBOUNDED)
        subscription.cancel()

    def on_next(self, element: Base, /) -> None: ...

    def on_error(self, error: BaseException, /) -> None: ...

    def on_complete(self) -> None: ...


class GivesDerived:
    def subscribe(self, subscriber: rsf.Subscriber[Derived], /) -> None: ...


def variance(derived: rsf.Stream[Derived]) -> None:
    publisher: rsf.Publisher[Base] = derived  # what publishes less is a publisher of more
    publisher.subscribe(TakesBase())
    derived.subscribe(TakesBase())  # what takes more is a subscriber to less
    assert_type(rsf.from_publisher(GivesDerived()), rsf.Stream[Derived])


def take(number: int) -> bool:
    return number < 3


def is_text(element: object) -> TypeGuard[str]:
    return isinstance(element, str)


def subscribers(numbers: rsf.Publisher[int]) -> None:
    subscriber = rsf.SyncSubscriber(take)
    assert_type(subscriber, rsf.SyncSubscriber[int])
    numbers.subscribe(subscriber)
    assert_type(subscriber.run, rsf.Run)
    numbers.subscribe(rsf.AsyncSubscriber(take, prefetch=1))
    numbers.subscribe(rsf.SyncSubscriber(print))
    numbers.subscribe(rsf.AsyncSubscriber(str.upper))  # type: ignore[arg-type]


def half(numbers: rsf.Stream[int]) -> rsf.Stream[float]:
    return numbers.map(lambda n: n / 2)


def processors(numbers: rsf.Stream[int]) -> None:
    halved = rsf.processor(half)
    assert_type(halved, rsf.Processor[int, float])
    numbers.subscribe(halved)
    assert_type(rsf.from_publisher(halved).to_list(), list[float])
    serialized = rsf.SerializedProcessor(halved)
    assert_type(serialized, rsf.SerializedProcessor[int, float])
    assert_type(serialized.try_next(1), rsf.Emission)
    again: rsf.Processor[int, float] = serialized
    numbers.subscribe(again)
    shared = rsf.SerializedProcessor[int, int]()
    numbers.subscribe(shared)
    declared: rsf.SerializedProcessor[int, int] = rsf.SerializedProcessor()
    numbers.subscribe(declared)
    both: rsf.Processor[int, int] = rsf.MulticastProcessor(on_last_cancel="keep")
    both = rsf.ReplayProcessor(count=3)
    both.on_next("1")  # type: ignore[arg-type]
    numbers.subscribe(both)
    assert_type(rsf.from_publisher(rsf.ReplayProcessor[int](count=3)), rsf.Stream[int])


# ---- Sources ----------------------------------------------------------------------------------


def halved(number: int) -> tuple[str, int] | None:
    return (str(number), number // 2) if number else None


def sources(table: Any) -> None:
    assert_type(rsf.range_(3), rsf.Stream[int])
    assert_type(rsf.defer(lambda: rsf.range_(3)).repeat(2), rsf.Stream[int])
    assert_type(rsf.using(object, lambda _o: rsf.range_(3), print), rsf.Stream[int])
    assert_type(rsf.range_(3).do_finally(print), rsf.Stream[int])
    assert_type(rsf.generate(3, halved), rsf.Stream[str])
    assert_type(rsf.from_iterable("abc"), rsf.Stream[str])
    assert_type(rsf.from_callable(lambda: 1.5), rsf.Stream[float])
    assert_type(rsf.from_publisher(rsf.range_(3)), rsf.Stream[int])
    assert_type(rsf.interval(1.5, delay=1), rsf.Stream[int])
    timer = rsf.ManualTimer()
    assert_type(rsf.interval(60, timer=timer), rsf.Stream[int])
    timer.advance(120)
    assert_type(timer.now() + timer.pending, float)
    assert_type(rsf.from_async_iterable(rsf.range_(3)), rsf.Stream[int])
    assert_type(rsf.concat(rsf.range_(3), rsf.empty()), rsf.Stream[int])
    assert_type(rsf.range_(3).merge(rsf.never()).take(1), rsf.Stream[int])
    assert_type(rsf.range_(3).on_error_resume(rsf.error), rsf.Stream[int])
    arrays = rsf.from_numpy(np.arange(3.0), chunk=2)
    assert_type(arrays.publish_records_on("f8", capacity=3).map(len), rsf.Stream[int])
    assert_type(rsf.from_arrow(table, chunk=2).map(lambda batch: 1), rsf.Stream[int])


def send(emitter: rsf.Emitter[int]) -> None:
    assert_type(emitter.next(1), bool)
    assert_type(emitter.demand, int)
    assert_type(emitter.cancelled, bool)
    emitter.on_cancel(lambda: None)
    emitter.error(ValueError())
    emitter.complete()
    emitter.next("1")  # type: ignore[arg-type]


def show(number: int) -> None: ...


def pushes(numbers: rsf.Stream[int]) -> None:
    assert_type(rsf.create(send), rsf.Stream[int])
    assert_type(rsf.create(send, on_drop=show), rsf.Stream[int])
    assert_type(numbers.on_overflow(rsf.Overflow.LATEST), rsf.Stream[int])
    assert_type(numbers.on_overflow(rsf.Overflow.BUFFER, on_drop=str.upper), rsf.Stream[int])  # type: ignore[arg-type]
    numbers.on_overflow("latest")  # type: ignore[arg-type]


# ---- Operators --------------------------------------------------------------------------------


async def fetch(number: int) -> str:
    return str(number)


def add(total: int, number: int) -> int:
    return total + number


def append(text: str, number: int) -> str:
    return text + str(number)


def operators(numbers: rsf.Stream[int]) -> None:
    assert_type(numbers.map(str), rsf.Stream[str])
    assert_type(numbers.map(lambda x: [x]), rsf.Stream[list[int]])
    assert_type(numbers.map_not_none({1: "one"}.get), rsf.Stream[str])
    assert_type(
        numbers.merge(rsf.from_iterable(["a"])).filter(is_text).map(str.upper), rsf.Stream[str]
    )
    assert_type(numbers.filter(bool).take(1).skip(1).take_while(bool), rsf.Stream[int])
    assert_type(numbers.map_async(fetch, concurrency=2, ordered=False), rsf.Stream[str])
    assert_type(numbers.map_async(fetch, key=str), rsf.Stream[str])
    numbers.map_async(fetch, key=str.upper)  # type: ignore[arg-type]
    assert_type(numbers.map_blocking(str, concurrency=2, ordered=False), rsf.Stream[str])
    assert_type(numbers.batch(3), rsf.Stream[list[int]])
    assert_type(numbers.batch(3, seconds=1, max_bytes=9, weigher=abs), rsf.Stream[list[int]])
    assert_type(numbers.batch(3, skip=1), rsf.Stream[list[int]])
    assert_type(numbers.window(3, skip=1), rsf.Stream[rsf.Stream[int]])
    assert_type(numbers.group_by(str), rsf.Stream[rsf.Group[str, int]])
    assert_type(numbers.timestamp(), rsf.Stream[tuple[float, int]])
    assert_type(numbers.debounce(1).throttle_first(1).sample(1), rsf.Stream[int])
    assert_type(numbers.delay_elements(1), rsf.Stream[int])
    assert_type(numbers.window_time(1), rsf.Stream[rsf.Stream[int]])
    assert_type(numbers.batch(3).unbatch(), rsf.Stream[int])
    assert_type(numbers.publish_on().subscribe_on(), rsf.Stream[int])
    assert_type(numbers.publish_on(max_bytes=1, weigher=int.bit_length), rsf.Stream[int])
    assert_type(numbers.distinct_until_changed(str).skip_while(bool), rsf.Stream[int])
    assert_type(numbers.do_on_next(print).do_on_error(print), rsf.Stream[int])
    assert_type(numbers.do_on_complete(print).do_on_cancel(print), rsf.Stream[int])
    assert_type(numbers.do_on_request(print).do_on_subscribe(print), rsf.Stream[int])
    assert_type(numbers.describe(), str)
    numbers.map(str.upper)  # type: ignore[arg-type]
    numbers.distinct_until_changed(str.upper)  # type: ignore[arg-type]


def accumulations(numbers: rsf.Stream[int]) -> None:
    assert_type(numbers.scan(add), rsf.Stream[int])
    assert_type(numbers.scan(append, ""), rsf.Stream[str])
    assert_type(numbers.reduce(add), rsf.Stream[int])
    assert_type(numbers.reduce(append, ""), rsf.Stream[str])
    assert_type(numbers.reduce(lambda a, x: a + x), rsf.Stream[int])
    assert_type(numbers.reduce(lambda a, x: a + float(x), 0.5), rsf.Stream[float])
    numbers.reduce(append)  # type: ignore[arg-type]


def combinations(
    numbers: rsf.Stream[int], words: rsf.Publisher[str], floats: rsf.Stream[float]
) -> None:
    assert_type(rsf.merge(numbers, numbers, prefetch=8), rsf.Stream[int])
    assert_type(rsf.merge(numbers, words), rsf.Stream[int | str])
    assert_type(rsf.merge(numbers, words, rsf.from_iterable([b""])), rsf.Stream[int | str | bytes])
    assert_type(rsf.merge(*[numbers, numbers]), rsf.Stream[int])
    assert_type(numbers.merge(words), rsf.Stream[int | str])
    assert_type(rsf.merge_sorted(numbers, numbers, key=abs, reverse=True), rsf.Stream[int])
    assert_type(numbers.merge_sorted(words, key=str, prefetch=8), rsf.Stream[int | str])
    assert_type(rsf.concat(words, words), rsf.Stream[str])
    assert_type(rsf.concat(numbers, words), rsf.Stream[int | str])
    assert_type(numbers.concat(words), rsf.Stream[int | str])
    assert_type(rsf.combine_latest(numbers, words), rsf.Stream[tuple[int, str]])
    assert_type(rsf.combine_latest(*[numbers, numbers]), rsf.Stream[tuple[int, ...]])
    assert_type(rsf.race(numbers, numbers), rsf.Stream[int])
    assert_type(rsf.zip_(numbers), rsf.Stream[tuple[int]])
    assert_type(rsf.zip_(numbers, words, prefetch=8), rsf.Stream[tuple[int, str]])
    assert_type(rsf.zip_(numbers, words, floats), rsf.Stream[tuple[int, str, float]])
    assert_type(rsf.zip_(numbers, words, floats, words), rsf.Stream[tuple[int, str, float, str]])
    assert_type(
        rsf.zip_(numbers, words, floats, words, numbers),
        rsf.Stream[tuple[int, str, float, str, int]],
    )
    assert_type(rsf.zip_(*[numbers, numbers]), rsf.Stream[tuple[int, ...]])
    assert_type(numbers.zip(words), rsf.Stream[tuple[int, str]])
    assert_type(numbers.zip(words, floats, words), rsf.Stream[tuple[int, str, float, str]])
    assert_type(numbers.flat_map(rsf.range_), rsf.Stream[int])
    assert_type(numbers.distinct(max_keys=9), rsf.Stream[int])
    assert_type(numbers.log("numbers"), rsf.Stream[int])
    assert_type(numbers.name("numbers"), rsf.Stream[int])
    assert_type(numbers.filter(bool).on_error_continue(print), rsf.Stream[int])
    assert_type(numbers.flat_map_sequential(rsf.range_), rsf.Stream[int])
    assert_type(numbers.flat_map(lambda n: words, concurrency=2), rsf.Stream[str])
    assert_type(numbers.concat_map(lambda n: words), rsf.Stream[str])
    assert_type(numbers.switch_map(lambda n: words, prefetch=8), rsf.Stream[str])
    assert_type(numbers.expand(rsf.range_, depth_first=True), rsf.Stream[int])
    assert_type(numbers.combine_latest(words, prefetch=8), rsf.Stream[tuple[int, str]])
    assert_type(numbers.with_latest_from(words), rsf.Stream[tuple[int, str]])
    assert_type(numbers.with_latest_from(words, words), rsf.Stream[tuple[Any, ...]])
    assert_type(numbers.race(words), rsf.Stream[int | str])
    assert_type(numbers.take_until(words), rsf.Stream[int])
    assert_type(numbers.take_last(3), rsf.Stream[int])
    assert_type(numbers.on_discard(print), rsf.Stream[int])
    assert_type(numbers.start_with("0", "1"), rsf.Stream[int | str])
    assert_type(numbers.default_if_empty(0), rsf.Stream[int])
    assert_type(numbers.switch_if_empty(words), rsf.Stream[int | str])
    assert_type(numbers.on_error_return("failed"), rsf.Stream[int | str])
    numbers.flat_map(str)  # type: ignore[arg-type]
    rsf.merge(numbers, 3)  # type: ignore[call-overload]
    rsf.zip_(numbers, 3)  # type: ignore[call-overload]


def recovery(numbers: rsf.Stream[int], words: rsf.Publisher[str]) -> None:
    assert_type(numbers.retry(3, when=bool, delay=lambda attempt: attempt / 2), rsf.Stream[int])
    assert_type(numbers.on_error_resume(lambda error: words), rsf.Stream[int | str])
    assert_type(numbers.timeout(1.5), rsf.Stream[int])
    assert_type(numbers.retry(rsf.Retry(3)), rsf.Stream[int])
    numbers.retry("3")  # type: ignore[arg-type]
    numbers.on_error_resume(str)  # type: ignore[arg-type]


def sharing(numbers: rsf.Stream[int]) -> None:
    assert_type(numbers.multicast(slow="drop", on_last_cancel="keep"), rsf.Stream[int])
    assert_type(numbers.share(buffer_size=8), rsf.Stream[int])
    assert_type(numbers.replay(max_bytes=9, weigher=int.bit_length), rsf.Stream[int])
    numbers.multicast(slow="wait")  # type: ignore[arg-type]
    numbers.replay(max_bytes=9, weigher=str.upper)  # type: ignore[arg-type]


# ---- Ends -------------------------------------------------------------------------------------


def blocking(numbers: rsf.Stream[int]) -> None:
    assert_type(numbers.to_list(), list[int])
    assert_type(numbers.first(), int)
    assert_type(numbers.first(None), int | None)
    assert_type(numbers.last(), int)
    assert_type(numbers.last("none"), int | str)
    assert_type(numbers.count(), int)
    assert_type(numbers.any(bool), bool)
    assert_type(numbers.all(bool), bool)
    assert_type(numbers.transform(half), rsf.Stream[float])
    numbers.run()
    assert_type(numbers.to_numpy(dtype="f8"), np.ndarray[Any, Any])
    numbers.map(str).to_arrow()
    assert_type(numbers.for_each(print), rsf.Run)
    assert_type(numbers.for_each(print).cancel(), None)
    numbers.for_each(print).result(timeout=1)
    for x in numbers:
        assert_type(x, int)
    with numbers.iterate(prefetch=1) as iteration:
        assert_type(next(iteration), int)
    numbers.for_each(str.upper)  # type: ignore[arg-type]


async def waiting(numbers: rsf.Stream[int]) -> None:
    assert_type(await numbers.to_list_async(), list[int])
    assert_type(await numbers.first_async("none"), int | str)
    assert_type(await numbers.last_async(), int)
    assert_type(await numbers.count_async(), int)
    assert_type(await numbers.any_async(bool), bool)
    assert_type(await numbers.all_async(bool), bool)
    await numbers.run_async()
    assert_type(await numbers.to_numpy_async(), np.ndarray[Any, Any])
    await numbers.to_arrow_async()
    await numbers.for_each(print)
    async for x in numbers:
        assert_type(x, int)
    async with numbers.iterate() as iteration:
        async for x in iteration:
            assert_type(x, int)


# ---- Primitives -------------------------------------------------------------------------------


def primitives(subscriber: rsf.Subscriber[int]) -> None:
    ring = rsf.SpscRing[int](8)
    assert_type(ring.offer(1), bool)
    assert_type(ring.get(timeout=1), int)
    assert_type(ring.poll_many(3), list[int])
    ring.offer("1")  # type: ignore[arg-type]
    demand = rsf.DemandCounter()
    assert_type(demand.request(3), int)
    assert_type(core.DemandCounter(), rsf.DemandCounter)
    assert_type(core.Wip().leave(core.Wip(True).missed), bool)
    assert_type(core.Latch().win(), bool)
    signals = rsf.SignalSerializer(subscriber, capacity=8, on_full="wait")
    assert_type(signals.try_next(1), rsf.Emission)
    records = rsf.RecordRing("f8", 4)
    assert_type(records.write(np.zeros(2)), int)
    assert_type(rsf.CallWindow, type[core.CallWindow])
    assert_type(rsf.FusedRun, type[core.FusedRun])
    assert_type(rsf.RunStatus, type[core.RunStatus])
    assert_type(rsf.backend, str)
    assert_type(rsf.__version__, str)


def queues_between_threads(texts: queues.Queue[str]) -> None:
    theirs: queue.Queue[str] = texts
    assert_type(theirs.get(), str)
    assert_type(queues.LifoQueue[int](3).get_nowait(), int)
    assert_type(queues.PriorityQueue[int](3).get(timeout=1), int)
    assert_type(queues.SimpleQueue[int]().get(), int)
    texts.put(3)  # type: ignore[arg-type]
    texts.shutdown(immediate=True)
    assert_type(texts.is_shutdown, bool)
    with queues.BoundedExecutor(2, max_queue_size=3) as pool:
        assert_type(pool.submit(len, "abc").result(), int)


# ---- Errors -----------------------------------------------------------------------------------


def errors(error: BaseException) -> None:
    rsf.on_dropped_error(print)
    kinds: tuple[type[Exception], ...] = (
        rsf.AlreadySubscribedError,
        rsf.BackendUnavailableError,
        rsf.BufferOverflowError,
        rsf.DemandExceededError,
        rsf.InvalidRequestError,
        rsf.InvalidRequestTypeError,
        rsf.NoneSignalError,
        rsf.OverlappingCallsError,
        rsf.RingClosed,
        rsf.ShutDownError,
        rsf.StageReturnedNoneError,
        rsf.WorkDroppedError,
    )
    if isinstance(error, kinds):
        raise error


def metrics(subscription: rsf.Subscription) -> None:
    assert_type(rsf.metrics_of(subscription), tuple[rsf.BoundaryMetrics, ...])


def number_of(session: object, n: int) -> int:
    return n


@rsf.Policy(
    timeout=2.0,
    deadline=10,
    retry=rsf.Retry(3),
    limit=rsf.Limit(
        "models", rate=rsf.per_second(9), units={"tokens": rsf.per_minute(9)}, weigh=number_of
    ),
    circuit=rsf.Circuit(failures=10),
    budget=rsf.Budget("models", calls=10),
    cache=rsf.Cache(entries=10),
    journal=rsf.Journal("/answers", version="1"),
    key=number_of,
)
async def priced(session: object, n: int) -> str:
    if n < 0:
        raise rsf.RetryAfter(0.1)
    rsf.observed(tokens_left=9, reset=0.1)
    try:
        rsf.spent(tokens=n)
        return str(n)
    except (rsf.CircuitOpenError, rsf.BudgetSpentError):
        return ""


async def policies(numbers: rsf.Stream[int]) -> None:
    assert_type(await priced(None, 1), str)
    await priced(None)  # type: ignore[call-arg]
    assert_type(numbers.map_async(rsf.Policy(timeout=1)(fetch)), rsf.Stream[str])
    assert_type(numbers.map_blocking(rsf.Policy(retry=rsf.Retry(1))(str)), rsf.Stream[str])
