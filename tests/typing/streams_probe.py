"""What a type checker must know about streams. Checked by mypy, never run."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np

import rstreams_fast as rsf


class Base: ...


class Derived(Base): ...


class TakesBase:
    def on_subscribe(self, subscription: rsf.Subscription, /) -> None: ...

    def on_next(self, element: Base, /) -> None: ...

    def on_error(self, error: BaseException, /) -> None: ...

    def on_complete(self) -> None: ...


def operators(numbers: rsf.Stream[int]) -> None:
    assert_type(numbers.map(str), rsf.Stream[str])
    assert_type(numbers.map(lambda x: [x]), rsf.Stream[list[int]])
    assert_type(numbers.filter(bool).take(1).skip(1), rsf.Stream[int])
    assert_type(numbers.batch(3), rsf.Stream[list[int]])
    assert_type(numbers.batch(3).unbatch(), rsf.Stream[int])
    assert_type(numbers.scan(lambda a, x: a + float(x), 0.5), rsf.Stream[float])
    assert_type(numbers.reduce(lambda a, x: a + float(x), 0.5), rsf.Stream[float])
    assert_type(numbers.publish_on().subscribe_on(), rsf.Stream[int])
    assert_type(numbers.publish_on(max_bytes=1, weigher=int.bit_length), rsf.Stream[int])
    assert_type(numbers.first(), int)
    assert_type(numbers.first(None), int | None)
    assert_type(numbers.to_list(), list[int])
    numbers.map(str.upper)  # type: ignore[arg-type]
    for x in numbers:
        assert_type(x, int)


def sources() -> None:
    assert_type(rsf.range_(3), rsf.Stream[int])
    assert_type(rsf.from_iterable("abc"), rsf.Stream[str])
    assert_type(rsf.from_callable(lambda: 1.5), rsf.Stream[float])
    assert_type(rsf.from_publisher(rsf.range_(3)), rsf.Stream[int])


def send(emitter: rsf.Emitter[int]) -> None:
    assert_type(emitter.next(1), bool)
    emitter.next("1")  # type: ignore[arg-type]


def pushes(numbers: rsf.Stream[int]) -> None:
    assert_type(rsf.create(send), rsf.Stream[int])
    assert_type(rsf.create(send, on_drop=lambda n: n + 1), rsf.Stream[int])
    assert_type(rsf.interval(1.5, delay=1), rsf.Stream[int])
    assert_type(numbers.on_overflow(rsf.Overflow.LATEST), rsf.Stream[int])
    assert_type(numbers.on_overflow(rsf.Overflow.BUFFER, on_drop=str.upper), rsf.Stream[int])  # type: ignore[arg-type]
    numbers.on_overflow("latest")  # type: ignore[arg-type]


def combinations(numbers: rsf.Stream[int], words: rsf.Publisher[str], both: list[float]) -> None:
    floats = rsf.from_iterable(both)
    assert_type(rsf.merge(numbers, numbers, prefetch=8), rsf.Stream[int])
    assert_type(numbers.merge(words), rsf.Stream[int | str])
    assert_type(rsf.concat(words, words), rsf.Stream[str])
    assert_type(numbers.concat(words), rsf.Stream[int | str])
    assert_type(rsf.zip_(numbers), rsf.Stream[tuple[int]])
    assert_type(rsf.zip_(numbers, words, prefetch=8), rsf.Stream[tuple[int, str]])
    assert_type(rsf.zip_(numbers, words, floats), rsf.Stream[tuple[int, str, float]])
    assert_type(rsf.zip_(numbers, words, floats, words), rsf.Stream[tuple[int, str, float, str]])
    assert_type(
        rsf.zip_(numbers, words, floats, words, numbers),
        rsf.Stream[tuple[int, str, float, str, int]],
    )
    assert_type(rsf.zip_(*[numbers, numbers]), rsf.Stream[tuple[Any, ...]])
    assert_type(numbers.zip(words), rsf.Stream[tuple[int, str]])
    assert_type(numbers.zip(words, floats, words), rsf.Stream[tuple[int, str, float, str]])
    assert_type(
        numbers.zip(words, floats, words, numbers), rsf.Stream[tuple[int, str, float, str, int]]
    )
    assert_type(numbers.flat_map(rsf.range_), rsf.Stream[int])
    assert_type(numbers.flat_map(lambda n: words, concurrency=2), rsf.Stream[str])
    assert_type(numbers.concat_map(lambda n: words), rsf.Stream[str])
    numbers.flat_map(str)  # type: ignore[arg-type]
    rsf.merge(numbers, 3)  # type: ignore[arg-type]
    rsf.zip_(numbers, 3)  # type: ignore[call-overload]


def recovery(numbers: rsf.Stream[int], words: rsf.Publisher[str]) -> None:
    assert_type(numbers.retry(3, when=bool, delay=lambda attempt: attempt / 2), rsf.Stream[int])
    assert_type(numbers.on_error_resume(lambda error: words), rsf.Stream[int | str])
    assert_type(numbers.on_error_resume(rsf.error, on=(OSError, KeyError)), rsf.Stream[int])
    assert_type(numbers.timeout(1.5), rsf.Stream[int])
    assert_type(numbers.distinct_until_changed(str), rsf.Stream[int])
    assert_type(numbers.batch(3, seconds=1, max_bytes=9, weigher=abs), rsf.Stream[list[int]])
    numbers.retry("3")  # type: ignore[arg-type]
    numbers.on_error_resume(str)  # type: ignore[arg-type]
    numbers.distinct_until_changed(str.upper)  # type: ignore[arg-type]


def sharing(numbers: rsf.Stream[int]) -> None:
    assert_type(numbers.multicast(slow="drop", on_last_cancel="keep"), rsf.Stream[int])
    assert_type(numbers.share(buffer_size=8), rsf.Stream[int])
    assert_type(numbers.replay(max_bytes=9, weigher=int.bit_length), rsf.Stream[int])
    numbers.multicast(slow="wait")  # type: ignore[arg-type]
    numbers.replay(max_bytes=9, weigher=str.upper)  # type: ignore[arg-type]
    processor: rsf.Processor[int, int] = rsf.MulticastProcessor(on_last_cancel="keep")
    processor = rsf.ReplayProcessor(count=3)
    processor.on_next("1")  # type: ignore[arg-type]
    assert_type(rsf.from_publisher(rsf.ReplayProcessor[int](count=3)), rsf.Stream[int])
    numbers.subscribe(processor)


def variance(derived: rsf.Stream[Derived]) -> None:
    publisher: rsf.Publisher[Base] = derived  # what publishes less is a publisher of more
    publisher.subscribe(TakesBase())
    derived.subscribe(TakesBase())  # what takes more is a subscriber to less


def bulk(numbers: rsf.Stream[int]) -> None:
    parts = rsf.from_numpy(np.arange(3.0), chunk=2)
    assert_type(parts.publish_records_on("f8", capacity=3).map(len), rsf.Stream[int])
    assert_type(numbers.to_numpy(dtype="f8"), np.ndarray[Any, Any])
    ring = rsf.RecordRing("f8", 4)
    assert_type(ring.write(np.zeros(2)), int)
    assert_type(ring.peek(2), np.ndarray[Any, Any])
