"""A run of stages below a publisher: what it signals is processed as it comes.

It trusts nobody. Upstream may signal from several threads at once, nest ``on_next`` in
``request``, send ``None`` or too much, go on after its end, or subscribe twice: downstream sees a
correct publisher.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from rstreams_fast.api import UNBOUNDED, Subscriber
from rstreams_fast.core import MISSING, DemandCounter, FusedRun, RunStatus, Wip
from rstreams_fast.errors import check_request
from rstreams_fast.streams.engine.operator_subscriber import OperatorSubscriber
from rstreams_fast.streams.engine.signals import check_error_signal
from rstreams_fast.streams.engine.stages import Stages

__all__ = ["PushSubscription", "Watch"]


class Watch(Protocol):
    """A part that a ``PushSubscription`` informs of requests and deliveries."""

    def around(self, on_next: Callable[[Any], object], /) -> Callable[[Any], object]:
        """Return the function that delivers an element by calling ``on_next``."""

    def asks(self, demand: int, /) -> None:
        """Notice that elements are about to be asked for, while ``demand`` others are expected."""

    def asked_first(self) -> None:
        """Notice that elements were asked for, while no other was expected."""

    def close(self) -> None:
        """Notice the end of the stream, and drop everything."""


class PushSubscription(OperatorSubscriber):
    """Between upstream and the subscriber. Two kinds of work, each done by one thread at a time:

    signalling downstream (the drain), and asking upstream (``_asking``), which must not hold
    the drain, because upstream may answer with ``on_next`` before ``request`` returns.
    """

    __slots__ = (
        "_asking",
        "_backlog",
        "_budget",
        "_counted",
        "_direct",
        "_ended",
        "_most",
        "_open",
        "_owed",
        "_pending",
        "_ratio",
        "_seed",
        "_unasked",
        "_unbounded",
        "_watch",
    )

    def __init__(
        self,
        subscriber: Subscriber[Any],
        program: Stages,
        watch: Callable[[PushSubscription], Watch] | None = None,
    ) -> None:
        super().__init__(subscriber, None)
        self._watch = None if watch is None else watch(self)
        on_next: Callable[[Any], object] = subscriber.on_next
        if self._watch is not None:
            on_next = self._watch.around(on_next)
        stages = program.stages if self.custody is None else self._stages(program.stages)
        run = FusedRun(None, stages, on_next, self._demand)
        self._run = run
        self._ratio = run.ratio
        self._seed = program.seed
        self._unasked = 0 if program.seed is MISSING else 1  # demand that the seed will meet
        self._budget = DemandCounter(program.budget())
        self._most = program.most()  # to be asked for, now and later, whatever is dropped
        self._counted: DemandCounter | None = DemandCounter() if program.drops else None
        self._owed = 0
        self._pending = DemandCounter()  # to be asked of upstream
        self._asking = Wip(held=True)  # held until on_subscribe has returned
        self._unbounded = False
        self._backlog: deque[Any] = deque()
        self._open = True  # whether on_next counts
        self._ended = program.takes_nothing
        # Whether an element need not wait for a turn of the drain's: for earlier elements.
        self._direct = program.seed is MISSING and not program.takes_nothing

    # -- the subscription's face -----------------------------------------------------------------

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more elements, and upstream for what they take."""
        try:
            n = check_request(n)  # one look at it: __index__ may answer differently next time
        except Exception as refused:
            self._bad_request(refused)
            return
        watch = self._watch
        if watch is not None:
            watch.asks(self._demand.value)
        before = self._add_demand(n)
        if before < 0:
            return
        if before == 0 and watch is not None:
            watch.asked_first()
        if before == 0 and (self._completed or self._ended or self._seed is not MISSING):
            self._enter()  # what is held back waits for demand
        self._ask(min(n * self._ratio, UNBOUNDED))

    # -- signals from upstream -------------------------------------------------------------------

    def _begin(self) -> None:
        if self._introduce():
            self._go()
            self._ask_now()

    def on_next(self, element: Any, /) -> None:
        """Process an element; while somebody else does, leave it to them, in its order (§2.11)."""
        self._check_element(element)
        if not self._open:
            self._upstream.unwanted()
            return
        wip = self._wip
        if not wip.enter():
            if self._upstream.attached:
                # Nested in our own request, or from a second thread: to be processed in its turn.
                self._backlog.append(element)
                self._enter()
            else:
                self._too_early()
            return
        run = self._run
        if run is None or self._backlog or not self._direct:
            self._backlog.append(element)
        else:
            try:
                status = run.push(element)
                if self._counted is not None:
                    self._count(self._counted, status, run)
                goes_on = status is RunStatus.MORE or status is RunStatus.DROPPED
                if not goes_on:
                    self._act_on(status, run)
            except BaseException as leaving:
                self._interrupted(leaving)
                raise
            if goes_on:
                owing = self._owed and self._repay()
                if wip.leave():
                    if owing:
                        self._enter_asking()
                    return
        del element
        self._drain()  # for what came meanwhile

    def on_error(self, error: BaseException, /) -> None:
        """Pass the error on, after what came before it and waits for no demand."""
        check_error_signal(self, error)
        self._open = False
        self._fail_after_elements(error)

    def on_complete(self) -> None:
        """Complete, after what stages hold has been asked for."""
        self._open = False
        super().on_complete()

    # -- the drain -------------------------------------------------------------------------------

    def _drain(self) -> None:
        super()._drain()
        if self._counted is not None and self._pending.value and not self._unbounded:
            self._enter_asking()

    def _work(self) -> bool:
        if self._demand.value < 0:
            return self._act_on_end()
        run = self._run
        if run is None:
            return False
        if self._seed is not MISSING and self._demand.value > 0:
            seed, self._seed = self._seed, MISSING
            self._direct = not self._ended
            if self.custody is not None:
                self.custody.enter(seed)
            status = run.push(seed)
            if status is RunStatus.DROPPED:
                self._owed += run.refund
            elif status is not RunStatus.MORE:
                return self._act_on(status, run)
        # Read before the elements that came before them.
        completed, error = self._completed, self._late_error
        while self._backlog and not self._ended:
            status = run.push(self._backlog.popleft())
            if self._counted is not None:
                self._count(self._counted, status, run)
            if status is not RunStatus.MORE and status is not RunStatus.DROPPED:
                return self._act_on(status, run)
        if self._ended:
            return self._act_on(RunStatus.ENDED, run)
        if error is not None:
            return self._end_late()
        if completed and self._seed is MISSING:
            return self._act_on(RunStatus.ENDED, run)
        if self._owed:
            self._repay()
        return False

    def _act_on(self, status: RunStatus, run: FusedRun) -> bool:
        if status is RunStatus.ENDED:
            self._ended = True
            self._open = self._direct = False
            self._backlog.clear()
            self._upstream.cancel()
            status = run.finish()
            if status is RunStatus.IDLE:
                return False
        return self._answer(status, run)

    def _stop(self) -> None:
        self._open = False
        super()._stop()

    def _act_on_end(self) -> bool:
        super()._act_on_end()
        self._backlog.clear()  # what was on its way when all was dropped is kept nowhere
        return False

    def _drop_references(self) -> None:
        self._open = False
        self._seed = MISSING
        self._backlog.clear()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    # -- asking upstream -------------------------------------------------------------------------

    def _count(self, counted: DemandCounter, status: RunStatus, run: FusedRun) -> None:
        """Keep account of what upstream still owes us, and we it for elements that were dropped."""
        if counted.value > 0:
            counted.fulfil(1)
        if status is RunStatus.DROPPED and not self._unbounded:
            self._owed += run.refund

    def _repay(self) -> bool:
        """Note what is to be asked for in place of what was dropped: not one by one, but before
        upstream runs dry. For the holder of the drain, which asks when it has left the drain.
        """
        counted = self._counted
        if counted is not None and self._owed < counted.value:
            return False
        owed, self._owed = self._owed, 0
        self._budget.request(owed)
        self._pending.request(owed)
        return True

    def _ask(self, n: int) -> None:
        self._pending.request(n)
        self._enter_asking()

    def _enter_asking(self) -> None:
        if self._asking.enter():
            self._ask_now()

    def _ask_now(self) -> None:
        asking, pending, turns = self._asking, self._pending, self.turns
        while True:
            missed = asking.missed
            n = pending.value
            budget = self._budget.value
            if n == UNBOUNDED:
                if budget == UNBOUNDED:
                    n = 0 if self._unbounded else UNBOUNDED
                    self._unbounded = True
            elif n:
                pending.fulfil(n)
                n, self._unasked = n - self._unasked, 0
            n = min(n, budget, self._most)
            if n > 0 and not self._upstream.over:
                self._budget.fulfil(n)
                if self._most != UNBOUNDED:
                    self._most -= n
                if self._counted is not None:
                    self._counted.request(n)
                self._request(n)
            if asking.leave(missed):
                return
            if turns is not None and turns.is_over():
                self._pause(asking, turns)
                return

    def resume(self) -> None:
        """Go on with what was left to this turn."""
        super().resume()
        self._enter_asking()
