"""The methods of ``Stream`` that go on after an error, or begin again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from rstreams_fast._checks import check_sync
from rstreams_fast.api import UNBOUNDED, Publisher
from rstreams_fast.calls.retry import Retry, is_retryable
from rstreams_fast.streams.methods.composing import as_stream, publisher_of, with_part
from rstreams_fast.streams.operators.on_error_continue import with_error_handler
from rstreams_fast.streams.operators.repeat import Repeat
from rstreams_fast.streams.operators.resume import OnErrorResume
from rstreams_fast.streams.operators.retry import RetryBoundary

if TYPE_CHECKING:
    from rstreams_fast.runtime.timers import Timer
    from rstreams_fast.streams.stream import Stream

__all__ = ["RecoveryMethods"]

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
A = TypeVar("A")


class RecoveryMethods(Generic[T_co]):
    """``retry``, ``repeat`` and the methods named ``on_error_...``."""

    __slots__ = ()

    def on_error_resume(
        self,
        fn: Callable[[Any], Publisher[U]],
        /,
        *,
        on: type[BaseException] | tuple[type[BaseException], ...] = Exception,
    ) -> Stream[T_co | U]:
        """Deliver the elements of the publisher ``fn(error)`` when the stream above has failed.

        Errors of other types than ``on`` are passed on, and so is an error of the new publisher. An
        exception of ``fn`` ends the stream, with the first error as its ``__context__``.

        Args:
            fn: Returns a publisher, which may break the rules (see ``from_publisher``).
            on: The exception type for which ``fn`` is called, or a tuple of types.

        Raises:
            TypeError: ``fn`` cannot be called, or ``on`` is not an exception type.
        """
        check_sync("on_error_resume", "fn", fn)
        return as_stream(self).with_part(OnErrorResume(fn, on))

    def on_error_return(
        self,
        element: U,
        /,
        *,
        on: type[BaseException] | tuple[type[BaseException], ...] = Exception,
    ) -> Stream[T_co | U]:
        """Deliver ``element`` and complete, when the stream above has failed.

        ```text
        above   --1--2--X
        below   --1--2--0|   of on_error_return(0)
        ```

        ``element`` waits for demand (§1.1). Errors of other types than ``on`` are passed on.

        Reactor: ``onErrorReturn``.

        Args:
            element: The element that takes the place of the error; not ``None``.
            on: The exception type that ``element`` replaces, or a tuple of types.

        Raises:
            TypeError: ``element`` is ``None``, or ``on`` is not an exception type.
        """
        instead = partial(_return_publisher, publisher_of("on_error_return", element))
        return as_stream(self).with_part(OnErrorResume(instead, on))

    def on_error_continue(self, fn: Callable[[Exception, Any], object], /) -> Self:
        """Drop each element for which a stage directly above fails, and go on.

        ```text
        above   --1--0--2--|
        map       1/x
        below   --1-----.5-|   fn(ZeroDivisionError, 0)
        ```

        The stages are ``map``, ``map_not_none`` and ``filter``, one stage or several in a row. An
        exception of their functions concerns only one element. ``on_discard`` gets the dropped
        element, too. An exception of ``fn`` ends the stream. For calls of ``map_async``, catch the
        exception in the function.

        Reactor: ``onErrorContinue``, which also changes the operators above it; RxPY has none.

        Args:
            fn: ``fn(error, element)`` is called with the exception and the stage's argument.

        Raises:
            TypeError: ``fn`` cannot be called, is ``async``, or is a generator function.
            ValueError: The part directly above is not one of these stages. Other operators, and
                sources, cannot go on after an error (§1.7).
        """
        check_sync("on_error_continue", "fn", fn, result_used=False)
        stream: Any = self
        continued: Self = type(stream)(stream.source, tuple(with_error_handler(stream.parts, fn)))
        return continued

    def retry(
        self,
        times: int | Retry = UNBOUNDED,
        *,
        when: Callable[[Exception], object] | None = None,
        delay: float | Callable[[int], float] | None = None,
        timer: Timer | None = None,
    ) -> Self:
        """Subscribe to the stream above again when it has failed, up to ``times`` times.

        ``retry(3)`` subscribes at most four times: once, and then up to three times more.
        ``spark.Retry(3)`` counts calls in the same way. Delivered elements are not taken back: a
        source that starts anew sends them again. Elements that were requested and have not come are
        requested again. The error after the last retry is passed on, and so is an error that is not
        an ``Exception``, or a ``WorkDroppedError`` while the interpreter exits. If the source can
        be read only once, the stream ends with the first error, which gets a note.

        With a ``delay`` a thread that streams share subscribes, and requests the elements that
        are still missing. An exception of ``when`` or ``delay`` ends the stream, with the first
        error as its ``__context__``.

        Args:
            times: The most retries, or a ``Retry`` without a ``budget``. Default: no limit.
            when: An error for which ``when(error)`` is false is passed on. Default: retry every
                error.
            delay: Seconds before each retry. Or a function, which gets the number of the retry,
                from 1, and returns the seconds. Default: no delay.
            timer: The clock of ``delay``. Default: the timer of this process.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``times`` or ``delay`` is negative. Or ``times`` is a ``Retry`` with a
                ``budget`` (a share of calls), or a ``Retry`` together with ``when`` or ``delay``.
        """
        if isinstance(times, Retry):
            if when is not None or delay is not None:
                raise ValueError("retry: a Retry has words of its own for when and delay")
            if times.budget is not None:
                raise ValueError("retry: Retry(budget) is a share of calls, and here are none")
            retry = times
            times, when, delay = retry.times, partial(is_retryable, retry), retry.delay
        if when is not None:
            check_sync("retry", "when", when)
        return with_part(self, RetryBoundary(times, when, delay, timer))

    def repeat(self, times: int = UNBOUNDED, /) -> Self:
        """Subscribe to the stream above again when it has completed, up to ``times`` times.

        ```text
        above   --1--2--|  --1--2--|
        below   --1--2-------1--2--|   of repeat(1)
        ```

        ``repeat(1)`` delivers all elements twice, because the first subscription is not counted.
        Only requested elements that have not come are requested again (§1.1). Without a limit, an
        empty stream is repeated until the subscriber cancels.

        Reactor: ``repeat``; RxPY: ``repeat``, which counts the first subscription, too.

        Args:
            times: The most repetitions. Default: no limit.

        Raises:
            TypeError: ``times`` is not an ``int``.
            ValueError: ``times`` is negative.
        """
        return with_part(self, Repeat(times))


def _return_publisher(publisher: Publisher[A], _error: BaseException) -> Publisher[A]:
    return publisher
