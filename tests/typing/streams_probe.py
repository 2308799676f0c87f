"""What a type checker must know about streams. Checked by mypy, never run."""

from __future__ import annotations

from typing import assert_type

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


def variance(derived: rsf.Stream[Derived]) -> None:
    publisher: rsf.Publisher[Base] = derived  # what publishes less is a publisher of more
    publisher.subscribe(TakesBase())
    derived.subscribe(TakesBase())  # what takes more is a subscriber to less
