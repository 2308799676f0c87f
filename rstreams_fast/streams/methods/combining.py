"""The methods of ``Stream`` that combine a stream with other publishers, or with given elements."""

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
    """The base class of ``Stream`` with ``merge``, ``zip``, ``concat`` and similar methods."""

    __slots__ = ()

    def merge(
        self,
        *others: Publisher[U],
        prefetch: int = INNER_PREFETCH,
        delay_error: bool = False,
    ) -> Stream[T_co | U]:
        """Deliver the elements of this stream and of ``others``, in the order of their arrival.

        See ``rstreams_fast.merge``.

        Args:
            *others: Publishers. Even if they break rules of Reactive Streams, the result does not.
            prefetch: The number of elements to request in advance from each publisher.
            delay_error: Whether an error is signalled after all elements. Default: immediately.

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
        """Deliver the elements of this stream and of ``others`` in sorted order.

        ```text
        above   --1-----4--5--|
        other   -----2--3---------6--|
        below   -----1--23--------456|
        ```

        The elements of this stream and of each of ``others`` must be sorted. If the elements of a
        publisher are not sorted, no error is raised, and the result is that of ``heapq.merge``.

        An element is delivered on request (§1.1), and only when every publisher has sent its next
        element or has completed. Of elements with equal keys, this stream's element comes first,
        and then those of ``others``, in the order of the arguments.

        ``key`` is called once for each element, after the subscriber's first request, on the thread
        that delivers the element. An exception of ``key``, or of a comparison, ends the stream
        (§2.13). An error of any publisher ends the stream immediately, and elements in the buffers
        are dropped. The stream completes when all publishers have completed.

        Reactor: ``mergeComparing``.

        Args:
            *others: Publishers. Even if they break rules of Reactive Streams, the result does not.
            key: ``key(element)`` is compared in place of the element. Default: the element itself.
            reverse: Whether the publishers and the result are sorted in descending order.
            prefetch: The number of elements of each publisher to request in advance, and buffer.

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
        """Deliver tuples of the elements at the same position in this stream and in ``others``.

        See ``rstreams_fast.zip_``.

        Args:
            *others: Publishers. Even if they break rules of Reactive Streams, the result does not.
            prefetch: The number of elements to request in advance from each publisher.

        Raises:
            TypeError: One of ``others`` has no ``subscribe``.
        """
        return as_stream(self)._stream_of(zip_source((as_stream(self), *others), prefetch))

    def concat(self, *others: Publisher[U]) -> Stream[T_co | U]:
        """Deliver all elements of this stream, and then all elements of each of ``others``.

        See ``rstreams_fast.concat``.

        Args:
            *others: Publishers. Even if they break rules of Reactive Streams, the result does not.

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
        """For each element of any publisher, deliver a tuple of the publishers' newest elements.

        ```text
        above   --1--------2-----|
        other   -----a--b-----|
        below   ----1a-1b-2b-----|
        ```

        The publishers are this stream and ``others``. No element is dropped. At first one element
        is requested from each publisher. When all publishers have sent an element, ``prefetch``
        elements are requested in advance, as in ``rstreams_fast.merge``. Tuples wait for demand
        (§1.1) in the order in which their elements came. The result completes when all publishers
        have completed, or when a publisher completes without an element. Any error ends the result.

        Reactor: ``combineLatest``; RxPY: ``combine_latest``, which drops elements that come before
        every publisher has sent an element.

        Args:
            *others: Publishers. Even if they break rules of Reactive Streams, the result does not.
            prefetch: The number of elements to request in advance from each publisher.

        Raises:
            TypeError: One of ``others`` has no ``subscribe``.
        """
        return as_stream(self).with_part(CombineLatest(others, prefetch))

    @overload
    def with_latest_from(self, b: Publisher[U], /) -> Stream[tuple[T_co, U]]: ...

    @overload
    def with_latest_from(self, *others: Publisher[Any]) -> Stream[tuple[Any, ...]]: ...

    def with_latest_from(self, *others: Publisher[Any]) -> Stream[Any]:
        """Deliver each element of this stream in a tuple with the newest elements of ``others``.

        ```text
        above   -----1--2-----3--|
        other   --a--------b-----|
        below   -----1a-2a----3b-|
        ```

        An unbounded number of elements is requested from ``others``, and the newest element of each
        of them is stored. ``metrics_of`` counts the elements that were replaced before a tuple had
        them. If the source of one of ``others`` is an iterator, ``subscribe`` runs the iterator to
        its end. If this takes long, use ``subscribe_on`` for that stream.

        No elements are requested from this stream (§1.1) before all of ``others`` have sent an
        element. So no element of this stream is dropped. The result completes when this stream
        completes, or when one of ``others`` completes without an element. Any error ends the
        result.

        Reactor: ``withLatestFrom``; RxPY: ``with_latest_from``, which drops elements of this stream
        until all of ``others`` have sent an element.

        Args:
            *others: Publishers. Even if they break rules of Reactive Streams, the result does not.

        Raises:
            TypeError: One of ``others`` has no ``subscribe``.
        """
        return as_stream(self).with_part(WithLatestFrom(others))

    def race(self, *others: Publisher[U]) -> Stream[T_co | U]:
        """Deliver the elements of this stream or of one of ``others``, whichever signals first.

        ```text
        above   ------1--2--|
        other   ---a--b--|
        below   ---a--b--|
        ```

        One element is requested from each publisher. The first publisher that sends an element,
        completes or fails is the winner. The other publishers are cancelled. If another publisher
        sends its element at the same time, this element is dropped (§2.8). Only elements that the
        subscriber requests are requested from the winner (§1.1).

        Reactor: ``firstWithSignal``; RxPY: ``amb``.

        Args:
            *others: Publishers. Even if they break rules of Reactive Streams, the result does not.

        Raises:
            TypeError: One of ``others`` has no ``subscribe``.
        """
        return as_stream(self).with_part(Race(others))

    def start_with(self, *elements: U) -> Stream[T_co | U]:
        """Deliver ``elements``, and then the elements of this stream.

        ```text
        above   ------3--4--|
        below   -1-2--3--4--|   of start_with(1, 2)
        ```

        After the delivery of ``elements``, the new stream subscribes to this stream, and requests
        the rest of the demand (§1.1).

        Reactor: ``startWith``; RxPY: ``start_with``.

        Args:
            *elements: The first elements. None of them may be ``None``.

        Raises:
            TypeError: One of ``elements`` is ``None`` (§2.13).
        """
        return as_stream(self)._stream_of(
            concat_source((publisher_of("start_with", *elements), as_stream(self)))
        )

    def default_if_empty(self, element: U, /) -> Stream[T_co | U]:
        """Deliver the elements of this stream, or ``element`` if this stream is empty.

        ```text
        above   -----|
        below   -----0|   of default_if_empty(0)
        ```

        ``element`` waits for demand (§1.1). An error of this stream is passed on.

        Reactor: ``defaultIfEmpty``; RxPY: ``default_if_empty``.

        Args:
            element: The element to deliver if this stream is empty; not ``None``.

        Raises:
            TypeError: ``element`` is ``None`` (§2.13).
        """
        return as_stream(self).with_part(SwitchIfEmpty(publisher_of("default_if_empty", element)))

    def switch_if_empty(self, other: Publisher[U], /) -> Stream[T_co | U]:
        """Deliver the elements of this stream, or those of ``other`` if this stream is empty.

        ```text
        above   -----|
        other        -1--2-|
        below   ------1--2-|
        ```

        When this stream has completed without an element, the new stream subscribes to ``other``,
        and requests the subscriber's demand from ``other`` (§1.1).

        Reactor: ``switchIfEmpty``.

        Args:
            other: A publisher. Even if it breaks rules of Reactive Streams, the result does not.

        Raises:
            TypeError: ``other`` has no ``subscribe``.
        """
        return as_stream(self).with_part(SwitchIfEmpty(other))

    def take_until(self, other: Publisher[object], /) -> Self:
        """Deliver the elements of this stream, until ``other`` sends an element or completes.

        ```text
        above   --1--2--3--4--|
        other   ---------x
        below   --1--2---|
        ```

        The new stream first subscribes to ``other``, and requests one element, even without demand.
        Then it subscribes to this stream, and passes the demand on (§1.1). When ``other`` sends an
        element or completes, this stream is cancelled, and its later elements are dropped (§2.8).
        An error of ``other`` ends the new stream.

        Reactor: ``takeUntilOther``; RxPY: ``take_until``, which goes on when ``other`` completes.

        Args:
            other: A publisher. Even if it breaks rules of Reactive Streams, the result does not.

        Raises:
            TypeError: ``other`` has no ``subscribe``.
        """
        return with_part(self, TakeUntil(other))
