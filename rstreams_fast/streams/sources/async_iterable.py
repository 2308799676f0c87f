"""``from_async_iterable``: a source that awaits its elements one at a time, on demand.

Each subscription has one task on one event loop. The task awaits ``__anext__`` and signals the
elements. Without demand the task waits. If ``__anext__`` returns without waiting, the task
continues immediately, without another iteration of the event loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from time import perf_counter
from typing import Any, Generic, TypeVar

from rstreams_fast._checks import describe_callable
from rstreams_fast.api import Subscriber
from rstreams_fast.core import Latch
from rstreams_fast.core._eager import retrieve
from rstreams_fast.errors import (
    AlreadySubscribedError,
    NoneSignalError,
    report_dropped,
)
from rstreams_fast.runtime.awaiting import awaited_stream
from rstreams_fast.runtime.executors import Resource, WorkDroppedError
from rstreams_fast.runtime.gil_yield import yield_gil
from rstreams_fast.runtime.loops import HeldLoop, check_loop, closing_tasks, loop_resource
from rstreams_fast.runtime.turns import TURN_SECONDS
from rstreams_fast.streams.engine.defaults import BURST, next_burst
from rstreams_fast.streams.engine.drain import Drain
from rstreams_fast.streams.engine.signals import interrupts, refuse
from rstreams_fast.streams.engine.sink_subscriber import not_a_cancellation

__all__ = ["AsyncIterableSource"]

CANCEL_SECONDS = 0.01
"""Seconds after which ``_cancel_await`` tries again, if other code is cancelling the task.

