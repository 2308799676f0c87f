"""How a call of a user's function is made: time-out, retry, failure, threads for a sync function.

Everything here runs on the stage's loop, except the user's sync function itself.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import types
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from time import monotonic
from typing import Any, Final, cast

from rstreams_fast.spark.limits import RetryAfter
from rstreams_fast.spark.options import CallOptions, label_of
from rstreams_fast.spark.worker.counters import Counters
from rstreams_fast.spark.worker.guards.adaptive import AdaptiveGate
from rstreams_fast.spark.worker.guards.attempts import OUT_OF_TIME, Attempts, Tries, throttled_in
from rstreams_fast.spark.worker.guards.circuits import circuit_of
from rstreams_fast.spark.worker.guards.permits import PermitGate
from rstreams_fast.spark.worker.outcomes import Outcome, StageError
from rstreams_fast.spark.worker.threads import ThreadGroup

__all__ = [
    "Deadlines",
    "ThreadedCalls",
    "called_with",
    "calls_of",
    "counted",
    "guarded",
    "recovery_of",
]


class Deadlines:
    """The time-outs of a stage's calls; only a call that suspends gets one.

    All time-outs are equally long, so they expire in the order in which they were set: one queue
    and one timer are enough. A call that returns at once costs no timer.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, counters: Counters, of: str = ""
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._of = of
        self._counters = counters
        self._armed: OrderedDict[_Deadline, None] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    @types.coroutine
    def wait(self, awaitable: Awaitable[Any]) -> Generator[Any, Any, Any]:
        """Await ``awaitable``; raise ``TimeoutError`` after ``seconds``."""
        coro = awaitable if asyncio.iscoroutine(awaitable) else _awaited(awaitable)
        try:
            waits_for = coro.send(None)
        except StopIteration as stop:
            return stop.value
        task = asyncio.current_task(self._loop)
        deadline = _Deadline(task, monotonic() + self._seconds)
        self._armed[deadline] = None
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._expire)
        try:
            return (yield from _driven(coro, waits_for))
        except asyncio.CancelledError:
            if deadline.take_back():  # only this deadline cancelled the task
                self._counters.count_timeout()
                raise TimeoutError(f"no answer within {self._seconds} s{self._of}") from None
            raise
        finally:
            self._armed.pop(deadline, None)
            deadline.take_back()  # the call may have replaced the CancelledError

    def around(self, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return ``fn`` with this time-out on each call."""
        return lambda *args: self.wait(fn(*args))

    def _expire(self) -> None:
        self._timer = None
        now = monotonic()
        while self._armed:
            deadline = next(iter(self._armed))
            if deadline.when > now:
                self._timer = self._loop.call_later(deadline.when - now, self._expire)
                return
            del self._armed[deadline]
            deadline.expire()


class _Deadline:
    __slots__ = ("_expired", "_task", "when")

    def __init__(self, task: asyncio.Task[Any] | None, when: float) -> None:
        self._task = cast(asyncio.Task[Any], task)  # a task drives each call that suspends
        self.when = when
        self._expired = False

    def expire(self) -> None:
        self._expired = True
        self._task.cancel(OUT_OF_TIME)

    def take_back(self) -> bool:
        """Undo the cancellation by ``expire``; whether nothing else has cancelled the task."""
        if not self._expired:
            return False
        self._expired = False
        return self._task.uncancel() <= 0


@types.coroutine
def _driven(coro: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    # Goes on driving a suspended coroutine, which has yielded waits_for.
    while True:
        try:
            argument = yield waits_for
        except BaseException as raised:
            step: Callable[[Any], Any] = coro.throw
            argument = raised
        else:
            step = coro.send
        try:
            waits_for = step(argument)
        except StopIteration as stop:
            return stop.value
        finally:
            del argument


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


ROW: Final = ", all attempts and waits together"


def called_with(
    given: Callable[[Any], Any], fn: Callable[..., Awaitable[Any]]
) -> Callable[..., Awaitable[Any]]:
    """Return ``fn`` whose arguments are ``given(key)`` for each key."""
    return lambda *keys: fn(*map(given, keys))


def counted(fn: Callable[..., Awaitable[Any]], counters: Counters) -> Callable[..., Awaitable[Any]]:
    """Return ``fn`` whose calls are counted."""

    def call(*args: Any) -> Awaitable[Any]:
        counters.calls += 1
        return fn(*args)

    return call


def calls_of(
    fn: Callable[..., Awaitable[Any]],
    options: CallOptions,
    loop: asyncio.AbstractEventLoop,
    counters: Counters,
    gate: PermitGate | None,
    *,
    recovers: bool,
) -> Callable[..., Awaitable[Any]]:
    """Return the function that a window calls. For a plain ``fn`` the window itself admits the
    calls, and, if it ``recovers``, repeats them.
    """
    if not options.is_plain:
        if options.batch is not None and gate is not None:
            fn = _holding(fn, gate)
        return guarded(fn, options, loop, counters, gate)
    return fn if recovers else _patient(fn, options, counters, gate)


def recovery_of(
    fn: Callable[..., Awaitable[Any]],
    spread: bool,
    options: CallOptions,
    counters: Counters,
    gate: PermitGate | None,
) -> Callable[[Any, Exception], Coroutine[Any, Any, Any] | None]:
    """Return the window's ``recover`` for plain calls: it repeats a call after ``RetryAfter``."""
    attempts = Attempts(options.retry, options.label, counters)

    def recover(item: Any, error: Exception) -> Coroutine[Any, Any, Any] | None:
        if not isinstance(error, RetryAfter):
            return None
        return _made_again(fn, item if spread else (item,), error, attempts, gate)

    return recover


def _patient(
    fn: Callable[..., Awaitable[Any]],
    options: CallOptions,
    counters: Counters,
    gate: PermitGate | None = None,
) -> Callable[..., Awaitable[Any]]:
    """Return ``fn`` that is called again after ``RetryAfter``; ``gate`` admits its calls."""
    attempts = Attempts(options.retry, options.label, counters)

    async def call(*args: Any) -> Any:
        try:
            return await fn(*args)
        except RetryAfter as raised:
            error = raised
        return await _made_again(fn, args, error, attempts, gate)

    return call


async def _made_again(
    fn: Callable[..., Awaitable[Any]],
    args: tuple[Any, ...],
    error: RetryAfter,
    attempts: Attempts,
    gate: PermitGate | None,
) -> Any:
    """Wait, and call ``fn`` until it raises no ``RetryAfter``; ``gate`` has admitted the call."""
    tries = Tries(attempts)
    while True:
        pause = tries.pause_after(error)
        if pause is None:
            if (wrapper := tries.wrapper_of(error)) is not None:
                raise wrapper from error
            raise error
        await (asyncio.sleep(pause) if gate is None else gate.hold_and_wait(error.seconds, pause))
        try:
            return await fn(*args)
        except RetryAfter as raised:
            error = raised


def guarded(
    fn: Callable[..., Awaitable[Any]],
    options: CallOptions,
    loop: asyncio.AbstractEventLoop,
    counters: Counters,
    gate: PermitGate | None,
) -> Callable[..., Awaitable[Any]]:
    """Return ``fn`` with the time-outs, retries, circuit and limit that ``options`` asks for.

    With ``on_failure="column"`` its result is an ``Outcome``, even if the call failed.
    """
    if gate is None and not options.is_guarded:
        return _patient(fn, options, counters)
    deadlines = None
    if options.timeout is not None:
        deadlines = Deadlines(loop, options.timeout, counters)
    told = options.on_failure == "column"
    circuit = None if options.circuit is None else circuit_of(options.circuit)
    lists = options.batch is not None
    auto = AdaptiveGate(options.concurrency, loop, counters, lists) if options.auto else None
    attempts = Attempts(options.retry, options.label, counters)
    for around in (auto, circuit):
        if around is not None:
            fn, deadlines = around.around(fn if deadlines is None else deadlines.around(fn)), None

    async def call(*args: Any, progress: _Progress | None = None) -> Any:
        tries: Tries | None = None
        begin = monotonic()
        attempts.begin()
        while True:
            permit = None
            if auto is not None:
                await auto.acquire()
            try:
                if gate is not None:
                    if circuit is not None:
                        circuit.check()  # an open circuit fails now, without waiting for a permit
                    permit = gate.take() or await gate.acquire()
                awaitable = fn(*args)
                result = await (awaitable if deadlines is None else deadlines.wait(awaitable))
                if told:
                    made = 1 if tries is None else tries.made
                    result = Outcome(result, None, made, monotonic() - begin)
                return result  # noqa: TRY300
            except Exception as error:
                if gate is not None and isinstance(error, RetryAfter):
                    gate.hold(error.seconds)
                tries = tries or Tries(attempts)
                pause = tries.pause_after(error)
                if pause is None:
                    if told and not isinstance(error, StageError):
                        return Outcome(None, error, tries.made, monotonic() - begin)
                    if (wrapper := tries.wrapper_of(error)) is not None:
                        raise wrapper from error
                    raise
            finally:
                if gate is not None and permit is not None:
                    gate.release(permit)
                if auto is not None:
                    auto.leave()
            await asyncio.sleep(pause)
            if progress is not None:
                progress.attempt = tries.made

    if options.deadline is None:
        return call
    return _in_time(call, Deadlines(loop, options.deadline, counters, ROW), told)


def _holding(fn: Callable[..., Awaitable[Any]], gate: PermitGate) -> Callable[..., Awaitable[Any]]:
    """Return ``fn`` that holds back the limit for a key's ``RetryAfter``, while it has a permit."""

    async def call(*args: Any) -> Any:
        result = await fn(*args)
        if (asks := throttled_in(result)) is not None:
            gate.hold(asks.seconds)
        return result

    return call


def _in_time(
    call: Callable[..., Awaitable[Any]],
    rows: Deadlines,
    told: bool,
) -> Callable[..., Awaitable[Any]]:
    async def in_time(*args: Any) -> Any:
        progress, begin = _Progress(), monotonic()
        try:
            return await rows.wait(call(*args, progress=progress))
        except TimeoutError as error:
            if told:  # only the deadline's own TimeoutError gets here
                return Outcome(None, error, progress.attempt, monotonic() - begin)
            raise

    return in_time


class _Progress:
    attempt = 1


class _CallOnThread(asyncio.Future[Any]):
    """A call on a thread. It cannot be stopped: after ``cancel`` it ends with its thread's call."""

    given_up = False

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ARG002
        self.given_up = True
        return not self.done()


class ThreadedCalls:
    """Makes calls of a sync function awaitable, on up to ``size`` threads, started as needed."""

    def __init__(
        self,
        fn: Callable[..., Any],
        size: int,
        loop: asyncio.AbstractEventLoop,
        group: ThreadGroup,
    ) -> None:
        self._fn = fn
        self._size = size
        self._loop = loop
        self._group = group
        self._label = label_of(fn)
        self._work: queue.SimpleQueue[tuple[_CallOnThread, Context, tuple[Any, ...]] | None]
        self._work = queue.SimpleQueue()  # bounded by the window in front of it
        self._outcomes: deque[tuple[_CallOnThread, Any, BaseException | None]] = deque()
        self._notified = False
        self._threads = 0
        self._open: set[_CallOnThread] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._inside = 0  # threads that are in a call
        self._on_leave: Callable[[], object] | None = None

    def __call__(self, *args: Any) -> asyncio.Future[Any]:
        """Start a call; the loop's thread only."""
        future = _CallOnThread(loop=self._loop)
        self._open.add(future)
        if len(self._open) > self._threads and self._threads < self._size:
            self._add_thread()
        self._work.put((future, copy_context(), args))
        return future

    def _add_thread(self) -> None:
        try:
            self._group.start(self._run, f"call-{self._threads + 1}")
        except RuntimeError as refused:  # the system has no more threads: go on with fewer
            if not self._threads:
                raise StageError(f"no thread can be started for {self._label}") from refused
            self._size = self._threads
        else:
            self._threads += 1

    def close(self) -> None:
        """Start no more calls; the threads end. Running calls end in their own time."""
        with self._lock:
            self._closed = True
        for _ in range(self._threads):
            self._work.put(None)

    def abandon(self, gate: PermitGate | None) -> None:
        """After ``close``: cancel the futures, and return the permits to the limit.

        A thread that is still in a call returns its permit when that call ends.
        """
        with self._lock:
            if gate is not None:
                self._on_leave = gate.end(self._inside)
        for future in self._open:
            future.given_up = True
            asyncio.Future.cancel(future)

    def _enter(self) -> bool:
        with self._lock:
            self._inside += not self._closed
            return not self._closed

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            on_leave = self._on_leave
        if on_leave is not None:
            on_leave()

    def _run(self) -> None:
        while (job := self._work.get()) is not None:
            future, context, args = job
            result: Any = None
            failure: BaseException | None = None
            try:
                if self._enter():
                    try:
                        result = context.run(self._fn, *args)
                    finally:
                        self._leave()
                if inspect.iscoroutine(result):
                    result.close()
                    raise TypeError(
                        f"{self._label} returned a coroutine; make it 'async def' itself, "
                        "so that it is run on the loop"
                    )
            except Exception as raised:
                failure = raised
            except BaseException as raised:  # SystemExit and the like would end the loop
                failure = _wrapped(self._label, raised)
            if isinstance(failure, StopIteration):  # a future cannot carry it
                failure = _wrapped(self._label, failure)
            self._outcomes.append((future, result, failure))
            del job, future, context, args, result, failure
            if not self._notified:
                self._notified = True
                try:
                    self._loop.call_soon_threadsafe(self._deliver)
                except RuntimeError:  # the loop is closed: nothing awaits the result
                    return

    def _deliver(self) -> None:
        self._notified = False
        while self._outcomes:
            future, result, failure = self._outcomes.popleft()
            self._open.discard(future)
            if future.given_up:
                asyncio.Future.cancel(future)
            elif failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(result)


def _wrapped(label: str, cause: BaseException) -> RuntimeError:
    wrapper = RuntimeError(f"{label} raised {type(cause).__name__}")
    wrapper.__cause__ = cause
    return wrapper
