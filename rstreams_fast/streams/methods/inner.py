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
    """``flat_map``, ``concat_map``, ``switch_map`` and others whose function makes publishers."""

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
        """The elements of the publishers ``fn(element)``, as they come.

        If elements of several publishers wait, the publishers take turns. Any error, such as an
        exception of ``fn``, ends the stream at once and cancels all publishers. A publisher that
        blocks the requesting thread delays the other publishers: see ``rstreams_fast.merge``. For
        iterables use ``map(fn).unbatch()``.

        Args:
            fn: Returns a publisher, which may break the rules of Reactive Streams: any object
                with ``subscribe``. Any other result ends the stream with a ``TypeError``.
            concurrency: The most inner publishers at once. An element of this stream that is
                requested, or that waits for its call of ``fn``, is counted as an inner publisher.
            prefetch: Elements that are requested in advance from each inner publisher.
            delay_error: Signal an error after all elements, not at once; see
                ``rstreams_fast.merge``.

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
        """The elements of the publishers ``fn(element)``, in the order of this stream's elements.

        ```text
        above   --a--b-----|
        fn        a: ---1---2|  b: -3-4|
        below   -----1---2-3-4--|
        ```

        The publishers run at the same time, as in ``flat_map``. But the elements of a publisher
        wait until the elements of all earlier publishers are delivered. At most
        ``concurrency * prefetch`` elements wait, and no more are requested (§1.1). An error does
        not wait, unless ``delay_error`` is set.

        Reactor: ``flatMapSequential``; RxPY has none.

        Args:
            fn: Returns a publisher, as in ``flat_map``.
            concurrency: The most inner publishers at once.
            prefetch: Elements that are requested in advance from each inner publisher.
            delay_error: Signal an error after all elements, not at once.

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
        """All elements of the first publisher ``fn(element)``, then of the second, and so on.

        ``fn`` is called when the previous publisher has ended. The publishers get requests only for
        elements that the subscriber has requested. Any error, such as an exception of ``fn``, ends
        the stream at once. For iterables use ``map(fn).unbatch()``.

        Args:
            fn: Returns a publisher, which may break the rules of Reactive Streams: any object
                with ``subscribe``. Any other result ends the stream with a ``TypeError``.
            prefetch: Elements of this stream that are requested in advance, and wait until the
                earlier publishers have ended.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``.
        """
        check_sync("concat_map", "fn", fn, USE_MAP_ASYNC)
        return as_stream(self).with_part(ConcatMap(fn, prefetch))

    def switch_map(
        self, fn: Callable[[T_co], Publisher[U]], /, *, prefetch: int = INNER_PREFETCH
    ) -> Stream[U]:
        """The elements of the publisher ``fn(element)``, for the newest element only.

        ```text
        above   --a--------b----------|
        fn        a: -1--2--3  b: -4--5|
        below   ---1--2-----4--5------|
        ```

        A new element cancels the current publisher at once; elements that the cancelled publisher
        still sends are dropped (§1.8). If several elements come together, ``fn`` is called only for
        the last of them. The publisher gets requests only for elements that the subscriber has
        requested. The new stream completes when this stream and the newest publisher have
        completed. Any error, such as an exception of ``fn``, ends the new stream. An error of this
        stream is signalled at once, and waiting elements are dropped.

        Reactor: ``switchMap``; RxPY: ``switch_map``.

        Args:
            fn: Returns a publisher, as in ``concat_map``.
            prefetch: Elements of this stream that are requested in advance, with or without demand;
                more are requested when three quarters have come.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``.
        """
        check_sync("switch_map", "fn", fn, _ONE_CALL)
        return as_stream(self).with_part(SwitchMap(fn, prefetch))

    def expand(
        self: InnerMethods[A], fn: Callable[[A], Publisher[A]], /, *, depth_first: bool = False
    ) -> Stream[A]:
        """Each element, then the elements of ``fn(element)``, which are expanded in the same way.

        ```text
        above   --1---------|
        fn        1: -2-3|  2: -4|  3: |  4: |
        below   --1-2-3-4---|   depth first: --1-2-4-3---|
        ```

        ``expand`` walks trees and pages of results, with any number of levels. By default all
        elements of one level come before the next level, and each element is held until ``fn`` is
        called with it. With ``depth_first`` the descendants of an element come before its next
        sibling. One element at a time is then requested of each publisher, and the publishers of
        the levels above are held until they end. No more elements are requested than the subscriber
        has requested (§1.1). Any error, such as an exception of ``fn``, ends the stream.

        Reactor: ``expand``, ``expandDeep``; RxPY: ``expand``.

        Args:
            fn: Returns a publisher, as in ``concat_map``; ``empty()`` ends a branch.
            depth_first: Whether children come before siblings. Default: breadth first.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``.
        """
        check_sync("expand", "fn", fn, _ONE_CALL)
        return as_stream(self).with_part(Expand(fn, depth_first))
