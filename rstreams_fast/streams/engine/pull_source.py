"""What a run of stages pulls from: a source that opens an iterator, and when that has ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from itertools import islice
from operator import length_hint
from typing import Any, Final, Protocol

from rstreams_fast.errors import NoneSignalError

__all__ = ["CountedIterator", "PullSource", "at_end", "close_source", "take_burst"]


class PullSource(Protocol):
    """What a pull segment opens anew for each of its subscribers."""

    def open(self) -> Iterator[Any]:
        """Return an iterator; what this raises is signalled to the subscriber."""
        ...

    def describe(self) -> str:
        """Name the source in one line."""
        ...

    @property
    def is_sequence(self) -> bool:
        """Whether its iterators neither wait for anything between two elements nor need closing."""
        ...


class CountedIterator(Iterator[Any]):
    """An iterator whose ``__length_hint__`` is exact, so that 0 is its end."""

    def __length_hint__(self) -> int:
        raise NotImplementedError


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


def take_burst(iterator: Iterator[Any], most: int) -> tuple[list[Any], bool, Exception | None]:
    """Take up to ``most`` elements; tell whether that was all, or what came instead of the next."""
    burst: list[Any] = []
    over, error = False, None
    try:
        burst.extend(islice(iterator, most))  # which keeps those before one that fails
        over = len(burst) < most or at_end(iterator)
    except Exception as raised:
        error = raised
    if [None for element in burst if element is None]:
        del burst[[element is None for element in burst].index(True) :]
        error = NoneSignalError("§2.13: the source produced None")
    try:
        return burst, over, error
    finally:
        del burst, error  # a traceback keeps this frame


def close_source(iterator: Iterator[Any]) -> None:
    """Close a generator, so that its ``finally`` runs now. A file, say, is its owner's to close."""
    if isinstance(iterator, Generator):
        iterator.close()
