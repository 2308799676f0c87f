"""The methods of ``Stream`` that call slow functions, several calls at a time."""

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
    """``map_async`` and ``map_blocking``."""

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
        """``await fn(element)`` for each element, up to ``concurrency`` calls at once.

        All calls, and every ``request`` to upstream, run on one event loop, in copies of the
        context of ``subscribe``. The subscriber's first request starts the requests to upstream.
        With a ``key``, an element waits while an earlier call with an equal key runs. A waiting
        element counts towards ``prefetch``, not towards ``concurrency``.

        An error of upstream is signalled at once. There is one exception: if enough elements have
        come for a ``take`` below, the error is signalled after the results of these elements. An
        error of a call is signalled after the results that are ready and requested, with a note
        that names the element. Any error cancels the other calls, and upstream. If ``fn`` raises
        ``asyncio.CancelledError``, but the stream was not cancelled, the error is a
        ``RuntimeError``. ``cancel`` does not wait: it cancels the running calls, and no other call
        starts.

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
            concurrency: The most calls at once.
            ordered: Whether results keep the order of the elements. With ``False`` each result is
                delivered when it is ready.
            prefetch: The bound on the sum of requested elements, running calls and results that
                wait. A ``prefetch`` below ``concurrency`` bounds the calls, too. Default: 64 times
                ``concurrency``, or 4 times ``concurrency`` without order, but at most 65 536.
            loop: The event loop of the calls. Default: the loop that runs in the subscribing
                thread. If there is none, the default is the loop of the task that awaits the
                stream's end. Without such a task, the default is a private loop, which ends with
                the subscription.
            key: Elements with equal ``key(element)`` are processed one at a time, in their order.
                The key must be hashable. Default: no keys.

        Raises:
            TypeError: An argument has the wrong type, or ``fn`` is an asynchronous generator
                function.
            ValueError: A bound is less than 1.
        """
        # Imported here, not at the top: programs without an event loop do not load asyncio.
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
        """``fn(element)`` on ``executor`` for each element, up to ``concurrency`` calls at once.

        ```text
        above     --1--2--3--|
        workers     f(1)---   f(3)-
                       f(2)-
        below     ---------f(1)-f(2)-f(3)-|
        ```

        Errors (§2.13) and ``None`` are handled as in ``map_async``. A call that is running when the
        stream ends cannot be stopped. The result of the call is dropped. Short calls are submitted
        together, as many as take about 3 ms, and run one after the other. So a call must not wait
        for another call. Calls in threads see the context of ``subscribe`` (``contextvars``).
        Results are delivered on the event loop that runs in the subscribing thread. Without such a
        loop, they are delivered on a thread of the stream. An exception from another process has
        the traceback of that process as a note.

        Reactor: ``flatMapSequential(fromCallable, ...)``; RxPY has ``flat_map`` with ``start``.

        Args:
            fn: A plain function. For an executor of processes it must be a function of a module,
                because ``fn``, each element and each result are pickled.
            executor: Any ``concurrent.futures.Executor``. It may have fewer workers than
                ``concurrency``. Default: threads that are shared within the process.
            concurrency: The most calls at once. Default: the number of processors.
            ordered: Whether results keep the order of the elements.
            prefetch: As in ``map_async``. Default: ``concurrency`` times 256.

        Raises:
            TypeError: An argument has the wrong type, or ``fn`` is ``async``: use ``map_async``.
            ValueError: A bound is less than 1.
        """
        from rstreams_fast.streams.operators.map_blocking import MapBlocking

        return as_stream(self).with_part(
            MapBlocking(fn, executor, concurrency=concurrency, ordered=ordered, prefetch=prefetch)
        )
