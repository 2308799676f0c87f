"""``concat``: publishers one after another, each subscribed to when its predecessor completes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.streams.engine.arbiter import Chain, SubscriptionArbiter
from rstreams_fast.streams.engine.assembly import Foreign
from rstreams_fast.streams.engine.pipeline import Pipeline
from rstreams_fast.streams.operators.merge import check_publishers

__all__ = ["concat_source"]


def concat_source(publishers: tuple[Publisher[Any], ...]) -> Foreign:
    """Return the source of ``rstreams_fast.concat``, after a check of its arguments.

    ``publishers`` is not empty.
    """
    check_publishers("concat", publishers)
    concatenated = _Concat(tuple(_flat(publishers)))
    return Foreign(
        concatenated, concatenated.describe(), trusted=True, inside=concatenated.publishers
    )


def _flat(publishers: Iterable[Publisher[Any]]) -> Iterator[Publisher[Any]]:
    """Yield ``publishers``, but in place of a concatenation the publishers within it.

    So calls do not nest in a long chain of ``stream.concat(other)``.
    """
    for publisher in publishers:
        inside = publisher.publisher_itself() if isinstance(publisher, Pipeline) else None
        if isinstance(inside, _Concat):
            yield from inside.publishers
        else:
            yield publisher


class _Concat(Chain):
    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        SubscriptionArbiter(subscriber, self).start()

    def describe(self) -> str:
        return f"concat of {len(self.publishers)} publishers: holds no elements"
