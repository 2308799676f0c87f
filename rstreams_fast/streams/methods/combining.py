"""The methods of ``Stream`` that combine it with other publishers, or with given elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from rstreams_fast.api import Publisher
from rstreams_fast.streams.engine.defaults import INNER_PREFETCH
from rstreams_fast.streams.methods.composing import as_stream, publisher_of, with_part
from rstreams_fast.streams.operators.combine_latest import CombineLatest
from rstreams_fast.streams.operators.concat import concat_source
from rstreams_fast.streams.operators.merge import merge_source
from rstreams_fast.streams.operators.merge_sorted import MergeSorted
from rstreams_fast.streams.operators.race import Race
from rstreams_fast.streams.operators.switch_if_empty import SwitchIfEmpty
from rstreams_fast.streams.operators.take_until import TakeUntil
from rstreams_fast.streams.operators.with_latest_from import WithLatestFrom
from rstreams_fast.streams.operators.zip import zip_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from rstreams_fast.streams.stream import Stream

__all__ = ["CombiningMethods"]

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


class CombiningMethods(Generic[T_co]):
    """``merge``, ``zip``, ``concat`` and others that take publishers or elements."""

    __slots__ = ()

    def merge(
        self,
        *others: Publisher[U],
        prefetch: int = INNER_PREFETCH,
        delay_error: bool = False,
    ) -> Stream[T_co | U]:
        """The elements of this stream and of ``others``, as they come. See ``rstreams_fast.merge``.

        Args:
            *others: Publishers, which may break the rules of Reactive Streams.
            prefetch: Elements that are requested in advance from each publisher.
            delay_error: Signal an error after all elements, not at once.

        Raises:
            TypeError: One of ``others`` has no ``subscribe``.
        """
        return as_stream(self)._stream_of(
            merge_source((as_stream(self), *others), prefetch, delay_error)
        )

    def merge_sorted(
        self,
        *others: Publisher[U],
        key: Callable[[T_co | U], Any] | None = None,
        reverse: bool = False,
        prefetch: int = INNER_PREFETCH,
    ) -> Stream[T_co | U]:
        """The elements of this stream and of ``others`` in sorted order. Each must be sorted, too.

        ```text
        above   --1-----4--5--|
        other   -----2--3---------6--|
        below   -----1--23--------456|
        ```

        An element is delivered on request (§1.1), and only when each publisher has sent its next
        element or has completed. If keys are equal, the element of the publisher that is named
        first comes first. If a publisher is not sorted, no error is raised, and the result is the
        same as that of ``heapq.merge``.

        ``key`` is called once for each element, after the subscriber's first request, on the thread
        that delivers. An exception of ``key``, or of a comparison, ends the stream (§2.13). An
        error of any publisher ends the stream at once, and waiting elements are dropped. The stream
        completes when all publishers have completed.

        Reactor: ``mergeComparing``.

        Args:
            *others: Publishers, which may break the rules of Reactive Streams.
            key: ``key(element)`` is compared in place of the element. Default: the element itself.
            reverse: The publishers are sorted from the greatest to the least element, and so is
                the result.
            prefetch: The most elements of each publisher that are held. They are requested in
                advance.

        Raises:
            TypeError: One of ``others`` has no ``subscribe``, or ``key`` cannot be called.
            ValueError: ``prefetch`` is less than 1.
        """
        return as_stream(self).with_part(MergeSorted(others, key, reverse, prefetch))

    @overload
    def zip(
        self, b: Publisher[U], /, *, prefetch: int = INNER_PREFETCH
    ) -> Stream[tuple[T_co, U]]: ...

    @overload
    def zip(
        self, b: Publisher[U], c: Publisher[A], /, *, prefetch: int = INNER_PREFETCH
    ) -> Stream[tuple[T_co, U, A]]: ...

    @overload
    def zip(
        self,
        b: Publisher[U],
        c: Publisher[A],
        d: Publisher[B],
        /,
        *,
        prefetch: int = INNER_PREFETCH,
    ) -> Stream[tuple[T_co, U, A, B]]: ...

    @overload
    def zip(
        self,
        b: Publisher[U],
        c: Publisher[A],
        d: Publisher[B],
        e: Publisher[C],
        /,
        *,
        prefetch: int = INNER_PREFETCH,
    ) -> Stream[tuple[T_co, U, A, B, C]]: ...

    @overload
    def zip(
        self, *others: Publisher[Any], prefetch: int = INNER_PREFETCH
    ) -> Stream[tuple[Any, ...]]: ...

    def zip(self, *others: Publisher[Any], prefetch: int = INNER_PREFETCH) -> Stream[Any]:
        """Tuples of the elements at the same position in this stream and in ``others``. See
        ``rstreams_fast.zip_``.

        Args:
            *others: Publishers, which may break the rules of Reactive Streams.
            prefetch: Elements that are requested in advance from each publisher.

        Raises:
            TypeError: One of ``others`` has no ``subscribe``.
        """
        return as_stream(self)._stream_of(zip_source((as_stream(self), *others), prefetch))

    def concat(self, *others: Publisher[U]) -> Stream[T_co | U]:
        """All elements of this stream, then all elements of each of ``others``. See
        ``rstreams_fast.concat``.

        Args:
            *others: Publishers, which may break the rules of Reactive Streams.

        Raises:
            TypeError: One of ``others`` has no ``subscribe``.
        """
        return as_stream(self)._stream_of(concat_source((as_stream(self), *others)))

    @overload
    def combine_latest(
        self, b: Publisher[U], /, *, prefetch: int = INNER_PREFETCH
    ) -> Stream[tuple[T_co, U]]: ...

    @overload
    def combine_latest(
        self, *others: Publisher[Any], prefetch: int = INNER_PREFETCH
    ) -> Stream[tuple[Any, ...]]: ...

    def combine_latest(
        self, *others: Publisher[Any], prefetch: int = INNER_PREFETCH
    ) -> Stream[Any]:
        """For each element of any publisher, a tuple of the newest elements of all publishers.

        ```text
        above   --1--------2-----|
        other   -----a--b-----|
        below   ----1a-1b-2b-----|
        ```

        The publishers are this stream and ``others``. No element is dropped. At first one element
        is requested of each publisher. When all publishers have sent an element, ``prefetch``
        elements are requested in advance, as in ``rstreams_fast.merge``. Tuples wait for demand
        (§1.1) in the order in which their elements came. The stream completes when all publishers
        have completed, or when a publisher completes without an element. An error of any publisher
        ends the stream at once.

        Reactor: ``combineLatest``; RxPY: ``combine_latest``, which drops the elements that come
        before the last publisher has begun.

        Args:
            *others: Publishers, which may break the rules of Reactive Streams.
            prefetch: Elements that are requested in advance from each publisher.

        Raises:
            TypeError: One of ``others`` has no ``subscribe``.
        """
        return as_stream(self).with_part(CombineLatest(others, prefetch))

    @overload
    def with_latest_from(self, b: Publisher[U], /) -> Stream[tuple[T_co, U]]: ...

    @overload
    def with_latest_from(self, *others: Publisher[Any]) -> Stream[tuple[Any, ...]]: ...

    def with_latest_from(self, *others: Publisher[Any]) -> Stream[Any]:
        """For each element of this stream, a tuple of the element and the newest element of each of
        ``others``.

        ```text
        above   -----1--2-----3--|
        other   --a--------b-----|
        below   -----1a-2a----3b-|
        ```

        ``others`` get an unbounded request, and the newest element of each publisher is held.
        ``metrics_of`` counts the elements that were replaced before they were used. If one of
        ``others`` has an iterator as its source, the iterator is run to its end within
        ``subscribe``: if that takes long, use ``subscribe_on`` for that stream. The demand is
        passed on to this stream (§1.1) only after all of ``others`` have sent an element. So no
        element of this stream is dropped. The result completes when this stream completes, or when
        one of ``others`` completes without an element. An error of any publisher ends the stream.

        Reactor: ``withLatestFrom``; RxPY: ``with_latest_from``, which drops elements of this stream
        until all of ``others`` have sent an element.

        Args:
            *others: Publishers, which may break the rules of Reactive Streams.

        Raises:
            TypeError: One of ``others`` has no ``subscribe``.
        """
        return as_stream(self).with_part(WithLatestFrom(others))

    def race(self, *others: Publisher[U]) -> Stream[T_co | U]:
        """The elements of the publisher that signals first: this stream or one of ``others``.

        ```text
        above   ------1--2--|
        other   ---a--b--|
        below   ---a--b--|
        ```

        One element is requested of each publisher. The first publisher that sends an element,
        completes or fails is the winner. The other publishers are cancelled. If another publisher
        sends an element at the same time, the element is dropped (§2.8): at most one element of
        each publisher. No more elements are requested of the winner than the subscriber requests
        (§1.1).

        Reactor: ``firstWithSignal``; RxPY: ``amb``.

        Args:
            *others: Publishers, which may break the rules of Reactive Streams.

        Raises:
            TypeError: One of ``others`` has no ``subscribe``.
        """
        return as_stream(self).with_part(Race(others))

    def start_with(self, *elements: U) -> Stream[T_co | U]:
        """``elements``, and then the elements of this stream.

        ```text
        above   ------3--4--|
        below   -1-2--3--4--|   of start_with(1, 2)
        ```

        After ``elements`` are delivered, this stream gets a subscriber, and a request for the rest
        of the demand (§1.1).

        Reactor: ``startWith``; RxPY: ``start_with``.

        Args:
            *elements: The first elements, none of them ``None``.

        Raises:
            TypeError: One of ``elements`` is ``None`` (§2.13).
        """
        return as_stream(self)._stream_of(
            concat_source((publisher_of("start_with", *elements), as_stream(self)))
        )

    def default_if_empty(self, element: U, /) -> Stream[T_co | U]:
        """The elements of this stream, or ``element`` if the stream is empty.

        ```text
        above   -----|
        below   -----0|   of default_if_empty(0)
        ```

        ``element`` waits for demand (§1.1). An error of this stream is passed on.

        Reactor: ``defaultIfEmpty``; RxPY: ``default_if_empty``.

        Args:
            element: The element of an empty stream; not ``None``.

        Raises:
            TypeError: ``element`` is ``None`` (§2.13).
        """
        return as_stream(self).with_part(SwitchIfEmpty(publisher_of("default_if_empty", element)))

    def switch_if_empty(self, other: Publisher[U], /) -> Stream[T_co | U]:
        """The elements of this stream, or the elements of ``other`` if this stream is empty.

        ```text
        above   -----|
        other        -1--2-|
        below   ------1--2-|
        ```

        When this stream has completed without an element, ``other`` gets a subscriber, and a
        request for the demand (§1.1).

        Reactor: ``switchIfEmpty``.

        Args:
            other: A publisher, which may break the rules of Reactive Streams.

        Raises:
            TypeError: ``other`` has no ``subscribe``.
        """
        return as_stream(self).with_part(SwitchIfEmpty(other))

    def take_until(self, other: Publisher[object], /) -> Self:
        """The elements of this stream until ``other`` sends an element, or completes.

        ```text
        above   --1--2--3--4--|
        other   ---------x
        below   --1--2---|
        ```

        First ``other`` gets a subscriber, and a request for one element, even without demand. Then
        this stream gets a subscriber, and the demand is passed on to this stream (§1.1). When
        ``other`` sends an element or completes, this stream is cancelled, and its later elements
        are dropped (§2.8). An error of ``other`` ends the stream.

        Reactor: ``takeUntilOther``; RxPY: ``take_until``, which goes on when ``other`` completes.

        Args:
            other: A publisher, which may break the rules of Reactive Streams.

        Raises:
            TypeError: ``other`` has no ``subscribe``.
        """
        return with_part(self, TakeUntil(other))
