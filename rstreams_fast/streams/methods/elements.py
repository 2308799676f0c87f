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
    """The base class of ``Stream`` with ``map``, ``filter``, ``take`` and similar methods."""

    __slots__ = ()

    def map(self, fn: Callable[[T_co], U], /) -> Stream[U]:
        """Deliver ``fn(element)`` for each element.

        Args:
            fn: A plain function, called once for each element. It must not return ``None``.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``: use ``map_async``.
        """
        check_sync("map", "fn", fn, USE_MAP_ASYNC)
        return as_stream(self).with_stage("map", fn)

    def map_not_none(self, fn: Callable[[T_co], U | None], /) -> Stream[U]:
        """Deliver ``fn(element)`` for each element, but drop the results that are ``None``.

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
        """Deliver the elements for which ``predicate(element)`` is true.

        Args:
            predicate: A plain function. A ``TypeGuard`` function narrows the type of the elements.

        Raises:
            TypeError: ``predicate`` cannot be called, or is ``async``: use ``map_async``.
        """
        check_sync("filter", "predicate", predicate, USE_MAP_ASYNC)
        return as_stream(self).with_stage("filter", predicate)

    def take(self, n: int, /) -> Stream[T_co]:
        """Deliver the first ``n`` elements, and then complete. Request at most ``n`` elements.

        Args:
            n: The number of elements, 0 or more. ``take(0)`` requests no elements.

        Raises:
            TypeError: ``n`` is not an ``int``.
            ValueError: ``n`` is negative.
        """
        return as_stream(self).with_stage("take", check_count("take(n): n", n))

    def take_last(self, n: int, /) -> Self:
        """Deliver the last ``n`` elements of upstream, after upstream has completed.

        ```text
        above   --1--2--3--|
        below   -----------2--3--|   of take_last(2)
        ```

        An unbounded number of elements is requested from upstream. At most ``n`` elements are
        buffered. ``metrics_of`` counts the other elements as dropped. An error is signalled
        immediately, and the buffered elements are dropped.

        Reactor: ``takeLast``; RxPY: ``take_last``.

        Args:
            n: The largest number of elements to deliver, 1 to 2**31.

        Raises:
            TypeError: ``n`` is not an ``int``.
            ValueError: ``n`` is less than 1, or greater than 2**31.
        """
        return with_part(self, TakeLast(n))

    def take_while(self, predicate: Callable[[T_co], object], /) -> Stream[T_co]:
        """Deliver elements until ``predicate(element)`` is false, and then complete.

        The first element for which ``predicate`` is false is dropped, and upstream is cancelled.

        Args:
            predicate: A plain function.

        Raises:
            TypeError: ``predicate`` cannot be called, or is ``async``.
        """
        check_sync("take_while", "predicate", predicate, USE_MAP_ASYNC)
        return as_stream(self).with_stage("take_while", predicate)

    def skip(self, n: int, /) -> Stream[T_co]:
        """Deliver all elements except the first ``n``.

        Args:
            n: The number of elements to drop, 0 or more.

        Raises:
            TypeError: ``n`` is not an ``int``.
            ValueError: ``n`` is negative.
        """
        return as_stream(self).with_stage("skip", check_count("skip(n): n", n))

    def skip_while(self, predicate: Callable[[T_co], object], /) -> Stream[T_co]:
        """Drop elements while ``predicate(element)`` is true, and deliver all later elements.

        Args:
            predicate: A plain function. After its first false result it is not called again.

        Raises:
            TypeError: ``predicate`` cannot be called, or is ``async``.
        """
        check_sync("skip_while", "predicate", predicate, USE_MAP_ASYNC)
        return as_stream(self).with_stage("skip_while", predicate)

    def distinct_until_changed(self, key: Callable[[T_co], object] | None = None) -> Stream[T_co]:
        """Deliver the elements that differ from the previous element.

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
        """Deliver each element whose key has not come before. By default the key is the element.

        ```text
        above   --1--2--1--3--2--|
        below   --1--2-----3-----|
        ```

        Each subscriber has its own set of keys. A key that cannot be hashed ends the stream. An
        exception of ``key`` ends the stream, too (§2.13).

        Reactor, RxPY: ``distinct``, which store all keys.

        Args:
            key: ``key(element)`` returns the key, which must be hashable. Default: ``element``.
            max_keys: The largest number of stored keys, 1 or more. If there are more, the least
                recently seen key is removed, and its elements are new again.

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
        """Deliver the accumulated value after each element, like ``itertools.accumulate``.

        Args:
            fn: ``fn(accumulated, element)`` returns the next accumulated value.
            seed: The first accumulated value, which is delivered, too. Default: the first element.

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
        """Deliver one element: the accumulated value of all elements, like ``functools.reduce``.

        If upstream is empty, deliver ``seed``, or no element if there is no ``seed``.

        Args:
            fn: ``fn(accumulated, element)`` returns the next accumulated value.
            seed: The first accumulated value; not ``None``. Default: the first element.

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
