"""``CallWindow``: overlapping calls of an async function, on asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from itertools import islice
from typing import Any, NoReturn

from rstreams_fast._checks import check_capacity, check_count, check_seconds, describe_callable
from rstreams_fast.core import _eager
from rstreams_fast.core._common import refuse_pickle
from rstreams_fast.core._spec.demand import DemandCounter
from rstreams_fast.core._spec.ring import SpscRing

__all__ = ["CallWindow"]


class _Call:
    """An item of a ``CallWindow``, with the state and the result of the call for this item."""

    __slots__ = ("done", "followers", "item", "leads", "number", "result", "turn")

    def __init__(self, item: Any) -> None:
        self.item = item
        self.number = 0
        self.done = False
        self.result: Any = None
        self.followers: list[_Call] = []
        self.leads = False
        # The key of this call, and a deque of calls with the same key that wait for its end.
        self.turn: tuple[Any, deque[_Call]] | None = None


class CallWindow:
    """Overlapping calls of an async function, with limits for calls and items.

    ``submit_many`` starts each call immediately and without a task. Only a call that is suspended
    becomes a task of ``loop``. ``take`` returns results. An item has a *place* in the window from
    its submission until its result is taken. There are ``capacity`` places. The first failure of a
    call is stored in ``failure``. After it no more calls are started. If the first step of a call
    raises ``SystemExit``, ``KeyboardInterrupt`` or ``GeneratorExit``, ``submit_many`` raises it.

    Use the window only on the loop's thread, in callbacks of the loop, not in tasks. Each call
    starts in a copy of the context (``contextvars``) in which ``submit_many`` is called. But if an
    item has to wait for the call of another item, its own call starts in a copy of the context in
    which the window was made. ``on_ready`` also runs in a copy of that context.

    Args:
        fn: The async function.
        loop: The event loop of the calls.
        on_ready: The loop calls this function when suspended calls have finished. It should take
            results and submit items. It is called once for all calls that finish in one iteration
            of the loop.
        concurrency: The largest number of calls that run at the same time.
        capacity: The number of places, which is the largest number of items in the window.
        ordered: Whether results come in the order of submission. Otherwise they come in the order
            in which calls finish.
        spread: Whether an item is a tuple of positional arguments.
        dedupe: Whether an item that equals the item of a running call gets the result of that call.
            Items must be hashable for this. An item that shares a call needs a place, but does not
            count for ``concurrency``.
        key: A function that returns a hashable key of an item. The calls of items with equal keys
            run one at a time, in the order of the items. Calls with different keys may overlap. An
            item that waits needs a place. With ``dedupe``, an item shares the call of an equal item
            only if that call has started, not if that call waits for another call with its key.
        ahead: How many more items may wait in the window while ``concurrency`` calls run. When a
            call ends, its task makes the next call. That saves a new task: a task is half of the
            cost of a call that is suspended. If other code still refers to the task, or the call
            has changed it, the next call gets a new task. With ``dedupe``, ``ahead`` has no effect.
            With ``key``, up to ``capacity`` items may wait, whatever ``ahead`` is.
        patience: While ``ahead / 2`` or more items wait, ``on_ready`` may be called up to this many
            seconds after a result. Calling it after each result would take an iteration of the loop
            each time, which costs as much as two calls.
        recover: ``recover(item, error)`` is called in the call's task when the call has raised an
            ``Exception``. If ``recover`` returns a coroutine, the result or error of that coroutine
            becomes the result or error of the call. If ``recover`` returns ``None``, the call fails
            with ``error``. If ``recover`` raises an exception, the call fails with that exception.
        on_result: ``on_result(item, result)`` is called once for each call that has returned, even
            after ``cancel``. It must not raise an exception.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        loop: asyncio.AbstractEventLoop,
        on_ready: Callable[[], object],
        concurrency: int,
        capacity: int,
        ordered: bool = True,
        spread: bool = False,
        dedupe: bool = False,
        key: Callable[[Any], Any] | None = None,
        ahead: int = 0,
        patience: float = 0.0,
        recover: Callable[[Any, Exception], Coroutine[Any, Any, Any] | None] | None = None,
        on_result: Callable[[Any, Any], object] | None = None,
    ) -> None:
        self.call_with(fn)
        self._loop = loop
        self._on_ready = on_ready
        self._recover = recover
        self._on_result = on_result
        self._concurrency = check_count("concurrency", concurrency, 1)
        # This backend only checks ``ahead`` and ``patience``. The backend ``c`` uses them.
        check_count("ahead", ahead)
        check_seconds("patience", patience)
        self._capacity = check_capacity("capacity", capacity)
        self._permits = DemandCounter(self._concurrency)
        self._ordered = ordered
        self._spread = spread
        self._in_flight: dict[Any, _Call] | None = {} if dedupe else None
        if key is not None and not callable(key):
            raise TypeError(f"key must be callable, got {type(key).__name__}")
        self._key = key
        self._turns: dict[Any, tuple[Any, deque[_Call]]] = {}
        self._line: deque[_Call] = deque()
        self._places: deque[_Call] = deque()  # in the order in which ``take`` returns results
        self._pending = 0
        self._submitted = 0
        self._tasks: dict[asyncio.Task[Any], _Call] = {}
        self._context = contextvars.copy_context()
        self._notified = False
        self._cancelled = False
        self._submitting = False
        self.failure: tuple[Any, BaseException] | None = None
        """The item whose call failed first, and the exception of this call."""
        self.on_further_failure: Callable[[BaseException], object] | None = None
        """Called with the exception of each call that fails after the first failure, or after
        ``cancel``. It must not raise an exception. Default: ``None``, which drops the exceptions.
        """
        self.max_running = 0
        """The largest number of calls that have run at the same time so far."""
        self.max_pending = 0
        """The largest number of items that were in the window at the same time so far."""
        self.started = 0
        """How many calls were started so far."""

    #: The type of ring that ``submit_from`` and ``take_into`` accept.
    _ring_type: type[Any] = SpscRing

    def _check_ring(self, ring: object) -> None:
        if not isinstance(ring, self._ring_type):
            raise TypeError(f"ring must be an SpscRing, got {type(ring).__name__}")

    @property
    def concurrency(self) -> int:
        """The largest number of calls that may run at the same time."""
        return self._concurrency

    @property
    def capacity(self) -> int:
        """The number of places: the largest number of items that the window can hold."""
        return self._capacity

    @property
    def permits(self) -> DemandCounter:
        """A demand counter. Its value is the number of calls that may still be started now."""
        return self._permits

    @property
    def running(self) -> int:
        """How many calls have started, but not finished."""
        return len(self._tasks)

    @property
    def pending(self) -> int:
        """How many items the window holds: an item leaves when its result is taken."""
        return self._pending

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)

    @property
    def ready(self) -> int:
        """How many results ``take`` would return now."""
        if not self._ordered:
            return len(self._places)
        count = 0
        for call in self._places:
            if not call.done:
                break
            count += 1
        return count

    def call_with(
        self, fn: Callable[..., Any], on_call_end: Callable[[], object] | None = None, /
    ) -> None:
        """Replace the async function. Calls that start from now on call ``fn``.

        Args:
            fn: The async function.
            on_call_end: Called, from now on, at the end of each call, even if the call raised an
                exception or was cancelled. It must not raise an exception.
        """
        if not callable(fn):
            raise TypeError(f"fn must be callable, got {type(fn).__name__}")
        self._fn = fn
        self._on_call_end = on_call_end

    def submit_many(self, items: list[Any] | tuple[Any, ...], start: int = 0) -> int:
        """Start calls for ``items[start:]`` while there is room. Return how many were accepted.

        Args:
            items: A list or tuple.
            start: The index of the first item.
        """
        if not isinstance(items, list | tuple):
            raise TypeError(f"items must be a list or tuple, got {type(items).__name__}")
        index = start = check_count("start", start)
        with self._submitting_by("submit_many"):
            while index < len(items) and self._has_room() and self._submit(items[index]):
                index += 1
        return max(index - start, 0)

    def submit_from(self, ring: Any, max: int, /) -> int:
        """Take elements out of ``ring``, and start calls for them, while the window has room.

        Returns the number of elements that were taken out.

        Args:
            ring: An ``SpscRing``.
            max: The largest number of elements to take out.
        """
        wanted = check_count("max", max)
        self._check_ring(ring)
        count = 0
        with self._submitting_by("submit_from"):
            while count < wanted and self._has_room() and self._may_submit():
                item = ring.poll()
                if item is None:
                    break
                count += 1
                if self._cancelled:  # poll() wakes the ring's producer, which may call cancel()
                    break
                self._submit(item)
        return count

    def take_into(self, ring: Any, max: int, /) -> int:
        """Move results into ``ring``, until it is full or the next result is ``None``.

        A ring cannot hold ``None``. Returns the number of results that were moved.

        Args:
            ring: An ``SpscRing``.
            max: The largest number of results to move.
        """
        wanted = check_count("max", max)
        self._check_ring(ring)
        ring.offer_many(())  # raises an error if the ring is closed, before a result is removed
        results = []
        for call in islice(self._places, min(wanted, ring.capacity - len(ring))):
            if not call.done or call.result is None:
                break
            results.append(call.result)
        for _ in results:
            self._places.popleft()
        self._pending -= len(results)
        ring.offer_many(results)
        return len(results)

    def take(self, max: int, /) -> list[Any]:
        """Remove up to ``max`` results from the window, and return them.

        Args:
            max: The largest number of results.
        """
        return [call.result for call in self._take_calls(max)]

    def take_numbered(self, max: int, /) -> tuple[list[int], list[Any]]:
        """Remove up to ``max`` results. Return two lists: the numbers of the items, the results.

        The item that was submitted first has the number 0.

        Args:
            max: The largest number of results.
        """
        taken = self._take_calls(max)
        return [call.number for call in taken], [call.result for call in taken]

    def _take_calls(self, most: int) -> list[_Call]:
        count = min(self.ready, check_count("max", most))
        taken: list[_Call] = []
        # Check again that there are results: making the list may have run the garbage collector,
        # and so any code, such as cancel().
        while len(taken) < count and self._places:
            taken.append(self._places.popleft())
        self._pending -= len(taken)
        return taken

    def cancel(self) -> None:
        """Start no more calls, drop all results and cancel the running calls.

        ``cancel`` does not wait for the calls. When all calls have ended, ``on_ready`` is called,
        and ``running`` is 0.
        """
        self._cancelled = True
        self._pending = 0
        self._places.clear()
        self._turns.clear()
        self._line.clear()
        if self._in_flight is not None:
            self._in_flight.clear()
        for task, call in list(self._tasks.items()):
            call.turn = None  # drop the references to the calls that wait for this call
            task.cancel()

    @contextlib.contextmanager
    def _submitting_by(self, call: str) -> Generator[None, None, None]:
        if asyncio._get_running_loop() is not self._loop:
            raise RuntimeError(f"{call} must be called by the thread of the running loop")
        if self._submitting or asyncio.current_task(self._loop) is not None:
            raise RuntimeError(f"{call} must be called outside of tasks and of calls")
        self._submitting = True
        try:
            yield
        finally:
            self._submitting = False

    def _has_room(self) -> bool:
        return self.failure is None and not self._cancelled and self._pending < self._capacity

    def _may_submit(self) -> bool:
        # With a key function, _take_turn() decides later whether the call has to wait. Here only
        # check that ``permits`` was not cancelled: a cancelled counter has a negative value.
        return self._permits.pending > 0 if self._key is None else self._permits.value >= 0

    def _submit(self, item: Any) -> bool:
        call = _Call(item)
        if self._in_flight is not None:
            try:
                leader = self._in_flight.get(item)
                call.leads = True
            except Exception:  # ``hash`` or ``==`` of the item raised: the item shares no call
                leader = None
            if leader is not None:
                leader.followers.append(call)
                self._hold(call)
                return True
        if not self._may_submit():
            return False
        self._hold(call)
        if self._key is None:
            self._start(call)
        elif self._take_turn(call, self._key):
            self._line.append(call)
            self._start_line()
        return True

    def _take_turn(self, call: _Call, key_of: Callable[[Any], Any]) -> bool:
        """Return whether ``call`` may start now. It may not in three cases.

        The call waits for an earlier call with the same key. Or the key function has raised an
        exception. Or the window was cancelled.
        """
        try:
            key = key_of(call.item)
            if self._cancelled:
                return False
            turn = self._turns.get(key)
            if turn is None:
                call.turn = self._turns[key] = key, deque()
                return True
            turn[1].append(call)
        except Exception as raised:
            self._fail(call, raised)
        return False

    def _pass_turn_on(self, call: _Call) -> None:
        turn, call.turn = call.turn, None
        if turn is None or self._cancelled:
            return
        key, after = turn
        if after:
            after[0].turn = turn
            self._line.append(after.popleft())
            return
        try:
            if self._turns.pop(key, None) is not turn:
                raise RuntimeError("key: what it gave for an item is no longer equal to itself")
        except Exception as raised:
            self._fail(call, raised)

    def _start_line(self) -> None:
        while self._line and self.failure is None and self._permits.pending > 0:
            self._start(self._line.popleft())

    def _start(self, call: _Call) -> None:
        self.started += 1
        self.max_running = max(self.max_running, len(self._tasks) + 1)
        try:
            arguments = tuple(call.item) if self._spread else (call.item,)
            fn = self._fn
            if self._recover is not None:
                fn, arguments = self._call_and_recover, (call.item, fn, arguments)
            result, task = _eager.start(fn, arguments, self._loop)
        except BaseException as raised:
            self._report_call_end()
            self._fail(call, raised)
            if not isinstance(raised, Exception | asyncio.CancelledError):
                # If _notify, a callback of the loop, has started this call, the loop gets the
                # exception (such as a KeyboardInterrupt), but the user of the window does not. So
                # have the user's on_ready() called, which can find the exception in ``failure``.
                self._notify_soon()
                raise
            return
        if task is None:
            self._report_call_end()
            self._finish(call, result)
            self._pass_turn_on(call)
            return
        self._permits.fulfil(1)
        self._tasks[task] = call
        task.add_done_callback(self._task_done)
        if self._cancelled:  # the first step of this call has cancelled the window
            task.cancel()
        elif call.leads and self._in_flight is not None:
            self._in_flight[call.item] = call

    async def _call_and_recover(
        self, item: Any, fn: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Any:
        try:
            return await _eager.as_coroutine(fn, fn(*arguments))
        except Exception as error:
            coro = None if self._recover is None or self._cancelled else self._recover(item, error)
            if coro is None:
                raise
        return await coro

    def _hold(self, call: _Call) -> None:
        call.number = self._submitted
        self._submitted += 1
        self._pending += 1
        self.max_pending = max(self.max_pending, self._pending)
        if self._ordered:
            self._places.append(call)

    def _finish(self, call: _Call, result: Any) -> None:
        if self._on_result is not None:
            self._on_result(call.item, result)
        if self._cancelled:
            return
        for done in (call, *call.followers):
            done.done = True
            done.result = result
            if not self._ordered:
                self._places.append(done)
        call.followers = []

    def _fail(self, call: _Call, error: BaseException) -> None:
        if self.failure is None and not self._cancelled:
            self.failure = (call.item, error)
        elif self.on_further_failure is not None and (
            self.failure is None or self.failure[1] is not error
        ):
            self.on_further_failure(error)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        call = self._tasks.pop(task)
        if call.leads and self._in_flight is not None:
            try:
                self._in_flight.pop(call.item, None)
            except Exception:  # ``==`` or ``hash`` of the item raised: remove the call by identity
                try:
                    self._in_flight = {k: c for k, c in self._in_flight.items() if c is not call}
                # Making the new dict calls ``hash`` and ``==`` of its keys: the items of running
                # calls. If this raises again, use an empty dict. Then a later item that is equal to
                # one of these items does not share the running call, but gets its own call.
                except Exception:
                    self._in_flight = {}
        self._permits.request(1)
        self._report_call_end()
        if task.cancelled():
            self._fail(call, asyncio.CancelledError(f"{describe_callable(self._fn)} was cancelled"))
        elif (error := task.exception()) is not None:
            self._fail(call, error)
        else:
            self._finish(call, task.result())
            self._pass_turn_on(call)
        self._notify_soon()

    def _notify_soon(self) -> None:
        if not self._notified:
            self._notified = True
            self._loop.call_soon(self._notify, context=self._context)

    def _report_call_end(self) -> None:
        if self._on_call_end is not None:
            self._on_call_end()

    def _notify(self) -> None:
        self._notified = False
        if self._line and not self._submitting and not self._cancelled:
            with self._submitting_by("submit_many"):
                self._start_line()
        self._on_ready()
