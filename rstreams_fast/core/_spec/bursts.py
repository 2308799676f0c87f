"""``BurstIterator``, in pure Python: iterates over elements that come in bursts (lists)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, Generic, Literal, NoReturn, Self, TypeVar

from rstreams_fast.core._common import MISSING, Missing, refuse_pickle

T = TypeVar("T")


class BurstIterator(Generic[T]):
    """An iterator whose elements come in bursts (lists), for ``for`` and ``async for``.

    When the burst is used up, the iterator calls a method of the subclass: ``_refill()`` in a
    ``for`` loop, or the coroutine function ``_refill_async()`` in an ``async for`` loop. The method
    returns the next element, or raises an exception. Usually the method gets another burst, and
    returns ``_first_of(burst)``. A call of ``anext`` takes no element before its result is awaited.
    Thread-safe: no two threads get the same element.
    """

    __slots__ = ("_burst",)

    _burst: list[T]  # the elements that are left of the burst, in reverse order

    def __new__(cls, *_arguments: Any, **_named: Any) -> Self:
        self = super().__new__(cls)
        self._burst = []
        return self

    def _refill(self) -> T:
        raise NotImplementedError

    async def _refill_async(self) -> T:
        raise NotImplementedError

    def _first_of(self, burst: list[T]) -> T:
        """Return the first element of ``burst``, and store the other elements. Changes the list."""
        burst.reverse()
        element = burst.pop()
        self._burst.extend(burst)
        return element

    def _next_of_burst(self) -> T | Literal[Missing.MISSING]:
        """Return the next element of the burst (list), or ``MISSING`` if no element is left."""
        try:
            return self._burst.pop()
        except IndexError:
            return MISSING

    def _forget_burst(self) -> None:
        self._burst.clear()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return self._burst.pop()
        except IndexError:
            # Do not call _refill here, but after this except block. Here, an exception of _refill
            # would get the IndexError as its __context__.
            pass
        return self._refill()

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def _anext(self) -> T:
        try:
            return self._burst.pop()
        except IndexError:
            pass
        return await self._refill_async()

    def __anext__(self) -> Coroutine[Any, Any, T]:
        return self._anext()

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)
