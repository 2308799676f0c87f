"""Several publishers above, one subscriber below: what ``merge``, ``flat_map`` and ``zip_`` share.

There are two kinds of work, each done by one thread at a time:

* *downward*, the drain: signalling the subscriber;
* *upward*: calling the user's function, subscribing to publishers, asking them for elements.

Who is called upward may answer before the call returns. So no such call is made within the drain,
and whatever an answer calls for upward waits until the call before has returned: nothing nests,
however many synchronous publishers there are (§3.3), and the elements of a slow one come out as
they come in. What is to be asked for is noted in the drain; whoever leaves it, or comes while it is
held, does the asking.

Elements that cannot be delivered at once are mailed to the drain, which sorts them by link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from rstreams_fast.api import Subscriber
from rstreams_fast.core import DemandCounter
from rstreams_fast.errors import report_dropped
from rstreams_fast.streams.drain import Drain
from rstreams_fast.streams.figures import BoundaryFigures, Waits
from rstreams_fast.streams.link import Link
from rstreams_fast.streams.tuning import replenish_at

__all__ = ["Ended", "Junction", "QueueLink"]


class Ended:
    """The last letter of a link."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class QueueLink(Link):
    """A link and what has come by it. All of this is for the holder of the drain."""

    __slots__ = ("consumed", "done", "queue")

    def __init__(self, owner: Junction) -> None:
        super().__init__(owner)
        self.queue: deque[Any] | None = None  # made by the first element that has to wait
        self.consumed = 0  # elements delivered for which others have not been asked yet
        self.done = False  # nothing more will come

    def put(self, element: Any) -> None:
        """Keep an element; its place was reserved when it was asked for."""
        if self.queue is None:
            self.queue = deque()
        self.queue.append(element)

    def forget(self) -> None:
        """Let go of the owner, and of what has come."""
        super().forget()
        self.queue = None


class Junction(Drain):
    """A subscription below several publishers. Subclasses fill in ``_step``, for the drain, and
    ``_upward``.
    """

    __slots__ = (
        "_asks",
        "_begun",
        "_links",
        "_mail",
        "_max_held",
        "_name",
        "_on_next",
        "_prefetch",
        "_replenish_at",
        "_up",
        "_waits",
    )

    _asked_from_below = False

    def __init__(
        self, subscriber: Subscriber[Any], prefetch: int, name: str, max_held: int
    ) -> None:
        super().__init__(subscriber, None)
        self._on_next: Callable[[Any], object] | None = subscriber.on_next
        self._prefetch = prefetch
        self._replenish_at = replenish_at(prefetch)
        self._name = name
        self._max_held = max_held
        self._waits: Waits | None = None  # two looks at a clock cost half as much as an element
        self._links: set[QueueLink] = set()  # those that must be cancelled when the stream ends
        self._mail: deque[tuple[Any, Any]] = deque()  # (link, element or Ended)
        self._asks: deque[tuple[Link, int]] = deque()
        self._begun = False  # nobody is asked before the subscriber has asked
        self._up = DemandCounter(1)  # WIP of upward work: held until on_subscribe has returned

    def start(self) -> None:
        """Introduce ourselves, and begin with the upward work."""
        if self._introduce():
            self._go()
            self._go_up()

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more elements (§3.8)."""
        super().request(n)
        if not self._begun and self._demand.value > 0:
            self._begun = True
            self._call_up()

    def figures(self) -> tuple[BoundaryFigures, ...]:
        """What is held here and waited for, then the boundaries above, link by link.

        Waiting is counted from the first look on.
        """
        waits = self._waits
        if waits is None:
            self._waits = waits = Waits()
        links = self._links.copy()
        mine = waits.figures(
            self._demand,
            name=self._name,
            held=sum(type(what) is not Ended for _, what in self._mail.copy())
            + sum(len(link.queue or ()) for link in links),
            max_held=self._max_held,
        )
        return (mine, *(figures for link in links for figures in link.figures()))

    # -- upward ----------------------------------------------------------------------------------

    def _upward(self) -> bool:
        """Make one call upward; false if there is none to be made."""
        asks = self._asks  # replaced, not emptied, by who lets go
        if asks and self._begun:
            link, n = asks.popleft()
            link.ask(n)
            return True
        return False

    def _to_ask(self) -> bool:
        """Whether the drain has left something to be asked for."""
        return bool(self._asks)

    def _call_up(self) -> None:
        """Have the upward work done. Not within the drain."""
        if self._up.request(1) == 0:
            self._go_up()

    def _go_up(self) -> None:
        up = self._up
        try:
            while True:
                missed = up.value
                while self._demand.value >= 0 and self._upward():
                    pass
                if up.fulfil(missed) == 0:
                    return
        except BaseException as leaving:
            # KeyboardInterrupt and its like pass through, perhaps to a publisher above, so the
            # subscriber is told as well.
            if self._demand.value >= 0:
                self._fail(leaving)
            raise

    def _add(self, link: QueueLink) -> bool:
        """Have ``link`` cancelled when the stream ends; false if it has ended already."""
        self._links.add(link)
        if self._demand.value >= 0:
            return True
        self._links.discard(link)  # who ended it may have looked before
        return False

    # -- from links, any thread ------------------------------------------------------------------

    def _link_attached(self, link: QueueLink, /) -> None:
        self._asks.append((link, self._prefetch))
        self._call_up()

    def _link_next(self, link: QueueLink, element: Any, /) -> None:
        self._mail.append((link, element))
        self._enter()
        if self._to_ask():  # who holds the drain may be busy for long
            self._call_up()

    def _link_ended(self, link: QueueLink, error: BaseException | None, /) -> None:
        if error is not None and not self._delays(error):
            self._fail(error)  # at once: it overtakes what waits for demand
        else:
            self._mail.append((link, Ended(error)))
            self._enter()

    def _delays(self, error: BaseException) -> bool:  # noqa: ARG002
        """Whether the error of a link comes after all elements."""
        return False

    # -- the drain -------------------------------------------------------------------------------

    def _drain(self) -> None:
        super()._drain()
        if self._to_ask():
            self._call_up()

    def _work(self) -> bool:
        waits = self._waits
        if waits is None:
            return self._step()
        waits.end()
        more = self._step()
        if not more:
            waits.begin(for_demand=self._demand.value == 0)
        return more

    def _step(self) -> bool:
        """Do some work; true if there is more to do at once."""
        raise NotImplementedError

    def _deliver(self, element: Any) -> None:
        on_next = self._on_next
        if on_next is None:
            return
        try:
            on_next(element)
        except RecursionError:
            raise
        except Exception as raised:
            self.cancel()
            report_dropped(raised, "§2.13: on_next raised")
        finally:
            del on_next, element  # a traceback keeps this frame (§3.13)
        self._demand.fulfil(1)

    def _settle(self) -> bool:
        self._mail.clear()  # what was on its way when the stream ended is kept nowhere
        return super()._settle()

    def _stop(self) -> None:
        for link in self._links.copy():
            link.cancel()

    def _let_go(self) -> None:
        self._on_next = None
        self._mail = deque()
        self._asks = deque()
        for link in self._links.copy():
            link.cancel()  # who ends this may not have come to it yet
            link.forget()
        self._links.clear()
