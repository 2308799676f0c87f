"""Iterating over bursts: each element once, in order, whichever thread steps and however."""

from __future__ import annotations

import asyncio
import itertools
import threading
import weakref
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

import pytest

from rstreams_fast.core import MISSING
from tests.helpers import Element, Problem, run_threads, wait_gone

#: As arguments of a StopIteration they would not be themselves.
ODD = [(), (1, 2), ((3,),), ValueError("an element"), StopIteration(4), StopIteration, None, [5]]


def over(core: Any, *bursts: list[Any]) -> Any:
    """An iterator over ``bursts``; the asynchronous one suspends before each."""

    class Over(core.BurstIterator):  # type: ignore[misc]
        def __init__(self) -> None:
            self.bursts = iter(bursts)
            self.refills = 0

        def _refill(self) -> Any:
            self.refills += 1
            return self._first_of(list(next(self.bursts)))

        async def _refill_async(self) -> Any:
            self.refills += 1
            await asyncio.sleep(0)
            for burst in self.bursts:
                return self._first_of(list(burst))
            raise StopAsyncIteration

    return Over()


def step(it: Any) -> None:
    """Begin to wait for the next element."""
    it.__anext__().send(None)


async def test_each_comes_once_and_in_order(core: Any) -> None:
    for asynchronous in (False, True):
        it = over(core, [1, 2, 3], [4], [5, 6])
        assert (aiter if asynchronous else iter)(it) is it
        seen = [element async for element in it] if asynchronous else list(it)
        assert seen == [1, 2, 3, 4, 5, 6]
        assert it.refills == 4


@pytest.mark.parametrize("element", ODD, ids=repr)
def test_an_element_comes_as_itself(core: Any, element: Any) -> None:
    async def one_by_one(it: Any) -> list[Any]:
        return [
            await anext(it),
            await it.__anext__(),
            await asyncio.create_task(it.__anext__()),
            await asyncio.wait_for(it.__anext__(), 60),
            await anext(it, "none left"),
            *[each async for each in it],
        ]

    seen = asyncio.run(one_by_one(over(core, [element] * 8)))
    assert len(seen) == 8
    assert all(each is element for each in seen)
    assert all(each is element for each in over(core, [element] * 3))


async def test_an_exception_that_is_being_handled_changes_nothing(core: Any) -> None:
    it = over(core, [1, (2,)])
    try:
        raise Problem
    except Problem:
        assert [await anext(it), await anext(it)] == [1, (2,)]


async def test_the_element_is_taken_when_it_is_awaited_and_not_before(core: Any) -> None:
    it = over(core, [1, 2, 3])
    assert await anext(it) == 1
    first, second = it.__anext__(), it.__anext__()
    assert await second == 2
    assert await first == 3

    it = over(core, [1, 2])
    assert await anext(it) == 1
    never = asyncio.create_task(it.__anext__())
    never.cancel()  # before its first step
    with pytest.raises(asyncio.CancelledError):
        await never
    unused = it.__anext__()
    unused.close()
    thrown = it.__anext__()
    with pytest.raises(Problem):
        thrown.throw(Problem())
    assert await anext(it) == 2


async def test_what_was_awaited_cannot_be_awaited_again(core: Any) -> None:
    it = over(core, [1, 2, 3])
    by_refill = it.__anext__()
    assert await by_refill == 1
    at_once = it.__anext__()
    assert await at_once == 2
    closed = it.__anext__()
    closed.close()
    for used in (by_refill, at_once, closed):
        with pytest.raises(RuntimeError, match="cannot reuse already awaited"):
            await used
        with pytest.raises(RuntimeError, match="cannot reuse already awaited"):
            used.send(None)
        used.close()
    assert await anext(it) == 3


def test_it_can_be_driven_by_hand(core: Any) -> None:
    it = over(core, [1, 2])
    waiting = it.__anext__()
    assert isinstance(waiting, Coroutine)
    assert waiting.send(None) is None  # suspended, by the sleep
    with pytest.raises(StopIteration) as stop:
        waiting.send(None)
    assert stop.value.value == 1
    with pytest.raises(StopIteration) as stop:
        step(it)
    assert stop.value.value == 2

    waiting = it.__anext__()
    waiting.send(None)
    with pytest.raises(Problem):
        waiting.throw(Problem("thrown in"))
    waiting = it.__anext__()
    waiting.send(None)
    waiting.close()
    unbegun = it.__anext__()
    with pytest.raises(TypeError):
        unbegun.send("a value")
    unbegun.close()


