"""The public functions that make a ``Stream``, such as ``range_`` and ``from_iterable``."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Never, TypeVar, overload

from rstreams_fast._checks import check_sync, describe_callable, safe_repr
from rstreams_fast.api import Publisher
from rstreams_fast.errors import NoneSignalError
from rstreams_fast.streams.engine.assembly import PublisherSource
from rstreams_fast.streams.engine.defaults import INNER_PREFETCH, ROWS
from rstreams_fast.streams.engine.pipeline import as_pipeline
from rstreams_fast.streams.engine.sink_subscriber import check_publisher
from rstreams_fast.streams.operators.concat import concat_source
from rstreams_fast.streams.operators.merge import check_publishers, merge_source
from rstreams_fast.streams.operators.on_overflow import Overflow
from rstreams_fast.streams.operators.zip import zip_source
from rstreams_fast.streams.sources import constant
from rstreams_fast.streams.sources.arrow import arrow_source
from rstreams_fast.streams.sources.create import Emitter, create_source
from rstreams_fast.streams.sources.interval import interval_source
from rstreams_fast.streams.sources.iterable import CallableSource, IterableSource
from rstreams_fast.streams.sources.lazy import defer_source, generate_source, using_source
from rstreams_fast.streams.sources.numpy import array_source
from rstreams_fast.streams.stream import Stream

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor

    import numpy as np

    from rstreams_fast.runtime.timers import Timer

__all__ = [
    "combine_latest",
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
    "merge_sorted",
    "never",
    "race",
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
    """Return a stream of the numbers of ``range(*args)``.

    Args:
        *args: ``stop``, or ``start`` and ``stop``, or ``start``, ``stop`` and ``step``.

    Raises:
        TypeError: An argument is not an ``int``.
        ValueError: ``step`` is 0.
    """
    numbers = range(*args)
    return Stream(IterableSource(numbers, safe_repr(numbers)))


def from_iterable(iterable: Iterable[T], /) -> Stream[T]:
    """Return a stream of the items of ``iterable``, which is iterated anew for each subscriber.

    An iterator, such as a generator, can be iterated only once, so it serves one subscriber. A
    second subscriber gets a ``RuntimeError`` by ``on_error``. A generator is closed if the stream
    ends early. Other iterators, such as files, are not closed.

    Args:
        iterable: Any iterable whose items are not ``None``.

    Raises:
        TypeError: ``iterable`` cannot be iterated, or only by ``async for``.
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
    """Return a stream of the items of an asynchronous iterable.

    If the stream ends early, an asynchronous generator is closed, and its ``finally`` may await.
    Methods that await the end, such as ``to_list_async``, wait until the generator is closed. So
    does ``async with stream.iterate()``. A ``break`` out of ``async for`` does not wait.

    Args:
        iterable: An asynchronous iterable, or a function that makes one for each subscriber.
        loop: The event loop on which ``iterable`` is iterated. Default: the loop that runs in the
            subscribing thread. If no loop runs there, the default is a new loop on a new thread.

    Raises:
        TypeError: ``iterable`` is neither an asynchronous iterable nor a function.
    """
    # Imported here, not at the top of the module, so that most programs do not load asyncio.
    from rstreams_fast.streams.sources.async_iterable import AsyncIterableSource

    name = getattr(iterable, "__qualname__", type(iterable).__name__)
    return Stream(
        PublisherSource(
            AsyncIterableSource(iterable, loop=loop), f"from_async_iterable({name})", trusted=True
        )
    )


def from_publisher(publisher: Publisher[T], /) -> Stream[T]:
    """Return a stream of the elements of any publisher.

    Even if the publisher breaks rules of Reactive Streams, a subscriber of the stream never gets
    ``None``, too many elements, signals after the end, or overlapping signals.

    Args:
        publisher: An object with ``subscribe(subscriber)``.

    Raises:
        TypeError: ``publisher`` is ``None``, or has no ``subscribe``.
    """
    if publisher is None:
        raise NoneSignalError("publisher is None")
    if isinstance(publisher, Stream):
        return publisher
    check_publisher(publisher)
    pipeline = as_pipeline(publisher)
    return Stream(pipeline.source, pipeline.parts)


