"""``Stream``: a publisher with operators, which is a description until it is subscribed to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeGuard, TypeVar, overload

from rstreams_fast._checks import check_count, check_sync, describe_callable
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

__all__ = ["Stream"]

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


_AWAIT = "; use map_async, which awaits such functions"
_ONE_CALL = "; let it return from_iterable([element]).map_async(call)"


class Stream(StreamFlow[T_co], StreamParts[T_co], StreamEnds[T_co]):
    """A publisher with operators.

    Immutable: every operator returns a new stream, and any number of subscribers may subscribe to
    each; every one of them gets elements of its own, from the source on (§1.11). Nothing runs
    before that.

    Stages without a boundary between them run as one loop, on the caller of ``subscribe`` or
    ``request`` (§3.10), if the source can be pulled; ``subscribe_on`` and ``publish_on`` name
    another resource. Signals are serial (§1.3), demand is kept to (§1.1), and subscriptions may be
    used from any thread.

    ``None`` is no element: a function of a stage that returns it is a ``TypeError`` that names the
    stage. An ``Exception`` from user code is signalled by ``on_error``. ``KeyboardInterrupt``,
    ``SystemExit`` and ``GeneratorExit`` cancel upstream and leave through the call they happened
    in. Subscriptions belong to their process: they cannot be pickled, and refuse to work in the
    child of a fork. Subinterpreters are not supported.
    """

    __slots__ = ()

    # -- stages ----------------------------------------------------------------------------------

    def map(self, fn: Callable[[T_co], U], /) -> Stream[U]:
        """``fn(element)`` for each element. ``fn`` must not return ``None``."""
        check_sync("map", "fn", fn, _AWAIT)
        return self._stage("map", fn)

    def map_not_none(self, fn: Callable[[T_co], U | None], /) -> Stream[U]:
        """``fn(element)`` for each element, where that is not ``None``."""
        check_sync("map_not_none", "fn", fn, _AWAIT)
        return self._stage("map_not_none", fn)

    @overload
    def filter(self, predicate: Callable[[T_co], TypeGuard[U]], /) -> Stream[U]: ...

    @overload
    def filter(self, predicate: Callable[[T_co], object], /) -> Stream[T_co]: ...

    def filter(self, predicate: Callable[[T_co], object], /) -> Stream[Any]:
        """The elements for which ``predicate(element)`` is true; a ``TypeGuard`` says what they
        are.
        """
        check_sync("filter", "predicate", predicate, _AWAIT)
        return self._stage("filter", predicate)

    def distinct_until_changed(self, key: Callable[[T_co], object] | None = None) -> Stream[T_co]:
        """The elements that differ from the one before: all of a row of equal ones but the first.

        ``key(element)``, if given, is compared in place of the element. Equal is what is the same
        object, or else equal by ``==``; what that raises ends the stream.
        """
        if key is not None:
            check_sync("distinct_until_changed", "key", key)
        return self._stage("distinct_until_changed", key)

    def take(self, n: int, /) -> Stream[T_co]:
        """The first ``n`` elements; never asks for more. ``take(0)`` asks for nothing."""
        return self._stage("take", check_count("take(n): n", n))

    def take_while(self, predicate: Callable[[T_co], object], /) -> Stream[T_co]:
        """The elements before the first for which ``predicate(element)`` is false."""
        check_sync("take_while", "predicate", predicate, _AWAIT)
        return self._stage("take_while", predicate)

    def skip(self, n: int, /) -> Stream[T_co]:
        """All but the first ``n`` elements."""
        return self._stage("skip", check_count("skip(n): n", n))

    def skip_while(self, predicate: Callable[[T_co], object], /) -> Stream[T_co]:
        """All from the first element on for which ``predicate(element)`` is false; it is not called
        again.
        """
        check_sync("skip_while", "predicate", predicate, _AWAIT)
        return self._stage("skip_while", predicate)

    @overload
    def scan(self: Stream[A], fn: Callable[[A, A], A], /) -> Stream[A]: ...

    @overload
    def scan(self, fn: Callable[[A, T_co], A], seed: A, /) -> Stream[A]: ...

    def scan(self, fn: Callable[[Any, Any], Any], seed: Any = MISSING, /) -> Stream[Any]:
        """Accumulations so far, as ``itertools.accumulate`` gives them.

        With a ``seed`` that comes first, then ``fn(seed, first)`` and so on; without, the first
        element comes as it is.
        """
        check_sync("scan", "fn", fn)
        _check_seed("scan", seed)
        return self._stage("scan", fn, seed)

    @overload
    def reduce(self: Stream[A], fn: Callable[[A, A], A], /) -> Stream[A]: ...

    @overload
    def reduce(self, fn: Callable[[A, T_co], A], seed: A, /) -> Stream[A]: ...

    def reduce(self, fn: Callable[[Any, Any], Any], seed: Any = MISSING, /) -> Stream[Any]:
        """One element, the accumulation of all; of none, it is ``seed``, or nothing if there is no
        seed.
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
        """The elements of this and of ``others``, as they come. See
        :func:`rstreams_fast.merge`.
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
        """Tuples of the elements at the same position in this and in ``others``. See
        :func:`rstreams_fast.zip_`.
        """
        return Stream(zip_source((self, *others), prefetch))

    def concat(self, *others: Publisher[U]) -> Stream[T_co | U]:
        """All elements of this, then those of each of ``others``. See
        :func:`rstreams_fast.concat`.
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
        """For each element of this or of ``others`` a tuple of the newest of each.

            above   --1--------2-----|
            other   -----a--b-----|
            below   ----1a-1b-2b-----|

        Nothing is passed over: each is asked for one element until all have given one, and then for
        ``prefetch`` ahead, as in :func:`rstreams_fast.merge`; what has come waits for demand (§1.1)
        in the order in which it came. Completes when all have, or one has without an element. An
        error of any ends the stream at once. ``others`` need not keep the rules. Reactor:
        ``combineLatest``; RxPY: ``combine_latest``, which passes over all that a publisher gives
        before the last one has begun.
        """
        return self._boundary(CombineLatest(others, prefetch))

    @overload
    def with_latest_from(self, b: Publisher[U], /) -> Stream[tuple[T_co, U]]: ...

    @overload
    def with_latest_from(self, *others: Publisher[Any]) -> Stream[tuple[Any, ...]]: ...

    def with_latest_from(self, *others: Publisher[Any]) -> Stream[Any]:
        """For each element of this a tuple of it and the newest of each of ``others``.

            above   -----1--2-----3--|
            other   --a--------b-----|
            below   -----1a-2a----3b-|

        ``others`` are asked for everything at once. Of each the newest element is held; those that
        another replaced before they left are counted (see ``metrics_of``). One that is an iterator
        is run through within ``subscribe``: give it a thread, by ``subscribe_on``, if that takes
        long. This is asked, for what was asked for (§1.1), when all of them have given an element:
        before that nothing of it is dropped. Completes when this does, or one of ``others`` without
        an element. An error of any ends the stream. Reactor: ``withLatestFrom``; RxPY:
        ``with_latest_from``, which drops what comes before.
        """
        return self._boundary(WithLatestFrom(others))

    def race(self, *others: Publisher[U]) -> Stream[T_co | U]:
        """The elements of the one that signals first, of this and ``others``.

            above   ------1--2--|
            other   ---a--b--|
            below   ---a--b--|

        All are subscribed to, and then asked for one element each; the first element, or end, or
        error, decides, and the others are cancelled. One that gives its element at the same time is
        not heard (§2.8): at most one element of each is dropped. Nothing else is asked for that was
        not asked of this (§1.1). ``others`` need not keep the rules. Reactor: ``firstWithSignal``;
        RxPY: ``amb``.
        """
        return self._boundary(Race(others))

    def start_with(self, *elements: U) -> Stream[T_co | U]:
        """``elements``, and then those of this.

            above   ------3--4--|
            below   -1-2--3--4--|   of start_with(1, 2)

        This is subscribed to after them; nothing is asked for twice (§1.1). Reactor: ``startWith``;
        RxPY: ``start_with``.
        """
        return Stream(concat_source((_given("start_with", *elements), self)))

    def default_if_empty(self, element: U, /) -> Stream[T_co | U]:
        """The elements of this, or ``element`` if there is none.

            above   -----|
            below   -----0|   of default_if_empty(0)

        It waits for demand (§1.1); an error is passed on. Reactor: ``defaultIfEmpty``; RxPY:
        ``default_if_empty``.
        """
        return self._boundary(SwitchIfEmpty(_given("default_if_empty", element)))

    def switch_if_empty(self, other: Publisher[U], /) -> Stream[T_co | U]:
        """The elements of this, or those of ``other`` if there is none.

            above   -----|
            other        -1--2-|
            below   ------1--2-|

        ``other`` is subscribed to when this has completed without an element, and asked for what
        was asked for (§1.1). It need not keep the rules. Reactor: ``switchIfEmpty``.
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

        At most ``concurrency`` elements are asked for whose publishers are not over, and each of
        these is asked for at most ``prefetch`` elements ahead; those that have elements waiting
        take turns. ``fn`` may return any object with ``subscribe``, which need not keep the rules;
        anything else is a ``TypeError``. For iterables use ``map(fn).unbatch()``.

        An error, of ``fn`` too, ends the stream at once and cancels everything. With
        ``delay_error`` it comes after everything: see :func:`rstreams_fast.merge`, which also says
        what a publisher does that waits when it is asked.
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

            above   --a--b-----|
            fn        a: ---1---2|  b: -3-4|
            below   -----1---2-3-4--|

        As ``flat_map``, but that the elements of a publisher wait until those of all publishers
        before it were delivered (at most ``concurrency * prefetch`` wait; nothing is asked for
        beyond that, §1.1). An error does not wait, but with ``delay_error``. Reactor:
        ``flatMapSequential``; RxPY has none.
        """
        check_sync("flat_map_sequential", "fn", fn, _AWAIT)
        return self._boundary(FlatMapSequential(fn, concurrency, prefetch, delay_error))

    def concat_map(
        self, fn: Callable[[T_co], Publisher[U]], /, *, prefetch: int = INNER_PREFETCH
    ) -> Stream[U]:
        """All elements of the publisher ``fn(element)`` of the first element, then of the next.

        ``fn`` is called when the publisher before is over. At most ``prefetch`` elements wait for
        that; of the publishers nothing is asked for that was not asked of this. ``fn`` may return
        any object with ``subscribe``, which need not keep the rules; anything else is a
        ``TypeError``. For iterables use ``map(fn).unbatch()``. An error, of ``fn`` too, ends the
        stream at once.
        """
        check_sync("concat_map", "fn", fn, _AWAIT)
        return self._boundary(ConcatMap(fn, prefetch))

    def switch_map(
        self, fn: Callable[[T_co], Publisher[U]], /, *, prefetch: int = INNER_PREFETCH
    ) -> Stream[U]:
        """The elements of the publisher ``fn(element)`` of the newest element alone.

            above   --a--------b----------|
            fn        a: -1--2--3  b: -4--5|
            below   ---1--2-----4--5------|

        An element cancels the publisher of the one before at once (§1.8: what is on its way is
        dropped here); if several come together, ``fn`` is called for the last. ``prefetch``
        elements are asked for ahead, whether or not there is demand, and again when three quarters
        have come; of the publisher nothing is asked for that was not asked of this. Completes when
        both this and the last publisher have. An error, of ``fn`` too, ends the stream; that of
        this at once. ``fn`` may return what it may in ``concat_map``. Reactor: ``switchMap``;
        RxPY: ``switch_map``.
        """
        check_sync("switch_map", "fn", fn, _ONE_CALL)
        return self._boundary(SwitchMap(fn, prefetch))

    def expand(
        self: Stream[A], fn: Callable[[A], Publisher[A]], /, *, depth_first: bool = False
    ) -> Stream[A]:
        """Each element, and the elements of ``fn(element)``, expanded likewise: pages, trees.

            above   --1---------|
            fn        1: -2-3|  2: -4|  3: |  4: |
            below   --1-2-3-4---|   depth first: --1-2-4-3---|

        This is recursion without a stack: any number of levels will do. Breadth first, all of one
        level comes before the next, and each element is held until it is expanded; depth first,
        what follows from an element comes before the next one beside it, and the publishers on the
        way down are held that are not over. Nothing is asked for that was not asked of this (§1.1);
        depth first, each is asked for one element at a time. ``fn`` ends it by ``empty()``, and may
        return what it may in ``concat_map``. An error, of ``fn`` too, ends the stream. Reactor:
        ``expand``, ``expandDeep``; RxPY: ``expand``.
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
        """Go on with the publisher ``fn(error)`` when what is above this has failed.

        Only for errors that are instances of ``on``; others are passed on, and so is an error of
        that publisher itself. It need not keep the rules (see ``from_publisher``). What ``fn``
        raises ends the stream, with the error as its ``__context__``.
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
        """``element`` and the end, when what is above this has failed.

            above   --1--2--X
            below   --1--2--0|   of on_error_return(0)

        It waits for demand (§1.1). Only for errors that are instances of ``on``. Reactor:
        ``onErrorReturn``.
        """
        given = _given("on_error_return", element)
        return self._boundary(OnErrorResume(partial(_instead, given), on))

    def distinct(
        self, key: Callable[[T_co], Hashable] | None = None, /, *, max_keys: int
    ) -> Stream[T_co]:
        """The elements whose ``key(element)``, or which themselves, were not seen before.

            above   --1--2--1--3--2--|
            below   --1--2-----3-----|

        At most ``max_keys`` keys are held: of more, the one not seen for the longest is forgotten,
        and new again. Keys are hashable; what is not, or what ``key`` raises, ends the stream
        (§2.13). Each subscriber has keys of its own. Reactor, RxPY: ``distinct``, which hold all
        keys there are.
        """
        if key is not None:
            check_sync("distinct", "key", key)
        max_keys = check_count("distinct(max_keys=): max_keys", max_keys, 1)
        by = "" if key is None else f"{describe_callable(key)}, "
        return Stream(
            defer_source(
                lambda: self.filter(new_filter(key, max_keys)),
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
        """``await fn(element)`` for each element, up to ``concurrency`` of them at once.

        ``ordered``: results keep the order of the elements; else they come as they are ready.
        ``key``: elements with the same ``key(element)`` are called one at a time, in their order.
        ``loop=None`` is the loop running where the stream is subscribed to; where a timer or a
        worker subscribes, that of the task which awaits the whole; or else a private one.
        For the rest see :class:`rstreams_fast.streams.operators.map_async.MapAsync`.
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

            above     --1--2--3--|
            workers     f(1)---   f(3)-
                           f(2)-
            below     ---------f(1)-f(2)-f(3)-|

        ``executor``: any ``concurrent.futures.Executor``, which may have less room than that;
        ``None``: threads that are shared within the process. One of processes pickles ``fn``, each
        element and each result, so ``fn`` must be a function of a module. ``concurrency=None`` is
        the number of processors. Order, ``prefetch`` (256 for each call), ``None`` and errors
        (§2.13) are as in ``map_async``; a call that runs when the stream ends cannot be stopped,
        and its result is dropped. Short calls are submitted together, as many as take about 3 ms:
        so no call may wait for another one. Calls in threads see the context of ``subscribe``
        (``contextvars``). Results come on the loop running where the stream is subscribed to, or
        else on a thread of its own. What a call in another process raises has its traceback as a
        note.
        Reactor: ``flatMapSequential(fromCallable, ...)``; RxPY has ``flat_map`` with ``start``.
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
        """Run what is below this on ``executor``, behind a bounded buffer of numpy records.

        Elements are arrays of ``dtype``, which are copied into memory for ``capacity`` records
        that is allocated once; what leaves are new arrays, of as many records as there are, and at
        most ``chunk`` (``None``: ``capacity``). One array is asked for at a time, when all of the
        one before is in. So at most ``capacity`` records are held, and one array that does not fit
        yet; it must not change until the next is asked for.

        ``dtype`` may be a sub-array's, as ``("f4", (3,))``: its records are rows of 3 numbers. An
        element of another dtype, or Python objects in ``dtype``, are a ``TypeError``. For
        ``executor`` and ``delay_error`` see ``publish_on``. Needs numpy.
        """
        return self._boundary(PublishRecordsOn(dtype, executor, capacity, chunk, delay_error))

    def transform(self, fn: Callable[[Self], U], /) -> U:
        """``fn(self)``: a function of streams, in its place in a chain.

        Called at once, not for each subscriber. Reactor: ``transform``; RxPY: ``pipe``.
        """
        check_sync("transform", "fn", fn)
        return fn(self)

    # -- description -----------------------------------------------------------------------------

    def describe(self) -> str:
        """Print-ready text: source, boundaries with their bounds, and how each run of stages
        executes; indented, the same of the streams that a source combines.
        """
        return describe(self.source, self.parts)

    def __repr__(self) -> str:
        return f"<Stream of {self.source.describe()}, {len(self.parts)} operators>"


def _given(operator: str, *elements: A) -> Stream[A]:
    if any(element is None for element in elements):
        raise TypeError(f"{operator}: None is not an element (§2.13)")
    return Stream(IterableSource(elements, f"{len(elements)} elements"))


def _instead(given: Stream[A], _error: BaseException) -> Stream[A]:
    return given


def _check_seed(operator: str, seed: object) -> None:
    if seed is None:
        raise TypeError(f"{operator}(fn, seed): seed must not be None, which is not an element")
