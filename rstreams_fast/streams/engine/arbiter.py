"""One stream after another, for the same subscriber, who notices nothing but the elements.

What was asked for and has not come when one publisher ends is asked of the next: nothing twice
(§1.1), and nothing forgotten. Asking and changing over are the upward work of a fan-in, done by one
thread at a time, so a request may race with the change, and a thousand changes in a row do not
nest (§3.3).
"""

from __future__ import annotations

from typing import Any

from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.core import DemandCounter
from rstreams_fast.errors import check_request, report_dropped
from rstreams_fast.streams.engine.fan_in import COMPLETED, Ended, FanIn
from rstreams_fast.streams.engine.inner_subscriber import Inner
from rstreams_fast.streams.engine.metrics import BoundaryMetrics

__all__ = ["SubscriptionArbiter"]


class SubscriptionArbiter(FanIn):
    """A subscription that has one publisher after another above it.

    ``start()`` introduces it and subscribes to ``first``. Subclasses fill in ``_next``, which says
    what to go on with when a publisher has ended.
    """

    __slots__ = ("_attached", "_current", "_ending", "_error", "_over", "_pending", "_publisher")

    def __init__(self, subscriber: Subscriber[Any], first: Publisher[Any] | None) -> None:
        super().__init__(subscriber)
        self._publisher = first  # to go on with
        self._current: Inner | None = None
        self._attached = False  # whether the current one can be asked
        self._over = False  # it has ended, which is to be acted on,
        self._error: BaseException | None = None  # with this
        self._pending = DemandCounter()  # to be asked for
        self._ending: Ended | None = None  # how all ends, after what has come

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more elements (§3.8)."""
        try:
            n = check_request(n)  # one look at it: __index__ may answer differently next time
        except Exception as refused:
            self._bad_request(refused)
            return
        if self._add_demand(n) >= 0:
            self._pending.request(n)
            self._call_up()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """The metrics of the boundaries above the current publisher."""
        current = self._current
        return () if current is None else current.metrics()

    # -- for subclasses --------------------------------------------------------------------------

    def _next(self, error: BaseException | None, /) -> Publisher[Any] | None:
        """Say what to go on with: a publisher has completed, or has failed with ``error``.

        ``None`` is for nothing, after ``_finish()``, or for nothing yet: ``_go_on`` is to be called
        later. One call at a time, outside of any signal to downstream. An ``Exception`` it raises
        ends the stream.
        """
        raise NotImplementedError

    def _go_on(self, publisher: Publisher[Any]) -> None:
        """Subscribe to ``publisher``: from any thread, once after ``_next`` returned ``None``."""
        self._publisher = publisher
        self._call_up()

    def _finish(self, error: BaseException | None = None) -> None:
        """Complete, or fail with ``error``, after what has come before."""
        self._ending = COMPLETED if error is None else Ended(error)
        self._enter()

    # -- from the current one --------------------------------------------------------------------

    def _inner_attached(self, inner: Inner, /) -> None:  # noqa: ARG002
        self._attached = True
        self._call_up()

    def _inner_burst(self, inner: Inner, burst: list[Any], over: bool = False, /) -> None:
        self._mail.append((inner, burst))
        del burst  # a traceback keeps this frame (§3.13)
        self._enter()
        if over:
            self._inner_ended(inner, None)

    def _inner_ended(self, inner: Inner, error: BaseException | None, /) -> None:  # noqa: ARG002
        self._error = error
        self._over = True
        self._call_up()

    # -- upward ----------------------------------------------------------------------------------

    def _upward(self) -> bool:
        changed = self._over
        if changed:
            self._change_over()
        publisher = self._publisher
        if publisher is not None:  # else nothing is written: one may come at this very moment
            self._publisher = None
            self._current = self._subscribe_to(publisher)
            changed = True
        current, n = self._current, self._pending.value
        if n <= 0 or current is None or not self._attached:
            return changed
        if n < UNBOUNDED:
            self._pending.fulfil(n)
        elif current.asked >= UNBOUNDED:
            return changed
        current.ask(n)
        return True

    def _change_over(self) -> None:
        error, self._error = self._error, None
        self._over = self._attached = False
        current, self._current = self._current, None
        if current is not None:
            self._inners.discard(current)
            current.forget()
            left = current.asked - current.came  # all that came of it has come
            if left > 0:
                self._pending.request(left)
        try:
            following = self._next(error)
            if following is not None:
                self._publisher = following
        except RecursionError:  # to where the stack has room again
            raise
        except Exception as raised:
            if error is not None and raised is not error and raised.__context__ is None:
                raised.__context__ = error
            self._finish(raised)
        finally:
            error = None  # a traceback keeps this frame

    # -- the drain -------------------------------------------------------------------------------

    def _work(self) -> bool:
        ending = self._ending  # read before the elements that came before it
        mail = self._mail
        while self._demand.value >= 0 and mail:
            self._take(*mail.popleft())
        if self._demand.value < 0:
            self._ending = None
            if ending is not None and ending.error is not None:
                report_dropped(ending.error, "an error after the end of the stream")
            return self._act_on_end()
        if ending is None:
            return False
        self._ending = None
        if ending.error is None:
            return self._complete()
        self._fail(ending.error)
        return self._act_on_end()

    def _take(self, inner: Inner, what: Any) -> None:  # noqa: ARG002
        self._deliver(what)

    def _drop_references(self) -> None:
        super()._drop_references()
        self._publisher = self._current = None
