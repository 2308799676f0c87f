"""The functions that make streams."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Never, TypeVar, overload

from rstreams_fast._checks import check_sync, describe_callable, refuse_coroutine, safe_repr
from rstreams_fast.api import Publisher
from rstreams_fast.errors import NoneSignalError
from rstreams_fast.streams.engine.assembly import Foreign
from rstreams_fast.streams.engine.defaults import INNER_PREFETCH, ROWS
from rstreams_fast.streams.engine.overflow import Overflow
from rstreams_fast.streams.engine.pipeline import as_pipeline
from rstreams_fast.streams.engine.sink_subscriber import check_publisher
from rstreams_fast.streams.operators.concat import concat_source
from rstreams_fast.streams.operators.merge import merge_source
from rstreams_fast.streams.operators.zip import zip_source
from rstreams_fast.streams.sources import constant
from rstreams_fast.streams.sources.arrow import arrow_source
from rstreams_fast.streams.sources.create import Emitter, create_source
from rstreams_fast.streams.sources.interval import interval_source
from rstreams_fast.streams.sources.iterable import CallOnce, IterableSource
from rstreams_fast.streams.sources.lazy import defer_source, generate_source
from rstreams_fast.streams.sources.numpy import array_source
from rstreams_fast.streams.stream import Stream

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor

    import numpy as np

    from rstreams_fast.runtime.timers import Timer

__all__ = [
    "concat",
    "create",
    "defer",
    "empty",
    "error",
    "from_arrow",
    "from_async_iterable",
    "from_callable",
    "from_iterable",
    "from_numpy",
    "from_publisher",
    "generate",
    "interval",
    "merge",
    "never",
    "range_",
    "using",
    "zip_",
]

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")


def range_(*args: int) -> Stream[int]:
    """The numbers of ``range(*args)``: ``stop``, or ``start, stop`` and perhaps ``step``."""
    numbers = range(*args)
    return Stream(IterableSource(numbers, safe_repr(numbers)))


def from_iterable(iterable: Iterable[T], /) -> Stream[T]:
    """The items of ``iterable``, which is iterated anew for each subscriber.

    A one-shot iterator, such as a generator, serves one: a second subscriber gets a
    ``RuntimeError`` by ``on_error``. A generator is closed when the stream ends early; a file,
    say, is left to its owner.
    """
    if not hasattr(iterable, "__iter__") and not hasattr(iterable, "__getitem__"):
        hint = "; use from_async_iterable" if hasattr(iterable, "__aiter__") else ""
        raise TypeError(f"iterable must be iterable, got {type(iterable).__name__}{hint}")
    return Stream(IterableSource(iterable))


def from_async_iterable(
    iterable: AsyncIterable[T] | Callable[[], AsyncIterable[T]],
    /,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
) -> Stream[T]:
    """The items of an asynchronous iterable, or of what a function makes for each subscriber.

    ``loop=None`` is the loop running where the stream is subscribed to, or else a private one.
    A generator is closed when the stream ends early, and its ``finally`` may await. Ends that are
    awaited return after that, and so does leaving ``async with stream.iterate()``; a ``break`` out
    of ``async for`` alone does not wait for it.
    """
    # Loaded when it is first needed: it brings asyncio.
    from rstreams_fast.streams.sources.async_iterable import AsyncIterableSource

    name = getattr(iterable, "__qualname__", type(iterable).__name__)
    return Stream(
        Foreign(
            AsyncIterableSource(iterable, loop=loop), f"from_async_iterable({name})", trusted=True
        )
    )


def from_publisher(publisher: Publisher[T], /) -> Stream[T]:
    """The elements of any publisher: an object with ``subscribe(subscriber)``.

    It need not keep the rules: ``None``, too many elements, signals after the end or from several
    threads at once never reach a subscriber of the stream.
    """
    if publisher is None:
        raise NoneSignalError("publisher is None")
    if isinstance(publisher, Stream):
        return publisher
    check_publisher(publisher)
    pipeline = as_pipeline(publisher)
    return Stream(pipeline.source, pipeline.parts)


def from_arrow(source: Any, /, *, chunk: int | None = None, schema: Any = None) -> Stream[Any]:
    """The record batches of any tabular Arrow data, as ``pyarrow.RecordBatch``, without a copy.

    ``source`` has ``__arrow_c_stream__`` (tables, readers, data frames of pandas, polars, DuckDB
    and others), whose batches are read as they are asked for, or ``__arrow_c_array__`` (one record
    batch). ``chunk``: no element has more rows than that; ``None``: they are as the source has
    them. ``schema``: what the source is asked to give, as far as it can.

    A table is read anew for each subscriber. A reader can be read once: a second subscriber gets
    a ``RuntimeError`` by ``on_error``. A reader is closed when the stream ends.
    """
    return Stream(arrow_source(source, chunk, schema))


def from_numpy(array: np.ndarray[Any, Any], /, *, chunk: int = ROWS) -> Stream[Any]:
    """The parts of ``array``, ``chunk`` rows each, the last perhaps fewer: views, without a copy.

    Rows are what there is along the first axis. The elements share the memory of ``array``, and
    are writable if it is. Every subscriber gets all of them; an array of no rows has none.
    """
    return Stream(array_source(array, chunk))


def from_callable(fn: Callable[[], T], /) -> Stream[T]:
    """One element, ``fn()``, called for each subscriber when it asks."""
    check_sync("from_callable", "fn", fn)
    return Stream(CallOnce(fn))


def defer(factory: Callable[[], Publisher[T]], /) -> Stream[T]:
    """The elements of the publisher ``factory()``, made anew for each subscriber.

        factory()   --1--2--|
        below       --1--2--|

    It is called within ``subscribe``; what it raises is signalled by ``on_error`` (§1.9). The
    publisher need not keep the rules. Reactor, RxPY: ``defer``.
    """
    check_sync("defer", "factory", factory)
    return Stream(defer_source(factory, f"defer({describe_callable(factory)})"))


def using(
    factory: Callable[[], A],
    stream_of: Callable[[A], Publisher[T]],
    close: Callable[[A], object],
    /,
) -> Stream[T]:
    """The elements of ``stream_of(resource)``, of a resource for each subscriber.

        factory()  --1--2--|
        below      --1--2--|close(resource)

    ``resource = factory()`` is made within ``subscribe``, and closed once: after the end, after a
    ``cancel()`` (§3.12), or if there is no stream of it. A cancel does not wait for calls that go
    on in other threads, as ``map_blocking`` makes them: ``close`` may have to. What ``close``
    raises after a stream goes to ``sys.unraisablehook``; so does a ``TypeError`` where it returns a
    coroutine, which nobody awaits. What is closed by an ``await`` is for an ``async with`` in an
    async generator, and :func:`from_async_iterable`. Reactor, RxPY: ``using``.
    """
    check_sync("using", "factory", factory)
    check_sync("using", "stream_of", stream_of)
    check_sync("using", "close", close)
    described = f"using({describe_callable(factory)})"
    return Stream(defer_source(partial(_use, factory, stream_of, close), described))


def _use(
    factory: Callable[[], A],
    stream_of: Callable[[A], Publisher[T]],
    close: Callable[[A], object],
) -> Stream[T]:
    resource = factory()
    try:
        stream = from_publisher(stream_of(resource))
    except BaseException:
        _close(close, resource)
        raise
    return stream.do_finally(partial(_close, close, resource))


def _close(close: Callable[[A], object], resource: A) -> None:
    hint = (
        f", so {type(resource).__name__} is not closed; give from_async_iterable an async "
        "generator that opens it by 'async with'"
    )
    refuse_coroutine("using(close)", close, close(resource), hint)


def generate(state: A, fn: Callable[[A], tuple[T, A] | None], /) -> Stream[T]:
    """The elements of ``element, state = fn(state)``, until ``fn(state)`` is ``None``.

        fn(1)   (a, 2)    fn(2)   (b, 3)    fn(3)   None
        below   --a---------------b-----------------|

    ``fn`` is called when an element is asked for (§1.1), and begins with ``state`` for each
    subscriber. Reactor: ``generate``; RxPY: ``generate``, in three functions.
    """
    check_sync("generate", "fn", fn)
    return Stream(generate_source(state, fn))


def empty() -> Stream[Never]:
    """No element: completes at once."""
    return Stream(IterableSource((), "empty()"))


def error(error: BaseException, /) -> Stream[Never]:
    """No element: fails at once with ``error``."""
    if not isinstance(error, BaseException):
        raise TypeError(f"error must be an exception instance, got {type(error).__name__}")
    return Stream(Foreign(constant.Failed(error), f"error({safe_repr(error)})", trusted=False))


def never() -> Stream[Never]:
    """No element and no end."""
    return Stream(Foreign(constant.Never(), "never()", trusted=False))


def create(
    fn: Callable[[Emitter[T]], object],
    /,
    *,
    overflow: Overflow = Overflow.BUFFER,
    capacity: int | None = None,
    on_drop: Callable[[T], object] | None = None,
) -> Stream[T]:
    """The elements that ``fn(emitter)`` sends by ``emitter.next(element)``.

    ``fn`` is called for each subscriber, within ``subscribe``, after ``on_subscribe``; it may send
    at once, or hand the emitter, or its methods, to threads and callbacks that send later. What it
    raises ends the stream. What comes before it is asked for is held, up to ``capacity`` elements,
    and beyond that dropped or an error, as ``overflow`` says (see ``Overflow``); ``on_drop`` is
    called with each element that is dropped, on the thread that sent it.

    Elements are delivered on the threads that send or request: with ``publish_on`` below, on an
    executor of one's choice.
    """
    return Stream(create_source(fn, overflow, capacity, on_drop))


def interval(
    seconds: float,
    /,
    *,
    delay: float | None = None,
    overflow: Overflow = Overflow.ERROR,
    capacity: int | None = None,
    executor: Executor | asyncio.AbstractEventLoop | None = None,
    timer: Timer | None = None,
) -> Stream[int]:
    """A tick every ``seconds``, which are 1e-9 at least: 0, 1, 2, ..., without end.

    Tick ``n`` comes ``delay + n * seconds`` after the subscriber first asks (§3.8), or a little
    later, but delays do not add up; ``delay=None`` is ``seconds``. Ticks missed because the process
    was stopped, or the machine overloaded, are not made up for: of those that are due together the
    last one comes, and the numbers of the others are left out. So a tick's number always tells its
    time.

    A tick that comes before it is asked for is an error, unless ``overflow`` says otherwise (see
    ``Overflow``; ``capacity`` is the most ticks held).

    Each subscriber has its own ticks. They are delivered on ``executor`` (see ``publish_on``;
    ``None`` stands for threads that all clocks of the process share, as many as are at work at
    once; ``"caller"``, which would be the timer, is refused). ``timer=None`` is the one of this
    process.
    """
    return Stream(interval_source(seconds, delay, overflow, capacity, executor, timer))


@overload
def concat(a: Publisher[A], b: Publisher[B], /) -> Stream[A | B]: ...


@overload
def concat(a: Publisher[A], b: Publisher[B], c: Publisher[C], /) -> Stream[A | B | C]: ...


@overload
def concat(*publishers: Publisher[T]) -> Stream[T]: ...


def concat(*publishers: Publisher[Any]) -> Stream[Any]:
    """All elements of the first of ``publishers``, then all of the second, and so on.

    The next is subscribed to when the one before has completed, and asked for what that one still
    owed: nothing is asked for that the subscriber has not asked for, and nothing is held. The error
    of one ends the stream at once, and the rest is never subscribed to. Completes after the last;
    of no publishers, at once.

    The publishers may be any objects with ``subscribe``, and need not keep the rules; else it is a
    ``TypeError``.
    """
    return Stream(concat_source(publishers)) if publishers else empty()


@overload
def merge(
    a: Publisher[A],
    b: Publisher[B],
    /,
    *,
    prefetch: int = INNER_PREFETCH,
    delay_error: bool = False,
) -> Stream[A | B]: ...


@overload
def merge(
    a: Publisher[A],
    b: Publisher[B],
    c: Publisher[C],
    /,
    *,
    prefetch: int = INNER_PREFETCH,
    delay_error: bool = False,
) -> Stream[A | B | C]: ...


@overload
def merge(
    *publishers: Publisher[T], prefetch: int = INNER_PREFETCH, delay_error: bool = False
) -> Stream[T]: ...


def merge(
    *publishers: Publisher[Any], prefetch: int = INNER_PREFETCH, delay_error: bool = False
) -> Stream[Any]:
    """The elements of all ``publishers``, each as soon as it is there and asked for.

    All are subscribed to at once, and asked when the subscriber first asks: for at most
    ``prefetch`` elements ahead of what was delivered, and again when three quarters are. Those that
    have elements waiting take turns. Completes when all have completed; of no publishers, at once.

    The error of one ends the stream at once and cancels the others. With ``delay_error`` it comes
    after everything: itself if it is the only one, else in an ``ExceptionGroup``, of 64 at most;
    those beyond go to ``on_dropped_error``.

    Elements are delivered on the threads that they come on, one at a time. A publisher that works
    on the thread that asks it, and waits there, keeps the others from being asked for more: give
    it a resource of its own by ``subscribe_on``.

    The publishers may be any objects with ``subscribe``, and need not keep the rules; else it is a
    ``TypeError``.
    """
    return Stream(merge_source(publishers, prefetch, delay_error)) if publishers else empty()


@overload
def zip_(a: Publisher[A], /, *, prefetch: int = INNER_PREFETCH) -> Stream[tuple[A]]: ...


@overload
def zip_(
    a: Publisher[A], b: Publisher[B], /, *, prefetch: int = INNER_PREFETCH
) -> Stream[tuple[A, B]]: ...


@overload
def zip_(
    a: Publisher[A], b: Publisher[B], c: Publisher[C], /, *, prefetch: int = INNER_PREFETCH
) -> Stream[tuple[A, B, C]]: ...


@overload
def zip_(
    a: Publisher[A],
    b: Publisher[B],
    c: Publisher[C],
    d: Publisher[D],
    /,
    *,
    prefetch: int = INNER_PREFETCH,
) -> Stream[tuple[A, B, C, D]]: ...


@overload
def zip_(
    a: Publisher[A],
    b: Publisher[B],
    c: Publisher[C],
    d: Publisher[D],
    e: Publisher[E],
    /,
    *,
    prefetch: int = INNER_PREFETCH,
) -> Stream[tuple[A, B, C, D, E]]: ...


@overload
def zip_(*publishers: Publisher[T], prefetch: int = INNER_PREFETCH) -> Stream[tuple[T, ...]]: ...


def zip_(*publishers: Publisher[Any], prefetch: int = INNER_PREFETCH) -> Stream[Any]:
    """Tuples of the elements that have the same position in each of ``publishers``.

    Completes, and cancels the others, as soon as one has completed and none of its elements waits
    for a partner; of no publishers, at once. The error of one ends the stream at once, overtakes
    what waits, and cancels the others. Each is asked when the subscriber first asks: for at most
    ``prefetch`` elements ahead of what was delivered, and again when three quarters are.

    The publishers may be any objects with ``subscribe``, and need not keep the rules; else it is a
    ``TypeError``.
    """
    return Stream(zip_source(publishers, prefetch)) if publishers else empty()
