"""Event loops as resources that run work: the running loop, a given loop, or a private loop.

A private loop has its own thread, which the first work starts. The thread ends when the loop is
closed, or when no subscription uses the loop any more. A subscription that is made on the thread of
a private loop uses the same loop. It gets a *share*: a handle that keeps the loop open.

Before a private loop closes, it cancels all unfinished tasks. It waits for these tasks, for
asynchronous generators and for its default executor. So none of them outlives the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, Final

from rstreams_fast.runtime.at_exit import call_at_exit
from rstreams_fast.runtime.awaiting import running_or_awaiting_loop, thread_state
from rstreams_fast.runtime.executors import Resource, WhenDropped, Work, WorkDroppedError, resource
from rstreams_fast.runtime.finalizers import call_from_finalizer

__all__ = [
    "HeldLoop",
    "PrivateLoop",
    "check_loop",
    "closing_tasks",
    "describe_loop",
    "loop_resource",
]

#: How many times, at most, a private loop (an event loop of this package, with its own thread)
#: cancels all unfinished tasks when it closes. One time may not be enough, because a cancelled task
#: may start new tasks.
CANCELLATIONS: Final = 100

#: Seconds that a private loop of this package waits for ``closing_tasks`` before it cancels them.
LOOP_CLOSE_SECONDS: Final = 5.0

closing_tasks: Final[weakref.WeakSet[asyncio.Task[Any]]] = weakref.WeakSet()
"""Tasks that release resources. A closing private loop waits for them, and then cancels them.

Only the thread that runs a task's loop adds the task to this set."""

_numbers = itertools.count(1)
_private_loops: weakref.WeakSet[PrivateLoop] = weakref.WeakSet()


def check_loop(loop: object) -> None:
    if loop is not None and not callable(getattr(loop, "call_soon_threadsafe", None)):
        raise TypeError(f"loop must be an asyncio event loop or None, got {type(loop).__name__}")


def describe_loop(loop: asyncio.AbstractEventLoop | None) -> str:
    return "the running loop, or a private one" if loop is None else type(loop).__name__


def loop_resource(loop: asyncio.AbstractEventLoop | None, name: str) -> Resource:
    """Return a resource that runs work on ``loop``. If ``loop`` is closed, raise an error.

    If ``loop`` is ``None``, the resource uses the loop that runs in this thread. If no loop runs in
    this thread, it uses the loop on which the stream is awaited. If the stream is not awaited, it
    uses a new private loop: an event loop on a thread of its own, which gets the name ``name``.
    """
    if loop is None:
        loop = running_or_awaiting_loop()
        if loop is None:
            return PrivateLoop(name)
        private = _private_loop_of_thread(loop)
        if private is not None:
            return private.share() or PrivateLoop(name)
    if loop.is_closed():
        raise WorkDroppedError("the event loop is closed")
    return resource(loop)


def _private_loop_of_thread(loop: asyncio.AbstractEventLoop) -> PrivateLoop | None:
    """Return the ``PrivateLoop`` that owns ``loop``, if ``loop`` runs in this thread."""
    reference: weakref.ref[PrivateLoop] | None = getattr(thread_state, "private", None)
    private = None if reference is None else reference()
    return private if private is not None and private._loop is loop else None


class HeldLoop:
    """A resource that runs work on an event loop, and keeps the loop open until ``release``.

    The end of a stream calls ``close``, which has no effect here. So the tasks of the stream can
    still use the loop. The stream calls ``release`` when these tasks have ended.
    """

    __slots__ = ("_on_loop",)

    def __init__(self, on_loop: Resource) -> None:
        self._on_loop = on_loop

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:
        self._on_loop.execute(work, when_dropped)

    def close(self) -> None:
        """Do nothing: tasks of the ended stream may use the loop until ``release()`` is called."""

    def release(self) -> None:
        """Allow the loop to close. Only a private loop closes; a loop of the user stays open."""
        self._on_loop.close()