A second cancel would interrupt the iterator's clean-up. But the other code may withdraw its cancel,
as ``asyncio.timeout`` does by ``uncancel``. Then the task must still be cancelled."""

T = TypeVar("T")


class AsyncIterableSource(Generic[T]):
    """Publishes the elements of an asynchronous iterable, or of an iterable that a function makes.

    An asynchronous iterator, such as an asynchronous generator, serves one subscriber. Later
    subscribers get an ``AlreadySubscribedError``. Other iterables, and functions, serve any number.

    ``__anext__`` is awaited only on demand, one call at a time, on ``loop``. By default ``loop`` is
    the loop that runs in the subscribing thread. If a timer or a worker thread subscribes, it is
    the loop of the task that awaits the stream. If no task awaits the stream, it is a private loop,
    which ends with the subscription.

    ``cancel`` cancels the ``__anext__`` that is being awaited. When the stream ends in any way, the
    iterator's method ``aclose``, if there is one, is awaited once. An error of ``aclose`` is the
    stream's error, unless the stream has another error. If no subscriber can receive an error of
    ``aclose``, the error goes to ``on_dropped_error``. A task on the same loop that awaits the
    stream also waits for ``aclose``. At interpreter exit a private loop waits some seconds for
    ``aclose``. If the iterator raises ``asyncio.CancelledError``, but the stream was not cancelled,
    the stream's error is a ``RuntimeError``.
    """

    def __init__(
        self,
        iterable: AsyncIterable[T] | Callable[[], AsyncIterable[T]],
        *,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._one_shot = False
        if isinstance(iterable, AsyncIterable):
            self._one_shot = isinstance(iterable, AsyncIterator)
        elif inspect.iscoroutinefunction(iterable):
            raise TypeError(
                f"{describe_callable(iterable)} is a coroutine function; from_async_iterable needs "
                "an asynchronous generator function, or one that returns an asynchronous iterable"
            )
        elif not callable(iterable):
            hint = "; use from_iterable" if hasattr(iterable, "__iter__") else ""
            raise TypeError(
                "iterable must be an asynchronous iterable, or a function that returns one, "
                f"got {type(iterable).__name__}{hint}"
            )
        check_loop(loop)
        self._loop = loop
        self._iterable: AsyncIterable[T] | Callable[[], AsyncIterable[T]] | None = iterable
        self._taken = Latch()  # the first call of its ``win`` gets the one-shot iterator

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_taken": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _taken=Latch())

    def subscribe(self, subscriber: Subscriber[T], /) -> None:
        iterable = self._iterable
        if self._one_shot:
            if not self._taken.win() or iterable is None:
                refuse(
                    subscriber,
                    AlreadySubscribedError(
                        "§1.10: the asynchronous iterator was subscribed to before, and can be "
                        "iterated once; give from_async_iterable a function that makes one"
                    ),
                )
                return
            self._iterable = None  # so that the iterator can be freed after the subscription
        try:
            on_loop = loop_resource(self._loop, "rstreams-fast-async-source")
        except WorkDroppedError as closed:
            refuse(subscriber, closed)
            return
        _AsyncIterableSubscription(subscriber, iterable, on_loop).start()


class _AsyncIterableSubscription(Drain):
    """The subscription. Its task on the event loop awaits the elements and signals them.

    After a request or a cancel the loop calls ``_work``, which starts, wakes or cancels the task.
    The task never awaits within a signal, so signals never overlap.
    """

    __slots__ = (
        "_awaited",
        "_awaiting",
        "_iterable",
        "_loop",
        "_name",
        "_parked",
        "_stopped",
        "_task",
    )

    def __init__(self, subscriber: Subscriber[Any], iterable: Any, on_loop: Resource) -> None:
        self._loop = HeldLoop(on_loop)
        super().__init__(subscriber, self._loop)
        self._iterable: Any = iterable
        self._name = describe_callable(iterable)
        self._task: asyncio.Task[None] | None = None
        self._parked: asyncio.Future[None] | None = None
        self._awaiting = False  # whether the task is awaiting ``__anext__``
        self._awaited = awaited_stream()
        self._stopped = False

    def start(self) -> None:
        if self._signal_on_subscribe() and not self._wip.leave():
            self._start_drain()

    # -- methods of the base class ``Drain`` -------------------------------------------------------

    def _start_drain(self) -> None:
        if self._task is None and self._demand.value < 0 and not self._must_close():
            self._drain()  # cancelled before the task was started: no event loop is needed
        else:
            super()._start_drain()

    def _must_close(self) -> bool:
        """Return whether the source is an iterator whose ``aclose`` must be awaited."""
        return isinstance(self._iterable, AsyncIterator) and hasattr(self._iterable, "aclose")

    def _work(self) -> bool:
        demand = self._demand.value
        task = self._task
        if task is None:
            if demand > 0 or (demand < 0 and self._must_close()):
                iterable, self._iterable = self._iterable, None
                coroutine = self._run_task(iterable)
                # Start the coroutine before it becomes a task. Then its ``finally`` block runs even
                # if the loop is closed before it runs the task.
                coroutine.send(None)
                self._task = asyncio.get_running_loop().create_task(coroutine)
                # The task signals errors to the subscriber, so asyncio must not log them, too.
                self._task.add_done_callback(retrieve)
                if self._awaited is not None:
                    self._awaited.add(self._task)
                # A stream can be garbage-collected while its task waits for demand. The garbage
                # collection ends the task, so asyncio must not warn about a pending task.
                self._task._log_destroy_pending = False  # type: ignore[attr-defined]
        elif self._parked is not None:
            if not self._parked.done():
                self._parked.set_result(None)
        elif demand < 0:
            self._cancel_await()
        return demand < 0 and self._act_on_end()

    def _cancel_await(self) -> None:
        """Cancel the ``__anext__`` that the task is awaiting. Do this only once.

        After the cancel the iterator may await its clean-up, which a second cancel would interrupt.
        """
        task = self._task
        if not self._awaiting or task is None:
            return
        if task.cancelling():  # by other code, which may withdraw the cancel: try again later
            asyncio.get_running_loop().call_later(CANCEL_SECONDS, self._cancel_await)
        else:
            self._awaiting = False
            task.cancel()

    def _stop(self) -> None:
        self._stopped = True

    def _drop_references(self) -> None:
        self._iterable = None
        if self._task is None:
            self._loop.release()

    # -- the task that awaits elements -------------------------------------------------------------

    async def _run_task(self, iterable: Any) -> None:
        error: BaseException | None = None
        iterator = iterable if isinstance(iterable, AsyncIterator) else None
        try:
            try:
                # ``coroutine.send(None)`` in _work() runs this coroutine up to here. So the
                # ``finally`` block runs even if the loop is closed before it runs the task.
                await asyncio.sleep(0)
                iterator = self._open(iterable)
                del iterable
                await self._pull(iterator)
            except asyncio.CancelledError as cancelled:
                if self._demand.value >= 0:
                    error = not_a_cancellation(cancelled, self._name)
                self._forget_cancellation()
            except Exception as raised:
                error = raised
            aclose = getattr(iterator, "aclose", None)
            del iterator
            if aclose is not None:
                error = await self._close(aclose, error)
            self._end(error)
        except GeneratorExit:  # the loop was closed, so this coroutine must not await anything
            if self._demand.value >= 0:
                self._end(WorkDroppedError("the event loop was closed while the source was in use"))
            raise
        except BaseException as raised:  # for example a KeyboardInterrupt, which the loop re-raises
            self._end(raised)
            raise
        finally:
            del error
            self._loop.release()

    def _open(self, iterable: Any) -> AsyncIterator[Any]:
        if not isinstance(iterable, AsyncIterable):
            made = iterable()
            if not isinstance(made, AsyncIterable):
                if inspect.iscoroutine(made):
                    made.close()
                raise TypeError(
                    f"{self._name} must return an asynchronous iterable, "
                    f"returned {type(made).__name__}"
                )
            iterable = made
        return aiter(iterable)

    async def _pull(self, iterator: AsyncIterator[Any]) -> None:
        """Await and signal elements, until the iterator is exhausted or the subscription ends."""
        pull = iterator.__anext__
        since_turn = 0
        while not self._stopped:
            burst = min(self._demand.value, self._burst)
            if burst <= 0:
                await self._park()
                since_turn = 0
                continue
            started = perf_counter()
            for _ in range(burst):
                self._awaiting = True
                try:
                    element = await pull()
                except StopAsyncIteration:
                    return
                finally:
                    self._awaiting = False
                if self.custody is not None and element is not None:
                    self.custody.enter(element)
                if self._stopped:
                    return
                if element is None:
                    raise NoneSignalError(f"§2.13: {self._name}, the source, produced None")
                if not self._signal(element):
                    return
                # Do not keep the element alive while the task awaits the next element.
                del element
            self._demand.fulfil(burst)
            since_turn += burst
            seconds = perf_counter() - started
            self._burst = next_burst(self._burst, seconds, full=burst == self._burst)
            if since_turn >= BURST or seconds > TURN_SECONDS:
                yield_gil()
                await asyncio.sleep(0)  # let other tasks run, even if elements are always ready
                since_turn = 0

    def _signal(self, element: Any) -> bool:
        subscriber = self._subscriber
        if subscriber is None:
            return False
        try:
            subscriber.on_next(element)
        except Exception as raised:
            if interrupts(raised, subscriber.on_next):
                self._fail(raised)
            else:
                self.cancel()
                report_dropped(raised, "§2.13: on_next raised")
        finally:
            # An error's traceback keeps this frame's variables alive, so delete them (§3.13).
            del subscriber, element
        return not self._stopped

    async def _park(self) -> None:
        self._parked = asyncio.get_running_loop().create_future()
        try:
            await self._parked
        finally:
            self._parked = None

    async def _close(
        self, aclose: Callable[[], Awaitable[object]], error: BaseException | None
    ) -> BaseException | None:
        task = asyncio.current_task()
        if task is not None:
            closing_tasks.add(task)
        try:
            await aclose()
        except (Exception, asyncio.CancelledError, BaseExceptionGroup) as error_or_group:
            raised: BaseException | None = error_or_group
            # ``aclose`` raises a GeneratorExit at the generator's ``yield``. If the ``yield`` is
            # within an asyncio.TaskGroup, aclose() raises an exception group that contains the
            # GeneratorExit. Only the other exceptions of the group are errors.
            if isinstance(raised, BaseExceptionGroup):
                raised = raised.split(GeneratorExit)[1]
            if raised is None:
                return error
            raised_here = not_a_cancellation(raised, f"aclose() of {self._name}")
            if error is None:
                return raised_here
            report_dropped(raised_here, f"aclose() of {self._name} raised")
        return error

    def _end(self, error: BaseException | None) -> None:
        if self._demand.terminate():
            self._stop()
            self._signal_end(error)
        elif isinstance(error, Exception) and not isinstance(
            error.__cause__, asyncio.CancelledError
        ):
            # The stream had already ended, and its end cancelled the running ``__anext__``. An
            # ``error`` whose ``__cause__`` is a CancelledError comes from that cancel. Report only
            # other errors.
            report_dropped(error, "an error after the end of the stream")

    @staticmethod
    def _forget_cancellation() -> None:
        # The task goes on after the CancelledError, for example with ``aclose``. Without
        # ``uncancel``, an asyncio.timeout within ``aclose`` would treat the task as cancelled.
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
