"""Event loops as resources: the loop that runs here, somebody's loop, or a private one.

A private loop has a thread of its own, started by the first piece of work, that ends when it is
closed or when nobody holds it any more. On its way out it cancels the tasks left on the loop, and
waits for them, for asynchronous generators and for the default executor, so that nothing outlives
it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import threading
import weakref
from collections.abc import Coroutine
from typing import Any

from rstreams_fast.runtime.executors import Resource, WhenDropped, Work, WorkDropped, resource
from rstreams_fast.runtime.parking import running_loop

__all__ = ["HeldLoop", "LoopThread", "check_loop", "describe_loop", "loop_resource"]

_numbers = itertools.count(1)
_threads: weakref.WeakSet[LoopThread] = weakref.WeakSet()
_exit_hook = threading.Lock()


def check_loop(loop: object) -> None:
    """Refuse, with a ``TypeError``, what is neither ``None`` nor an event loop."""
    if loop is not None and not callable(getattr(loop, "call_soon_threadsafe", None)):
        raise TypeError(f"loop must be an asyncio event loop or None, got {type(loop).__name__}")


def describe_loop(loop: asyncio.AbstractEventLoop | None) -> str:
    """Name the loop in a few words."""
    return "the running loop, or a private one" if loop is None else type(loop).__name__


def loop_resource(loop: asyncio.AbstractEventLoop | None, name: str) -> Resource:
    """Return the resource of ``loop``; ``None`` is the running loop, or else a private one.

    Raises :class:`WorkDropped` if the loop is closed.
    """
    if loop is None:
        loop = running_loop()
        if loop is None:
            return LoopThread(name)
    if loop.is_closed():
        raise WorkDropped("the event loop is closed")
    return resource(loop)


class HeldLoop:
    """A loop that a drain runs on, and that stays open until its holder has no more work there."""

    __slots__ = ("_on_loop",)

    def __init__(self, on_loop: Resource) -> None:
        self._on_loop = on_loop

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:
        """Run ``work`` soon, as a callback of the loop."""
        self._on_loop.execute(work, when_dropped)

    def close(self) -> None:
        """Nothing yet: the drain has ended, but tasks of the holder may go on."""

    def let_end(self) -> None:
        """Close the loop, if it is a private one."""
        self._on_loop.close()


class LoopThread:
    """A private event loop and its thread. Any thread may call any method."""

    def __init__(self, name: str = "rstreams-fast-loop") -> None:
        self._name = f"{name}-{next(_numbers)}"
        # Reentrant, for the collector may run anything anywhere.
        self._lock = threading.RLock()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_loop: Resource | None = None
        self._thread: threading.Thread | None = None

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:
        """Run ``work`` soon, as a callback of the loop. ``WorkDropped`` once this is closed."""
        with self._lock:
            if self._closed:
                raise WorkDropped(f"the event loop of {self._name} is closed")
            on_loop = self._on_loop or self._start()
        on_loop.execute(work, when_dropped)

    def _start(self) -> Resource:
        _close_at_exit()
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(loop,), name=self._name, daemon=False)
        try:
            thread.start()
        except Exception:  # there is no thread to be had
            loop.close()
            raise
        except BaseException:  # KeyboardInterrupt, say, when it runs already: it closes the loop
            self._closed = True
            _stop(loop)
            raise
        weakref.finalize(self, _stop, loop).atexit = False
        _threads.add(self)
        self._loop, self._thread = loop, thread
        self._on_loop = on_loop = resource(loop)
        return on_loop

    def close(self) -> None:
        """Let the thread end, after the work it was given. Never blocks."""
        with self._lock:
            self._closed = True
            loop = self._loop
        if loop is not None:
            _stop(loop)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread's end; ``False`` on time-out, or when called by the thread itself."""
        thread = self._thread
        if thread is threading.current_thread():
            return False
        if thread is not None:
            thread.join(timeout)
            return not thread.is_alive()
        return True


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # closed already
        loop.call_soon_threadsafe(_let_end, loop)


def _let_end(loop: asyncio.AbstractEventLoop) -> None:
    # Callbacks that are due come first: one of them may be the last signal of a stream.
    loop.call_soon(loop.stop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    # Knows the loop only, so that an abandoned LoopThread can be collected, which stops this.
    leaving: BaseException | None = None
    try:
        loop.run_forever()
    except BaseException as raised:  # KeyboardInterrupt or SystemExit, from somebody's function
        leaving = raised
    finally:
        for last in (
            _cancel_tasks,
            loop.shutdown_asyncgens,
            loop.shutdown_default_executor,
        ):
            leaving = _finish(loop, last()) or leaving
        loop.close()
    if leaving is not None:
        raise leaving


def _finish(
    loop: asyncio.AbstractEventLoop, last: Coroutine[Any, Any, None]
) -> BaseException | None:
    """Run one of the last steps; its failure, or somebody's, is no reason to leave out the next."""
    leaving: BaseException | None = None
    task = loop.create_task(last)
    task.add_done_callback(lambda _: loop.stop())
    while not task.done():  # it may be another one that stops the loop
        try:
            loop.run_forever()
        except BaseException as raised:
            leaving = raised
    return leaving if task.cancelled() else task.exception() or leaving


async def _cancel_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _close_at_exit() -> None:
    """Register, once, that private loops still open when the interpreter exits are closed."""
    if _exit_hook.acquire(blocking=False):
        # Threads are joined before atexit callbacks run, hence threading's own list, as in
        # concurrent.futures; where there is none, the public one is the best there is.
        register = getattr(threading, "_register_atexit", atexit.register)
        register(_close_all)


def _close_all() -> None:
    for thread in list(_threads):
        thread.close()