class PrivateLoop:
    """An event loop that this package runs on its own thread. Any thread may call any method.

    By default the loop closes at the latest when the main thread has ended. If ``serves_threads``
    is true, it stays open for other threads that still run, and its own thread is a daemon.
    """

    def __init__(self, name: str = "rstreams-fast-loop", *, serves_threads: bool = False) -> None:
        self._name = f"{name}-{next(_numbers)}"
        self._serves_threads = serves_threads
        # Reentrant: a finalizer may run on the thread that holds the lock, and take the lock, too.
        self._lock = threading.RLock()
        self._closed = False
        self._close_requested = False  # True after close(): end the loop when _shares is 0
        self._shares = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_loop: Resource | None = None
        self._thread: threading.Thread | None = None

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:
        """Call ``work`` soon, as a callback of the loop.

        Raises ``WorkDroppedError`` if the loop is closed. If the loop is closed later, and drops
        the work, ``when_dropped(error)`` is called.
        """
        with self._lock:
            if self._closed:
                raise WorkDroppedError(f"the event loop of {self._name} is closed")
            on_loop = self._on_loop or self._start()
        on_loop.execute(work, when_dropped)

    def _start(self) -> Resource:
        daemon = self._serves_threads or not call_at_exit(_close_all)
        loop = asyncio.new_event_loop()
        thread = threading.Thread(
            target=_run, args=(loop, weakref.ref(self)), name=self._name, daemon=daemon
        )
        try:
            thread.start()
        except Exception:  # the system cannot start a thread
            loop.close()
            raise
        except BaseException:
            # After a KeyboardInterrupt in start() the thread may be running: end the thread.
            self._closed = True
            _stop(loop)
            raise
        weakref.finalize(self, _stop, loop).atexit = False
        if not self._serves_threads:
            _private_loops.add(self)
        self._loop, self._thread = loop, thread
        self._on_loop = on_loop = resource(loop)
        return on_loop

    def share(self) -> Resource | None:
        """Return a handle that keeps the loop open for another subscription.

        Return ``None`` if the loop is closed.
        """
        with self._lock:
            if self._closed:
                return None
            self._shares += 1
        return _Share(self)

    def count_closed_share(self) -> None:
        """Decrement the number of open handles (``_Share`` objects). ``_Share.close`` calls this.

        If no handle is open any more, and ``PrivateLoop.close`` was called before, end the loop.
        """
        with self._lock:
            self._shares -= 1
            if self._close_requested and not self._shares:
                self.end()

    def close(self) -> None:
        """Stop the loop's thread as soon as all handles that ``share`` returned are closed.

        The thread first runs all work that was submitted before. Do not wait for the thread's end.
        """
        with self._lock:
            self._close_requested = True
            if not self._shares:
                self.end()

    def end(self) -> None:
        """Stop the loop's thread soon, even if handles that ``share`` returned are still open.

        Do not wait for the thread's end.
        """
        with self._lock:
            self._closed = True
            loop = self._loop
        if loop is not None:
            _stop(loop)


class _Share:
    """A handle that keeps a private loop open for one subscription, until the handle is closed."""

    def __init__(self, private: PrivateLoop) -> None:
        self._private = private
        self._lock = threading.RLock()
        self._closed = False

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:
        self._private.execute(work, when_dropped)

    def close(self) -> None:
        """Close this handle, so that the private loop may end. A second call does nothing."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._private.count_closed_share()

    def __del__(self) -> None:
        # ``call_from_finalizer`` is None if Python has cleared the globals at interpreter exit.
        if not self._closed and call_from_finalizer is not None:
            call_from_finalizer(self.close)


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed already
        loop.call_soon_threadsafe(_stop_after_callbacks, loop)


def _stop_after_callbacks(loop: asyncio.AbstractEventLoop) -> None:
    # Do not stop the loop before it has run the callbacks that are in its queue now: one of them
    # may send the last signal of a stream.
    loop.call_soon(loop.stop)


def _run(loop: asyncio.AbstractEventLoop, private: weakref.ref[PrivateLoop]) -> None:
    # The loop's thread runs this function, and has only a weak reference to the PrivateLoop. So an
    # unused PrivateLoop is garbage-collected, and its finalizer ends the thread.
    thread_state.private = private
    error: BaseException | None = None
    try:
        loop.run_forever()
    except BaseException as raised:  # a callback raised KeyboardInterrupt or SystemExit
        error = raised
    finally:
        for step in (
            _cancel_tasks,
            loop.shutdown_asyncgens,
            loop.shutdown_default_executor,
        ):
            error = _finish(loop, step()) or error
        loop.close()
    if error is not None:
        raise error


def _finish(
    loop: asyncio.AbstractEventLoop, step: Coroutine[Any, Any, None]
) -> BaseException | None:
    """Run the coroutine ``step`` on ``loop``, which is being closed.

    An exception of ``step`` is returned, not raised, so that the caller can run the next step.
    """
    error: BaseException | None = None
    task = loop.create_task(step)
    task.add_done_callback(lambda _: loop.stop())
    while not task.done():  # a user's callback may stop the loop before ``task`` is done
        try:
            loop.run_forever()
        except BaseException as raised:
            error = raised
    return error if task.cancelled() else task.exception() or error


async def _cancel_tasks() -> None:
    if closing := [task for task in asyncio.all_tasks() if task in closing_tasks]:
        await asyncio.wait(closing, timeout=LOOP_CLOSE_SECONDS)
    for _ in range(CANCELLATIONS):
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if not tasks:
            break
        await asyncio.gather(*tasks, return_exceptions=True)


def _close_all() -> None:
    for thread in list(_private_loops):
        thread.end()
