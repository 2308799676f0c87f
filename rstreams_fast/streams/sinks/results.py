"""The functions that wait for a stream's result: ``to_list``, ``first``, ``last`` and ``run``.

Each function blocks its thread until the stream has ended. A ``KeyboardInterrupt`` ends the wait,
cancels upstream and propagates. If an event loop runs in the thread, these functions raise an
error. In such a thread, use the ``..._async`` functions, which await the result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from rstreams_fast.api import UNBOUNDED, Publisher
from rstreams_fast.core import MISSING, Missing
from rstreams_fast.errors import NoneSignalError
from rstreams_fast.runtime.awaiting import without_loop
from rstreams_fast.runtime.parking import (
    refuse_in_loop,
    refuse_to_wait_for_oneself,
    signallers_of_thread,
)
from rstreams_fast.streams.engine.defaults import PREFETCH
from rstreams_fast.streams.engine.pipeline import Pipeline
from rstreams_fast.streams.engine.sink_subscriber import subscribe_end
from rstreams_fast.streams.sinks.iterate import Iteration
from rstreams_fast.streams.sinks.run import RunSubscriber

__all__ = [
    "first",
    "first_async",
    "last",
    "run",
    "run_async",
    "subscribe_and_wait",
    "to_list",
    "to_list_async",
]

T = TypeVar("T")


class _AppendingSubscriber(RunSubscriber[T]):
    """Calls ``append(element)`` without a check for ``None``, which a ``Stream`` never sends."""

    __slots__ = ("on_next",)

    def __init__(self, append: Callable[[T], None]) -> None:
        super().__init__(UNBOUNDED)
        self.on_next = append  # type: ignore[method-assign]


class _FirstSubscriber(RunSubscriber[T]):
    """Requests one element, stores it in the attribute ``element``, and then cancels upstream."""

    __slots__ = ("element",)

    def __init__(self) -> None:
        super().__init__(1)
        self.element: T | Literal[Missing.MISSING] = MISSING

    def on_next(self, element: T, /) -> None:
        if element is None:
            raise NoneSignalError("§2.13: None is not an element")
        if self.run.claim():
            self.element = element
            try:
                self.upstream.cancel()
            finally:
                self.run.settle(None)
        else:
            self.upstream.on_late_element()


def subscribe_and_wait(publisher: Publisher[T], subscriber: RunSubscriber[T]) -> None:
    """Subscribe ``subscriber`` to ``publisher``, and wait for the end of the stream.

    If the stream fails, raise its error.
    """
    outcome = subscriber.run
    signallers = signallers_of_thread()
    before = len(signallers)
    try:
        with without_loop():
            subscribe_end(publisher, subscriber)
            if not outcome.done:
                refuse_to_wait_for_oneself(signallers[before:])
            outcome.result()
    except BaseException:
        # Cancel the stream after a Ctrl-C. If the stream itself has failed, cancel() has no effect.
        outcome.cancel()
        raise
    finally:
        # An error's traceback keeps this frame's variables alive, so delete them (§3.13).
        del subscriber, outcome


def run(publisher: Pipeline[Any]) -> None:
    """Consume the stream and drop its elements. Block until the stream has ended."""
    refuse_in_loop("run()", "use 'await run_async()' there")
    subscribe_and_wait(publisher, _AppendingSubscriber(deque[Any](maxlen=0).append))


def to_list(publisher: Pipeline[T]) -> list[T]:
    """Return all elements as a list. Block until the stream has ended."""
    refuse_in_loop("to_list()", "use 'await to_list_async()' there")
    elements: list[T] = []
    try:
        subscribe_and_wait(publisher, _AppendingSubscriber(elements.append))
        return elements
    finally:
        del elements  # the traceback of an error would keep the elements alive (§3.13)


def last(publisher: Pipeline[T], default: Any) -> Any:
    """Return the last element. If the stream is empty, do the same as the function ``first``."""
    refuse_in_loop("last()", "use 'await last_async()' there")
    newest: deque[T] = deque(maxlen=1)
    subscribe_and_wait(publisher, _AppendingSubscriber(newest.append))
    return _or_default(newest[0] if newest else MISSING, default)


def first(publisher: Pipeline[T], default: Any = MISSING, *, name: str = "first") -> Any:
    """Return the first element. If the stream is empty, return ``default``.

    If no ``default`` is given, raise ``LookupError``. Error messages name the caller ``name``.
    """
    refuse_in_loop(f"{name}()", f"use 'await {name}_async()' there")
    subscriber: _FirstSubscriber[T] = _FirstSubscriber()
    try:
        subscribe_and_wait(publisher, subscriber)
        return _or_default(subscriber.element, default)
    finally:
        del subscriber


def _or_default(element: Any, default: Any) -> Any:
    if element is not MISSING:
        return element
    if default is MISSING:
        raise LookupError("the stream is empty, and no default was given")
    return default


async def run_async(publisher: Pipeline[Any]) -> None:
    """Do the same as ``run``, but await the end of the stream."""
    iteration = Iteration(publisher, PREFETCH)
    try:
        while await iteration.next_burst():
            pass
    finally:
        await iteration.aclose()


async def to_list_async(publisher: Pipeline[T]) -> list[T]:
    """Return all elements as a list, like ``to_list``, but await the end of the stream."""
    elements: list[T] = []
    burst: list[T] = []
    iteration = Iteration(publisher, PREFETCH)
    try:
        while burst := await iteration.next_burst():
            elements += burst
        return elements
    finally:
        del elements, burst  # the traceback of an error would keep the elements alive (§3.13)
        await iteration.aclose()


async def first_async(publisher: Pipeline[T], default: Any = MISSING) -> Any:
    """Return the first element or ``default``, like ``first``, but await the element."""
    iteration = Iteration(publisher, 1)
    try:
        burst = await iteration.next_burst()
    finally:
        await iteration.aclose()
    return _or_default(burst[0] if burst else MISSING, default)
