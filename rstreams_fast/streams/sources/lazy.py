"""The sources of ``defer``, ``using`` and ``generate``, which call a user's function.

For ``defer`` and ``using`` the function makes a publisher for each subscriber. For ``generate`` the
function makes one element after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from rstreams_fast._checks import describe_callable, refuse_coroutine, safe_repr
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.streams.engine.assembly import PublisherSource
from rstreams_fast.streams.engine.pipeline import Pipeline, as_pipeline
from rstreams_fast.streams.engine.signals import refuse
from rstreams_fast.streams.engine.sink_subscriber import check_publisher
from rstreams_fast.streams.operators.peek import Peek
from rstreams_fast.streams.sources.iterable import IterableSource

__all__ = ["defer_source", "generate_source", "using_source"]


def defer_source(
    factory: Callable[[], Publisher[Any]], described: str, inside: tuple[Publisher[Any], ...] = ()
) -> PublisherSource:
    """Return a source that subscribes each subscriber to a new publisher ``factory()``.

    ``described`` is the text about the source in ``Stream.describe()``. ``inside`` has the
    publishers that ``factory`` uses, if they are known. ``describe()`` shows these publishers, too.
    """
    made = _DeferredPublisher(factory, f"what {described} makes")
    return PublisherSource(made, described, trusted=True, inside=inside)


class _DeferredPublisher:
    def __init__(self, factory: Callable[[], Publisher[Any]], what: str) -> None:
        self._factory = factory
        self._what = what

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        made: Publisher[Any] | None = self
        try:
            # The publisher of ``factory`` may be a stream of defer() itself. A loop, not recursion,
            # so that many nested streams of defer() do not fill the stack.
            while isinstance(made, _DeferredPublisher):
                publisher = made._factory()
                check_publisher(publisher, made._what)
                made = publisher.publisher_itself() if isinstance(publisher, Pipeline) else None
        except RecursionError:  # the stack is full: a caller with more room signals the error
            raise
        except Exception as raised:
            refuse(subscriber, raised)  # subscribe must signal errors, not raise them (§1.9)
        else:
            as_pipeline(publisher).subscribe(subscriber)


def using_source(
    factory: Callable[[], Any],
    stream_of: Callable[[Any], Publisher[Any]],
    close: Callable[[Any], object],
) -> PublisherSource:
    made = partial(_using_publisher, factory, stream_of, close)
    return defer_source(made, f"using({describe_callable(factory)})")


def _using_publisher(
    factory: Callable[[], Any],
    stream_of: Callable[[Any], Publisher[Any]],
    close: Callable[[Any], object],
) -> Publisher[Any]:
    resource = factory()
    closing = partial(_close, close, resource)
    try:
        publisher = stream_of(resource)
        check_publisher(publisher, f"using: what {describe_callable(stream_of)} returned")
    except BaseException:
        closing()
        raise
    return as_pipeline(publisher).with_part(Peek("finally", closing))


def _close(close: Callable[[Any], object], resource: Any) -> None:
    hint = (
        f", so {type(resource).__name__} is not closed; give from_async_iterable an async "
        "generator that opens it by 'async with'"
    )
    refuse_coroutine("using(close)", close, close(resource), hint)


def generate_source(state: Any, fn: Callable[[Any], tuple[Any, Any] | None]) -> IterableSource:
    return IterableSource(_GeneratedIterable(state, fn), f"generate({describe_callable(fn)})")


class _GeneratedIterable:
    def __init__(self, state: Any, fn: Callable[[Any], tuple[Any, Any] | None]) -> None:
        self._state = state
        self._fn = fn

    def __iter__(self) -> Iterator[Any]:
        state = self._state
        while (step := self._fn(state)) is not None:
            try:
                element, state = step
            except (TypeError, ValueError) as wrong:
                raise TypeError(
                    f"generate(fn): {describe_callable(self._fn)} must return (element, state) or "
                    f"None, returned {safe_repr(step)}"
                ) from wrong
            del step
            yield element
            del element
