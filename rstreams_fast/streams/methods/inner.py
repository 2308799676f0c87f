"""The methods of ``Stream`` whose function returns a publisher for each element."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from rstreams_fast._checks import check_sync
from rstreams_fast.api import Publisher
from rstreams_fast.streams.engine.defaults import (
    FLAT_MAP_CONCURRENCY,
    FLAT_MAP_PREFETCH,
    INNER_PREFETCH,
)
from rstreams_fast.streams.methods.composing import USE_MAP_ASYNC, as_stream
from rstreams_fast.streams.operators.concat_map import ConcatMap
from rstreams_fast.streams.operators.expand import Expand
from rstreams_fast.streams.operators.flat_map import FlatMap
from rstreams_fast.streams.operators.switch_map import SwitchMap

if TYPE_CHECKING:
    from rstreams_fast.streams.stream import Stream

__all__ = ["InnerMethods"]

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
A = TypeVar("A")

_ONE_CALL = "; let it return from_iterable([element]).map_async(call)"


class InnerMethods(Generic[T_co]):
    """The base class of ``Stream`` with ``flat_map``, ``concat_map`` and similar methods."""

    __slots__ = ()

    def flat_map(
        self,
        fn: Callable[[T_co], Publisher[U]],
        /,
        *,
        concurrency: int = FLAT_MAP_CONCURRENCY,
        prefetch: int = FLAT_MAP_PREFETCH,
        delay_error: bool = False,
    ) -> Stream[U]:
        """Deliver the elements of all publishers ``fn(element)``, in the order of their arrival.

        If elements of several publishers wait for demand, the publishers take turns. Unless
        ``delay_error`` is true, an error, such as an exception of ``fn``, immediately ends the
        stream and cancels the publishers. A publisher that blocks the requesting thread delays the
        others: see ``rstreams_fast.merge``. If ``fn`` returns an iterable, use
        ``map(fn).unbatch()``.

        Args:
            fn: A function that returns a publisher (any object with ``subscribe``). Even if the
                publisher breaks rules of Reactive Streams, the result does not. If ``fn`` returns
                another object, the stream ends with a ``TypeError``.
            concurrency: The largest number of elements of this stream that are in progress. An
                element is in progress from its request until all elements of its publisher
                ``fn(element)`` are delivered.
            prefetch: The number of elements to request in advance from each ``fn(element)``.
            delay_error: Whether an error is signalled after all elements; see ``merge``.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``.
        """
        check_sync("flat_map", "fn", fn, USE_MAP_ASYNC)
        return as_stream(self).with_part(FlatMap(fn, concurrency, prefetch, delay_error))

    def flat_map_sequential(
        self,
        fn: Callable[[T_co], Publisher[U]],
        /,
        *,
        concurrency: int = FLAT_MAP_CONCURRENCY,
        prefetch: int = FLAT_MAP_PREFETCH,
        delay_error: bool = False,
    ) -> Stream[U]:
        """Deliver the elements of all ``fn(element)``, in the order of this stream's elements.

        ```text
        above   --a--b-----|
        fn        a: ---1---2|  b: -3-4|
        below   -----1---2-3-4--|
        ```

        The publishers run at the same time, as in ``flat_map``. But the elements of a publisher
        wait until the elements of all earlier publishers are delivered. The sum of requested and
        waiting elements is at most ``concurrency * prefetch`` (§1.1). An error is signalled
        immediately, unless ``delay_error`` is true.

        Reactor: ``flatMapSequential``; RxPY has no such operator.

        Args:
            fn: A function that returns a publisher, as in ``flat_map``.
            concurrency: The largest number of publishers at the same time.
            prefetch: The number of elements to request in advance from each ``fn(element)``.
            delay_error: Whether an error is signalled after all elements. Default: immediately.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``.
        """
        check_sync("flat_map_sequential", "fn", fn, USE_MAP_ASYNC)
        return as_stream(self).with_part(
            FlatMap(fn, concurrency, prefetch, delay_error, sequential=True)
        )

    def concat_map(
        self, fn: Callable[[T_co], Publisher[U]], /, *, prefetch: int = INNER_PREFETCH
    ) -> Stream[U]:
        """Deliver all elements of the publishers ``fn(element)``, one publisher after another.

        ``fn`` is called when the previous publisher has ended. Only elements that the subscriber
        has requested are requested from the publishers. Any error, such as an exception of ``fn``,
        ends the stream immediately. If ``fn`` returns an iterable, use ``map(fn).unbatch()``.

        Args:
            fn: A function that returns a publisher (any object with ``subscribe``). Even if the
                publisher breaks rules of Reactive Streams, the result does not. If ``fn`` returns
                another object, the stream ends with a ``TypeError``.
            prefetch: The number of elements of this stream that are requested in advance. They wait
                until the earlier publishers have ended.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``.
        """
        check_sync("concat_map", "fn", fn, USE_MAP_ASYNC)
        return as_stream(self).with_part(ConcatMap(fn, prefetch))

    def switch_map(
        self, fn: Callable[[T_co], Publisher[U]], /, *, prefetch: int = INNER_PREFETCH
    ) -> Stream[U]:
        """Deliver the elements of the publisher ``fn(element)``, for the newest element only.

        ```text
        above   --a--------b----------|
        fn        a: -1--2--3  b: -4--5|
        below   ---1--2-----4--5------|
        ```

        A new element of this stream immediately cancels the current publisher. Elements that the
        cancelled publisher still sends are dropped (§1.8). If several elements come together,
        ``fn`` is called only for the last of these elements. Only elements that the subscriber has
        requested are requested from the publisher.

        The new stream completes when this stream and the newest publisher have completed. Any
        error, such as an exception of ``fn``, ends the new stream. An error of this stream is
        signalled immediately, and waiting elements are dropped.

        Reactor: ``switchMap``; RxPY: ``switch_map``.

        Args:
            fn: A function that returns a publisher, as in ``concat_map``.
            prefetch: The number of elements of this stream that are requested in advance, even
                without demand. When three quarters have come, more elements are requested.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``.
        """
        check_sync("switch_map", "fn", fn, _ONE_CALL)
        return as_stream(self).with_part(SwitchMap(fn, prefetch))

    def expand(
        self: InnerMethods[A], fn: Callable[[A], Publisher[A]], /, *, depth_first: bool = False
    ) -> Stream[A]:
        """Deliver each element and its descendants: the elements of ``fn(element)``, recursively.

        ```text
        above   --1---------|
        fn        1: -2-3|  2: -4|  3: |  4: |
        below   --1-2-3-4---|   depth first: --1-2-4-3---|
        ```

        ``expand`` walks trees, or pages of results, with any number of levels. By default all
        elements of one level are delivered before the next level. Each element is stored until
        ``fn`` is called with it. With ``depth_first`` the descendants of an element are delivered
        before its next sibling. Then one element at a time is requested from each publisher, and
        the publishers of all higher levels stay open. Only elements that the subscriber has
        requested are requested (§1.1). Any error, such as an exception of ``fn``, ends the stream.

        Reactor: ``expand``, ``expandDeep``; RxPY: ``expand``.

        Args:
            fn: A function that returns a publisher: ``empty()`` for an element without children.
            depth_first: Whether an element's descendants come before its next sibling.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``.
        """
        check_sync("expand", "fn", fn, _ONE_CALL)
        return as_stream(self).with_part(Expand(fn, depth_first))
