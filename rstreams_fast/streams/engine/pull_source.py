"""Sources that are iterated, and functions that read, test and close the iterators of sources."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from itertools import islice
from operator import length_hint
from typing import Any, Final, Protocol

from rstreams_fast.errors import NoneSignalError
from rstreams_fast.streams.engine.signals import silent

__all__ = ["CountedIterator", "PullSource", "at_end", "close_source", "take_burst"]


class PullSource(Protocol):
    """A source that makes a new iterator of its elements for each subscriber."""

    def open(self) -> Iterator[Any]:
        """Return a new iterator. If ``open`` raises, the subscriber gets the exception."""
        ...

    def describe(self) -> str:
        """Return one line of text that names the source."""
        ...

    @property
    def is_sequence(self) -> bool:
        """Whether the source's iterators never wait between elements, and need not be closed."""
        ...


class CountedIterator(Iterator[Any]):
    """An iterator whose ``__length_hint__`` is exact: 0 means that the iterator has ended."""

    def __length_hint__(self) -> int:
        raise NotImplementedError


# ``_EXACT`` contains types of iterators with an exact length hint: 0 means that the iterator has
# ended. ``_SEQUENCES`` contains sequences with such iterators, to find these types.
_SEQUENCES: Final[tuple[Any, ...]] = (
    range(0), range(2**70), [], (), "", "\u20ac", b"", bytearray()
)  # fmt: skip
_EXACT: Final[set[type]] = {type(iter(one)) for one in _SEQUENCES} | {type(reversed([]))}

# ``_PROBED`` contains types of iterators whose length hint is 0 in two cases: the iterator has
# ended, or its container was changed during the iteration. To tell the cases apart, ``at_end`` must
# call ``next``, which raises an exception in the second case. ``_CHANGING`` contains containers
# with such iterators, to find these types.
_CHANGING: Final[tuple[Any, ...]] = ({}, {}.values(), {}.items(), set(), deque())
_PROBED: Final = {type(iter(one)) for one in _CHANGING}


def at_end(iterator: Iterator[Any]) -> bool:
    """Return whether ``iterator`` is known to have ended. No element is taken from it.

    The end of a list's iterator, for example, is known from its length hint. For other iterators,
    such as generators, return false. If ``iterator`` raises, for example because its ``dict`` was
    changed, the exception propagates to the caller.
    """
    kind = type(iterator)
    if kind in _EXACT or isinstance(iterator, CountedIterator):
        return length_hint(iterator, 1) == 0
    if kind not in _PROBED or length_hint(iterator, 1) != 0:
        return False
    for _ in iterator:  # raises if the container was changed; otherwise there is no element
        break
    return True


def take_burst(iterator: Iterator[Any], most: int) -> tuple[list[Any], bool, Exception | None]:
    """Take up to ``most`` elements from ``iterator``.

    Return three values: the elements, whether the iterator has ended, and the exception of the
    iterator (``None`` if it has not raised).
    """
    burst: list[Any] = []
    over, error = False, None
    try:
        # If the iterator raises, ``burst`` keeps the elements that came before the exception.
        burst.extend(islice(iterator, most))
        over = len(burst) < most or at_end(iterator)
    except Exception as raised:
        error = raised
    if [None for element in burst if element is None]:
        del burst[[element is None for element in burst].index(True) :]
        error = NoneSignalError("§2.13: the source produced None")
    try:
        return burst, over, error
    finally:
        del burst, error  # so that the traceback of an exception keeps no element alive (§3.13)


def close_source(iterator: Iterator[Any]) -> None:
    """Close ``iterator`` if it is a generator, so that its ``finally`` blocks run now.

    Other iterators, such as files, are not closed: the user must close them. If a ``finally`` block
    raises, report the exception.
    """
    if isinstance(iterator, Generator):
        silent(iterator.close)