def test_what_a_refill_raises_leaves(core: Any) -> None:
    class Failing(core.BurstIterator):  # type: ignore[misc]
        def _refill(self) -> Any:
            raise Problem("sync")

        async def _refill_async(self) -> Any:
            raise Problem("async")

    failing = Failing()
    for words, call in (("sync", partial(next, failing)), ("async", partial(step, failing))):
        with pytest.raises(Problem, match=f"^{words}$") as raised:
            call()
        assert raised.value.__context__ is None


def test_without_a_refill_it_says_so(core: Any) -> None:
    for call in (next, step):
        with pytest.raises(NotImplementedError):
            call(core.BurstIterator())


def test_a_burst_can_be_forgotten(core: Any) -> None:
    it = over(core, [1, 2, 3], [4])
    assert next(it) == 1
    it._forget_burst()
    assert list(it) == [4]


def test_a_subclass_may_step_otherwise(core: Any) -> None:
    class Negative(type(over(core))):  # type: ignore[misc]
        def __next__(self) -> Any:
            return -super().__next__()

        async def __anext__(self) -> Any:
            return -(await super().__anext__())

    class Deeper(Negative):
        pass

    async def elements(it: Any) -> list[Any]:
        return [element async for element in it]

    for cls in (Negative, Deeper):
        for listed in (list, lambda it: asyncio.run(elements(it))):
            it = cls()
            it.bursts = iter([[1, 2], [3]])
            assert listed(it) == [-1, -2, -3]


def test_a_class_may_be_told_to_step_otherwise_later(core: Any) -> None:
    it = over(core, [1, 2])
    type(it).__next__ = lambda _self: 7
    assert [next(it), next(it)] == [7, 7]

    async def eight(_self: Any) -> int:
        return 8

    async def main() -> None:
        type(it).__anext__ = eight
        async for element in it:
            assert element == 8
            break

    asyncio.run(main())


def test_it_can_be_subscripted_and_takes_options_of_classes(core: Any) -> None:
    assert core.BurstIterator[int] is not None
    seen = []

    class Told:
        def __init_subclass__(cls, *, told: str = "", **options: Any) -> None:
            seen.append(told)
            super().__init_subclass__(**options)

    class Both(core.BurstIterator, Told, told="this"):  # type: ignore[misc]
        pass

    assert seen == ["this"]


def test_several_threads_get_each_element_once(core: Any) -> None:
    total = 20_000

    class Guarded(core.BurstIterator):  # type: ignore[misc]
        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.made = 0

        def _refill(self) -> Any:
            with self.lock:
                found = self._next_of_burst()
                if found is not MISSING:
                    return found
                if self.made == total:
                    raise StopIteration
                burst = list(range(self.made, self.made + 50))
                self.made += 50
                return self._first_of(burst)

        async def _refill_async(self) -> Any:
            try:
                return self._refill()
            except StopIteration:
                raise StopAsyncIteration from None

    def by_awaiting(it: Any) -> Iterator[Any]:
        while True:
            try:
                it.__anext__().send(None)
            except StopIteration as stop:
                yield stop.value
            except StopAsyncIteration:
                return

    it = Guarded()
    ways = [it, it, by_awaiting(it), by_awaiting(it)]
    seen = run_threads([partial(list, way) for way in ways])
    assert sorted(itertools.chain(*seen)) == list(range(total))


def test_cycles_through_a_burst_are_collected(core: Any) -> None:
    it = over(core, [1], [2])
    element: Any = Element()
    element.it = it
    it._first_of([0, element])
    watched = weakref.ref(element)
    del it, element
    wait_gone(watched)


def test_what_stands_alone_harms_nobody(core: Any) -> None:
    """The type of what ``anext`` returns can be had, and so made of nothing."""
    made = core.BurstIterator().__anext__()
    made.close()
    kind = type(made)
    try:
        alone = kind()
    except TypeError:
        return  # a coroutine of Python's
    with pytest.raises(AttributeError):
        alone.send(None)
    kind().close()
    with pytest.raises(AttributeError):
        next(kind())
    with pytest.raises(Problem):
        kind().throw(Problem())
