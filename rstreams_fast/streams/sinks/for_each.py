"""``for_each`` and its subscriber ``ForEach``, which calls the user's functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from rstreams_fast._checks import check_count, check_plain, describe_callable, refuse_coroutine
from rstreams_fast.api import UNBOUNDED, Publisher
from rstreams_fast.core import FunctionSlot
from rstreams_fast.errors import NoneSignalError, report_dropped
from rstreams_fast.runtime.awaiting import without_loop
from rstreams_fast.streams.engine.boundary import FunctionSubscriber
from rstreams_fast.streams.engine.defaults import replenish_at
from rstreams_fast.streams.engine.sink_subscriber import (
    check_publisher,
    is_async_cancellation,
    not_a_cancellation,
    subscribe_end,
)
from rstreams_fast.streams.sinks.run import Run, RunSubscriber

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["ForEach", "check_functions", "for_each"]

T = TypeVar("T")

_HINT: Final = "; make the calls with map_async, and end with run() or run_async()"


class ForEach(FunctionSubscriber, RunSubscriber[T]):
    """A subscriber that calls a user's functions, and requests ``prefetch`` elements in advance."""

    __slots__ = ("_consumed", "_on_complete", "_on_error", "_on_next", "_over", "_replenish")

    #: Whether the result ``False`` of the user's function ``on_next`` ends the stream.
    _false_ends_stream: ClassVar[bool] = False

    def __init__(
        self,
        on_next: Callable[[T], object],
        on_error: Callable[[BaseException], object] | None,
        on_complete: Callable[[], object] | None,
        prefetch: int,
    ) -> None:
        super().__init__(prefetch)
        self._on_next: Callable[[T], object] | None = on_next
        self._on_error = on_error
        self._on_complete = on_complete
        self._consumed = 0
        # ``_over``: while this list is empty, the C loop of the upstream stages (such as ``map``)
        # calls the user's function directly. At the end of the stream, ``drop_references`` adds an
        # item, so that the C loop does not call the user's function again.
        self._over: list[None] = []
        # The number of elements to consume before the next request. 0 means that the first request
        # is unbounded, so that no other request follows.
        self._replenish = replenish_at(prefetch) if prefetch < UNBOUNDED else 0

    def on_next(self, element: T, /) -> None:
        """Call the user's function ``on_next`` with ``element``.

        Args:
            element: The element; not ``None`` (§2.13).
        """
        if element is None:
            raise NoneSignalError("§2.13: None is not an element")
        on_next = self._on_next
        if on_next is None:
            self._on_late_element(element)
            return
        try:
            more = on_next(element)
            if more is False or type(more) is CoroutineType:
                self._act_on_answer(on_next, more)
        except BaseException as raised:
            name = describe_callable(on_next)
            # The traceback of ``raised`` keeps this frame's variables alive: delete them (§3.13).
            del element, on_next
            self._end_with_exception(name, raised)
        else:
            if self._replenish:
                self._consumed += 1
                if self._consumed == self._replenish:
                    self._consumed = 0
                    self.ask(self._replenish)

    @property
    def slot(self) -> FunctionSlot | None:
        """The user's function, for the C loop of the upstream stages (such as ``map``).

        The loop calls this function in place of the method ``on_next``. The result is ``None`` if
        the loop must call the method: if the method counts elements for the next request, or if a
        user's subclass has its own method. The result is also ``None`` after the end of the stream.
        """
        on_next = self._on_next
        if on_next is None or self._replenish or type(self).on_next is not ForEach.on_next:
            return None
        answered = partial(self._act_on_answer, on_next)
        failed = partial(self._end_with_exception, describe_callable(on_next))
        return FunctionSlot(on_next, self._over, answered, self._on_late_element, failed)

    def _act_on_answer(self, on_next: Callable[[T], object], answer: object) -> None:
        """Act on ``answer``, the result of the user's function ``on_next``.

        A coroutine is an error. ``False`` ends the stream if ``_false_ends_stream`` is true.
        """
        if answer is not False:
            refuse_coroutine("on_next", on_next, answer, _HINT)
        elif self._false_ends_stream:
            self._end_early()

    def _on_late_element(self, _element: T) -> None:
        # Upstream has sent an element after the end, which the subscriber must accept (§2.8).
        self.upstream.on_late_element()

    def _end_with_exception(self, name: str, raised: BaseException) -> None:
        """End the stream with ``raised``, an exception of the user's function ``name``."""
        if isinstance(raised, Exception):
            self.fail(raised)
        elif is_async_cancellation(raised):
            self.fail(not_a_cancellation(raised, name))
        else:
            self.end_with(raised)
            raise raised

    def _end_early(self) -> None:
        """Cancel upstream, and end the stream. Do not call the user's function ``on_complete``."""
        try:
            self.upstream.cancel()
        finally:
            if self.run.claim():
                super().finish(None)

    def end_with(self, raised: BaseException) -> None:
        """Cancel upstream, and end the stream with ``raised``.

        Do not call the user's function ``on_error``, because the caller re-raises ``raised``.
        """
        try:
            self.upstream.cancel()
        finally:
            self.drop_references()
            if self.run.claim():
                self.run.settle(raised)

    def finish(self, error: BaseException | None) -> None:
        on_error, on_complete = self._on_error, self._on_complete
        self.drop_references()
        seen = False
        try:
            if error is None:
                if on_complete is not None:
                    on_complete()
            elif on_error is not None:
                seen = True
                on_error(error)
        except Exception as raised:
            if error is None:
                error = raised
            else:
                report_dropped(raised, "§2.13: on_error raised")
        except BaseException as raised:
            self.run.settle(raised)
            raise
        self.run.settle(error, seen)

    def drop_references(self) -> None:
        self._over.append(None)
        self._on_next = self._on_error = self._on_complete = None

    def is_called_by(self, frame: FrameType) -> bool:
        if frame.f_code in _CALLING:
            return frame.f_locals.get("self") is self
        return super().is_called_by(frame)


#: The code objects of the methods that call the user's functions. ``is_called_by`` looks for the
#: frames of these methods on the stack, to find out whether the stream is calling a function.
_CALLING: Final = (ForEach.on_next.__code__, ForEach.finish.__code__)


def check_functions(**functions: object) -> None:
    """Raise a ``TypeError`` if a function cannot be called, is ``async`` or a generator function.

    The first function is required. The other functions may be ``None``.
    """
    needed = True
    for name, function in functions.items():
        if function is not None or needed:
            check_plain(name, function, _HINT, result_used=False)
        needed = False


def for_each(
    publisher: Publisher[T],
    on_next: Callable[[T], object],
    on_error: Callable[[BaseException], object] | None = None,
    on_complete: Callable[[], object] | None = None,
    *,
    prefetch: int = UNBOUNDED,
) -> Run:
    """Subscribe the user's functions to ``publisher``: see ``Stream.for_each``."""
    check_publisher(publisher)
    check_functions(on_next=on_next, on_error=on_error, on_complete=on_complete)
    prefetch = min(check_count("prefetch", prefetch, 1), UNBOUNDED)
    subscriber = ForEach(on_next, on_error, on_complete, prefetch)
    run = subscriber.run
    try:
        with without_loop():
            subscribe_end(publisher, subscriber)
    except BaseException as raised:
        subscriber.end_with(raised)
        raise
    return run
