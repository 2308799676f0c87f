"""``create``: a user's function gets an emitter, and sends elements with it from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

from rstreams_fast._checks import check_plain, describe_callable, refuse_coroutine
from rstreams_fast.api import Subscriber
from rstreams_fast.errors import NoneSignalError, check_error, report_dropped
from rstreams_fast.streams.engine.assembly import PublisherSource
from rstreams_fast.streams.engine.not_picklable import not_picklable
from rstreams_fast.streams.engine.signals import silent
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
    """Sends elements to one subscriber. Any thread may call any method. No method waits.

    The stream ends when the subscriber cancels, at the first call of ``error`` or ``complete``, or
    at an overflow. After the end all calls have no effect, and the emitter keeps no references.
    """

    __slots__ = ("__weakref__", "_end_callbacks", "_lock", "_target")

    __reduce__ = not_picklable

    def __init__(self, target: OverflowSubscription) -> None:
        # The lock is reentrant: a finalizer may need it while this thread holds it.
        self._lock = threading.RLock()
        self._target: OverflowSubscription | None = target
        # The functions that were passed to ``on_cancel``. None after the end of the stream.
        self._end_callbacks: list[Callable[[], object]] | None = []

    def next(self, element: T, /) -> bool:
        """Send ``element``.

        Args:
            element: The element; not ``None``.

        Returns:
            ``False`` if the stream has ended, or if this call ends the stream because the buffer is
            full. Otherwise ``True``, even if the element is dropped.

        Raises:
            TypeError: ``element`` is ``None``, which is not an element (§2.13). The stream goes on.
        """
        if element is None:
            raise NoneSignalError("§2.13: emitter.next(None): None is not an element")
        target = self._target
        return target is not None and target.offer(element)

    def error(self, error: BaseException, /) -> bool:
        """End the stream with ``error``, after the elements that were sent.

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
        """Complete the stream, after the elements that were sent.

        Returns:
            ``False`` if the stream had ended before.
        """
        target = self._detach()
        ended = target is not None and target.finish(None)
        self._call_end_callbacks()
        return ended

    def on_cancel(self, fn: Callable[[], object], /) -> None:
        """Register ``fn``, which is called once, when the stream ends in any way.

        If the stream has ended before, ``fn`` is called at once. Several functions are called in
        the order of the ``on_cancel`` calls. Exceptions of ``fn`` go to ``on_dropped_error``.

        Args:
            fn: A plain function. It is called on the thread that ends the stream, and must not wait
                for anything.

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
        """Whether the stream has ended, so that later calls have no effect."""
        return self._target is None

    @property
    def demand(self) -> int:
        """How many elements are requested and not sent yet. 0 after the end."""
        target = self._target
        return 0 if target is None else target.unmet_demand

    def _detach(self) -> OverflowSubscription | None:
        with self._lock:
            target, self._target = self._target, None
        return target

    def _call_end_callbacks(self) -> None:
        with self._lock:
            callbacks, self._end_callbacks = self._end_callbacks, None
        _call_all(iter(callbacks or ()))


def _call_all(fns: Iterator[Callable[[], object]]) -> None:
    try:
        for fn in fns:
            silent(fn)
    except BaseException:  # for example a KeyboardInterrupt: call the other functions, too
        _call_all(fns)
        raise


class _EmitterSubscription:
    """The subscription that the subscriber of an emitter receives."""

    __slots__ = ("__weakref__", "_emitter")

    __reduce__ = not_picklable

    def __init__(self, emitter: Emitter[Any]) -> None:
        self._emitter = emitter

    def request(self, n: int, /) -> None:
        """Do nothing: the emitter does not wait for demand."""

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
    # The traceback of an error of ``fn`` keeps the variables of this frame. So this is a separate
    # function, without a variable that refers to the subscriber.
    try:
        refuse_coroutine("create(fn)", fn, fn(emitter), _HINT)
    except Exception as raised:
        emitter.error(raised)
    except BaseException as raised:
        if not emitter.cancelled:  # the subscriber gets the error by ``on_error``, too
            emitter.error(raised)
        raise
