"""``collect``: consumes a stream, and collects its elements in one object, such as an array.

A collector also accepts several elements in one list. Publishers of this package can deliver such
lists, because one call for many elements takes less time than one call for each element.
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
    """Collects the elements of a stream in one object, such as an array or a table.

    If ``add`` or ``add_all`` raises an exception, upstream is cancelled.
    """

    def add(self, element: Any) -> None:
        """Add an element to the object that ``result`` will return, such as an array."""

    def add_all(self, elements: list[Any]) -> None:
        """Add several elements to the object that ``result`` will return, such as an array."""

    def result(self) -> R_co:
        """Return the object that contains all elements. Called once, at the end of the stream."""


class _CollectorSubscriber(ListSubscriber, ForEach[Any]):
    """Passes elements to a ``Collector``.

    Publishers of this package append elements to the list ``burst``, and then call ``on_burst``.
    Other publishers call ``on_next``.
    """

    __slots__ = ("_on_elements", "burst")

    def __init__(self, collector: Collector[Any]) -> None:
        super().__init__(collector.add, None, None, UNBOUNDED)
        self._on_elements: Callable[[list[Any]], None] | None = collector.add_all
        self.burst: list[Any] = []

    def on_burst(self) -> None:
        elements = self.burst[:]
        self.burst.clear()  # the publisher appends the next elements to the same list
        on_elements = self._on_elements
        if not elements or on_elements is None:
            return
        try:
            on_elements(elements)
        except Exception as raised:
            # The traceback of ``raised`` keeps this frame's variables alive: delete them (§3.13).
            del elements, on_elements
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
    """Pass all elements to ``collector``, wait for the end of the stream, and return the result.

    If an event loop runs in this thread, raise a ``RuntimeError``, because the wait would block the
    loop. ``name`` is the name of the calling function in the error message.

    If ``in_lists`` is true, the publisher may put several elements into a list, and ``add_all``
    gets the list. If ``in_lists`` is false, ``add`` gets each element before the source makes the
    next element. Then the source may use the memory of an element again.
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
    """Pass all elements to ``collector``, await the end of the stream, and return the result.

    If the awaiting task is cancelled, upstream is cancelled.
    """
    iteration = Iteration(publisher, ARRAYS_PREFETCH)
    try:
        while burst := await iteration.next_burst():
            collector.add_all(burst)
    finally:
        await iteration.aclose()
    return collector.result()
