"""What an operator refuses when it is built, with a word that names the argument."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from rstreams_fast import Overflow
from tests.rules.probes import HandTimer

Build = Callable[[Any], object]


async def coroutine(element: Any) -> Any:
    return element


TYPE_ERRORS: list[tuple[Build, str]] = [
    (lambda s: s.default_if_empty(None), "default_if_empty: None is not an element"),
    (lambda s: s.on_error_return(None), "on_error_return: None is not an element"),
    (lambda s: s.start_with(1, None), "start_with: None is not an element"),
    (lambda s: s.batch(True, seconds=1), "n must be an int, got bool"),
    (lambda s: s.batch(3, seconds="1"), "seconds must be a number of seconds, got str"),
    (lambda s: s.batch(3, max_bytes=1.5, weigher=len), "max_bytes must be an int, got float"),
    (lambda s: s.batch(3, max_bytes=5, weigher=3), "weigher must be callable, got int"),
    (lambda s: s.batch(3, seconds=1, timer=3), "timer must have the methods"),
    (lambda s: s.batch(3, timer=3), "timer must have the methods"),
    (lambda s: rsf.concat(s, None), r"concat\(\*publishers\): publisher 2 .* NoneType$"),
    (lambda s: rsf.concat(s).subscribe(None), r"§1\.9"),
    (lambda s: s.concat_map(3), r"concat_map\(fn\): fn must be callable, got int"),
    (
        lambda s: s.concat_map(coroutine),
        r"concat_map\(fn\): .* not a coroutine function; use map_async, which awaits",
    ),
    (lambda s: s.do_finally(3), r"do_finally\(fn\): fn must be callable"),
    (lambda s: s.expand(coroutine), r"not a coroutine function; let it return from_iterable"),
    (lambda s: s.switch_map(coroutine), r"not a coroutine function; let it return from_iterable"),
    (lambda s: s.expand(3), r"expand\(fn\): fn must be callable, got int"),
    (lambda s: s.expand(rsf.range_, depth_first=1), "depth_first must be a bool, got int"),
    (lambda s: s.expand(rsf.range_).subscribe(None), r"§1\.9"),
    (lambda s: s.flat_map(3), r"flat_map\(fn\): fn must be callable, got int"),
    (
        lambda s: s.flat_map(coroutine),
        r"flat_map\(fn\): .* not a coroutine function; use map_async, which awaits",
    ),
    (lambda s: s.flat_map(rsf.range_, delay_error="yes"), "delay_error must be a bool"),
    (lambda s: s.distinct(3, max_keys=1), r"distinct\(key\): key must be callable"),
    (lambda s: s.flat_map_sequential(3), r"flat_map_sequential\(fn\): fn must be callable"),
    (lambda s: rsf.interval("1"), "seconds must be a number of seconds"),
    (lambda s: rsf.interval(1, overflow=3), "overflow must be a member of Overflow"),
    (lambda s: rsf.interval(1, executor=3), "executor must be"),
    (lambda s: rsf.interval(1, timer=3), "timer must have the methods"),
    (lambda s: s.map_async(coroutine, concurrency="2"), "concurrency"),
    (lambda s: s.map_async(coroutine, prefetch=2.5), "prefetch"),
    (lambda s: s.map_async(coroutine, ordered=1), "ordered"),
    (lambda s: s.map_async(coroutine, loop="loop"), "loop"),
    (lambda s: s.map_async(coroutine, key="key"), "key"),
    (lambda s: rsf.merge(s, 5), r"merge\(\*publishers\): publisher 2 .* int$"),
    (lambda s: rsf.merge([1]), r"publisher 1 .* list; use from_iterable"),
    (lambda s: rsf.merge(s, delay_error=1), "delay_error must be a bool"),
    (lambda s: rsf.merge(s).subscribe(None), r"§1\.9"),
    (lambda s: s.log(level="INFO"), r"log\(level\): level must be an int, got str"),
    (lambda s: s.retry(3, when=OSError), "got the class OSError; give lambda error: isinstance"),
    (lambda s: s.switch_if_empty([1]), r"^switch_if_empty\(publisher\): .* use from_iterable$"),
    (lambda s: s.take_until(5), r"^take_until\(publisher\): publisher must have .* got int$"),
    (lambda s: s.map(str).on_error_continue(3), r"on_error_continue\(fn\): fn must be callable"),
    (lambda s: s.on_error_resume(3, on=Exception), "fn must be callable, got int"),
    (lambda s: s.on_error_resume(str, on=3), "exception type or a tuple of them, got 3"),
    (lambda s: s.on_error_resume(str, on=ValueError()), "exception type or a tuple of them"),
    (lambda s: s.on_error_resume(str, on=(ValueError, int)), "exception type or a tuple of them"),
    (lambda s: s.on_error_resume(str, on=[ValueError]), "exception type or a tuple of them"),
    (lambda s: s.on_overflow("error"), "strategy must be a member of Overflow, got 'error'"),
    (lambda s: s.on_overflow(Overflow.BUFFER, capacity="many"), "capacity must be an int"),
    (lambda s: s.on_overflow(Overflow.LATEST, on_drop=1), "on_drop must be callable"),
    (lambda s: s.on_overflow(Overflow.BUFFER).subscribe(None), r"§1\.9"),
    (lambda s: s.publish_on(prefetch=1.5), "prefetch"),
    (lambda s: s.publish_on(prefetch=True), "prefetch"),
    (lambda s: s.publish_on(max_bytes=5, weigher=5), "weigher"),
    (lambda s: s.publish_on(delay_error=1), "delay_error"),
    (lambda s: s.publish_on(executor=5), "executor"),
    (lambda s: s.publish_on(executor="thread"), "executor"),
    (lambda s: s.retry(True), "times must be an int, got bool"),
    (lambda s: s.retry(1.0), "times must be an int, got float"),
    (lambda s: s.retry(when=3), "when must be callable, got int"),
    (lambda s: s.retry(delay="1"), "delay must be a number of seconds, got str"),
    (lambda s: s.retry(delay=False), "delay must be a number of seconds, got bool"),
    (lambda s: s.retry(timer=3), "timer must have the methods"),
    (lambda s: s.switch_map(3), r"switch_map\(fn\): fn must be callable, got int"),
    (lambda s: s.switch_map(rsf.range_).subscribe(None), r"§1\.9"),
    (lambda s: s.timeout("1"), "seconds must be a number of seconds, got str"),
    (lambda s: s.timeout(True), "seconds must be a number of seconds, got bool"),
    (lambda s: s.timeout(1, timer=object()), "timer must have the methods"),
    (lambda s: rsf.using(object, rsf.from_iterable, 3), r"using\(close\): close must be callable"),
    (lambda s: s.zip("abc"), r"zip_\(\*publishers\): publisher 2 .* str; use from_it"),
    (lambda s: rsf.zip_(s, prefetch=True), "prefetch must be an int"),
    (lambda s: rsf.zip_(s).subscribe(None), r"§1\.9"),
]
VALUE_ERRORS: list[tuple[Build, str]] = [
    (lambda s: rsf.MulticastProcessor(on_last_cancel="restart"), "on_last_cancel"),
    (lambda s: s.batch(0, seconds=1), "n must be >= 1, got 0"),
    (lambda s: s.batch(3, seconds=0), "seconds must be > 0"),
    (lambda s: s.batch(3, seconds=-1), "seconds must be > 0"),
    (lambda s: s.batch(3, seconds=float("nan")), "seconds must be > 0"),
    (lambda s: s.batch(3, max_bytes=5), "max_bytes and weigher must be given together"),
    (lambda s: s.batch(3, weigher=len), "max_bytes and weigher must be given together"),
    (lambda s: s.batch(3, max_bytes=0, weigher=len), "max_bytes must be >= 1, got 0"),
    (lambda s: s.batch(3, timer=HandTimer()), "a timer is for seconds"),
    (lambda s: s.concat_map(rsf.range_, prefetch=0), "prefetch must be >= 1"),
    (lambda s: s.flat_map(rsf.range_, concurrency=0), "concurrency must be >= 1"),
    (lambda s: s.flat_map(rsf.range_, concurrency=rsf.UNBOUNDED), "concurrency must be <= 2"),
    (lambda s: s.flat_map(rsf.range_, prefetch=0), "prefetch must be >= 1"),
    (lambda s: rsf.interval(1, delay=-1), "delay must be >= 0"),
    (lambda s: rsf.interval(1, executor="caller"), "executor must not be 'caller'"),
    (lambda s: rsf.interval(0), "seconds must be > 0 and finite"),
    (lambda s: rsf.interval(-1), "seconds must be > 0 and finite"),
    (lambda s: rsf.interval(float("inf")), "seconds must be > 0 and finite"),
    (lambda s: rsf.interval(float("nan")), "seconds must be > 0 and finite"),
    (lambda s: rsf.interval(5e-324), "seconds must be at least 1e-09, got"),
    (lambda s: rsf.interval(1e-300), "seconds must be at least 1e-09, got"),
    (lambda s: rsf.interval(0.9e-9), "seconds must be at least 1e-09, got"),
    (lambda s: s.map_async(coroutine, concurrency=0), "concurrency"),
    (lambda s: s.map_async(coroutine, prefetch=0), "prefetch"),
    (lambda s: rsf.merge(s, prefetch=0), "prefetch must be >= 1"),
    (lambda s: s.multicast(min_subscribers=0), "min_subscribers"),
    (lambda s: s.on_overflow(Overflow.LATEST, capacity=2), "LATEST holds one element"),
    (lambda s: s.on_overflow(Overflow.BUFFER, capacity=0), "capacity must be >= 1"),
    (lambda s: s.on_overflow(Overflow.BUFFER, capacity=-1), "capacity must be >= 1"),
    (lambda s: s.publish_on(prefetch=0), "prefetch"),
    (lambda s: s.publish_on(prefetch=-1), "prefetch"),
    (lambda s: s.publish_on(prefetch=2**31 + 1), "prefetch"),
    (lambda s: s.publish_on(max_bytes=5), "weigher"),
    (lambda s: s.publish_on(weigher=len), "max_bytes"),
    (lambda s: s.publish_on(max_bytes=0, weigher=len), "max_bytes"),
    (lambda s: s.retry(-1), "times must be >= 0, got -1"),
    (lambda s: s.retry(delay=-1), "delay must be >= 0"),
    (lambda s: s.switch_map(rsf.range_, prefetch=0), "prefetch must be >= 1"),
    (lambda s: s.timeout(0), "seconds must be > 0"),
    (lambda s: s.timeout(-1), "seconds must be > 0"),
    (lambda s: s.timeout(float("nan")), "seconds must be > 0"),
    (lambda s: s.timeout(float("inf")), "finite"),
]


@pytest.mark.parametrize(("build", "words"), TYPE_ERRORS)
def test_of_another_type(build: Build, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        build(rsf.range_(3))


@pytest.mark.parametrize(("build", "words"), VALUE_ERRORS)
def test_out_of_range(build: Build, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build(rsf.range_(3))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda s: s.map(lambda n: [n]).distinct(max_keys=1), "distinct.*the element must be hash"),
        (lambda s: s.distinct(lambda n: [n], max_keys=1), "distinct.*lambda> gives must be hash"),
        (lambda s: s.group_by(lambda n: [n]), "group_by.*lambda> gives: it must be hashable"),
    ],
)
def test_a_key_that_cannot_be_one(build: Build, words: str) -> None:
    with pytest.raises(TypeError, match="unhashable") as caught:
        build(rsf.range_(3)).to_list()
    assert re.search(words, *caught.value.__notes__)
