"""Pipelines: publishers that are made from the description of a source and its operators."""

from __future__ import annotations

from typing import Any, Final, Generic, Self, TypeVar

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.errors import check_subscriber
from rstreams_fast.streams.engine.assembly import Part, PublisherSource, Source, Stage, assemble
from rstreams_fast.streams.engine.boundary import StagesSource
from rstreams_fast.streams.engine.pull import PullSegment
from rstreams_fast.streams.engine.pull_source import PullSource
from rstreams_fast.streams.engine.stages import Stages, has_seed

__all__ = ["Pipeline", "as_pipeline", "sequence_of"]

T_co = TypeVar("T_co", covariant=True)

#: ``_Parts`` is a linked list that begins with the last part of a stream. So the parts need not be
#: copied when an operator is added to a stream.
_Parts = tuple[()] | tuple["_Parts", Part]
_NO_STAGES: Final = Stages()


class Pipeline(Generic[T_co]):
    """A publisher of the elements of ``source``, passed through ``parts`` (stages and boundaries).

    A stage is a function for each element, as in ``map``. A boundary is an operator that is not a
    stage, such as ``publish_on``. A pipeline is immutable.
    """

    __slots__ = ("_assembled", "_parts", "source")

    def __init__(self, source: Source, parts: tuple[Part, ...] = ()) -> None:
        self.source = source
        self._parts: _Parts = ()
        for part in parts:
            self._parts = (self._parts, part)
        self._assembled: Publisher[Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, self.parts)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The operators, in the order in which elements pass them."""
        parts: list[Part] = []
        left = self._parts
        while left:
            left, part = left
            parts.append(part)
        return tuple(reversed(parts))

    def with_part(self, part: Part) -> Self:
        """Return a new pipeline with ``part`` added at the end. The other parts are not copied."""
        longer = type(self)(self.source)
        longer._parts = (self._parts, part)
        return longer

    def with_stage(self, *op: Any) -> Self:
        """Return a new pipeline with the stage ``op`` (name, argument, initial value) added."""
        return self.with_part(Stage(op))

    def subscribe(self, subscriber: Subscriber[T_co], /) -> None:
        """Start to signal ``subscriber``. The first signal is ``on_subscribe`` (§1.9).

        All failures except the ``TypeError`` below are signalled by ``on_error``, after
        ``on_subscribe``.

        Args:
            subscriber: Any object with the four methods of ``Subscriber``.

        Raises:
            TypeError: ``subscriber`` is ``None``, a class, or lacks one of the four methods.
        """
        check_subscriber(subscriber)
        publisher = self._assembled
        if publisher is None:
            self._assembled = publisher = assemble(self.source, self.parts)[0]
        publisher.subscribe(subscriber)

    def publisher_itself(self) -> Publisher[Any] | None:
        """Return the publisher that is the source, if the pipeline adds nothing to this publisher.

        Otherwise return ``None``: the source is iterated, the pipeline has operators, or it adds a
        guard, because the publisher may break the rules of Reactive Streams.
        """
        source = self.source
        if self._parts or not isinstance(source, PublisherSource) or not source.trusted:
            return None
        return source.publisher


def sequence_of(publisher: Publisher[Any]) -> tuple[PullSource, Stages] | None:
    """Return the source and the stages of ``publisher``, so that the caller iterates the source.

    Stages are operators, such as ``map``, that can be fused into one loop. Return ``None`` if the
    source is not a sequence (such as a list), if an operator of ``publisher`` is not a stage or is
    ``scan`` with an initial value, or if the stages take no elements, as with ``take(0)``.
    """
    found = _sequence_of(publisher)
    return None if found is None or found[1].takes_nothing else found


def _sequence_of(publisher: Publisher[Any]) -> tuple[PullSource, Stages] | None:
    # Compare the method, not the class: a subclass of Pipeline may override ``subscribe``. The
    # caller must then call this ``subscribe``, and not iterate the source.
    if getattr(type(publisher), "subscribe", None) is not Pipeline.subscribe:
        return publisher.sequence() if isinstance(publisher, PullSegment) else None
    pipeline: Any = publisher
    source = pipeline.source
    if isinstance(source, PublisherSource):
        above = source.publisher
        source = above.whole() if isinstance(above, StagesSource) else None
    if source is None or not source.is_sequence:
        return None
    if not pipeline._parts:
        return source, _NO_STAGES
    stages = []
    for part in pipeline.parts:
        if not isinstance(part, Stage) or has_seed(part.op):
            return None
        stages.append(part.op)
    return source, Stages(tuple(stages))


def as_pipeline(publisher: Publisher[Any]) -> Pipeline[Any]:
    """Return a pipeline that keeps the Reactive Streams rules, even if ``publisher`` breaks rules.

    If ``publisher`` is a pipeline, return ``publisher``.
    """
    if isinstance(publisher, Pipeline):
        return publisher
    name = f"from_publisher({type(publisher).__name__})"
    return Pipeline(PublisherSource(publisher, name, trusted=False))
