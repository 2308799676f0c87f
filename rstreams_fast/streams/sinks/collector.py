"""Collects all elements of a stream in one object, such as an array or a table.

Publishers of this package can send elements in lists, because one call for many elements costs less
than one call for each element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from rstreams_fast.api import UNBOUNDED, Publisher
from rstreams_fast.runtime.parking import refuse_in_loop
from rstreams_fast.streams.engine.boundary import ListSubscriber
from rstreams_fast.streams.engine.defaults import ARRAYS_PREFETCH
from rstreams_fast.streams.engine.sink_subscriber import check_publisher
from rstreams_fast.streams.sinks.for_each import ForEach
from rstreams_fast.streams.sinks.iterate import Iteration
from rstreams_fast.streams.sinks.results import subscribe_and_wait

__all__ = ["Collector", "collect", "collect_async"]

R_co = TypeVar("R_co", covariant=True)


class Collector(Protocol[R_co]):
    """Collects elements in one object. If a method raises, upstream is cancelled."""

    def add(self, element: Any) -> None:
        """Add an element."""

    def add_all(self, elements: list[Any]) -> None:
        """Add several elements."""

    def result(self) -> R_co:
        """Return the object that holds all elements. Called once, at the end of the stream."""


class _CollectorSubscriber(ListSubscriber, ForEach[Any]):
    """Passes elements to a collector. Only publishers of this package send lists of elements."""

    __slots__ = ("_on_elements", "burst")

    def __init__(self, collector: Collector[Any]) -> None:
        super().__init__(collector.add, None, None, UNBOUNDED)
        self._on_elements: Callable[[list[Any]], None] | None = collector.add_all
        self.burst: list[Any] = []

    def on_burst(self) -> None:
        elements = self.burst[:]
        self.burst.clear()  # the publisher appends the next elements to this list
        on_elements = self._on_elements
        if not elements or on_elements is None:
            return
        try:
            on_elements(elements)
        except Exception as raised:
            del elements, on_elements  # a traceback would keep the elements alive (§3.13)
            self.fail(raised)
        except BaseException as raised:
            del elements, on_elements
            self.end_with(raised)
            raise

    def drop_references(self) -> None:
        super().drop_references()
        self._on_elements = None
        self.burst.clear()


def collect(
    name: str, publisher: Publisher[Any], collector: Collector[R_co], *, in_lists: bool
) -> R_co:
    """Collect all elements, and wait for the end of the stream.

    Raises a ``RuntimeError`` inside a running event loop, which waiting would block.

    ``in_lists``: Whether elements may wait in a list for ``add_all``. Otherwise ``add`` gets each
    element before the source makes the next one, so the source may use the element's memory again.
    """
    check_publisher(publisher)
    refuse_in_loop(f"{name}()", f"use 'await {name}_async()' there")
    subscriber: ForEach[Any] = (
        _CollectorSubscriber(collector)
        if in_lists
        else ForEach(collector.add, None, None, UNBOUNDED)
    )
    subscribe_and_wait(publisher, subscriber)
    return collector.result()


async def collect_async(publisher: Publisher[Any], collector: Collector[R_co]) -> R_co:
    """Collect all elements, and await the end of the stream.

    If the awaiting task is cancelled, upstream is cancelled.
    """
    iteration = Iteration(publisher, ARRAYS_PREFETCH)
    try:
        while burst := await iteration.next_burst():
            collector.add_all(burst)
    finally:
        await iteration.aclose()
    return collector.result()