def from_arrow(source: Any, /, *, chunk: int | None = None, schema: Any = None) -> Stream[Any]:
    """Return a stream of the record batches (``pyarrow.RecordBatch``) of any tabular Arrow data.

    No data are copied. A table is read anew for each subscriber. An iterator, such as a
    ``RecordBatchReader``, serves one subscriber; others get a ``RuntimeError`` by ``on_error``. Any
    other object that gives its batches once must have one subscriber: a second stream may be empty.

    Args:
        source: An object with ``__arrow_c_array__`` (one record batch) or ``__arrow_c_stream__``
            (tables, readers, data frames of pandas, polars, DuckDB). It is read on demand.
        chunk: The largest number of rows in an element. Default: the batches of ``source``.
        schema: A schema to which ``source`` should convert its rows, if ``source`` can do so.

    Raises:
        TypeError: ``source`` is not tabular Arrow data.
        ValueError: ``chunk`` is less than 1.
    """
    return Stream(arrow_source(source, chunk, schema))


def from_numpy(array: np.ndarray[Any, Any], /, *, chunk: int = ROWS) -> Stream[Any]:
    """Return a stream of slices of ``array``, with ``chunk`` rows each. No data are copied.

    Rows are counted along the first axis. The last slice may have fewer rows. The elements are
    views of ``array``, and are writable if ``array`` is writable. Without rows the stream is empty.

    Args:
        array: An array of at least one dimension.
        chunk: The number of rows in an element.

    Raises:
        TypeError: ``array`` is not a numpy array.
        ValueError: ``chunk`` is less than 1.
    """
    return Stream(array_source(array, chunk))


def from_callable(fn: Callable[[], T], /) -> Stream[T]:
    """Return a stream of one element, ``fn()``. Each subscriber's first request calls ``fn``.

    Args:
        fn: A plain function without parameters. It must not return ``None``.

    Raises:
        TypeError: ``fn`` cannot be called, or is ``async``.
    """
    check_sync("from_callable", "fn", fn)
    return Stream(CallableSource(fn))


def defer(factory: Callable[[], Publisher[T]], /) -> Stream[T]:
    """Return a stream of the elements of ``factory()``, which is called for each subscriber.

    ```text
    factory()   --1--2--|
    below       --1--2--|
    ```

    ``factory`` is called within ``subscribe``. Its exceptions are signalled by ``on_error`` (§1.9).

    Reactor, RxPY: ``defer``.

    Args:
        factory: Returns a publisher. If it breaks rules of Reactive Streams, the result does not.

    Raises:
        TypeError: ``factory`` cannot be called, or is ``async``.
    """
    check_sync("defer", "factory", factory)
    return Stream(defer_source(factory, f"defer({describe_callable(factory)})"))


def using(
    factory: Callable[[], A],
    stream_of: Callable[[A], Publisher[T]],
    close: Callable[[A], object],
    /,
) -> Stream[T]:
    """Return a stream of ``stream_of(resource)``, with a new resource for each subscriber.

    ```text
    factory()  --1--2--|
    below      --1--2--|close(resource)
    ```

    ``subscribe`` calls ``factory()`` to make the resource. ``close(resource)`` is called once:
    after the end of the stream, after a ``cancel()`` (§3.12), or if ``stream_of`` fails to return a
    publisher. A cancel does not wait for running calls, such as calls of ``map_blocking``. If these
    calls use the resource, ``close`` must wait for them. If ``stream_of`` has returned a publisher,
    exceptions of ``close`` go to ``sys.unraisablehook``. If ``close`` returns a coroutine, a
    ``TypeError`` goes there. To close a resource by ``await``, use ``async with`` in the generator
    of ``from_async_iterable``.

    Reactor, RxPY: ``using``.

    Args:
        factory: Makes the resource.
        stream_of: Returns a publisher. If it breaks rules of Reactive Streams, the result does not.
        close: Closes the resource.

    Raises:
        TypeError: A function cannot be called, or is ``async``; ``close`` is a generator function.
    """
    check_sync("using", "factory", factory)
    check_sync("using", "stream_of", stream_of)
    check_sync("using", "close", close, result_used=False)
    return Stream(using_source(factory, stream_of, close))


def generate(state: A, fn: Callable[[A], tuple[T, A] | None], /) -> Stream[T]:
    """Return a stream of the elements that repeated calls ``element, state = fn(state)`` make.

    ```text
    fn(1)   (a, 2)    fn(2)   (b, 3)    fn(3)   None
    below   --a---------------b-----------------|
    ```

    Each call gets the state that the previous call returned. ``fn`` is called on demand (§1.1).

    Reactor: ``generate``; RxPY: ``generate``, which takes three functions.

    Args:
        state: The first state, which is the same for each subscriber.
        fn: Returns the pair ``(element, next_state)``, or ``None`` to complete the stream.

    Raises:
        TypeError: ``fn`` cannot be called, or is ``async``.
    """
    check_sync("generate", "fn", fn)
    return Stream(generate_source(state, fn))


