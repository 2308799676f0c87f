"""What an operator or a source refuses when it is built, with a word that names the argument.

Most of it follows from the signatures: an ``int`` is no ``str``, and a function must be callable.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import rstreams_fast as rsf
from rstreams_fast import Overflow
from tests.operators import OPERATORS, SOURCES, USES
from tests.rules.probes import HandTimer

NUMBERS = rsf.range_(3)
#: Of more digits than the interpreter is willing to write down, and what is said of it.
HUGE = 10**5000
BITS = f"<an int of {HUGE.bit_length()} bits>"


async def coroutine(element: Any) -> Any:
    return element


async def elements(*_args: int) -> AsyncIterator[int]:
    yield 1


class Coroutine:
    async def __call__(self, *_args: int) -> None: ...


#: By the first word of an annotation: an argument that is welcome, and those of another type.
TYPES: dict[str, tuple[Any, list[Any]]] = {
    "int": (3, [True, 1.5, "3"]),
    "bool": (True, [1, "yes"]),
    "float": (1.0, ["1", True]),
    "str": ("it", [3]),
    "Callable": (str, [5, "len"]),
    "Publisher": (NUMBERS, [5, "abc", [1], None]),
    "Timer": (HandTimer(), [3, object()]),
    "Executor": ("caller", [5, "thread"]),
    "asyncio": (None, ["loop", 3]),
    "Overflow": (Overflow.BUFFER, [3, "error"]),
    "type": (ValueError, [3, ValueError(), (ValueError, int), [ValueError]]),
    "U": (1, [None]),
}
#: Operators with functions of elements, which could be awaited.
TAKE_ELEMENTS = {
    *("map", "map_not_none", "filter", "take_while", "skip_while", "map_blocking"),
    *("flat_map", "flat_map_sequential", "concat_map", "switch_map", "expand"),
}
#: The smallest number, where 0 is one.
FROM_0 = {"take(n)", "skip(n)", "retry(times)", "repeat(times)", "retry(delay)", "interval(delay)"}
#: What is looked at only when it is used, or may be any number.
LATER = {"log(level)", "range_(args)", "defer(factory)", "using(stream_of)"}
#: What an argument needs beside it; other needs of a function.
WITH: dict[str, dict[str, Any]] = {"max_bytes": {"weigher": len}, "weigher": {"max_bytes": 9}}
WITH |= {"timer": {"seconds": 1.0}}
NEEDS: dict[str, dict[str, Any]] = {
    "replay": {"count": 3},
    "ReplayProcessor": {"count": 3},
    "map_async": {"fn": coroutine},
    "publish_records_on": {"dtype": "i8"},
    "from_async_iterable": {"iterable": elements},
    "from_numpy": {"array": np.arange(3)},
    "from_arrow": {"source": pa.table({"n": [1]})},
}


@dataclass(frozen=True)
class Argument:
    name: str
    face: Callable[..., Any]
    parameter: inspect.Parameter

    @property
    def kind(self) -> str:
        return _kind(self.parameter)

    def give(self, bad: Any) -> None:
        """Call the function with a bad argument, beside good ones."""
        signature = inspect.signature(self.face)
        needs = WITH.get(self.parameter.name, {}) | NEEDS.get(self.name, {})
        needs = {name: value for name, value in needs.items() if name in signature.parameters}
        needs[self.parameter.name] = bad
        given, named = [], {}
        last = max(map([*signature.parameters].index, needs))
        for place, each in enumerate(signature.parameters.values()):
            wanted = each.name in needs or each.default is each.empty
            value = needs.get(
                each.name, TYPES.get(_kind(each), (1,))[0] if wanted else each.default
            )
            if each.kind is each.KEYWORD_ONLY:
                named |= {each.name: value} if wanted else {}
            elif wanted or place < last:
                given.append(value)
        self.face(*given, **named)

    def refuses(self, bad: Any, error: type[Exception], words: str = "") -> str:
        """What it says of a bad argument."""
        word = {"Publisher": "publisher", "U": "not an element"}.get(self.kind, self.parameter.name)
        with pytest.raises(error, match=rf"(?s){word}.*{words}") as raised:
            self.give(bad)
        return str(raised.value)


def _kind(parameter: inspect.Parameter) -> str:
    return re.split(r"\W", str(parameter.annotation))[0]


def arguments() -> Iterator[Argument]:
    faces: list[tuple[str, Callable[..., Any]]] = [
        (name, partial(getattr(rsf.Stream, name), NUMBERS))
        for name in dict.fromkeys(name for entry in OPERATORS for name in entry.methods)
    ]
    faces += [(name, getattr(rsf, name)) for entry in SOURCES for name in entry.functions]
    faces += [(face.__name__, face) for face in (rsf.MulticastProcessor, rsf.ReplayProcessor)]
    for name, face in faces:
        for parameter in inspect.signature(face).parameters.values():
            if f"{name}({parameter.name})" not in LATER:
                yield Argument(name, face, parameter)


ARGUMENTS = {f"{each.name}({each.parameter.name})": each for each in arguments()}


def of(*kinds: str) -> list[str]:
    return [name for name, argument in ARGUMENTS.items() if argument.kind in kinds]


@pytest.mark.parametrize("name", of(*TYPES))
def test_of_another_type(name: str) -> None:
    argument = ARGUMENTS[name]
    for bad in TYPES[argument.kind][1]:
        said = argument.refuses(bad, TypeError)
        assert "use from_iterable" in said or argument.kind != "Publisher" or bad in (5, None)


@pytest.mark.parametrize("name", of("int", "float"))
def test_out_of_range(name: str) -> None:
    argument = ARGUMENTS[name]
    bad = [-1, *([] if name in FROM_0 else [0])]
    bad += [float("nan")] if argument.kind == "float" else []
    for number in bad:
        argument.refuses(number, ValueError)
    for number in (-HUGE, HUGE) if argument.kind == "float" else (-HUGE,):
        argument.refuses(number, ValueError, BITS)


@pytest.mark.parametrize("name", of("Literal"))
def test_a_word_that_is_none_of_those(name: str) -> None:
    others: tuple[Any, ...] = ("wait", [], None)
    for bad in others:
        ARGUMENTS[name].refuses(bad, ValueError)
    ARGUMENTS[name].refuses(HUGE, ValueError, BITS)


@pytest.mark.parametrize("name", [name for name in of("Callable") if name != "map_async(fn)"])
def test_an_async_function_is_refused_and_its_like_named_where_it_helps(name: str) -> None:
    argument = ARGUMENTS[name]
    for bad in (coroutine, Coroutine(), partial(coroutine, 1)):
        said = argument.refuses(bad, TypeError, "a plain function|not a coroutine function")
        assert ("map_async" in said.partition(":")[2]) == (argument.name in TAKE_ELEMENTS)
    said = argument.refuses(elements, TypeError, "function")
    assert "map_async" not in said.partition(":")[2]


def generator(*_args: Any) -> Iterator[int]:
    yield 1


class Generator:
    def __call__(self, *_args: int) -> Iterator[int]:
        yield 1


#: Functions whose result nobody uses.
UNUSED: dict[str, Callable[[Any], object]] = {
    **{name: getattr(NUMBERS, name) for name in dir(NUMBERS) if name.startswith("do_")},
    "on_discard": NUMBERS.on_discard,
    "on_error_continue": NUMBERS.map(str).on_error_continue,
    "on_drop": lambda fn: NUMBERS.on_overflow(Overflow.LATEST, on_drop=fn),
    "create": rsf.create,
    "on_cancel": lambda fn: rsf.create(lambda emitter: emitter.on_cancel(fn)).run(),
    "using": lambda fn: rsf.using(list, rsf.from_iterable, fn),
    "on_dropped_error": rsf.on_dropped_error,
    "for_each": NUMBERS.for_each,
    "on_error": lambda fn: NUMBERS.for_each(print, fn),
    "on_complete": lambda fn: NUMBERS.for_each(print, None, fn),
    "SyncSubscriber": rsf.SyncSubscriber,
    "AsyncSubscriber": rsf.AsyncSubscriber,
}


@pytest.mark.parametrize("name", UNUSED)
def test_a_function_that_would_not_run_when_it_is_called_is_refused(name: str) -> None:
    for bad in (generator, Generator(), partial(generator, 1)):
        with pytest.raises(TypeError, match="generator function, which would not run when"):
            UNUSED[name](bad)
    with pytest.raises(TypeError, match=rf"{name if name == 'on_cancel' else ''}.*plain function"):
        UNUSED[name](coroutine)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: NUMBERS.retry(3, when=OSError), "got the class OSError; give lambda error: isi"),
        (lambda: NUMBERS.scan(max, None), "seed must not be None"),
        (lambda: NUMBERS.reduce(max, None), "seed must not be None"),
        (lambda: NUMBERS.map_async(elements), "generator function"),
        (lambda: NUMBERS.on_error_return(0, on=[ValueError]), r"on_error_return\(on\): on must"),
        (lambda: NUMBERS.on_error_resume(rsf.error, on=0), r"on_error_resume\(on\): on must"),
        (lambda: NUMBERS.on_error_return(None), "on_error_return: None is not an element"),
        *((partial(use.over(NUMBERS).subscribe, None), r"§1\.9") for _op, use in USES.values()),
    ],
)
def test_refused_with_a_word_of_its_own(call: Callable[[], object], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rsf.MulticastProcessor(on_last_cancel="restart"), "on_last_cancel"),
        (lambda: NUMBERS.batch(3, max_bytes=5), "max_bytes and weigher must be given together"),
        (lambda: NUMBERS.publish_on(weigher=len), "max_bytes and weigher must be given together"),
        (lambda: NUMBERS.batch(3, timer=HandTimer()), "a timer is for seconds"),
        (lambda: NUMBERS.flat_map(rsf.range_, concurrency=rsf.UNBOUNDED), "concurrency must be <="),
        (lambda: NUMBERS.publish_on(prefetch=2**31 + 1), "prefetch"),
        (lambda: NUMBERS.publish_on(prefetch=HUGE), f"prefetch must be .*{BITS}"),
        (lambda: rsf.MulticastProcessor(buffer_size=2**40), "buffer_size"),
        (lambda: NUMBERS.timeout(float("inf")), "seconds must be > 0 and <= .*TIMEOUT_MAX"),
        (lambda: NUMBERS.timeout(2**63), "seconds must be > 0 and <= .*TIMEOUT_MAX"),
        (lambda: NUMBERS.on_overflow(Overflow.LATEST, capacity=2), "LATEST holds one element"),
        (lambda: rsf.interval(1, executor="caller"), "executor must not be 'caller'"),
        (lambda: rsf.interval(float("inf")), "seconds must be > 0 and <= "),
        *((partial(rsf.interval, n), "at least 1e-09, got") for n in (5e-324, 1e-300, 0.9e-9)),
    ],
)
def test_out_of_a_range_of_its_own(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("one", [np.int64(1), np.float16(1), np.float32(1), Fraction(1)])
def test_seconds_can_be_any_real_number(one: Any) -> None:
    timed = NUMBERS.timeout(one)
    assert timed.describe() == NUMBERS.timeout(1).describe()
    run = timed.for_each(lambda _n: None)
    run.result(one)
    for wrong in (-one, one * 0):
        with pytest.raises(ValueError, match="seconds must be > 0"):
            NUMBERS.timeout(wrong)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda s: s.map(lambda n: [n]).distinct(max_keys=1), "distinct.*the element must be hash"),
        (lambda s: s.distinct(lambda n: [n], max_keys=1), "distinct.*lambda> gives must be hash"),
        (lambda s: s.group_by(lambda n: [n]), "group_by.*lambda> gives: it must be hashable"),
    ],
)
def test_a_key_that_cannot_be_one(build: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(TypeError, match="unhashable") as caught:
        build(NUMBERS).to_list()
    assert re.search(words, *caught.value.__notes__)
