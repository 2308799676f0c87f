"""Where elements come from when they are pulled: iterables, and what is known about their end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from operator import length_hint
from typing import Any, Final, Protocol

from rstreams_fast.core._common import describe_callable
from rstreams_fast.errors import AlreadySubscribed, StageReturnedNone

__all__ = [
    "CallOnce",
    "CountedIterator",
    "IterableOrigin",
    "Origin",
    "at_end",
    "close_source",
]


class Origin(Protocol):
    """What a pull segment opens anew for each of its subscribers."""

    def open(self) -> Iterator[Any]:
        """Return an iterator; what this raises is signalled to the subscriber."""
        ...

    def describe(self) -> str:
        """Name the source in one line."""
        ...


class IterableOrigin:
    """Any iterable. A one-shot iterator can be opened once."""

    def __init__(self, iterable: Iterable[Any], name: str) -> None:
        self._iterable = iterable
        self._name = name
        self._used = threading.Lock()  # taken by the first who opens a one-shot iterator

    def open(self) -> Iterator[Any]:
        iterator = iter(self._iterable)
        if iterator is self._iterable and not self._used.acquire(blocking=False):
            raise AlreadySubscribed(
                f"§1.10: the source is a one-shot iterator ({type(iterator).__name__}) and was "
                "subscribed before; give from_iterable something that can be iterated again"
            )
        return iterator

    def describe(self) -> str:
        return self._name

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._iterable, self._name))


class CountedIterator(Iterator[Any]):
    """An iterator whose ``__length_hint__`` is exact, so that 0 is its end."""

    def __length_hint__(self) -> int:
        raise NotImplementedError


class _Call(CountedIterator):
    """An iterator over the one result of a call that is made when it is asked for."""

    def __init__(self, fn: Callable[[], Any]) -> None:
        self._fn: Callable[[], Any] | None = fn

    def __next__(self) -> Any:
        fn, self._fn = self._fn, None
        if fn is None:
            raise StopIteration
        try:
            result = fn()
        except StopIteration as raised:  # as in a generator: it would pass for the end
            raise RuntimeError(
                f"{describe_callable(fn)}, the function of from_callable, raised StopIteration"
            ) from raised
        if result is None:
            raise StageReturnedNone(
                f"§2.13: {describe_callable(fn)}, the function of from_callable, returned None, "
                "which is not an element"
            )
        return result

    def __length_hint__(self) -> int:
        return 0 if self._fn is None else 1


class CallOnce:
    """A function, called once for each subscriber."""

    def __init__(self, fn: Callable[[], Any]) -> None:
        self._fn = fn

    def open(self) -> Iterator[Any]:
        return _Call(self._fn)

    def describe(self) -> str:
        return f"from_callable({describe_callable(self._fn)})"


# Iterators whose length hint is exact, so that 0 means the end without asking for more.
_SEQUENCES: Final[tuple[Any, ...]] = (
    range(0), range(2**70), [], (), "", "\u20ac", b"", bytearray()
)  # fmt: skip
_EXACT: Final[set[type]] = {type(iter(one)) for one in _SEQUENCES} | {type(reversed([]))}

# Iterators that hide a change of their container behind a hint of 0: the end has to be looked at.
_CHANGING: Final[tuple[Any, ...]] = ({}, {}.values(), {}.items(), set(), deque())
_PROBED: Final = {type(iter(one)) for one in _CHANGING}


def at_end(iterator: Iterator[Any]) -> bool:
    """Tell whether ``iterator`` has ended, as far as that can be known without taking an element.

    May raise what the iterator raises at its end.
    """
    kind = type(iterator)
    if kind in _EXACT or isinstance(iterator, CountedIterator):
        return length_hint(iterator, 1) == 0
    if kind not in _PROBED or length_hint(iterator, 1) != 0:
        return False
    for _ in iterator:  # raises if the container was changed; else there is nothing
        break
    return True


def close_source(iterator: Iterator[Any]) -> None:
    """Close a generator, so that its ``finally`` runs now. A file, say, is its owner's to close."""
    if isinstance(iterator, Generator):
        iterator.close()
