"""``FusedRun``: carries out neighbouring stages (such as ``map``) in one loop over a source."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CoroutineType
from typing import Any, Final, NoReturn

from rstreams_fast._checks import check_count
from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core._common import GOES_ON, MISSING, FunctionSlot, RunStatus, refuse_pickle
from rstreams_fast.core._spec.demand import DemandCounter
from rstreams_fast.core._spec.ring import SpscRing
from rstreams_fast.core.stage_table import (
    DROPPED,
    STAGES,
    DemandRule,
    State,
    check_program,
    takes_nothing,
)
from rstreams_fast.errors import (
    BufferOverflowError,
    DemandExceededError,
    NoneSignalError,
    OverlappingCallsError,
    check_element,
)

__all__ = ["FusedRun"]


class _Failed(Exception):
    def __init__(self, error: Exception, status: RunStatus = RunStatus.FAILED) -> None:
        self.error = error
        self.status = status


_ABSORBED: Final = object()


class FusedRun:
    """A run of neighbouring stages, executed as one loop over its source.

    The run pulls elements from ``source``, passes them through the stages, and gives the results to
    ``slot``, the receiver. It delivers no more than ``demand`` allows (§1.1), and nothing after
    ``demand.cancel()``, even if ``slot`` itself cancels. Only one thread at a time may call a
    method. A method returns ``FAILED`` if the source or a stage raises an ``Exception``, and
    ``SLOT_FAILED`` if ``slot`` raises one. The attribute ``error`` is then the exception.
    ``KeyboardInterrupt``, ``SystemExit`` and ``GeneratorExit`` propagate. If the source or a
    ``map`` returns ``None``, the run fails with a ``TypeError`` that names the source or the stage.
    Exceptions of a ``do_on_next`` function go to ``sys.unraisablehook``.

    ``program`` is a tuple of these stages:

    ```text
    ("map", f) ("map_not_none", f) ("filter", p) ("take", n) ("take_while", p) ("skip", n)
    ("skip_while", p) ("distinct_until_changed", key) ("scan", f, seed)
    ("reduce", f, seed) ("batch", n) ("do_on_next", f)
    ```

    ``map_not_none`` drops the elements for which ``f`` returns ``None``. ``scan`` delivers each new
    accumulated value. The caller of the run must deliver the seed before. ``reduce`` delivers only
    the last accumulated value, at the end of the source. If the seed is ``MISSING``, the first
    element is the first accumulated value. If the ``key`` of ``distinct_until_changed`` is
    ``None``, the stage compares the elements themselves.

    Args:
        source: An iterator, an ``SpscRing`` or a ``deque``. The run removes elements from a ring or
            a deque, and other code may add elements at any time. ``None`` if elements come by
            ``push``.
        program: A tuple of stages.
        slot: A function, which is called with each result; or a ``FunctionSlot``, which calls a
            user's function and acts on its answer; or an ``SpscRing``, into which the run puts each
            result. The demand must never be larger than the free room of this ring.
        demand: The demand of the subscriber.
    """

    #: The classes of the rings and demand counters that the constructor accepts. The subclass of
    #: the backend ``cffi`` replaces them by the classes of that backend.
    _ring_type: type[Any] = SpscRing
    _demand_type: type[Any] = DemandCounter

    def __init__(
        self,
        source: Any,
        program: tuple[tuple[Any, ...], ...],
        slot: Callable[[Any], Any] | FunctionSlot | SpscRing,
        demand: DemandCounter,
    ) -> None:
        self._busy = threading.Lock()
        self._clear_later = False
        self._pull = self._puller(source)
        self._program = check_program(program)
        self._slot: Any = slot
        self._to_ring = isinstance(slot, self._ring_type)
        if isinstance(slot, self._ring_type):
            self._slot = slot.offer
        elif isinstance(slot, FunctionSlot):
            self._slot = self._to_function(slot)
        elif not callable(slot):
            raise TypeError(f"slot must be callable or an SpscRing, got {type(slot).__name__}")
        if not isinstance(demand, self._demand_type):
            raise TypeError(f"demand must be a DemandCounter, got {type(demand).__name__}")
        self._demand: DemandCounter = demand
        self._steps = []
        self._state = []
        # The fewest source elements that make one result. The run may pull this many elements for
        # each requested result, without the risk of too many results.
        self._ratio = 1
        for op in self._program:
            kind = STAGES[op[0]]
            self._steps.append((kind.step, op[1], kind.ends, kind))
            self._state.append(kind.first_state(op))
            if kind.needs is DemandRule.TIMES:
                self._ratio = min(self._ratio * op[1], UNBOUNDED)
            elif kind.needs is DemandRule.ALL:
                self._ratio = UNBOUNDED
        self._ended = takes_nothing(self._program)
        self.error: Exception | None = None
        """The exception that the source, a stage or the receiver of the results has raised."""
        self.refund = 0
        """After ``push`` has returned ``DROPPED``: how many elements to request as a replacement.

        It is ``n`` if a ``batch(n)`` has made the dropped element from ``n`` elements; else 1."""
        self.pulled = 0
        """How many elements the run has taken from the source, or got by ``push``."""

    @staticmethod
    def _to_function(slot: FunctionSlot) -> Callable[[Any], None]:
        def deliver(element: Any) -> None:
            try:
                if slot.over:
                    slot.unwanted(element)
                    return
                answer = slot.function(element)
                if answer is False or type(answer) is CoroutineType:
                    slot.answered(answer)
            except BaseException as raised:
                slot.failed(raised)

        return deliver

    def _puller(self, source: Any) -> Callable[[], Any]:
        """Return a function that takes the next element out of ``source``.

        This function raises ``StopIteration`` if the source has no element now.
        """
        if isinstance(source, self._ring_type):

            def from_ring() -> Any:
                element = source.poll()
                if element is None:
                    raise StopIteration
                return element

            return from_ring
        if type(source) is deque:  # a subclass may define __iter__: use iter() for it, below

            def from_deque() -> Any:
                try:
                    return source.popleft()
                except IndexError:
                    raise StopIteration from None

            return from_deque
        iterator = iter(()) if source is None else iter(source)
        pull: Callable[[], Any] = iterator.__next__
        return pull

    @property
    def execution(self) -> str:
        """How the stages run: ``"c-loop"``, ``"generated"`` (Python code) or ``"interpreted"``."""
        return "interpreted"

    @property
    def ratio(self) -> int:
        """The fewest source elements that make one result: the product of the batch sizes.

        With a ``reduce`` it is ``UNBOUNDED``.
        """
        return self._ratio

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)

    def drain(self, limit: int, /) -> RunStatus:
        """Pull, process and deliver source elements, as long as there is demand.

        If demand is added during the call, the call may return ``MORE`` before it has used this
        demand. Then the caller can let other work run.

        Args:
            limit: The largest number of source elements to pull.
        """
        limit = check_count("limit", limit, 1)
        with self._exclusive_call():
            return self._drain(limit)

    def _drain(self, limit: int) -> RunStatus:
        end = self.pulled + min(limit, GOES_ON)
        while True:
            status = self._burst(limit)
            limit = end - self.pulled
            if status is not RunStatus.MORE or limit <= 0:
                return status

    def _burst(self, limit: int) -> RunStatus:
        demand = self._demand.value
        if demand < 0:
            return RunStatus.CANCELLED
        if self._ended:
            return RunStatus.ENDED
        if demand == 0:
            return RunStatus.IDLE
        delivered = 0
        exhausted = False
        try:
            for _ in range(min(limit, demand * self._ratio)):
                try:
                    element = self._pull()
                except StopIteration:
                    exhausted = True
                    break
                except Exception as raised:
                    raise _Failed(raised) from None
                self.pulled += 1
                if element is None:
                    raise _Failed(NoneSignalError("§2.13: the source produced None"))
                result = self._process(element, 0)
                if result is not _ABSORBED and result is not DROPPED:
                    delivered += 1
                    self._deliver(result)
                if self._ended or self._demand.value < 0:
                    break
        except _Failed as failed:
            return self._fail(failed)
        finally:
            # The traceback of an error keeps this frame alive. So clear the variables that refer to
            # elements.
            element = result = None
            left = self._demand.fulfil(delivered)
        if left < 0:
            return RunStatus.CANCELLED
        if self._ended:
            return RunStatus.ENDED
        if exhausted:
            return RunStatus.EXHAUSTED
        return RunStatus.MORE if left else RunStatus.IDLE

    def push(self, element: Any, /) -> RunStatus:
        """Process and deliver one element that upstream has signalled.

        Returns ``MORE`` if the element was delivered or stored, and ``DROPPED`` if a stage dropped
        it. If there is a result but no demand, the call returns ``FAILED``, and ``error`` is a
        ``DemandExceededError`` (§1.1).

        Args:
            element: The element.
        """
        check_element(element)
        held = [element]
        del element
        with self._exclusive_call():
            return self._push(held.pop())

    def _push(self, element: Any) -> RunStatus:
        if self._demand.value < 0:
            return RunStatus.CANCELLED
        if self._ended:
            return RunStatus.ENDED
        self.pulled += 1
        try:
            result = self._process(element, 0)
            if result is DROPPED:
                return RunStatus.ENDED if self._ended else RunStatus.DROPPED
            if result is not _ABSORBED:
                if not self._fulfil_one():
                    return RunStatus.FAILED if self.error else RunStatus.CANCELLED
                self._deliver(result)
        except _Failed as failed:
            return self._fail(failed)
        finally:
            element = result = None
        if self._demand.value < 0:
            return RunStatus.CANCELLED
        return RunStatus.ENDED if self._ended else RunStatus.MORE

    def finish(self) -> RunStatus:
        """Deliver what ``batch`` and ``reduce`` stages still store, at the end of the source.

        Returns ``DONE`` if everything is delivered, and ``IDLE`` if that needs more demand. After
        ``IDLE``, call ``finish`` again when more was requested.
        """
        with self._exclusive_call():
            return self._finish()

    def _finish(self) -> RunStatus:
        try:
            for index, op in enumerate(self._program):
                if self._demand.value < 0:
                    return RunStatus.CANCELLED
                held = self._state[index]
                kind = STAGES[op[0]]
                is_batch = kind.state is State.BATCH
                if kind.flushes and (held if is_batch else held is not MISSING):
                    if self._demand.value == 0:
                        return RunStatus.IDLE
                    self._state[index] = [] if is_batch else MISSING
                    result = self._process(held, index + 1)
                    if result is not _ABSORBED and result is not DROPPED:
                        if not self._fulfil_one():
                            return RunStatus.FAILED if self.error else RunStatus.CANCELLED
                        self._deliver(result)
        except _Failed as failed:
            return self._fail(failed)
        finally:
            held = result = None
        return RunStatus.CANCELLED if self._demand.value < 0 else RunStatus.DONE

    def clear(self) -> None:
        """Drop the references to the source, the stages and the ``slot`` that gets the results.

        §3.13 requires this. Call no other method after ``clear``. ``slot`` may call ``clear`` while
        another method is running. Then the references are dropped when that method ends, and
        ``error`` is kept for the caller of that method.
        """
        self._clear_later = True
        if self._busy.acquire(blocking=False):
            self.error = None
            self._leave()

    @contextmanager
    def _exclusive_call(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise OverlappingCallsError("two calls overlap on a FusedRun")
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._clear_later:
            self._clear_later = False
            self._let_go()
        self._busy.release()

    def _let_go(self) -> None:
        self._pull = iter(()).__next__
        self._program = ()
        self._state = []
        self._steps = []
        self._slot = None

    def _fail(self, failed: _Failed) -> RunStatus:
        self.error = failed.error
        return failed.status

    def _fulfil_one(self) -> bool:
        try:
            return self._demand.fulfil(1) >= 0
        except DemandExceededError as exceeded:
            self.error = exceeded
            return False

    def _deliver(self, element: Any) -> None:
        try:
            accepted = self._slot(element)
        except Exception as raised:
            raise _Failed(raised, RunStatus.SLOT_FAILED) from None
        finally:
            del element
        if self._to_ring and not accepted:
            full = BufferOverflowError("the ring that takes the results is full")
            raise _Failed(full, RunStatus.SLOT_FAILED)

    def _process(self, element: Any, start: int) -> Any:
        """Pass ``element`` through the stages from number ``start`` on. Return the result.

        Return ``DROPPED`` if a stage has dropped the element, and ``_ABSORBED`` if a ``batch`` or
        ``reduce`` has stored it.
        """
        refund = 1
        state = self._state
        for index in range(start, len(state)):
            step, argument, ends, kind = self._steps[index]
            try:
                element = step(state, index, argument, element)
            except Exception as raised:
                # The traceback of ``raised`` begins with the frames of this method and of ``step``,
                # the function of the stage. Remove the two frames: they keep the element alive.
                frames = raised.__traceback__ and raised.__traceback__.tb_next
                users = frames and frames.tb_next
                raise _Failed(BaseException.with_traceback(raised, users)) from None
            if ends and not state[index]:
                self._ended = True
            if element is DROPPED:
                if kind.flushes:
                    return _ABSORBED
                self.refund = refund
                return DROPPED
            if kind.needs is DemandRule.TIMES:
                refund *= argument
        return element