def empty() -> Stream[Never]:
    """Return a stream without elements, which completes immediately."""
    return Stream(IterableSource((), "empty()"))


def error(error: BaseException, /) -> Stream[Never]:
    """Return a stream without elements, which fails immediately with ``error``.

    Args:
        error: The exception that every subscriber gets by ``on_error``.

    Raises:
        TypeError: ``error`` is not an exception instance.
    """
    if not isinstance(error, BaseException):
        raise TypeError(f"error must be an exception instance, got {type(error).__name__}")
    failed = constant.FailedPublisher(error)
    return Stream(PublisherSource(failed, f"error({safe_repr(error)})", trusted=False))


def never() -> Stream[Never]:
    """Return a stream that has no elements and never ends."""
    return Stream(PublisherSource(constant.NeverPublisher(), "never()", trusted=False))


def create(
    fn: Callable[[Emitter[T]], object],
    /,
    *,
    overflow: Overflow = Overflow.BUFFER,
    capacity: int | None = None,
    on_drop: Callable[[T], object] | None = None,
) -> Stream[T]:
    """Return a stream of the elements that ``fn(emitter)`` sends by ``emitter.next(element)``.

    ``fn`` is called for each subscriber, within ``subscribe``, after ``on_subscribe``. ``fn`` may
    send elements immediately, or pass the emitter to threads and callbacks that send elements
    later. An exception of ``fn`` ends the stream. Elements wait in a buffer for demand. They are
    delivered on the threads that send or request, unless ``publish_on`` follows.

    ```python
    import rstreams_fast as rsf


    def numbers(emitter):
        for n in range(3):
            emitter.next(n)
        emitter.complete()


    print(rsf.create(numbers).to_list())  # [0, 1, 2]
    ```

    Args:
        fn: A plain function. Its argument is an ``Emitter``.
        overflow: What happens to an element when the buffer is full; see ``Overflow``.
        capacity: The size of the buffer, in elements. Default: 1024, or 1 for ``Overflow.LATEST``.
        on_drop: ``on_drop(element)`` is called for each dropped element, on the thread that sends.

    Raises:
        TypeError: An argument has the wrong type, or a function is ``async``.
        ValueError: ``capacity`` is less than 1, or does not suit ``overflow``.
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
    """Return an endless stream that delivers a number (a tick) every ``seconds``: 0, 1, 2, ...

    Tick ``n`` comes ``delay + n * seconds`` seconds after the subscriber's first request (§3.8), or
    a little later. A late tick does not delay later ticks. If the process was stopped or the
    machine was overloaded, several ticks may be due at the same time. Then only the last of these
    ticks is delivered. So a tick's number tells its time. Each subscriber gets its own ticks.

    Args:
        seconds: The seconds from tick to tick, 1e-9 at least.
        delay: The seconds before the first tick. Default: ``seconds``.
        overflow: What happens to a tick without demand; see ``Overflow``. Default: it is an error.
        capacity: The largest number of ticks that wait for demand in the buffer.
        executor: The executor on which ticks are delivered; see ``publish_on``. ``"caller"`` raises
            a ``ValueError``. Default: a pool of threads that all streams of the process share.
        timer: The clock. Default: a timer that all streams share.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value.
    """
    return Stream(interval_source(seconds, delay, overflow, capacity, executor, timer))


@overload
def concat(a: Publisher[A], b: Publisher[B], /) -> Stream[A | B]: ...


@overload
def concat(a: Publisher[A], b: Publisher[B], c: Publisher[C], /) -> Stream[A | B | C]: ...


@overload
def concat(*publishers: Publisher[T]) -> Stream[T]: ...


def concat(*publishers: Publisher[Any]) -> Stream[Any]:
    """Return a stream of all elements of the first publisher, then of the second, and so on.

    When a publisher has completed, the stream subscribes to the next publisher, and requests the
    elements that the subscriber has requested but not received. No other elements are requested,
    and none are buffered. Any error ends the stream. Without publishers the stream is empty.

    Args:
        *publishers: Publishers. Even if they break rules of Reactive Streams, the result does not.

    Raises:
        TypeError: One of ``publishers`` has no ``subscribe``.
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
    """Return a stream of the elements of all ``publishers``, in the order of their arrival.

    The stream subscribes to all publishers immediately, but requests no elements before the
    subscriber's first request. If elements of several publishers wait for demand, the publishers
    take turns. The stream completes when all publishers have completed, or if there are none.

    Elements are delivered on the publishers' threads. A publisher that blocks the requesting thread
    delays the requests to the others: use ``subscribe_on`` for such a publisher.

    Args:
        *publishers: Publishers. Even if they break rules of Reactive Streams, the result does not.
        prefetch: The number of elements to request in advance from each publisher. More are
            requested when three quarters of them are delivered.
        delay_error: By default an error ends the stream immediately and cancels the other
            publishers. With ``True`` an error comes after all elements. Several errors come in an
            ``ExceptionGroup`` of at most 64. Further errors go to ``on_dropped_error``.

    Raises:
        TypeError: One of ``publishers`` has no ``subscribe``.
        ValueError: ``prefetch`` is less than 1.
    """
    return Stream(merge_source(publishers, prefetch, delay_error)) if publishers else empty()


