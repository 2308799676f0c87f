"""Sources that a run of stages pulls from, and how their iterators are read, tested and closed."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from itertools import islice
from operator import length_hint
from typing import Any, Final, Protocol

from rstreams_fast.errors import NoneSignalError

__all__ = ["CountedIterator", "PullSource", "at_end", "close_source", "take_burst"]


class PullSource(Protocol):
    """A source that a pull segment opens anew for each of its subscribers."""

    def open(self) -> Iterator[Any]:
        """Return an iterator. The subscriber gets an exception of this as ``on_error``."""
        ...

    def describe(self) -> str:
        """Name the source in one line."""
        ...

    @property
    def is_sequence(self) -> bool:
        """Whether its iterators neither wait for anything between two elements nor need closing."""
        ...


class CountedIterator(Iterator[Any]):
    """An iterator whose ``__length_hint__`` is exact: 0 means that it has ended."""

    def __length_hint__(self) -> int:
        raise NotImplementedError


# Iterators whose length hint is exact: 0 means that the iterator has ended.
_SEQUENCES: Final[tuple[Any, ...]] = (
    range(0), range(2**70), [], (), "", "\u20ac", b"", bytearray()
)  # fmt: skip
_EXACT: Final[set[type]] = {type(iter(one)) for one in _SEQUENCES} | {type(reversed([]))}

# Iterators whose hint is 0 also when their container was changed: one more step finds that out.
_CHANGING: Final[tuple[Any, ...]] = ({}, {}.values(), {}.items(), set(), deque())
_PROBED: Final = {type(iter(one)) for one in _CHANGING}


def at_end(iterator: Iterator[Any]) -> bool:
    """Return whether ``iterator`` is known to have ended, without taking an element.

    Exceptions that the iterator raises at its end propagate.
    """
    kind = type(iterator)
    if kind in _EXACT or isinstance(iterator, CountedIterator):
        return length_hint(iterator, 1) == 0
    if kind not in _PROBED or length_hint(iterator, 1) != 0:
        return False
    for _ in iterator:  # raises if the container was changed; else the loop is empty
        break
    return True


def take_burst(iterator: Iterator[Any], most: int) -> tuple[list[Any], bool, Exception | None]:
    """Take up to ``most`` elements. Return them, whether the iterator has ended, and its error."""
    burst: list[Any] = []
    over, error = False, None
    try:
        burst.extend(islice(iterator, most))  # extend keeps the elements before an error
        over = len(burst) < most or at_end(iterator)
    except Exception as raised:
        error = raised
    if [None for element in burst if element is None]:
        del burst[[element is None for element in burst].index(True) :]
        error = NoneSignalError("§2.13: the source produced None")
    try:
        return burst, over, error
    finally:
        del burst, error  # a traceback keeps this frame (§3.13)


def close_source(iterator: Iterator[Any]) -> None:
    """Close a generator, so that its ``finally`` runs now. Its owner closes any other iterator."""
    if isinstance(iterator, Generator):
        iterator.close()
