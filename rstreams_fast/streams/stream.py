"""``Stream``: a publisher with operators, which is a description until it is subscribed to."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber, Subscription
from rstreams_fast.core import MISSING
from rstreams_fast.core._common import check_count, describe_callable
from rstreams_fast.streams.assembly import Part, Source, Stage, assemble
from rstreams_fast.streams.boundary import Boundary
from rstreams_fast.streams.describe import describe
from rstreams_fast.streams.drain import check_subscriber
from rstreams_fast.streams.peek import Peek
from rstreams_fast.streams.publish_on import PublishOn
from rstreams_fast.streams.subscribe_on import SubscribeOn
from rstreams_fast.streams.tuning import ITERATE_PREFETCH, PREFETCH
from rstreams_fast.streams.unbatch import Unbatch

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor

    from rstreams_fast.streams.ends import Run
    from rstreams_fast.streams.iteration import Iteration

__all__ = ["Stream"]

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
A = TypeVar("A")


def _check_function(operator: str, name: str, fn: object) -> None:
    if not callable(fn):
        raise TypeError(f"{operator}({name}): {name} must be callable, got {type(fn).__name__}")


def check_sync(operator: str, name: str, fn: object) -> None:
    """Refuse coroutine functions: their result would be a coroutine, and nobody would await it."""
    _check_function(operator, name, fn)
    call = getattr(fn, "__call__", None)  # noqa: B004 - the method, to look at it
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call):
        raise TypeError(
            f"{operator}({name}): {describe_callable(cast('Callable[..., Any]', fn))} is a "
            "coroutine function; use map_async(fn), which awaits it"
        )


class Stream(Publisher[T_co]):
    """A publisher with operators.

    Immutable: every operator returns a new stream, and any number of subscribers may subscribe to
    each; every one of them gets elements of its own, from the source on. Nothing runs before that.

    Stages without a boundary between them run as one loop, on whoever calls ``subscribe`` or
    ``request`` (§3.10), if the source can be pulled; ``subscribe_on`` and ``publish_on`` name
    another resource. Signals are serial (§1.3), demand is kept to (§1.1), and subscriptions may be
    used from any thread.

    ``None`` is no element: a function of a stage that returns it is a ``TypeError`` that names the
    stage. An ``Exception`` from user code is signalled by ``on_error``. ``KeyboardInterrupt``,
    ``SystemExit`` and ``GeneratorExit`` cancel upstream and leave through the call they happened
    in. Subscriptions belong to their process: they cannot be pickled, and refuse to work in the
    child of a fork. Subinterpreters are not supported.
    """

    __slots__ = ("_parts", "_source")

    def __init__(self, source: Source, parts: tuple[Part, ...] = ()) -> None:
        self._source = source
        self._parts = parts

    # -- subscribing -----------------------------------------------------------------------------

    def subscribe(self, subscriber: Subscriber[T_co], /) -> None:
        """Start signalling ``subscriber``, first of all ``on_subscribe`` (§1.9).

        Any object with the four methods will do. ``TypeError`` for ``None``, or for an object
        without them; every other failure is an ``on_error`` after ``on_subscribe``.
        """
        check_subscriber(subscriber)
        assemble(self._source, self._parts)[0].subscribe(subscriber)

    # -- stages ----------------------------------------------------------------------------------

    def map(self, fn: Callable[[T_co], U], /) -> Stream[U]:
        """``fn(element)`` for each element. ``fn`` must not return ``None``."""
        check_sync("map", "fn", fn)
        return self._stage("map", fn)

    def map_not_none(self, fn: Callable[[T_co], U | None], /) -> Stream[U]:
        """``fn(element)`` for each element, where that is not ``None``."""
        check_sync("map_not_none", "fn", fn)
        return self._stage("map_not_none", fn)

    def filter(self, predicate: Callable[[T_co], object], /) -> Stream[T_co]:
        """The elements for which ``predicate(element)`` is true."""
        check_sync("filter", "predicate", predicate)
        return self._stage("filter", predicate)

    def take(self, n: int, /) -> Stream[T_co]:
        """The first ``n`` elements; never asks for more. ``take(0)`` asks for nothing."""
        return self._stage("take", check_count("take(n): n", n))

    def take_while(self, predicate: Callable[[T_co], object], /) -> Stream[T_co]:
        """The elements before the first for which ``predicate(element)`` is false."""
        check_sync("take_while", "predicate", predicate)
        return self._stage("take_while", predicate)

    def skip(self, n: int, /) -> Stream[T_co]:
        """All but the first ``n`` elements."""
        return self._stage("skip", check_count("skip(n): n", n))

    @overload
    def scan(self, fn: Callable[[Any, T_co], Any], /) -> Stream[Any]: ...

    @overload
    def scan(self, fn: Callable[[A, T_co], A], seed: A, /) -> Stream[A]: ...

    def scan(self, fn: Callable[[Any, T_co], Any], seed: Any = MISSING, /) -> Stream[Any]:
        """Accumulations so far, as ``itertools.accumulate`` gives them.

        With a ``seed`` that comes first, then ``fn(seed, first)`` and so on; without, the first
        element comes as it is.
        """
        check_sync("scan", "fn", fn)
        _check_seed("scan", seed)
        return self._stage("scan", fn, seed)

    @overload
    def reduce(self, fn: Callable[[Any, T_co], Any], /) -> Stream[Any]: ...

    @overload
    def reduce(self, fn: Callable[[A, T_co], A], seed: A, /) -> Stream[A]: ...

    def reduce(self, fn: Callable[[Any, T_co], Any], seed: Any = MISSING, /) -> Stream[Any]:
        """One element, the accumulation of all; of none, it is ``seed``, or nothing if there is no
        seed.
        """
        check_sync("reduce", "fn", fn)
        _check_seed("reduce", seed)
        return self._stage("reduce", fn, seed)

    def batch(self, n: int, /) -> Stream[list[T_co]]:
        """Lists of ``n`` elements; the last may be shorter."""
        return self._stage("batch", check_count("batch(n): n", n, 1))

    def unbatch(self: Stream[Iterable[U]]) -> Stream[U]:
        """The items of elements that are iterables, of which one at a time is held."""
        return self._boundary(Unbatch())

    # -- observers -------------------------------------------------------------------------------

    def do_on_subscribe(self, fn: Callable[[Subscription], object], /) -> Stream[T_co]:
        """Call ``fn(subscription)`` before ``on_subscribe`` is passed on. See ``do_on_next``."""
        return self._observe("on_subscribe", fn)

    def do_on_next(self, fn: Callable[[T_co], object], /) -> Stream[T_co]:
        """Call ``fn(element)`` before each element is passed on.

        What an observer returns does not matter, and what it raises goes to ``sys.unraisablehook``.
        """
        check_sync("do_on_next", "fn", fn)
        return self._stage("do_on_next", fn)

    def do_on_error(self, fn: Callable[[BaseException], object], /) -> Stream[T_co]:
        """Call ``fn(error)`` before ``on_error`` is passed on. See ``do_on_next``."""
        return self._observe("on_error", fn)

    def do_on_complete(self, fn: Callable[[], object], /) -> Stream[T_co]:
        """Call ``fn()`` before ``on_complete`` is passed on. See ``do_on_next``."""
        return self._observe("on_complete", fn)

    def do_on_request(self, fn: Callable[[int], object], /) -> Stream[T_co]:
        """Call ``fn(n)`` before each ``request(n)`` from below is passed on. See ``do_on_next``."""
        return self._observe("on_request", fn)

    def do_on_cancel(self, fn: Callable[[], object], /) -> Stream[T_co]:
        """Call ``fn()`` before the first ``cancel()`` from below is passed on. See
        ``do_on_next``.
        """
        return self._observe("on_cancel", fn)

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
    ) -> Stream[U]:
        """``await fn(element)`` for each element, up to ``concurrency`` of them at once.

        ``ordered``: results keep the order of the elements; else they come as they are ready.
        ``loop=None`` is the loop running where the stream is subscribed to, or else a private one.
        For the rest see :class:`rstreams_fast.streams.map_async.MapAsync`.
        """
        from rstreams_fast.streams.map_async import MapAsync

        _check_function("map_async", "fn", fn)
        return self._boundary(
            MapAsync(fn, concurrency=concurrency, ordered=ordered, prefetch=prefetch, loop=loop)
        )

    def publish_on(
        self,
        executor: Executor | asyncio.AbstractEventLoop | str | None = None,
        *,
        prefetch: int = PREFETCH,
        max_bytes: int | None = None,
        weigher: Callable[[T_co], int] | None = None,
        delay_error: bool = False,
    ) -> Stream[T_co]:
        """Run what is below this on ``executor``, behind a bounded buffer.

        ``executor``: a thread-based ``concurrent.futures.Executor``, an asyncio event loop,
        ``"caller"``, or ``None`` for a worker thread that lives as long as the subscription. At
        most ``prefetch`` elements are asked for, in the buffer, or being delivered, together; more
        are asked for when three quarters are consumed. ``request``, ``cancel`` and ``subscribe``
        return at once: upstream is asked from the executor.

        ``max_bytes`` bounds the bytes held too, as ``weigher(element)`` counts them. As an
        element's weight is not known before it has come, elements are then asked for one by one,
        while fewer than ``max_bytes`` are held: the bound is ``max_bytes`` plus one element. A
        single element larger than ``max_bytes`` passes.

        An error overtakes the elements in the buffer, unless ``delay_error``. An executor that
        refuses the work cancels upstream and is signalled by ``on_error``.
        """
        return self._boundary(PublishOn(executor, prefetch, max_bytes, weigher, delay_error))

    def subscribe_on(
        self, executor: Executor | asyncio.AbstractEventLoop | str | None = None
    ) -> Stream[T_co]:
        """Subscribe to what is above this, and ask it for elements, on ``executor`` (see
        ``publish_on``).

        ``subscribe`` and ``request`` return at once, and a synchronous source works there. Only
        the one closest to the source matters.
        """
        return self._boundary(SubscribeOn(executor))

    # -- ends ------------------------------------------------------------------------------------

    def for_each(
        self,
        on_next: Callable[[T_co], object],
        on_error: Callable[[BaseException], object] | None = None,
        on_complete: Callable[[], object] | None = None,
        *,
        prefetch: int = UNBOUNDED,
    ) -> Run:
        """Subscribe functions. See :func:`rstreams_fast.streams.ends.for_each`."""
        from rstreams_fast.streams import ends

        return ends.for_each(self, on_next, on_error, on_complete, prefetch=prefetch)

    def to_list(self) -> list[T_co]:
        """Wait for all elements. See :func:`rstreams_fast.streams.ends.to_list`."""
        from rstreams_fast.streams import ends

        return ends.to_list(self)

    async def to_list_async(self) -> list[T_co]:
        """Await all elements. See :func:`rstreams_fast.streams.ends.to_list_async`."""
        from rstreams_fast.streams import ends

        return await ends.to_list_async(self)

    @overload
    def first(self) -> T_co: ...

    @overload
    def first(self, default: A) -> T_co | A: ...

    def first(self, default: Any = MISSING) -> Any:
        """Wait for the first element. See :func:`rstreams_fast.streams.ends.first`."""
        from rstreams_fast.streams import ends

        return ends.first(self, default)

    @overload
    async def first_async(self) -> T_co: ...

    @overload
    async def first_async(self, default: A) -> T_co | A: ...

    async def first_async(self, default: Any = MISSING) -> Any:
        """Await the first element. See :func:`rstreams_fast.streams.ends.first_async`."""
        from rstreams_fast.streams import ends

        return await ends.first_async(self, default)

    def run(self) -> None:
        """Wait for the end, dropping the elements. See :func:`rstreams_fast.streams.ends.run`."""
        from rstreams_fast.streams import ends

        ends.run(self)

    async def run_async(self) -> None:
        """Await the end, dropping the elements. See
        :func:`rstreams_fast.streams.ends.run_async`.
        """
        from rstreams_fast.streams import ends

        await ends.run_async(self)

    def iterate(self, *, prefetch: int = ITERATE_PREFETCH) -> Iteration[T_co]:
        """Iterate within ``with`` or ``async with``, at most ``prefetch`` elements ahead.

        With ``prefetch=1`` this is exactly stop-and-wait.
        """
        from rstreams_fast.streams.iteration import iterate

        return iterate(self, prefetch=prefetch)

    def __iter__(self) -> Iterator[T_co]:
        return iter(self.iterate())

    def __aiter__(self) -> AsyncIterator[T_co]:
        return aiter(self.iterate())

    # -- description -----------------------------------------------------------------------------

    def describe(self) -> str:
        """Print-ready text: source, boundaries with their bounds, and how each run of stages
        executes.
        """
        return describe(self._source, self._parts)

    def __repr__(self) -> str:
        return f"<Stream of {self._source.describe()}, {len(self._parts)} operators>"

    # -- composing -------------------------------------------------------------------------------

    def _stage(self, *op: Any) -> Stream[Any]:
        return Stream(self._source, (*self._parts, Stage(op)))

    def _boundary(self, boundary: Boundary) -> Stream[Any]:
        return Stream(self._source, (*self._parts, boundary))

    def _observe(self, signal: str, fn: Callable[..., object]) -> Stream[T_co]:
        check_sync(f"do_{signal}", "fn", fn)
        return self._boundary(Peek(signal, fn))


def _check_seed(operator: str, seed: object) -> None:
    if seed is None:
        raise TypeError(f"{operator}(fn, seed): seed must not be None, which is not an element")
