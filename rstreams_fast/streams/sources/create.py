"""``create``: a source in which a user's function sends elements by an ``Emitter``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from rstreams_fast._checks import check_plain, describe_callable, refuse_coroutine
from rstreams_fast.api import Subscriber
from rstreams_fast.errors import NoneSignalError, check_error, report_dropped
from rstreams_fast.streams.engine.assembly import PublisherSource
from rstreams_fast.streams.engine.not_picklable import not_picklable
from rstreams_fast.streams.engine.signals import call_all, silent
from rstreams_fast.streams.operators.on_overflow import (
    Overflow,
    OverflowBoundary,
    OverflowSubscription,
)

__all__ = ["Emitter", "create_source"]

T = TypeVar("T")

_HINT: Final = "; let fn start a task, or use from_async_iterable"


def create_source(
    fn: Callable[[Emitter[Any]], object],
    overflow: Overflow,
    capacity: int | None,
    on_drop: Callable[[Any], object] | None,
) -> PublisherSource:
    check_plain("create(fn): fn", fn, _HINT, result_used=False)
    options = OverflowBoundary(overflow, capacity, on_drop, name="create", argument="overflow=")
    source = _CreatePublisher(fn, options)
    return PublisherSource(
        source, f"{options.describe()}, by {describe_callable(fn)}", trusted=True
    )


class Emitter(Generic[T]):
    """Sends elements to one subscriber of ``create``. Any thread may call any method.

    No method blocks. The stream ends if the subscriber cancels, at the first call of ``error`` or
    ``complete``, or if the buffer overflows. After the end the methods have no effect, and the
    emitter has dropped its references to the subscriber and to the user's functions.
    """

    __slots__ = ("__weakref__", "_end_callbacks", "_lock", "_target")

    __reduce__ = not_picklable

    def __init__(self, target: OverflowSubscription) -> None:
        # Reentrant: a finalizer may run on the thread that holds the lock, and take the lock, too.
        self._lock = threading.RLock()
        self._target: OverflowSubscription | None = target
        # The functions that were passed to ``on_cancel``. None after the end of the stream.
        self._end_callbacks: list[Callable[[], object]] | None = []

    def next(self, element: T, /) -> bool:
        """Send ``element`` to the subscriber. Without demand, put it into the buffer.

        Args:
            element: The element; not ``None``.

        Returns:
            ``False`` if the stream has ended, or if this call ends the stream because the buffer is
            full. Otherwise ``True``, even if the overflow strategy drops the element.

        Raises:
            TypeError: ``element`` is ``None``, which is not an element (§2.13). The stream goes on.
        """
        if element is None:
            raise NoneSignalError("§2.13: emitter.next(None): None is not an element")
        target = self._target
        return target is not None and target.offer(element)

    def error(self, error: BaseException, /) -> bool:
        """End the stream with ``error``, after all elements that were sent before.

        Args:
            error: An exception instance.

        Returns:
            ``False`` if the stream had ended before. Then the error goes to ``on_dropped_error``.

        Raises:
            TypeError: ``error`` is not an exception instance.
        """
        check_error(error)
        target = self._detach()
        ended = target is not None and target.finish(error)
        if not ended:
            report_dropped(error, "an error after the end of the stream")
        self._call_end_callbacks()
        return ended

    def complete(self) -> bool:
        """Complete the stream, after all elements that were sent before.

        Returns:
            ``False`` if the stream had ended before.
        """
        target = self._detach()
        ended = target is not None and target.finish(None)
        self._call_end_callbacks()
        return ended

    def on_cancel(self, fn: Callable[[], object], /) -> None:
        """Register ``fn``, to be called once when the stream is cancelled, fails or completes.

        If the stream has already ended, ``fn`` is called immediately. If ``on_cancel`` is called
        several times, the functions are called in the same order. Exceptions of ``fn`` go to
        ``on_dropped_error``.

        Args:
            fn: A plain function. It is called on the thread that ends the stream. It must not wait.

        Raises:
            TypeError: ``fn`` cannot be called, is ``async``, or is a generator function.
        """
        check_plain("on_cancel(fn): fn", fn, result_used=False)
        with self._lock:
            if self._end_callbacks is not None:
                self._end_callbacks.append(fn)
                return
        silent(fn)

    @property
    def cancelled(self) -> bool:
        """Whether the stream has ended in any way. Then the methods have no effect."""
        return self._target is None

    @property
    def demand(self) -> int:
        """The number of elements that were requested but not sent yet. 0 after the end."""
        target = self._target
        return 0 if target is None else target.unmet_demand

    def _detach(self) -> OverflowSubscription | None:
        with self._lock:
            target, self._target = self._target, None
        return target

    def _call_end_callbacks(self) -> None:
        with self._lock:
            callbacks, self._end_callbacks = self._end_callbacks, None
        call_all(iter(callbacks or ()))


class _EmitterSubscription:
    """The subscription with which the subscriber of ``create`` cancels the ``Emitter``."""

    __slots__ = ("__weakref__", "_emitter")

    __reduce__ = not_picklable

    def __init__(self, emitter: Emitter[Any]) -> None:
        self._emitter = emitter

    def request(self, n: int, /) -> None:
        """Do nothing: an ``Emitter`` sends elements without demand."""

    def cancel(self) -> None:
        self._emitter._detach()
        self._emitter._call_end_callbacks()


class _CreatePublisher:
    def __init__(self, fn: Callable[[Emitter[Any]], object], options: OverflowBoundary) -> None:
        self._fn = fn
        self._options = options
        self.fails_without_demand = options.fails_without_demand

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        target = OverflowSubscription(subscriber, self._options)
        emitter: Emitter[Any] = Emitter(target)
        target.on_subscribe(_EmitterSubscription(emitter))
        if not emitter.cancelled:
            _start(self._fn, emitter)


def _start(fn: Callable[[Emitter[Any]], object], emitter: Emitter[Any]) -> None:
    # The traceback of an error of ``fn`` keeps the variables of this frame alive. So this code is
    # in a separate function, which has no variable that refers to the subscriber.
    try:
        refuse_coroutine("create(fn)", fn, fn(emitter), _HINT)
    except Exception as raised:
        emitter.error(raised)
    except BaseException as raised:
        # Signal an exception such as KeyboardInterrupt, but raise it, too: the caller must get it.
        if not emitter.cancelled:
            emitter.error(raised)
        raise
