"""defer, generate and repeat: what is made, or subscribed to, when it is needed."""

from __future__ import annotations

from typing import Any

import pytest

import rstreams_fast as rsf
from tests.rules.probes import Recorder, subscribed


def test_defer_makes_a_publisher_for_each_subscriber() -> None:
    made: list[int] = []

    def factory() -> rsf.Stream[int]:
        made.append(1)
        return rsf.range_(len(made))

    stream = rsf.defer(factory)
    assert made == []
    assert stream.to_list() == [0]
    assert stream.to_list() == [0, 1]


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda: 1 // 0, "zero"),
        (lambda: 3, "must have a method subscribe"),
        (lambda: [3], ">) makes must have a method subscribe(subscriber), got list"),
    ],
)
def test_what_the_factory_raises_or_returns_is_signalled(factory: Any, message: str) -> None:
    recorder = subscribed(rsf.defer(factory))
    assert [signal[0] for signal in recorder.signals] == ["on_subscribe", "on_error"]
    assert message in str(recorder.error)


def test_generate_begins_anew_for_each_subscriber_and_calls_when_asked() -> None:
    calls: list[int] = []

    def fn(n: int) -> tuple[int, int] | None:
        calls.append(n)
        return (n * n, n + 1) if n < 4 else None

    stream = rsf.generate(1, fn)
    recorder = subscribed(stream, 2)
    assert (recorder.elements, calls) == ([1, 4], [1, 2])
    recorder.subscription.cancel()
    assert stream.to_list() == [1, 4, 9]


def test_what_generate_cannot_use_ends_it() -> None:
    with pytest.raises(TypeError, match=r"must return \(element, state\) or None, returned 3$"):
        rsf.generate(1, lambda _n: 3).run()  # type: ignore[arg-type, return-value]
    with pytest.raises(ZeroDivisionError):
        rsf.generate(0, lambda n: (1 // n, n)).run()


def test_repeat_without_end_does_not_recurse_and_can_be_left() -> None:
    recorder = Recorder(request=1, on_next=lambda r, _x: r.subscription.request(1))
    rsf.range_(2).repeat().take(5001).subscribe(recorder)
    assert (recorder.elements, recorder.max_depth) == ([0, 1] * 2500 + [0], 1)
