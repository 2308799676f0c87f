"""What ``describe`` says of each operator: its arguments, and how much it holds at most."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import rstreams_fast as rsf
from rstreams_fast import Overflow

NUMBERS: rsf.Stream[Any] = rsf.range_(3)

DESCRIBED: list[tuple[rsf.Stream[Any], str]] = [
    (NUMBERS.map(str).distinct_until_changed(len).batch(2), "distinct_until_changed(len) -> batch"),
    (NUMBERS.distinct(str, max_keys=5), "distinct(str, max_keys=5)"),
    (NUMBERS.map_async(asyncio.sleep, concurrency=3, prefetch=7), "3 calls at once and 7 elements"),
    (NUMBERS.map_async(asyncio.sleep, ordered=False), "as they come"),
    (NUMBERS.map_blocking(abs, concurrency=2), "(abs): at most 2 calls at once and 512 elements"),
    (NUMBERS.multicast(buffer_size=7, min_subscribers=2), "7 elements, the slowest gates, begins"),
    (NUMBERS.multicast(), "shuts down"),
    (NUMBERS.multicast(slow="drop", delay_error=True), "is dropped, errors after elements"),
    (NUMBERS.share(), "starts anew"),
    (NUMBERS.replay(count=7, max_bytes=100, weigher=len), "7 elements and 100 bytes, weighed by"),
    (NUMBERS.replay(seconds=1.5, buffer_size=9), "1.5 s, and at most 9 elements"),
    (NUMBERS.publish_records_on("f8", capacity=100), "at most 100 records (800 bytes) + 1 array"),
    (NUMBERS.on_overflow(Overflow.DROP_OLDEST, capacity=16), "(DROP_OLDEST): at most 16 elements"),
    (NUMBERS.on_overflow(Overflow.LATEST), "on_overflow(LATEST): at most 1 element"),
    (NUMBERS.on_discard(print), "on_discard(print): holds no elements"),
    (NUMBERS.batch(9, seconds=0.5), "batch(9, after 0.5 s): at most 9 elements"),
    (NUMBERS.batch(9, max_bytes=99, weigher=len), "99 bytes + one element, weighed by len"),
    (NUMBERS.retry(), "retry(for ever): holds no elements"),
    (NUMBERS.retry(3, delay=0.5), "retry(at most 3 times, after 0.5 s)"),
    (NUMBERS.retry(when=bool, delay=abs), "retry(for ever, when bool, after abs)"),
    (NUMBERS.repeat(2), "repeat(2 times more): holds no"),
    (NUMBERS.timeout(0.5), "timeout(0.5 s): holds no elements"),
    (NUMBERS.concat_map(iter, prefetch=5), "at most 5 elements, and one publisher at a time"),
    (NUMBERS.flat_map(iter, concurrency=4, prefetch=8), "4 publishers at once and 8 elements of"),
    (NUMBERS.flat_map(iter, delay_error=True), "errors after elements"),
    (NUMBERS.switch_map(iter), "switch_map(iter): holds the newest element, asks"),
    (NUMBERS.expand(iter), "holds elements to be expanded"),
    (NUMBERS.expand(iter, depth_first=True), "holds the publishers on the way down"),
    (
        NUMBERS.merge(NUMBERS, prefetch=8),
        "merge of 2 publishers: at most 8 elements of each, 16 in",
    ),
    (NUMBERS.concat(NUMBERS), "concat of 2 publishers: holds no elements"),
    (NUMBERS.switch_if_empty(NUMBERS), "switch_if_empty(Stream): holds no elements"),
    (
        NUMBERS.on_error_resume(abs, on=(OSError, KeyError)),
        "resume(abs) on OSError, KeyError: holds",
    ),
    (rsf.from_numpy(np.arange(9), chunk=4), "from_numpy(int64 (9,)), 4 rows each"),
    (rsf.create(print, overflow=Overflow.LATEST), "create(LATEST): at most 1 element, by print"),
    (rsf.interval(5, overflow=Overflow.LATEST), "at most 1 element, one every 5.0 s, on shared"),
    (rsf.interval(1e-9), "one every 1e-09 s"),
]


@pytest.mark.parametrize(("stream", "words"), DESCRIBED, ids=[words for _, words in DESCRIBED])
def test_an_operator_tells_its_arguments_and_its_bound(stream: rsf.Stream[Any], words: str) -> None:
    assert words in stream.describe()


def test_each_stage_boundary_and_run_has_its_line() -> None:
    stream = NUMBERS.map(str).filter(bool).publish_on(prefetch=64, max_bytes=4096, weigher=len)
    text = stream.batch(4).unbatch().take(3).subscribe_on().describe()
    for expected in (
        "range(0, 3)", "map(str) -> filter(bool)", "the caller of request and subscribe",
        "publish_on(own worker thread)", "at most 64 elements", "4096 bytes + one element",
        "weighed by len", "batch(4)", "unbatch(): at most 1 iterable", "take(3)", "subscribe_on",
        rsf.backend,
    ):  # fmt: skip
        assert expected in text, text
    assert "at most 5 elements" in NUMBERS.publish_on(prefetch=64).take(5).describe()


def test_it_looks_into_what_is_combined() -> None:
    ring = rsf.range_(9).publish_on(prefetch=5)
    stream = rsf.concat(ring.zip(rsf.range_(2), rsf.range_(2)), rsf.range_(3).merge()).map(str)
    lines = stream.describe().splitlines()
    places = [
        "  | concat of 2 publishers: holds no elements",
        "      | zip of 3 publishers: at most 256 elements of each, 768 in all",
        "          | publish_on(own worker thread): at most 5 elements",
        "        2 times: Stream",
        "          | range(0, 2)",
        "      | merge of 1 publishers: at most 256 elements of each, 256 in all",
        "          | range(0, 3)",
        "    map(str)",
    ]
    at = [lines.index(line) for line in places]
    assert at == sorted(at)


def test_it_does_not_look_into_any_depth() -> None:
    stream = NUMBERS
    for _ in range(2000):
        stream = stream.zip(rsf.range_(1))
    assert 2 <= stream.describe().count("zip of 2 publishers") <= 64
