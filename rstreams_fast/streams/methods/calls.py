"""The methods of ``Stream`` that call a slow function for several elements at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

from rstreams_fast.streams.methods.composing import as_stream

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor

    from rstreams_fast.streams.stream import Stream

__all__ = ["CallMethods"]

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")


class CallMethods(Generic[T_co]):
    """The base class of ``Stream`` with ``map_async`` and ``map_blocking``."""

    __slots__ = ()

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
        """Deliver ``await fn(element)`` for each element, with up to ``concurrency`` running calls.

        All calls, and every ``request`` to upstream, run on one event loop, in copies of the
        ``contextvars`` context of ``subscribe``. No elements are requested from upstream before the
        subscriber's first request. With a ``key``, an element waits while an earlier call with an
        equal key runs. A waiting element counts towards ``prefetch``, not towards ``concurrency``.

        An error of upstream is signalled immediately, with one exception: if a ``take(n)`` is
        downstream, and ``n`` elements have already come from upstream, the error is signalled after
        the results of these elements. An error of a call has a note that names the element, and is
        signalled after the results that are ready and requested. After either error, upstream and
        all other calls are cancelled. If ``fn`` raises ``asyncio.CancelledError``, but the stream
        was not cancelled, the error of the stream is a ``RuntimeError``. ``cancel`` cancels the
        running calls, but does not wait for their end. No call starts after ``cancel``.

        ```python
        import asyncio
        import rstreams_fast as rsf


        async def fetch(n):
            await asyncio.sleep(0.01)
            return n * n


        print(rsf.range_(3).map_async(fetch, concurrency=2).to_list())  # [0, 1, 4]
        ```

        Args:
            fn: A coroutine function, or a function that returns an awaitable. The stream ends with
                a ``TypeError`` if the result is ``None``, or if ``fn`` returns an object that
                cannot be awaited.
            concurrency: The largest number of running calls.
            ordered: Whether results are delivered in the order of the elements. With ``False`` each
                result is delivered when it is ready.
            prefetch: The bound on the sum of requested elements, running calls and results that
                wait for demand. A ``prefetch`` smaller than ``concurrency`` bounds the running
                calls, too. Default: 64 times ``concurrency``, or 4 times ``concurrency`` if
                ``ordered`` is false, but at most 65 536.
            loop: The event loop of the calls. Default: the loop that runs in the subscribing
                thread. If no loop runs there, it is the loop of the task that awaits the stream's
                end. If no task awaits it, it is a private loop, which ends with the subscription.
            key: Elements with equal ``key(element)`` are processed one at a time, in their order.
                The key must be hashable. Default: no keys.

        Raises:
            TypeError: An argument has the wrong type, or ``fn`` is an async generator function.
            ValueError: ``concurrency`` or ``prefetch`` is less than 1.
        """
        # Imported here, not at the top of the module, so that most programs do not load asyncio.
        from rstreams_fast.streams.operators.map_async import MapAsync

        return as_stream(self).with_part(
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
        """Deliver ``fn(element)`` for each element. ``executor`` runs several calls in parallel.

        ```text
        above     --1--2--3--|
        workers     f(1)---   f(3)-
                       f(2)-
        below     ---------f(1)-f(2)-f(3)-|
        ```

        Errors (§2.13) and the result ``None`` are handled as in ``map_async``. If a call is running
        when the stream ends, the call goes on, and its result is dropped. Short calls are submitted
        to the executor in groups that take about 3 ms. The calls of a group run one after the
        other. So a call must not wait for another call.

        Calls in threads see the ``contextvars`` context of ``subscribe``. Results are delivered on
        the event loop that runs in the subscribing thread. If no loop runs there, they are
        delivered on a thread that belongs to the stream. An exception from another process has a
        note with the traceback in that process.

        Reactor: ``flatMapSequential(fromCallable, ...)``; RxPY has ``flat_map`` with ``start``.

        Args:
            fn: A plain function. For an executor of processes it must be a function of a module,
                because ``fn``, each element and each result are pickled.
            executor: Any ``concurrent.futures.Executor``. It may have fewer workers than
                ``concurrency``. Default: a pool of threads that all streams of the process share.
            concurrency: The largest number of running calls. Default: the number of processors.
            ordered: Whether results are delivered in the order of the elements.
            prefetch: The bound on the sum of requested elements, running calls and waiting results,
                as in ``map_async``. Default: ``concurrency`` times 256.

        Raises:
            TypeError: An argument has the wrong type, or ``fn`` is ``async``: use ``map_async``.
            ValueError: ``concurrency`` or ``prefetch`` is less than 1.
        """
        from rstreams_fast.streams.operators.map_blocking import MapBlocking

        return as_stream(self).with_part(
            MapBlocking(fn, executor, concurrency=concurrency, ordered=ordered, prefetch=prefetch)
        )
