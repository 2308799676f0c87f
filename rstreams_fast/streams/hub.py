"""One bounded buffer between an upstream and any number of subscribers, each with a cursor.

The buffer is a chain: a node for each element, then an empty one, the tail. Upstream fills the
tail and hangs a new one behind it; a cursor is the node that a subscriber takes next. So nobody
locks to read, all see the same sequence, and an element is gone when the last cursor has passed it:
the chain is held by cursors only, except for its *head*, which the hub holds while there is no
subscriber, or for those who come late (replay).

Each subscriber has a drain of its own, entered by whoever brings it news: upstream with an element,
the subscriber with a request. A lock guards the books (who is subscribed, what was asked, where the
tail is); it is taken once for an element, not once for a subscriber, and never while anybody else's
code runs. Elements, which may have finalizers, are let go of outside of it.

How much is asked of upstream: what the greediest subscriber asked for, as far as the buffer has
room. A subscriber *lags* by the elements that are kept for it alone, and the room is what
``buffer_size`` leaves beyond the lag of the slowest, which *gates* so. With ``slow="drop"`` the
fastest sets the pace, and whoever lags by more than ``buffer_size`` is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, get_args

from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber, Subscription
from rstreams_fast.core import DemandCounter
from rstreams_fast.core._common import check_bool, check_capacity
from rstreams_fast.errors import (
    AlreadySubscribed,
    BufferOverflow,
    DemandExceeded,
    NoneSignal,
    ShutDown,
    report_dropped,
    shown,
)
from rstreams_fast.streams.books import Books
from rstreams_fast.streams.drain import (
    Drain,
    Live,
    Upstream,
    check_subscriber,
    refuse,
)
from rstreams_fast.streams.figures import BoundaryFigures, Waits
from rstreams_fast.streams.registry import Entry, Registry
from rstreams_fast.streams.tuning import replenish_at

__all__ = ["Hub", "HubOptions", "HubSubscription", "Node", "Retention", "check_choice"]

T = TypeVar("T")

Slow = Literal["gate", "drop"]


class Node:
    """A place in the chain: an element and what follows it, or, at the tail, neither yet."""

    __slots__ = ("element", "next", "note", "seq")

    element: Any
    note: Any

    def __init__(self, seq: int) -> None:
        self.seq = seq  # how many came before it
        self.next: Node | None = None  # set last: whoever sees it may take the element


class Retention(Protocol):
    """What is kept for those who come late."""

    def note(self, element: Any) -> Any:
        """Weigh and date ``element``; called without the lock, as it may run user code."""
        ...

    def now(self) -> float:
        """Return the time; called without the lock, too."""
        ...

    def keep(self, head: Node, node: Node, note: Any) -> Node:
        """Take ``node``, the newest, into account; return the first that is still kept."""
        ...

    def evict(self, head: Node, now: float) -> Node:
        """Return the first node that is still kept at the time ``now``."""
        ...

    @property
    def held_bytes(self) -> int | None:
        """The weight of what is kept."""
        ...

    @property
    def max_kept(self) -> int:
        """The bound on how many elements are kept; ``UNBOUNDED`` if it is a matter of weight or
        time.
        """
        ...


def check_choice(name: str, value: object, choices: Any) -> None:
    """Refuse what is none of the words of a ``Literal``."""
    words = get_args(choices)
    if value not in words:
        raise ValueError(f"{name} must be {' or '.join(map(repr, words))}, got {shown(value)}")


class HubOptions:
    """The arguments that every hub takes, checked."""

    def __init__(self, buffer_size: int, slow: str, delay_error: bool) -> None:
        self.buffer_size = check_capacity("buffer_size", buffer_size)
        check_choice("slow", slow, Slow)
        self.slow = slow
        self.delay_error = check_bool("delay_error", delay_error)

    def describe(self) -> str:
        """Say what may be held, and what becomes of who is slow."""
        slow = "the slowest gates" if self.slow == "gate" else "who lags by more is dropped"
        late = ", errors after elements" if self.delay_error else ""
        return f"at most {self.buffer_size} elements, {slow}{late}"


class _Source(Upstream):
    """A hub may be forgotten by everybody before its source is over, which is then cancelled."""

    __slots__ = ()

    def __del__(self) -> None:
        self.cancel()


class Hub(Live, Generic[T]):
    """A subscriber to one upstream and a publisher of the same elements to many.

    It trusts nobody: upstream may signal from several threads at once, nest, overfeed, go on after
    its end or never begin.
    """

    __slots__ = (
        "_asked",
        "_asking",
        "_books",
        "_connected",
        "_floor",
        "_gates",
        "_gating",
        "_head",
        "_keeps",
        "_name",
        "_options",
        "_registry",
        "_replenish_at",
        "_retention",
        "_snapshot",
        "_subscribed",
        "_tail",
        "_upstream",
        "ask_at",
        "ended",
        "error",
    )

    def __init__(
        self,
        options: HubOptions,
        *,
        name: str,
        keeps: bool,
        retention: Retention | None = None,
        registry: Registry[HubSubscription] | None = None,
        connected: bool = True,
    ) -> None:
        self._options = options
        self._name = name
        self._gates = options.slow == "gate"
        self._keeps = keeps  # whether it outlives its last subscriber
        self._connected = connected  # whether somebody has subscribed it, or is left to
        self._retention = retention
        self._registry: Registry[HubSubscription] = Registry() if registry is None else registry
        self._upstream = _Source()
        self._books = Books()
        self._subscribed: dict[HubSubscription, None] = {}
        self._snapshot: tuple[HubSubscription, ...] | None = ()
        self._tail = Node(0)
        self._head: Node | None = self._tail
        self._floor = 0  # no cursor is before it
        self._asked = 0  # upstream was asked for the elements before this one
        # WIP of asking, held until upstream has given us a subscription.
        self._asking = DemandCounter(1)
        self._replenish_at = replenish_at(options.buffer_size)
        self.ask_at = UNBOUNDED  # a cursor that is there makes asking worth another look
        # How many were not there at the last look, less those that have left since: when none is
        # left, that makes it worth one, too. Who came since only makes that come too early.
        self._gating = 0
        self.error: BaseException | None = None  # set before ``ended``
        self.ended = False  # nothing is added any more

    # -- the publisher's side --------------------------------------------------------------------

    def subscribe(self, subscriber: Subscriber[T], /) -> None:
        """Signal ``subscriber`` from the oldest element still available on (§1.9, §1.11)."""
        check_subscriber(subscriber)
        if not self.put_off(self.subscribe, subscriber):
            self.admit(subscriber)

    def put_off(self, call: Callable[..., object], *args: Any) -> bool:
        """Whether this thread is in the middle of an entry; then ``call(*args)`` comes after it."""
        return self._books.put_off(call, *args)

    def admit(self, subscriber: Subscriber[T], *, unless_ended: bool = False) -> bool:
        """Subscribe; or return false, if that is wanted, where the end is all there is to tell."""
        subscription = HubSubscription(self, subscriber)
        same = self._registry.claim(subscriber, subscription)
        if same is not None and same.subscription.is_cancelled:
            # The thread that cancelled it has not come to forget it yet, and would leave whoever is
            # subscribed again by another one without any signal.
            self._registry.release(same.subscription.identity, same.subscription)
            same = self._registry.claim(subscriber, subscription)
        if same is not None:
            self._reject(subscriber, same)
            return True
        retention = self._retention
        try:
            now = retention.now() if retention is not None else 0.0
        except BaseException as raised:  # §1.9
            self._registry.release(subscription.identity, subscription)
            if _leaves(raised):
                raise
            refuse(subscriber, raised)
            return True
        head = self._head  # until the lock is let go of
        entered = self._books.enter(self._take_in, subscription, now, unless_ended)
        del head
        if entered:
            subscription.introduce()
        else:
            self._registry.release(subscription.identity, subscription)
        self._books.catch_up()
        return entered

    def _take_in(self, subscription: HubSubscription, now: float, unless_ended: bool) -> bool:
        """Give the subscription its place. With the lock."""
        if unless_ended and self.ended:
            return False
        start = self._oldest(now)
        if self._retention is None:  # what is beyond the buffer is held by those to be dropped
            start = self._trimmed(start, self._tail.seq - self._options.buffer_size)
        subscription.begin_at(start)
        self._floor = min(self._floor, start.seq)
        self._subscribed[subscription] = None
        self._snapshot = None
        if self._retention is None:
            self._head = None  # from now on cursors alone hold the chain
        return True

    def _reject(self, subscriber: Subscriber[T], same: Entry[HubSubscription]) -> None:
        error = AlreadySubscribed(
            "§1.10: this subscriber is subscribed already; subscribe another one, or cancel first"
        )
        if same.subscriber is subscriber:
            # It has had its on_subscribe, which must not come twice (§2.12), so it can only be told
            # by the end of the subscription it has.
            same.subscription.end_with(error)
        else:
            refuse(subscriber, error)

    def _oldest(self, now: float) -> Node:
        """The oldest element still available. With the lock."""
        if self._retention is not None and self._head is not None:
            self._head = self._retention.evict(self._head, now)
        if self._head is not None:
            return self._head
        oldest = self._tail
        for one in self._subscribed:
            if oldest.seq <= self._floor:  # no need to look at thousands
                return oldest
            cursor = one.cursor
            if cursor is not None and cursor.seq < oldest.seq:
                oldest = cursor
        self._floor = oldest.seq
        return oldest

    def connect(self, upstream: Publisher[T], min_subscribers: int) -> None:
        """Subscribe to ``upstream``, once, when there are so many subscribers."""
        if self._books.enter(self._may_connect, min_subscribers):
            try:
                upstream.subscribe(self)
            except BaseException as raised:  # §1.9; what leaves was told to nobody else
                self._end(raised, at_once=True, cancel=True)
                if _leaves(raised):
                    raise
        self._books.catch_up()

    def _may_connect(self, min_subscribers: int) -> bool:
        """Whether it is time to, for the one who asks first. With the lock."""
        if self._connected or self.ended or len(self._subscribed) < min_subscribers:
            return False
        self._connected = True
        return True

    def leave(self, subscription: HubSubscription) -> None:
        """Forget a subscription that has ended, in whatever way; any number of times."""
        if self._books.put_off(self.leave, subscription):
            return
        cursor, head = subscription.cursor, self._head  # until the lock is let go of
        forgotten = self._books.enter(self._forget, subscription)
        del cursor, head
        if forgotten is not None:
            self._registry.release(subscription.identity, subscription)
            shut, gated = forgotten
            if shut:
                self._upstream.cancel()
            elif gated and not self.ended:
                self.ask()
        self._books.catch_up()

    def _forget(self, subscription: HubSubscription) -> tuple[bool, bool] | None:
        """Whether that is the hub's end, and whether it may have been the last that gated; ``None``
        if it was forgotten before. With the lock.
        """
        cursor, subscription.cursor = subscription.cursor, None
        if subscription not in self._subscribed:
            return None
        del self._subscribed[subscription]
        self._snapshot = None
        if cursor is not None and cursor.seq <= self.ask_at:  # it may have just come there
            self._gating -= 1
        return not self._subscribed and self._on_last(cursor), self._gating <= 0

    def _on_last(self, cursor: Node | None) -> bool:
        """Whether the last subscription's end is the hub's. With the lock."""
        keeps = self._keeps or not self._connected
        if self._retention is None:
            overtaken = self.error is not None and not self._options.delay_error
            rest = self._tail if cursor is None or overtaken or not keeps else cursor
            self._head = self._trimmed(rest, self._tail.seq - self._options.buffer_size)
        if keeps or self.ended:
            return False
        self._head = self._tail
        self.error = ShutDown("§3.14: the publisher shut down when its last subscriber cancelled")
        self.ended = True
        return True

    # -- the subscriber's side -------------------------------------------------------------------

    def on_subscribe(self, subscription: Subscription, /) -> None:
        """Take the first subscription, cancel any other (§2.5); ask it for what was asked of us."""
        if self._upstream.attach(subscription):
            self._ask_now()

    def on_next(self, element: T, /) -> None:
        """Hand ``element`` to all subscribers.

        One that nobody asked for is buffered, if there is room. After the end: no effect (§2.8).
        """
        if element is None:
            self._break_off(NoneSignal("§2.13: the publisher signalled on_next(None)"))
        if self.ended:
            self._upstream.unwanted()
            return
        if self._books.put_off(self.on_next, element):
            return
        note = None
        if self._retention is not None:
            try:
                note = self._retention.note(element)
            except Exception as raised:
                self._end(raised, at_once=True, cancel=True)
                return
        head = self._head  # until the lock is let go of
        dropped = self._books.enter(self._append, element, note)
        del head
        if dropped is None:
            self._end(
                DemandExceeded(
                    "§1.1: more elements came than had been asked for, and the buffer of "
                    f"{self._options.buffer_size} is full"
                ),
                at_once=True,
                cancel=True,
            )
            return
        for slow in dropped:
            slow.end_with(
                BufferOverflow(
                    f"the subscriber was dropped: it lagged by more than buffer_size="
                    f"{self._options.buffer_size} elements"
                )
            )
        self._spread()
        self._books.catch_up()

    def _append(self, element: T, note: Any) -> list[HubSubscription] | None:
        """Add to the chain. Return who must be dropped; ``None`` if it must all end. With the
        lock.
        """
        if self.ended:
            return []
        node = self._tail
        node.element = element
        self._tail = tail = Node(node.seq + 1)
        requested = node.seq < self._asked
        node.next = tail
        if self._retention is None:
            kept = tail.seq
        else:
            head = self._head if self._head is not None else node
            self._head = head = self._retention.keep(head, node, note)
            kept = head.seq
        if (requested and self._gates) or kept - self._floor <= self._options.buffer_size:
            return []
        return self._make_room(kept - self._options.buffer_size)

    def _make_room(self, floor: int) -> list[HubSubscription] | None:
        """See to it that no cursor is before ``floor``. With the lock."""
        if not self._subscribed:
            head = self._head
            if head is not None and head.seq < floor:
                if self._gates:
                    return None
                self._head = self._trimmed(head, floor)  # nobody is there to miss them
            self._floor = floor
            return []
        cursors = {one: one.cursor for one in self._subscribed}
        seqs = [node.seq for node in cursors.values() if node is not None]
        self._floor = min(seqs, default=self._tail.seq)
        if self._floor >= floor:
            return []
        if self._gates:
            return None
        return [one for one, node in cursors.items() if node is not None and node.seq < floor]

    @staticmethod
    def _trimmed(head: Node, floor: int) -> Node:
        """The first node of the chain that is not before ``floor``."""
        while head.seq < floor and head.next is not None:
            head = head.next
        return head

    def on_error(self, error: BaseException, /) -> None:
        """Pass ``error`` on, at once unless ``delay_error`` (§4.2)."""
        if not isinstance(error, BaseException):
            self._break_off(
                NoneSignal(
                    "§2.13: on_error needs an exception instance, the publisher signalled "
                    f"on_error({error!r})"
                )
            )
        if self._upstream_ended() and not self.ended:
            self._end(error, at_once=not self._options.delay_error)
        else:
            report_dropped(error, "an error after the end of the stream")

    def on_complete(self) -> None:
        """Complete each subscriber when it has had what is in the buffer."""
        if self._upstream_ended():
            self._end(None, at_once=False)

    def _upstream_ended(self) -> bool:
        first = self._upstream.ended()
        self._upstream.never_attached()  # one that comes now is cancelled
        return first

    def _break_off(self, error: NoneSignal) -> None:
        """Upstream broke §2.13: tell it, and everybody else."""
        self._end(error, at_once=True, cancel=True)
        raise error

    def _end(self, error: BaseException | None, *, at_once: bool, cancel: bool = False) -> None:
        """Add nothing any more; subscribers learn of it after what they have not had, or now."""
        if self._books.put_off(lambda: self._end(error, at_once=at_once, cancel=cancel)):
            return
        head = self._head  # until the lock is let go of
        everybody = self._books.enter(self._note_end, error, at_once)
        del head
        if everybody is not None:
            if cancel:
                self._upstream.cancel()
            if error is not None and at_once:
                self._tell(everybody, lambda one: one.end_with(error))
            else:
                self._tell(everybody, _enter)
        self._books.catch_up()

    def _note_end(
        self, error: BaseException | None, at_once: bool
    ) -> tuple[HubSubscription, ...] | None:
        """Return who is to be told; ``None`` if it had ended before. With the lock."""
        if self.ended:
            return None
        self.error = error
        self.ended = True
        if at_once and self._retention is None and self._head is not None:
            self._head = self._tail
        return self._everybody()

    def _everybody(self) -> tuple[HubSubscription, ...]:
        """All subscriptions, to call them without the lock. With the lock."""
        if self._snapshot is None:
            self._snapshot = tuple(self._subscribed)
        return self._snapshot

    def _spread(self) -> None:
        """Wake those who wait for an element; look once, afterwards, at what it is to be asked."""
        asking = self._asking
        mine = asking.request(1) == 0
        everybody = self._snapshot
        if everybody is None:
            everybody = self._books.enter(self._everybody)
        self._tell(everybody, _wake)
        if not mine:
            return
        if asking.value > 1 or asking.fulfil(1) > 0:
            self._ask_now()  # somebody has looked in vain meanwhile

    def _tell(
        self,
        everybody: tuple[HubSubscription, ...],
        tell: Callable[[HubSubscription], object],
    ) -> None:
        """Call ``tell`` with each; KeyboardInterrupt and its like end the hub and leave."""
        left: BaseException | None = None
        for one in everybody:
            try:
                tell(one)
            except BaseException as leaving:
                left = leaving
                if not self.ended:
                    self._end(leaving, at_once=True, cancel=True)
                    break
        if left is not None:
            try:
                raise left
            finally:
                del left

    # -- asking upstream -------------------------------------------------------------------------

    def ask(self) -> None:
        """Look at what there is to be asked of upstream: any thread, one at a time (§2.7)."""
        if not self._books.put_off(self.ask) and self._asking.request(1) == 0:
            self._ask_now()

    def _ask_now(self) -> None:
        asking = self._asking
        while True:
            missed = asking.value
            n = self._books.enter(self._to_be_asked)
            if n > 0:
                try:
                    self._upstream.request(n)
                except BaseException as raised:  # §3.16; what leaves was told to nobody else
                    self._end(raised, at_once=True, cancel=True)
                    if _leaves(raised):
                        raise
            if asking.fulfil(missed) == 0:
                break
        self._books.catch_up()

    def _to_be_asked(self) -> int:
        """How much, which is noted as asked. With the lock."""
        end = self._tail.seq
        asked = max(self._asked, end)  # some may have come without having been asked for
        wanted = asked
        front = 0  # where the foremost is of those who want more
        pace: int | None = None  # where the one is that sets the pace
        places: list[int] = []
        for one in self._subscribed:
            limit, cursor = one.limit, one.cursor
            if limit >= 0 and cursor is not None:
                places.append(cursor.seq)
                if pace is None or (cursor.seq < pace) == self._gates:
                    pace = cursor.seq
                if limit > asked:
                    wanted = max(wanted, limit)
                    front = max(front, cursor.seq)
        self._asked = asked
        if pace is None or wanted == asked or self.ended:
            self.ask_at = UNBOUNDED
            self._gating = len(places)
            return 0
        kept = end if self._retention is None or self._head is None else self._head.seq
        room = end + self._options.buffer_size - max(0, kept - pace) - asked
        n = max(0, min(wanted - asked, room))
        if n < self._replenish_at and n < wanted - asked and front < asked:
            n = 0  # not in driblets, while the foremost has something to do
        asked += n
        if wanted == asked:
            ask_at = UNBOUNDED
        elif front < asked:  # as soon as there is room for a portion; never later than asked
            ask_at = pace + self._replenish_at - (room - n)
        else:  # as soon as there is any room
            ask_at = pace + 1 - room
        if ask_at < self.ask_at:
            self._asking.request(1)  # who has just passed it saw the old one: look again
        self.ask_at = ask_at
        self._gating = sum(place < ask_at for place in places)
        self._asked = asked
        return n

    # -- for subscriptions -----------------------------------------------------------------------

    @property
    def asked(self) -> int:
        """Up to which element upstream was asked. Only grows."""
        return self._asked

    def figures_for(
        self, demand: int, waited_for_upstream: float, waited_for_demand: float
    ) -> tuple[BoundaryFigures, ...]:
        """What the hub holds, seen from one subscription, then the boundaries above."""
        held = self._books.enter(self._held)
        self._books.catch_up()
        max_held, held_bytes = self._options.buffer_size, None
        if self._retention is not None:
            max_held = min(max_held + self._retention.max_kept, UNBOUNDED)
            held_bytes = self._retention.held_bytes
        mine = BoundaryFigures(
            name=self._name,
            held=held,
            max_held=max_held,
            held_bytes=held_bytes,
            demand=demand,
            waited_for_upstream=waited_for_upstream,
            waited_for_demand=waited_for_demand,
        )
        return (mine, *self._upstream.figures())

    def _held(self) -> int:
        """How many elements there are. With the lock."""
        nodes = [one.cursor for one in self._subscribed] + [self._head]
        end = self._tail.seq
        return end - min((node.seq for node in nodes if node is not None), default=end)


def _leaves(raised: BaseException) -> bool:
    """Whether it goes on to whoever called, as ``KeyboardInterrupt`` does."""
    return isinstance(raised, RecursionError) or not isinstance(raised, Exception)


class HubSubscription(Drain):
    """A subscriber's cursor in the chain. Its demand is never taken off: it is the sum of all
    requests, so that where the subscriber may go to is known exactly at any moment.
    """

    __slots__ = (
        "_hub",
        "_on_next",
        "_start",
        "_waits",
        "cursor",
        "identity",
    )

    _asked_from_below = False

    def __init__(self, hub: Hub[Any], subscriber: Subscriber[Any]) -> None:
        super().__init__(subscriber, None)
        self._hub: Hub[Any] | None = hub
        self._on_next: Callable[[Any], object] | None = subscriber.on_next
        self.identity = id(subscriber)
        self.cursor: Node | None = None
        self._start = 0
        self._waits = Waits()

    def begin_at(self, node: Node) -> None:
        """Start with the element of ``node``."""
        self.cursor = node
        self._start = node.seq

    def introduce(self) -> None:
        """Signal ``on_subscribe``, then whatever there is."""
        if self._introduce():
            self._go()

    @property
    def limit(self) -> int:
        """How far the subscriber has asked; negative when it is over."""
        total = self._demand.value
        return self._start + total if total >= 0 else total

    @property
    def is_cancelled(self) -> bool:
        """Whether the subscriber has cancelled, and so hears nothing more."""
        return self._demand.cancelled

    # -- the subscription's face -----------------------------------------------------------------

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more elements (§3.8), and upstream for what is not in the buffer."""
        try:
            before = self._demand.request(n)
        except Exception as refused:
            self._bad_request(refused)
            return
        if before < 0:
            return
        hub = self._hub
        if hub is not None and self.limit > hub.asked:
            hub.ask()
        self._enter()

    def figures(self) -> tuple[BoundaryFigures, ...]:
        """What the hub holds, and what this subscription waits for; then the boundaries above."""
        hub, cursor = self._hub, self.cursor
        if hub is None or cursor is None:
            return ()
        demand = min(max(0, self.limit - cursor.seq), UNBOUNDED)
        return hub.figures_for(demand, *self._waits.seconds(going_on=True))

    # -- news ------------------------------------------------------------------------------------

    def wake(self) -> None:
        """See the element that came, if the subscriber has asked for it."""
        # Once for each element and subscriber, so the shortest way: what ``_enter`` comes to here.
        # A demand that is over is negative.
        cursor = self.cursor
        if (
            cursor is not None
            and self._start + self._demand.value > cursor.seq
            and self._wip.request(1) == 0
        ):
            self._drain()

    def wake_for_the_end(self) -> None:
        """See that nothing more will come."""
        self._enter()

    def end_with(self, error: BaseException) -> None:
        """End with ``error``, overtaking the buffer, unless it is over."""
        if self._demand.terminate():
            self._stop()
            self._failure = error
            self._enter()

    # -- the drain -------------------------------------------------------------------------------

    def _work(self) -> bool:
        hub, on_next = self._hub, self._on_next
        if hub is None or on_next is None or self._demand.value < 0:
            return self._settle()
        self._waits.end()
        ended = hub.ended  # read before the chain: then an empty one is the end
        try:
            caught_up = self._deliver(on_next, hub)
        except RecursionError:
            raise
        except Exception as raised:
            self._give_up(raised)
            return False
        if self._demand.value < 0:
            return self._settle()
        if caught_up and ended:
            return self._finish(hub.error)
        cursor = self.cursor
        self._waits.begin(for_demand=cursor is None or cursor.seq >= self.limit)
        return False

    def _deliver(self, on_next: Callable[[Any], object], hub: Hub[Any]) -> bool:
        """Go on to the end of the chain, which is true, or of the demand."""
        demand, start, limit = self._demand, self._start, self.limit
        while True:
            node = self.cursor
            if node is None:
                return False
            following = node.next
            if following is None:
                return True
            if node.seq >= limit:
                limit = self.limit
                if node.seq >= limit:
                    return False
            element, place = node.element, following.seq
            self.cursor = following
            # No name may hold the chain while the subscriber works: if it was dropped, all that
            # came later would hang there.
            del node, following
            total = demand.value
            if total < 0:
                self._stop()  # who ended it did so perhaps before the cursor was moved
                return False
            limit = start + total
            on_next(element)
            if place >= hub.ask_at:
                hub.ask()  # what upstream answers before that returns is next here

    def _finish(self, error: BaseException | None) -> bool:
        if error is not None:
            self.end_with(error)
            return self._settle()
        return self._complete()

    def _stop(self) -> None:
        hub = self._hub
        if hub is not None:
            hub.leave(self)

    def _let_go(self) -> None:
        self._stop()
        self._hub = None
        self._on_next = None


_wake: Final = HubSubscription.wake
_enter: Final = HubSubscription.wake_for_the_end
