"""Sources that a function makes: a publisher for each subscriber, or one element after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rstreams_fast._checks import describe_callable, safe_repr
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.streams.engine.assembly import Foreign
from rstreams_fast.streams.engine.pipeline import Pipeline, as_pipeline
from rstreams_fast.streams.engine.signals import refuse
from rstreams_fast.streams.engine.sink_subscriber import check_publisher
from rstreams_fast.streams.sources.iterable import IterableSource

__all__ = ["defer_source", "generate_source"]


def defer_source(
    factory: Callable[[], Publisher[Any]], described: str, inside: tuple[Publisher[Any], ...] = ()
) -> Foreign:
    """The source of ``rstreams_fast.defer``, as it is to be ``described``. ``inside``: what it
    is known to stand on.
    """
    made = _Deferred(factory, f"what {described} makes")
    return Foreign(made, described, trusted=True, inside=inside)


class _Deferred:
    def __init__(self, factory: Callable[[], Publisher[Any]], what: str) -> None:
        self._factory = factory
        self._what = what

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        made: Publisher[Any] | None = self
        try:
            while isinstance(made, _Deferred):  # one within another, however many, do not nest
                publisher = made._factory()
                check_publisher(publisher, made._what)
                made = publisher.publisher_itself() if isinstance(publisher, Pipeline) else None
        except RecursionError:  # to where the stack has room again
            raise
        except Exception as raised:
            refuse(subscriber, raised)  # §1.9
        else:
            as_pipeline(publisher).subscribe(subscriber)


def generate_source(state: Any, fn: Callable[[Any], tuple[Any, Any] | None]) -> IterableSource:
    """The source of ``rstreams_fast.generate``."""
    return IterableSource(_Generated(state, fn), f"generate({describe_callable(fn)})")


class _Generated:
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
