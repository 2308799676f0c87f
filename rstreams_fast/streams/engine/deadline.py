"""A deadline: calls a function at a time that may still be postponed.

A deadline has at most one pending alarm of the timer. If the due time becomes later, the alarm is
not changed. When the alarm goes off, the deadline compares the clock with the due time. If the due
time is not reached, the deadline sets another alarm. The timer's thread makes only this comparison,
because all streams share this thread. The function itself is called on another shared thread. But
if the timer allows slow work on its own thread, the function is called on the timer's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context

from rstreams_fast.core import Wip
from rstreams_fast.runtime.executors import WhenDropped, Work, process_id
from rstreams_fast.runtime.shared_threads import shared_threads
from rstreams_fast.runtime.timers import Alarm, Timer, default_timer, runs_slow_work
from rstreams_fast.streams.engine.not_picklable import not_picklable
from rstreams_fast.streams.engine.signals import forked

__all__ = ["Deadline"]


class Deadline:
    """Calls ``work()`` at the time that ``due()`` returns.

    ``due`` returns a time of the timer's clock, in seconds, or ``None`` if nothing is due. ``due``
    must be quick, and is called on any thread, one call at a time. Call ``update()`` when the due
    time is no longer ``None``. A pending alarm is not changed, so the due time must not become
    earlier. ``work`` can also be called when nothing is due. ``when_dropped`` is called with
    the error if the timer stops, if the timer's clock, ``due`` or ``work`` raises, or if no thread
    can be started. ``close`` drops the references to ``due``, ``work`` and ``when_dropped``.
    """

    __slots__ = (
        "__weakref__",
        "_alarm",
        "_closed",
        "_context",
        "_due",
        "_has_fired",
        "_pid",
        "_timer",
        "_updating",
        "_when_dropped",
        "_work",
        "_working",
        "now",
    )

    __reduce__ = not_picklable

    def __init__(
        self,
        timer: Timer | None,
        due: Callable[[], float | None],
        work: Work,
        when_dropped: WhenDropped,
    ) -> None:
        self._timer = default_timer() if timer is None else timer
        self.now = self._timer.now
        self._due: Callable[[], float | None] | None = due
        self._work: Work | None = work
        self._when_dropped: WhenDropped | None = when_dropped
        self._pid = process_id()
        self._context: Context | None = copy_context()
        self._updating = Wip()
        self._alarm: Alarm | None = None
        self._has_fired = False
        self._working = False
        self._closed = False

    def update(self) -> None:
        """Call ``due``. Then set an alarm for the due time, or start ``work`` if this time is past.

        While an alarm is pending or ``work`` is running, do nothing: ``due`` is called afterwards.
        """
        updating = self._updating
        if updating.enter():
            while True:
                missed = updating.missed
                self._set()
                if updating.leave(missed):
                    return

    def close(self) -> None:
        self._closed = True
        self.update()

    def _set(self) -> None:
        if self._has_fired:
            self._has_fired = False
            self._alarm = None
        if self._closed:
            self._end()
            return
        due = self._due
        if self._working or self._alarm is not None or due is None:
            return
        try:
            moment = due()
            if moment is None:
                return
            left = moment - self.now()
            if left > 0:
                self._alarm = self._timer.call_later(left, self._ring, self.refuse)
            else:
                self._hand_over()
        except Exception as refused:
            self.refuse(refused)

    def _hand_over(self) -> None:
        if process_id() != self._pid:
            raise forked()
        self._working = True
        if runs_slow_work(self._timer):
            self._do()
        else:
            shared_threads().execute(self._do, self.refuse)

    def _ring(self) -> None:
        self._has_fired = True
        self.update()

    def _do(self) -> None:
        work, context = self._work, self._context
        try:
            if work is not None and context is not None:
                context.run(work)
        except Exception as raised:
            self.refuse(raised)
        finally:
            del work, context
            self._working = False
            self.update()

    def refuse(self, error: BaseException) -> None:
        """Pass ``error``, an error of the timer, ``due`` or ``work``, to ``when_dropped``.

        ``when_dropped`` is an argument of ``Deadline``. Do nothing if the deadline is closed.
        """
        when_dropped = self._when_dropped
        if when_dropped is not None:
            when_dropped(error)

    def _end(self) -> None:
        alarm, self._alarm = self._alarm, None
        if alarm is not None:
            alarm.cancel()
        self._due = self._work = self._when_dropped = self._context = None
