"""The functions that make streams."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Never, TypeVar

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.errors import NoneSignal, shown
from rstreams_fast.streams.assembly import Foreign
from rstreams_fast.streams.drain import Live
from rstreams_fast.streams.origins import CallOnce, IterableOrigin
from rstreams_fast.streams.stream import Stream, check_sync

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "empty",
    "error",
    "from_async_iterable",
    "from_callable",
    "from_iterable",
    "from_publisher",
    "never",
    "range_",
]

T = TypeVar("T")


def range_(*args: int) -> Stream[int]:
    """The numbers of ``range(*args)``: ``stop``, or ``start, stop`` and perhaps ``step``."""
    numbers = range(*args)
    return Stream(IterableOrigin(numbers, shown(numbers)))


def from_iterable(iterable: Iterable[T], /) -> Stream[T]:
    """The items of ``iterable``, which is iterated anew for each subscriber.

    A one-shot iterator, such as a generator, serves one: a second subscriber gets a
    ``RuntimeError`` by ``on_error``. A generator is closed when the stream ends early; a file,
    say, is left to its owner.
    """
    if not hasattr(iterable, "__iter__") and not hasattr(iterable, "__getitem__"):
        hint = "; use from_async_iterable" if hasattr(iterable, "__aiter__") else ""
        raise TypeError(f"iterable must be iterable, got {type(iterable).__name__}{hint}")
    return Stream(IterableOrigin(iterable, f"from_iterable({type(iterable).__name__})"))


def from_async_iterable(
    iterable: AsyncIterable[T] | Callable[[], AsyncIterable[T]],
    /,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
) -> Stream[T]:
    """The items of an asynchronous iterable, or of what a function makes for each subscriber.

    ``loop=None`` is the loop running where the stream is subscribed to, or else a private one.
    """
    from rstreams_fast.streams.async_source import AsyncIterableSource

    name = getattr(iterable, "__qualname__", type(iterable).__name__)
    return Stream(
        Foreign(
            AsyncIterableSource(iterable, loop=loop), f"from_async_iterable({name})", trusted=True
        )
    )


def from_publisher(publisher: Publisher[T], /) -> Stream[T]:
    """The elements of any publisher: an object with ``subscribe(subscriber)``.

    It need not keep the rules: ``None``, too many elements, signals after the end or from several
    threads at once never reach a subscriber of the stream.
    """
    if publisher is None:
        raise NoneSignal("publisher is None")
    if isinstance(publisher, Stream):
        return publisher
    if not callable(getattr(publisher, "subscribe", None)):
        raise TypeError(
            f"publisher must have a method subscribe(subscriber), got {type(publisher).__name__}"
        )
    return Stream(Foreign(publisher, f"from_publisher({type(publisher).__name__})", trusted=False))


def from_callable(fn: Callable[[], T], /) -> Stream[T]:
    """One element, ``fn()``, called for each subscriber when it asks."""
    check_sync("from_callable", "fn", fn)
    return Stream(CallOnce(fn))


def empty() -> Stream[Never]:
    """No element: completes at once."""
    return Stream(IterableOrigin((), "empty()"))


def error(error: BaseException, /) -> Stream[Never]:
    """No element: fails at once with ``error``."""
    if not isinstance(error, BaseException):
        raise TypeError(f"error must be an exception instance, got {type(error).__name__}")
    return Stream(Foreign(_Failed(error), f"error({shown(error)})", trusted=False))


def never() -> Stream[Never]:
    """No element and no end."""
    return Stream(Foreign(_Never(), "never()", trusted=False))


class _Idle(Live):
    """A subscription to what gives no elements."""

    __slots__ = ()

    def request(self, n: int, /) -> None:
        """There is nothing to give."""

    def cancel(self) -> None:
        """There is nothing to stop."""


class _Failed:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        subscriber.on_subscribe(_Idle())
        subscriber.on_error(self._error)


class _Never:
    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        subscriber.on_subscribe(_Idle())
