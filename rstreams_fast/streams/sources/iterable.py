"""``from_iterable`` and ``from_callable``: sources that read an iterable, or call a function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from rstreams_fast._checks import describe_callable
from rstreams_fast.errors import AlreadySubscribedError, StageReturnedNoneError
from rstreams_fast.streams.engine.pull_source import CountedIterator

__all__ = ["CallableSource", "IterableSource"]


# The types whose iterators never block a thread, and need not be closed.
_SEQUENCES: Final = frozenset({range, list, tuple, str, bytes})


class IterableSource:
    """The source of ``from_iterable``. ``open`` makes an iterator for each subscriber.

    If the iterable is itself an iterator, such as a generator, it can be opened only once.
    """

    def __init__(self, iterable: Iterable[Any], name: str | None = None) -> None:
        self._iterable = iterable
        self._name = name
        self.is_sequence = type(iterable) in _SEQUENCES
        if not self.is_sequence:
            # An iterator can be read only once. So its first subscriber acquires ``_used``, a
            # lock, and never releases it. Then ``open`` refuses any other subscriber.
            self._used = threading.Lock()

    def open(self) -> Iterator[Any]:
        iterator = iter(self._iterable)
        if iterator is self._iterable and not self._used.acquire(blocking=False):
            raise AlreadySubscribedError(
                f"§1.10: the source is a one-shot iterator ({type(iterator).__name__}) and was "
                "subscribed before; give from_iterable something that can be iterated again"
            )
        return iterator

    def describe(self) -> str:
        return self._name or f"from_iterable({type(self._iterable).__name__})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._iterable, self._name))


class _CallIterator(CountedIterator):
    """An iterator over one element, the result of ``fn()``. The first ``next`` calls ``fn``."""

    def __init__(self, fn: Callable[[], Any]) -> None:
        self._fn: Callable[[], Any] | None = fn

    def __next__(self) -> Any:
        fn, self._fn = self._fn, None
        if fn is None:
            raise StopIteration
        try:
            result = fn()
        except StopIteration as raised:  # would end this iterator as if ``fn`` had not failed
            raise RuntimeError(
                f"{describe_callable(fn)}, the function of from_callable, raised StopIteration"
            ) from raised
        if result is None:
            raise StageReturnedNoneError(
                f"§2.13: {describe_callable(fn)}, the function of from_callable, returned None, "
                "which is not an element"
            )
        return result

    def __length_hint__(self) -> int:
        return 0 if self._fn is None else 1


class CallableSource:
    """The source of ``from_callable``, which calls a function once for each subscriber."""

    is_sequence: Final = True

    def __init__(self, fn: Callable[[], Any]) -> None:
        self._fn = fn

    def open(self) -> Iterator[Any]:
        return _CallIterator(self._fn)

    def describe(self) -> str:
        return f"from_callable({describe_callable(self._fn)})"
