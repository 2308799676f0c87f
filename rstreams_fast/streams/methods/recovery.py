"""The methods of ``Stream`` that go on after an error, or subscribe again."""

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
    """The base class of ``Stream`` with ``retry``, ``repeat`` and the ``on_error_...`` methods."""

    __slots__ = ()

    def on_error_resume(
        self,
        fn: Callable[[Any], Publisher[U]],
        /,
        *,
        on: type[BaseException] | tuple[type[BaseException], ...] = Exception,
    ) -> Stream[T_co | U]:
        """If upstream fails, go on with the elements of the publisher ``fn(error)``.

        An error of another type than ``on``, and an error of the new publisher, is passed
        downstream. An exception of ``fn`` ends the stream, with the error of upstream as its
        ``__context__``.

        Args:
            fn: Returns a publisher. If it breaks rules of Reactive Streams, the result does not.
            on: The exception type for which ``fn`` is called, or a tuple of types.

        Raises:
            TypeError: ``fn`` cannot be called, or ``on`` is not an exception type.
        """
        check_sync("on_error_resume", "fn", fn)
        return as_stream(self).with_part(OnErrorResume(fn, on, "on_error_resume"))

    def on_error_return(
        self,
        element: U,
        /,
        *,
        on: type[BaseException] | tuple[type[BaseException], ...] = Exception,
    ) -> Stream[T_co | U]:
        """If upstream fails, deliver ``element`` in place of the error, and complete.

        ```text
        above   --1--2--X
        below   --1--2--0|   of on_error_return(0)
        ```

        ``element`` waits for demand (§1.1). Other errors than ``on`` are passed downstream.

        Reactor: ``onErrorReturn``.

        Args:
            element: The element to deliver in place of the error; not ``None``.
            on: The exception type that ``element`` replaces, or a tuple of types.

        Raises:
            TypeError: ``element`` is ``None``, or ``on`` is not an exception type.
        """
        instead = partial(_return_publisher, publisher_of("on_error_return", element))
        return as_stream(self).with_part(OnErrorResume(instead, on, "on_error_return"))

    def on_error_continue(self, fn: Callable[[Exception, Any], object], /) -> Self:
        """If a function of a stage directly upstream fails, drop the element, and go on.

        ```text
        above   --1--0--2--|
        map       1/x
        below   --1-----.5-|   fn(ZeroDivisionError, 0)
        ```

        This applies to one stage or several stages in a row, each of them ``map``, ``map_not_none``
        or ``filter``. The functions of these stages handle one element at a time, so their
        exception concerns only one element. ``on_discard`` gets the dropped element, too. An
        exception of ``fn`` ends the stream. To go on after an exception in a call of ``map_async``,
        catch the exception in the function of ``map_async``.

        Reactor: ``onErrorContinue``, which also changes other operators; RxPY has no such operator.

        Args:
            fn: ``fn(error, element)`` is called with the exception and the dropped element.

        Raises:
            TypeError: ``fn`` cannot be called, is ``async``, or is a generator function.
            ValueError: The operator directly upstream is not ``map``, ``map_not_none`` or
                ``filter``. Other operators, and sources, cannot go on after an error (§1.7).
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
        """If upstream fails, subscribe to upstream again, up to ``times`` times.

        ``retry(3)`` subscribes at most four times: once, and then up to three times more.
        ``spark.Retry(3)`` counts calls in the same way. Elements that were delivered before the
        error stay delivered. A source that starts anew sends the same elements again. Elements that
        were requested but did not come are requested again.

        Three errors are not retried, but passed downstream: the error after the last retry, an
        error that is not an ``Exception``, and a ``WorkDroppedError`` while the interpreter exits.
        If the source can be read only once, the stream ends with the source's error, to which a
        note is added: it says that there was no other attempt.

        With a ``delay``, one of the threads that all streams share subscribes, and requests the
        elements that did not come. An exception of ``when`` or ``delay`` ends the stream, with the
        error of upstream as its ``__context__``.

        Args:
            times: The largest number of retries, or a ``spark.Retry``. Its ``budget`` must be
                ``None``: a budget bounds the retries of many calls together.
            when: A function of the error. If ``when(error)`` is false, the error is passed
                downstream. Default: every error leads to a retry.
            delay: The seconds before each retry, or a function that returns these seconds. Its
                argument is the number of the retry, counted from 1. Default: no delay.
            timer: The clock for ``delay``. Default: a timer that all streams share.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``times`` or ``delay`` is negative. Or ``times`` is a ``Retry`` that has a
                ``budget``, or that is given together with ``when`` or ``delay``.
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
        """When upstream has completed, subscribe to upstream again, up to ``times`` times.

        ```text
        above   --1--2--|  --1--2--|
        below   --1--2-------1--2--|   of repeat(1)
        ```

        ``repeat(1)`` delivers all elements twice, because the first subscription is not counted.
        After a new subscription, only the elements that the subscriber has requested but not
        received are requested (§1.1). Without a limit, an empty stream is repeated until the
        subscriber cancels.

        Reactor: ``repeat``; RxPY: ``repeat``, which counts the first subscription, too.

        Args:
            times: The largest number of repetitions. Default: no limit.

        Raises:
            TypeError: ``times`` is not an ``int``.
            ValueError: ``times`` is negative.
        """
        return with_part(self, Repeat(times))


def _return_publisher(publisher: Publisher[A], _error: BaseException) -> Publisher[A]:
    return publisher
