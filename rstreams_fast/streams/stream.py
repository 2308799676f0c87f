"""``Stream``: a publisher with operators, which is a description until it is subscribed to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeGuard, TypeVar, overload

from rstreams_fast._checks import check_count, check_sync, describe_callable, safe_repr
from rstreams_fast.api import Publisher
from rstreams_fast.core import MISSING
from rstreams_fast.streams.engine.defaults import (
    FLAT_MAP_CONCURRENCY,
    FLAT_MAP_PREFETCH,
    INNER_PREFETCH,
    ROWS,
)
from rstreams_fast.streams.engine.describe import describe
from rstreams_fast.streams.operators.combine_latest import CombineLatest
from rstreams_fast.streams.operators.concat import concat_source
from rstreams_fast.streams.operators.concat_map import ConcatMap
from rstreams_fast.streams.operators.distinct import new_filter
from rstreams_fast.streams.operators.expand import Expand
from rstreams_fast.streams.operators.flat_map import FlatMap
from rstreams_fast.streams.operators.flat_map_sequential import FlatMapSequential
from rstreams_fast.streams.operators.merge import merge_source
from rstreams_fast.streams.operators.publish_records_on import PublishRecordsOn
from rstreams_fast.streams.operators.race import Race
from rstreams_fast.streams.operators.resume import OnErrorResume
from rstreams_fast.streams.operators.switch_if_empty import SwitchIfEmpty
from rstreams_fast.streams.operators.switch_map import SwitchMap
from rstreams_fast.streams.operators.with_latest_from import WithLatestFrom
from rstreams_fast.streams.operators.zip import zip_source
from rstreams_fast.streams.sources.iterable import IterableSource
from rstreams_fast.streams.sources.lazy import defer_source
from rstreams_fast.streams.stream_ends import StreamEnds
from rstreams_fast.streams.stream_flow import StreamFlow
from rstreams_fast.streams.stream_parts import StreamParts

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor

    import numpy as np

__all__ = ["Group", "Stream"]

T_co = TypeVar("T_co", covariant=True)
K_co = TypeVar("K_co", covariant=True)
U = TypeVar("U")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


_AWAIT = "; use map_async, which awaits such functions"
_ONE_CALL = "; let it return from_iterable([element]).map_async(call)"


class Stream(StreamFlow[T_co], StreamParts[T_co], StreamEnds[T_co]):
    """A publisher with operators.

    A stream is immutable: every operator returns a new stream. Any number of subscribers may
    subscribe to each stream, and every subscriber gets elements of its own, from the source on
    (§1.11). Nothing runs before ``subscribe``.

    Stages without a boundary between them run as one loop, on the caller of ``subscribe`` or
    ``request`` (§3.10), if the source can be pulled; ``subscribe_on`` and ``publish_on`` name
    another resource. Signals are serial (§1.3), demand is kept to (§1.1), and subscriptions may be
    used from any thread.

    ``None`` is no element: a stage function that returns ``None`` ends the stream with a
    ``TypeError`` that names the stage. An ``Exception`` from user code is signalled by
    ``on_error``. ``KeyboardInterrupt``, ``SystemExit`` and ``GeneratorExit`` cancel upstream and
    leave through the call they happened in. Subscriptions belong to their process: they cannot be
    pickled, and refuse to work in the child of a fork. Subinterpreters are not supported.

    Streams are made by the functions of the package, such as ``range_`` and ``from_iterable``:

    ```python
    import rstreams_fast as rsf

    squares = rsf.range_(1_000_000).map(lambda n: n * n).publish_on(prefetch=256)
    print(squares.take(4).to_list())  # [0, 1, 4, 9]
    ```
    """

    __slots__ = ()

    # -- stages ----------------------------------------------------------------------------------

    def map(self, fn: Callable[[T_co], U], /) -> Stream[U]:
        """``fn(element)`` for each element.

        Args:
            fn: A plain function, called once for each element. It must not return ``None``.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``: use ``map_async``.
        """
        check_sync("map", "fn", fn, _AWAIT)
        return self._stage("map", fn)

    def map_not_none(self, fn: Callable[[T_co], U | None], /) -> Stream[U]:
        """``fn(element)`` for each element, without the results that are ``None``.

        Args:
            fn: A plain function, called once for each element.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``: use ``map_async``.
        """
        check_sync("map_not_none", "fn", fn, _AWAIT)
        return self._stage("map_not_none", fn)

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
        check_sync("filter", "predicate", predicate, _AWAIT)
        return self._stage("filter", predicate)

    def distinct_until_changed(self, key: Callable[[T_co], object] | None = None) -> Stream[T_co]:
        """The elements that differ from the element before.

        ```text
        above   --1--1--2--1--|
        below   --1-----2--1--|
        ```

        Two elements are equal if they are the same object, or else if they are equal by ``==``. An
        exception of ``==`` or of ``key`` ends the stream.

        Args:
            key: ``key(element)`` is compared in place of the element. Default: the element itself.
        """
        if key is not None:
            check_sync("distinct_until_changed", "key", key)
        return self._stage("distinct_until_changed", key)

    def take(self, n: int, /) -> Stream[T_co]:
        """The first ``n`` elements, and then the end. It never asks for more.

        Args:
            n: The number of elements, 0 or more. ``take(0)`` asks for nothing.

        Raises:
            TypeError: ``n`` is not an ``int``.
            ValueError: ``n`` is negative.
        """
        return self._stage("take", check_count("take(n): n", n))

    def take_while(self, predicate: Callable[[T_co], object], /) -> Stream[T_co]:
        """The elements before the first element for which ``predicate(element)`` is false.

        Args:
            predicate: A plain function. The first false result cancels upstream.

        Raises:
            TypeError: ``predicate`` cannot be called, or is ``async``.
        """
        check_sync("take_while", "predicate", predicate, _AWAIT)
        return self._stage("take_while", predicate)

    def skip(self, n: int, /) -> Stream[T_co]:
        """All elements but the first ``n``.

        Args:
            n: The number of elements to leave out, 0 or more.

        Raises:
            TypeError: ``n`` is not an ``int``.
            ValueError: ``n`` is negative.
        """
        return self._stage("skip", check_count("skip(n): n", n))

    def skip_while(self, predicate: Callable[[T_co], object], /) -> Stream[T_co]:
        """All elements from the first element on for which ``predicate(element)`` is false.

        Args:
            predicate: A plain function. It is not called again after its first false result.

        Raises:
            TypeError: ``predicate`` cannot be called, or is ``async``.
        """
        check_sync("skip_while", "predicate", predicate, _AWAIT)
        return self._stage("skip_while", predicate)

    @overload
    def scan(self: Stream[A], fn: Callable[[A, A], A], /) -> Stream[A]: ...

    @overload
    def scan(self, fn: Callable[[A, T_co], A], seed: A, /) -> Stream[A]: ...

    def scan(self, fn: Callable[[Any, Any], Any], seed: Any = MISSING, /) -> Stream[Any]:
        """The accumulations so far, as ``itertools.accumulate`` gives them.

        Args:
            fn: ``fn(accumulation, element)`` gives the next accumulation.
            seed: The first accumulation, which is the first element below. Without a seed the first
                element passes as it is. It must not be ``None``.

        Raises:
            TypeError: ``fn`` cannot be called, or ``seed`` is ``None``.
        """
        check_sync("scan", "fn", fn)
        _check_seed("scan", seed)
        return self._stage("scan", fn, seed)

    @overload
    def reduce(self: Stream[A], fn: Callable[[A, A], A], /) -> Stream[A]: ...

    @overload
    def reduce(self, fn: Callable[[A, T_co], A], seed: A, /) -> Stream[A]: ...

    def reduce(self, fn: Callable[[Any, Any], Any], seed: Any = MISSING, /) -> Stream[Any]:
        """One element: the accumulation of all elements.

        An empty stream gives ``seed``, or nothing if there is no seed.

        Args:
            fn: ``fn(accumulation, element)`` gives the next accumulation.
            seed: The first accumulation. Without a seed the first element is the first
                accumulation. It must not be ``None``.

        Raises:
            TypeError: ``fn`` cannot be called, or ``seed`` is ``None``.
        """
        check_sync("reduce", "fn", fn)
        _check_seed("reduce", seed)
        return self._stage("reduce", fn, seed)

    # -- combining -------------------------------------------------------------------------------

    def merge(
        self,
        *others: Publisher[U],
        prefetch: int = INNER_PREFETCH,
        delay_error: bool = False,
    ) -> Stream[T_co | U]:
        """The elements of this stream and of ``others``, as they come. See ``rstreams_fast.merge``.

        Args:
            *others: Publishers, which need not keep the rules.
            prefetch: Elements that each publisher is asked for ahead.
            delay_error: Signal an error after all elements, not at once.

        Raises:
            TypeError: One of ``others`` has no ``subscribe``.
        """
        return Stream(merge_source((self, *others), prefetch, delay_error))

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
            *others: Publishers, which need not keep the rules.
            prefetch: Elements that each publisher is asked for ahead.

        Raises:
            TypeError: One of ``others`` has no ``subscribe``.
        """
        return Stream(zip_source((self, *others), prefetch))

    def concat(self, *others: Publisher[U]) -> Stream[T_co | U]:
        """All elements of this stream, then those of each of ``others``. See
        ``rstreams_fast.concat``.

        Args:
            *others: Publishers, which need not keep the rules.

        Raises:
            TypeError: One of ``others`` has no ``subscribe``.
        """
        return Stream(concat_source((self, *others)))

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
        """For each element of this stream or of ``others`` a tuple of the newest element of each.

        ```text
        above   --1--------2-----|
        other   -----a--b-----|
        below   ----1a-1b-2b-----|
        ```

        No element is passed over: each publisher is asked for one element until all have given one,
        and then for ``prefetch`` ahead, as in ``rstreams_fast.merge``. Tuples wait for demand
        (§1.1) in the order in which their elements came. The stream completes when all publishers
        have, or when one completes without an element. An error of any publisher ends the stream at
        once.

        Reactor: ``combineLatest``; RxPY: ``combine_latest``, which passes over the elements that
        come before the last publisher has begun.

        Args:
            *others: Publishers, which need not keep the rules.
            prefetch: Elements that each publisher is asked for ahead.

        Raises:
            TypeError: One of ``others`` has no ``subscribe``.
        """
        return self._boundary(CombineLatest(others, prefetch))

    @overload
    def with_latest_from(self, b: Publisher[U], /) -> Stream[tuple[T_co, U]]: ...

    @overload
    def with_latest_from(self, *others: Publisher[Any]) -> Stream[tuple[Any, ...]]: ...

    def with_latest_from(self, *others: Publisher[Any]) -> Stream[Any]:
        """For each element of this stream a tuple of the element and of the newest of each of
        ``others``.

        ```text
        above   -----1--2-----3--|
        other   --a--------b-----|
        below   -----1a-2a----3b-|
        ```

        ``others`` are asked for everything at once, and the newest element of each is held.
        ``metrics_of`` counts the elements that were replaced before they were used. An iterator
        among ``others`` is run to its end within ``subscribe``: give it a thread by
        ``subscribe_on`` if that takes long. This stream is asked, for what was asked for (§1.1),
        when all of ``others`` have given an element: none of its elements is dropped. The stream
        completes when this stream does, or when one of ``others`` completes without an element. An
        error of any publisher ends the stream.

        Reactor: ``withLatestFrom``; RxPY: ``with_latest_from``, which drops the elements that come
        before.

        Args:
            *others: Publishers, which need not keep the rules.

        Raises:
            TypeError: One of ``others`` has no ``subscribe``.
        """
        return self._boundary(WithLatestFrom(others))

    def race(self, *others: Publisher[U]) -> Stream[T_co | U]:
        """The elements of the publisher that signals first: this stream or one of ``others``.

        ```text
        above   ------1--2--|
        other   ---a--b--|
        below   ---a--b--|
        ```

        All are subscribed to, and then asked for one element each. The first element, completion or
        error decides, and the other publishers are cancelled. An element that another publisher
        gives at the same time is dropped (§2.8): at most one of each. Nothing else is asked for
        that was not asked of this stream (§1.1).

        Reactor: ``firstWithSignal``; RxPY: ``amb``.

        Args:
            *others: Publishers, which need not keep the rules.

        Raises:
            TypeError: One of ``others`` has no ``subscribe``.
        """
        return self._boundary(Race(others))

    def start_with(self, *elements: U) -> Stream[T_co | U]:
        """``elements``, and then the elements of this stream.

        ```text
        above   ------3--4--|
        below   -1-2--3--4--|   of start_with(1, 2)
        ```

        This stream is subscribed to after ``elements``; nothing is asked for twice (§1.1).

        Reactor: ``startWith``; RxPY: ``start_with``.

        Args:
            *elements: The first elements, none of them ``None``.

        Raises:
            TypeError: One of ``elements`` is ``None`` (§2.13).
        """
        return Stream(concat_source((_given("start_with", *elements), self)))

    def default_if_empty(self, element: U, /) -> Stream[T_co | U]:
        """The elements of this stream, or ``element`` if there is none.

        ```text
        above   -----|
        below   -----0|   of default_if_empty(0)
        ```

        ``element`` waits for demand (§1.1); an error is passed on.

        Reactor: ``defaultIfEmpty``; RxPY: ``default_if_empty``.

        Args:
            element: The element of an empty stream; not ``None``.

        Raises:
            TypeError: ``element`` is ``None`` (§2.13).
        """
        return self._boundary(SwitchIfEmpty(_given("default_if_empty", element)))

    def switch_if_empty(self, other: Publisher[U], /) -> Stream[T_co | U]:
        """The elements of this stream, or those of ``other`` if there is none.

        ```text
        above   -----|
        other        -1--2-|
        below   ------1--2-|
        ```

        ``other`` is subscribed to when this stream has completed without an element, and is asked
        for what was asked for (§1.1).

        Reactor: ``switchIfEmpty``.

        Args:
            other: A publisher, which need not keep the rules.

        Raises:
            TypeError: ``other`` has no ``subscribe``.
        """
        return self._boundary(SwitchIfEmpty(other))

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

        Publishers that have elements waiting take turns. An error, of ``fn`` too, ends the stream
        at once and cancels everything. ``rstreams_fast.merge`` says what a publisher does to the
        others if it waits on the thread that asks it. For iterables use ``map(fn).unbatch()``.

        Args:
            fn: Returns a publisher: any object with ``subscribe``, which need not keep the rules.
                Anything else ends the stream with a ``TypeError``.
            concurrency: The most inner publishers at once, and so the most elements of this stream
                that are asked for whose publishers have not ended.
            prefetch: Elements that each inner publisher is asked for ahead.
            delay_error: Signal an error after all elements, not at once; see
                ``rstreams_fast.merge``.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``.
        """
        check_sync("flat_map", "fn", fn, _AWAIT)
        return self._boundary(FlatMap(fn, concurrency, prefetch, delay_error))

    def flat_map_sequential(
        self,
        fn: Callable[[T_co], Publisher[U]],
        /,
        *,
        concurrency: int = FLAT_MAP_CONCURRENCY,
        prefetch: int = FLAT_MAP_PREFETCH,
        delay_error: bool = False,
    ) -> Stream[U]:
        """The elements of the publishers ``fn(element)``, which run together, in their order.

        ```text
        above   --a--b-----|
        fn        a: ---1---2|  b: -3-4|
        below   -----1---2-3-4--|
        ```

        It is ``flat_map``, but the elements of a publisher wait until the elements of all
        publishers before it are delivered. At most ``concurrency * prefetch`` elements wait;
        nothing is asked for beyond that (§1.1). An error does not wait, unless ``delay_error`` is
        set.

        Reactor: ``flatMapSequential``; RxPY has none.

        Args:
            fn: Returns a publisher, as in ``flat_map``.
            concurrency: The most inner publishers at once.
            prefetch: Elements that each inner publisher is asked for ahead.
            delay_error: Signal an error after all elements, not at once.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``.
        """
        check_sync("flat_map_sequential", "fn", fn, _AWAIT)
        return self._boundary(FlatMapSequential(fn, concurrency, prefetch, delay_error))

    def concat_map(
        self, fn: Callable[[T_co], Publisher[U]], /, *, prefetch: int = INNER_PREFETCH
    ) -> Stream[U]:
        """All elements of the publisher ``fn(element)`` of the first element, then of the next
        element.

        ``fn`` is called when the publisher before has ended. The publishers are asked for nothing
        that was not asked of this stream. An error, of ``fn`` too, ends the stream at once. For
        iterables use ``map(fn).unbatch()``.

        Args:
            fn: Returns a publisher: any object with ``subscribe``, which need not keep the rules.
                Anything else ends the stream with a ``TypeError``.
            prefetch: Elements of this stream that are asked for ahead, and wait for their turn.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``.
        """
        check_sync("concat_map", "fn", fn, _AWAIT)
        return self._boundary(ConcatMap(fn, prefetch))

    def switch_map(
        self, fn: Callable[[T_co], Publisher[U]], /, *, prefetch: int = INNER_PREFETCH
    ) -> Stream[U]:
        """The elements of the publisher ``fn(element)`` of the newest element alone.

        ```text
        above   --a--------b----------|
        fn        a: -1--2--3  b: -4--5|
        below   ---1--2-----4--5------|
        ```

        An element cancels the publisher of the element before at once (§1.8: what is on its way is
        dropped here). If several elements come together, ``fn`` is called for the last. The
        publisher is asked for nothing that was not asked of this stream. The stream completes when
        both this stream and the last publisher have. An error, of ``fn`` too, ends the stream; an
        error of this stream ends it at once.

        Reactor: ``switchMap``; RxPY: ``switch_map``.

        Args:
            fn: Returns a publisher, as in ``concat_map``.
            prefetch: Elements of this stream that are asked for ahead, with or without demand; more
                are asked for when three quarters have come.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``.
        """
        check_sync("switch_map", "fn", fn, _ONE_CALL)
        return self._boundary(SwitchMap(fn, prefetch))

    def expand(
        self: Stream[A], fn: Callable[[A], Publisher[A]], /, *, depth_first: bool = False
    ) -> Stream[A]:
        """Each element, and the elements of ``fn(element)``, expanded likewise: pages, trees.

        ```text
        above   --1---------|
        fn        1: -2-3|  2: -4|  3: |  4: |
        below   --1-2-3-4---|   depth first: --1-2-4-3---|
        ```

        This is recursion without a stack: any number of levels will do. Breadth first, all elements
        of one level come before the next level, and each element is held until it is expanded.
        Depth first, the elements that follow from an element come before the next element beside
        it; the publishers on the way down are held until they end, and each is asked for one
        element at a time. Nothing is asked for that was not asked of this stream (§1.1). An error,
        of ``fn`` too, ends the stream.

        Reactor: ``expand``, ``expandDeep``; RxPY: ``expand``.

        Args:
            fn: Returns a publisher, as in ``concat_map``; ``empty()`` ends a branch.
            depth_first: Whether children come before siblings. Default: breadth first.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``.
        """
        check_sync("expand", "fn", fn, _ONE_CALL)
        return self._boundary(Expand(fn, depth_first))

    # -- recovery --------------------------------------------------------------------------------

    def on_error_resume(
        self,
        fn: Callable[[Any], Publisher[U]],
        /,
        *,
        on: type[BaseException] | tuple[type[BaseException], ...] = Exception,
    ) -> Stream[T_co | U]:
        """Go on with the publisher ``fn(error)`` when the stream above has failed.

        Other errors are passed on, and so is an error of that publisher itself. An exception of
        ``fn`` ends the stream, with the error as its ``__context__``.

        Args:
            fn: Returns a publisher, which need not keep the rules (see ``from_publisher``).
            on: The exception types that ``fn`` is called for, one or a tuple.

        Raises:
            TypeError: ``fn`` cannot be called, or ``on`` is not an exception type.
        """
        check_sync("on_error_resume", "fn", fn)
        return self._boundary(OnErrorResume(fn, on))

    def on_error_return(
        self,
        element: U,
        /,
        *,
        on: type[BaseException] | tuple[type[BaseException], ...] = Exception,
    ) -> Stream[T_co | U]:
        """``element`` and the completion, when the stream above has failed.

        ```text
        above   --1--2--X
        below   --1--2--0|   of on_error_return(0)
        ```

        ``element`` waits for demand (§1.1). Other errors are passed on.

        Reactor: ``onErrorReturn``.

        Args:
            element: The element that takes the place of the error; not ``None``.
            on: The exception types that this is done for, one or a tuple.

        Raises:
            TypeError: ``element`` is ``None``, or ``on`` is not an exception type.
        """
        given = _given("on_error_return", element)
        return self._boundary(OnErrorResume(partial(_instead, given), on))

    def distinct(
        self, key: Callable[[T_co], Hashable] | None = None, /, *, max_keys: int
    ) -> Stream[T_co]:
        """The elements that were not seen before, by themselves or by ``key(element)``.

        ```text
        above   --1--2--1--3--2--|
        below   --1--2-----3-----|
        ```

        Each subscriber has keys of its own. A key that cannot be hashed, and an exception of
        ``key``, end the stream (§2.13).

        Reactor, RxPY: ``distinct``, which hold all keys.

        Args:
            key: ``key(element)`` is looked up in place of the element. It must be hashable.
                Default: the element itself.
            max_keys: The most keys that are held, 1 or more. Beyond that the key that was not seen
                for the longest is forgotten, and is new again.

        Raises:
            TypeError: ``key`` cannot be called, or ``max_keys`` is not an ``int``.
            ValueError: ``max_keys`` is less than 1.
        """
        if key is not None:
            check_sync("distinct", "key", key)
        max_keys = check_count("distinct(max_keys=): max_keys", max_keys, 1)
        by = "" if key is None else f"{describe_callable(key)}, "
        return Stream(
            defer_source(
                partial(_distinct, self, key, max_keys),
                f"distinct({by}max_keys={max_keys})",
                (self,),
            )
        )

    # -- boundaries ------------------------------------------------------------------------------

    def map_async(
        self,
        fn: Callable[[T_co], Awaitable[U]],
        /,
        *,
        concurrency: int = 64,
        ordered: bool = True,
        prefetch: int | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        key: Callable[[T_co], Hashable] | None = None,
    ) -> Stream[U]:
        """``await fn(element)`` for each element, up to ``concurrency`` calls at once.

        All calls, and every ``request`` to upstream, run on one event loop, in copies of the
        context of ``subscribe``. Upstream is asked when the subscriber first asks. With a ``key``,
        an element that waits for its turn counts towards ``prefetch``, not towards ``concurrency``.

        An error of upstream is signalled at once; an error of a call after the results that are
        ready and asked for. Either cancels the other calls, and upstream. Where a ``take`` below
        needs no more elements than have come, an error of upstream is signalled after their
        results. ``asyncio.CancelledError`` out of ``fn``, while nobody cancelled the stream, is a
        ``RuntimeError``. ``cancel`` waits for nothing: it cancels the running calls, which end in
        their own time, and no other call starts.

        ```python
        import asyncio
        import rstreams_fast as rsf


        async def fetch(n):
            await asyncio.sleep(0.01)
            return n * n


        print(rsf.range_(3).map_async(fetch, concurrency=2).to_list())  # [0, 1, 4]
        ```

        Args:
            fn: A coroutine function, or a function that returns an awaitable. A result of ``None``,
                or one that cannot be awaited, ends the stream with a ``TypeError``.
            concurrency: The most calls at once.
            ordered: Whether results keep the order of the elements; otherwise they come as they are
                ready.
            prefetch: The most elements that are asked for, being worked on or, as results, waiting
                for their turn or for demand, together. A ``prefetch`` below ``concurrency`` bounds
                the calls, too. Default: 64 for each call, or 4 without order, and 65 536 at most.
            loop: The event loop of the calls. Default: the loop that runs where the stream is
                subscribed to; where a timer or a worker subscribes, the loop of the task that
                awaits the stream's end; otherwise a private loop, which ends with the subscription.
            key: Elements with the same ``key(element)``, which must be hashable, are called one at
                a time, in their order.

        Raises:
            TypeError: An argument has the wrong type, or ``fn`` is an asynchronous generator
                function.
            ValueError: A bound is less than 1.
        """
        # Loaded when it is first needed: it brings asyncio.
        from rstreams_fast.streams.operators.map_async import MapAsync

        return self._boundary(
            MapAsync(
                fn, concurrency=concurrency, ordered=ordered, prefetch=prefetch, loop=loop, key=key
            )
        )

    def map_blocking(
        self,
        fn: Callable[[T_co], U],
        /,
        executor: Executor | None = None,
        *,
        concurrency: int | None = None,
        ordered: bool = True,
        prefetch: int | None = None,
    ) -> Stream[U]:
        """``fn(element)`` on ``executor`` for each element, up to ``concurrency`` calls at once.

        ```text
        above     --1--2--3--|
        workers     f(1)---   f(3)-
                       f(2)-
        below     ---------f(1)-f(2)-f(3)-|
        ```

        Errors (§2.13) and ``None`` are handled as in ``map_async``. A call that runs when the
        stream ends cannot be stopped, and its result is dropped. Short calls are submitted
        together, as many as take about 3 ms: so no call may wait for another call. Calls in threads
        see the context of ``subscribe`` (``contextvars``). Results come on the loop that runs where
        the stream is subscribed to, or else on a thread of their own. An exception of a call in
        another process has its traceback as a note.

        Reactor: ``flatMapSequential(fromCallable, ...)``; RxPY has ``flat_map`` with ``start``.

        Args:
            fn: A plain function. For an executor of processes it must be a function of a module: it
                is pickled, as each element and each result is.
            executor: Any ``concurrent.futures.Executor``, also one with fewer workers than
                ``concurrency``. Default: threads that are shared within the process.
            concurrency: The most calls at once. Default: the number of processors.
            ordered: Whether results keep the order of the elements.
            prefetch: The most elements in flight, as in ``map_async``. Default: 256 for each call.

        Raises:
            TypeError: An argument has the wrong type, or ``fn`` is ``async``: use ``map_async``.
            ValueError: A bound is less than 1.
        """
        from rstreams_fast.streams.operators.map_blocking import MapBlocking

        return self._boundary(
            MapBlocking(fn, executor, concurrency=concurrency, ordered=ordered, prefetch=prefetch)
        )

    def publish_records_on(
        self: Stream[np.ndarray[Any, Any]],
        dtype: Any,
        executor: Executor | asyncio.AbstractEventLoop | str | None = None,
        *,
        capacity: int = ROWS,
        chunk: int | None = None,
        delay_error: bool = False,
    ) -> Stream[np.ndarray[Any, Any]]:
        """Run the stages below on ``executor``, behind a bounded buffer of numpy records. Needs
        numpy.

        Elements are arrays of ``dtype``. They are copied into memory for ``capacity`` records,
        which is allocated once. The arrays that leave are new: of as many records as there are, and
        at most ``chunk``. One array is asked for at a time, when the array before is copied
        completely. So at most ``capacity`` records are held, and one array that does not fit yet;
        it must not change until the next array is asked for. An element of another dtype ends the
        stream with a ``TypeError``.

        Args:
            dtype: The dtype of the elements. It may be a sub-array's, such as ``("f4", (3,))``: its
                records are rows of 3 numbers.
            executor: Where the stages below run; see ``publish_on``.
            capacity: The most records in the buffer.
            chunk: The most records of an array that leaves. Default: ``capacity``.
            delay_error: Whether an error waits for the records before it; see ``publish_on``.

        Raises:
            TypeError: ``dtype`` has Python objects in it, or an argument has the wrong type.
            ValueError: A bound is less than 1.
        """
        return self._boundary(PublishRecordsOn(dtype, executor, capacity, chunk, delay_error))

    def transform(self, fn: Callable[[Self], U], /) -> U:
        """``fn(self)``: a function of streams, in its place in a chain.

        ``fn`` is called at once, not for each subscriber.

        Reactor: ``transform``; RxPY: ``pipe``.

        Args:
            fn: Takes the stream; its result is returned.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``.
        """
        check_sync("transform", "fn", fn)
        return fn(self)

    # -- description -----------------------------------------------------------------------------

    def describe(self) -> str:
        """A text for people: the source, the boundaries with their bounds, and how each run of
        stages executes.

        The streams that a source combines are described below it, indented.
        """
        return describe(self.source, self.parts)

    def __repr__(self) -> str:
        return f"<Stream of {self.source.describe()}, {len(self.parts)} operators>"


class Group(Stream[T_co], Generic[K_co, T_co]):
    """A stream of the elements that have one key, as ``group_by`` makes it. It may have one
    subscriber.

    ```python
    import rstreams_fast as rsf

    parities = rsf.range_(5).group_by(lambda n: n % 2)
    pairs = parities.flat_map(lambda group: group.map(lambda n: (group.key, n)))
    print(pairs.to_list())  # [(0, 0), (0, 2), (0, 4), (1, 1), (1, 3)]
    ```
    """

    __slots__ = ()

    @property
    def key(self) -> K_co:
        """The key, as the function of ``group_by`` returned it."""
        source: Any = self.source
        key: K_co = source.publisher.key
        return key

    def __repr__(self) -> str:
        return f"<Group {safe_repr(self.key)} of {self.source.describe()}>"


StreamParts._window_type, StreamParts._group_type = Stream, Group


def _given(operator: str, *elements: A) -> Stream[A]:
    if any(element is None for element in elements):
        raise TypeError(f"{operator}: None is not an element (§2.13)")
    return Stream(IterableSource(elements, f"{len(elements)} elements"))


def _distinct(stream: Stream[A], key: Callable[[A], Hashable] | None, max_keys: int) -> Stream[A]:
    return stream.filter(new_filter(key, max_keys))


def _instead(given: Stream[A], _error: BaseException) -> Stream[A]:
    return given


def _check_seed(operator: str, seed: object) -> None:
    if seed is None:
        raise TypeError(f"{operator}(fn, seed): seed must not be None, which is not an element")
