"""The methods of ``Stream`` that change or choose elements, one element at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeGuard, TypeVar, overload

from rstreams_fast._checks import check_count, check_sync, describe_callable
from rstreams_fast.core import MISSING
from rstreams_fast.streams.methods.composing import USE_MAP_ASYNC, as_stream, with_part
from rstreams_fast.streams.operators.distinct import new_filter
from rstreams_fast.streams.operators.take_last import TakeLast
from rstreams_fast.streams.sources.lazy import defer_source

if TYPE_CHECKING:
    from rstreams_fast.streams.stream import Stream

__all__ = ["ElementMethods"]

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
A = TypeVar("A")


class ElementMethods(Generic[T_co]):
    """``map``, ``filter``, ``take`` and others that look at one element at a time."""

    __slots__ = ()

    def map(self, fn: Callable[[T_co], U], /) -> Stream[U]:
        """``fn(element)`` for each element.

        Args:
            fn: A plain function, called once for each element. It must not return ``None``.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``: use ``map_async``.
        """
        check_sync("map", "fn", fn, USE_MAP_ASYNC)
        return as_stream(self).with_stage("map", fn)

    def map_not_none(self, fn: Callable[[T_co], U | None], /) -> Stream[U]:
        """``fn(element)`` for each element, without the results that are ``None``.

        Args:
            fn: A plain function, called once for each element.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``: use ``map_async``.
        """
        check_sync("map_not_none", "fn", fn, USE_MAP_ASYNC)
        return as_stream(self).with_stage("map_not_none", fn)

    @overload
    def filter(self, predicate: Callable[[T_co], TypeGuard[U]], /) -> Stream[U]: ...

    @overload
    def filter(self, predicate: Callable[[T_co], object], /) -> Stream[T_co]: ...

    def filter(self, predicate: Callable[[T_co], object], /) -> Stream[Any]:
        """The elements for which ``predicate(element)`` is true.

        Args:
            predicate: A plain function. A ``TypeGuard`` narrows the type of the elements.

        Raises:
            TypeError: ``predicate`` cannot be called, or is ``async``: use ``map_async``.
        """
        check_sync("filter", "predicate", predicate, USE_MAP_ASYNC)
        return as_stream(self).with_stage("filter", predicate)

    def take(self, n: int, /) -> Stream[T_co]:
        """The first ``n`` elements, and then the end. ``take`` requests at most ``n`` elements.

        Args:
            n: The number of elements, 0 or more. ``take(0)`` requests nothing.

        Raises:
            TypeError: ``n`` is not an ``int``.
            ValueError: ``n`` is negative.
        """
        return as_stream(self).with_stage("take", check_count("take(n): n", n))

    def take_last(self, n: int, /) -> Self:
        """Deliver the last ``n`` elements, after upstream has completed.

        ```text
        above   --1--2--3--|
        below   -----------2--3--|   of take_last(2)
        ```

        Upstream gets an unbounded request. At most ``n`` elements are held. ``metrics_of`` counts
        the other elements as dropped. An error is signalled at once, and the held elements are
        dropped.

        Reactor: ``takeLast``; RxPY: ``take_last``.

        Args:
            n: The most elements delivered, 1 to 2**31.

        Raises:
            TypeError: ``n`` is not an ``int``.
            ValueError: ``n`` is less than 1, or greater than 2**31.
        """
        return with_part(self, TakeLast(n))

    def take_while(self, predicate: Callable[[T_co], object], /) -> Stream[T_co]:
        """The elements before the first element for which ``predicate(element)`` is false.

        Args:
            predicate: A plain function. The first false result cancels upstream.

        Raises:
            TypeError: ``predicate`` cannot be called, or is ``async``.
        """
        check_sync("take_while", "predicate", predicate, USE_MAP_ASYNC)
        return as_stream(self).with_stage("take_while", predicate)

    def skip(self, n: int, /) -> Stream[T_co]:
        """All elements but the first ``n``.

        Args:
            n: The number of elements to leave out, 0 or more.

        Raises:
            TypeError: ``n`` is not an ``int``.
            ValueError: ``n`` is negative.
        """
        return as_stream(self).with_stage("skip", check_count("skip(n): n", n))

    def skip_while(self, predicate: Callable[[T_co], object], /) -> Stream[T_co]:
        """All elements, beginning with the first for which ``predicate(element)`` is false.

        Args:
            predicate: A plain function. It is not called again after its first false result.

        Raises:
            TypeError: ``predicate`` cannot be called, or is ``async``.
        """
        check_sync("skip_while", "predicate", predicate, USE_MAP_ASYNC)
        return as_stream(self).with_stage("skip_while", predicate)

    def distinct_until_changed(self, key: Callable[[T_co], object] | None = None) -> Stream[T_co]:
        """The elements that differ from the previous element.

        ```text
        above   --1--1--2--1--|
        below   --1-----2--1--|
        ```

        Two elements are equal if they are the same object, or if ``==`` is true. An exception of
        ``==`` or of ``key`` ends the stream.

        Args:
            key: ``key(element)`` is compared in place of the element. Default: the element itself.
        """
        if key is not None:
            check_sync("distinct_until_changed", "key", key)
        return as_stream(self).with_stage("distinct_until_changed", key)

    def distinct(
        self, key: Callable[[T_co], Hashable] | None = None, /, *, max_keys: int
    ) -> Stream[T_co]:
        """The elements that were not seen before. With ``key``, the elements with a new key.

        ```text
        above   --1--2--1--3--2--|
        below   --1--2-----3-----|
        ```

        The keys are kept for each subscriber separately. A key that cannot be hashed ends the
        stream, and so does an exception of ``key`` (§2.13).

        Reactor, RxPY: ``distinct``, which hold all keys.

        Args:
            key: ``key(element)`` is looked up in place of the element. It must be hashable.
                Default: the element itself.
            max_keys: The most keys that are held, 1 or more. When there are more, the least
                recently seen key is forgotten. An element with a forgotten key is delivered again.

        Raises:
            TypeError: ``key`` cannot be called, or ``max_keys`` is not an ``int``.
            ValueError: ``max_keys`` is less than 1.
        """
        if key is not None:
            check_sync("distinct", "key", key)
        max_keys = check_count("distinct(max_keys=): max_keys", max_keys, 1)
        by = "" if key is None else f"{describe_callable(key)}, "
        stream = as_stream(self)
        return stream._stream_of(
            defer_source(
                partial(_distinct, stream, key, max_keys),
                f"distinct({by}max_keys={max_keys})",
                (stream,),
            )
        )

    @overload
    def scan(self: ElementMethods[A], fn: Callable[[A, A], A], /) -> Stream[A]: ...

    @overload
    def scan(self, fn: Callable[[A, T_co], A], seed: A, /) -> Stream[A]: ...

    def scan(self, fn: Callable[[Any, Any], Any], seed: Any = MISSING, /) -> Stream[Any]:
        """The accumulated value after each element, as with ``itertools.accumulate``.

        Args:
            fn: ``fn(accumulation, element)`` returns the next accumulation.
            seed: The first accumulation, which is delivered before all others; not ``None``.
                Without a seed the first element is the first accumulation.

        Raises:
            TypeError: ``fn`` cannot be called, or ``seed`` is ``None``.
        """
        check_sync("scan", "fn", fn)
        _check_seed("scan", seed)
        return as_stream(self).with_stage("scan", fn, seed)

    @overload
    def reduce(self: ElementMethods[A], fn: Callable[[A, A], A], /) -> Stream[A]: ...

    @overload
    def reduce(self, fn: Callable[[A, T_co], A], seed: A, /) -> Stream[A]: ...

    def reduce(self, fn: Callable[[Any, Any], Any], seed: Any = MISSING, /) -> Stream[Any]:
        """One element: the accumulated value of all elements.

        An empty stream gives the element ``seed``. Without a seed, an empty stream gives no
        element.

        Args:
            fn: ``fn(accumulation, element)`` returns the next accumulation.
            seed: The first accumulation; not ``None``. Without a seed the first element is the
                first accumulation.

        Raises:
            TypeError: ``fn`` cannot be called, or ``seed`` is ``None``.
        """
        check_sync("reduce", "fn", fn)
        _check_seed("reduce", seed)
        return as_stream(self).with_stage("reduce", fn, seed)


def _distinct(stream: Stream[A], key: Callable[[A], Hashable] | None, max_keys: int) -> Stream[A]:
    return stream.filter(new_filter(key, max_keys))


def _check_seed(operator: str, seed: object) -> None:
    if seed is None:
        raise TypeError(f"{operator}(fn, seed): seed must not be None, which is not an element")