def merge_sorted(
    *publishers: Publisher[T],
    key: Callable[[T], Any] | None = None,
    reverse: bool = False,
    prefetch: int = INNER_PREFETCH,
) -> Stream[T]:
    """Return a stream of the elements of all ``publishers`` in sorted order.

    The elements of each publisher must be sorted. Without publishers the stream is empty. See
    ``Stream.merge_sorted``.

    Args:
        *publishers: Publishers. Even if they break rules of Reactive Streams, the result does not.
        key: ``key(element)`` is compared in place of the element. Default: the element itself.
        reverse: Whether the publishers and the result are sorted from the greatest element down.
        prefetch: The number of elements of each publisher to request in advance, and buffer.

    Raises:
        TypeError: One of ``publishers`` has no ``subscribe``, or ``key`` cannot be called.
        ValueError: ``prefetch`` is less than 1.
    """
    check_publishers("merge_sorted", publishers)
    first, *others = publishers or (empty(),)
    stream = from_publisher(first)
    return stream.merge_sorted(*others, key=key, reverse=reverse, prefetch=prefetch)


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
    """Return a stream of tuples of the elements at the same position in each of ``publishers``.

    When a publisher has completed and its last element is in a tuple, the stream completes and
    cancels the other publishers. Without publishers the stream completes immediately. An error ends
    the stream immediately, and cancels the other publishers. No elements are requested from the
    publishers before the subscriber's first request.

    Args:
        *publishers: Publishers. Even if they break rules of Reactive Streams, the result does not.
        prefetch: The number of elements to request in advance from each publisher; see ``merge``.

    Raises:
        TypeError: One of ``publishers`` has no ``subscribe``.
        ValueError: ``prefetch`` is less than 1.
    """
    return Stream(zip_source(publishers, prefetch)) if publishers else empty()


@overload
def combine_latest(
    a: Publisher[A], b: Publisher[B], /, *, prefetch: int = INNER_PREFETCH
) -> Stream[tuple[A, B]]: ...


@overload
def combine_latest(
    *publishers: Publisher[T], prefetch: int = INNER_PREFETCH
) -> Stream[tuple[T, ...]]: ...


def combine_latest(*publishers: Publisher[Any], prefetch: int = INNER_PREFETCH) -> Stream[Any]:
    """Return a stream of tuples of the newest elements of all ``publishers``.

    Each new element of any publisher makes a tuple. Without publishers the stream is empty. See
    ``Stream.combine_latest``.

    Args:
        *publishers: Publishers. Even if they break rules of Reactive Streams, the result does not.
        prefetch: The number of elements to request in advance from each publisher.

    Raises:
        TypeError: One of ``publishers`` has no ``subscribe``.
        ValueError: ``prefetch`` is less than 1.
    """
    check_publishers("combine_latest", publishers)
    first, *others = publishers or (empty(),)
    return from_publisher(first).combine_latest(*others, prefetch=prefetch)


def race(*publishers: Publisher[T]) -> Stream[T]:
    """Return a stream of the publisher that signals first. Without publishers the stream is empty.

    Args:
        *publishers: Publishers. Even if they break rules of Reactive Streams, the result does not.

    Raises:
        TypeError: One of ``publishers`` has no ``subscribe``.
    """
    check_publishers("race", publishers)
    return from_publisher(publishers[0]).race(*publishers[1:]) if publishers else empty()
