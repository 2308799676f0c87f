"""``CallEngine``: makes the calls of a function under its policy.

The calls overlap in a ``CallWindow``, which makes a call for each item submitted to it. An item is
the argument of a call, or a tuple of the arguments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from rstreams_fast.calls.counts import CallCounts
from rstreams_fast.calls.guarded import (
    Recovery,
    counted,
    guarded,
    with_arguments,
    with_limit_hold,
    with_retry_after,
)
from rstreams_fast.calls.ids import keyed, names_call_id
from rstreams_fast.calls.journal.calls import WAIT_SECONDS, JournalledCalls
from rstreams_fast.calls.limits.blocking import TimedGate
from rstreams_fast.calls.limits.permits import PermitGate
from rstreams_fast.calls.lists.calls import BatchedCalls
from rstreams_fast.calls.memory.cache import CachedResults
from rstreams_fast.calls.retry import RetryAfter
from rstreams_fast.calls.samples import WindowSamples
from rstreams_fast.calls.settings import CallSettings
from rstreams_fast.calls.thread_group import ThreadGroup
from rstreams_fast.calls.threads import ThreadedCalls
from rstreams_fast.calls.traces import Tracer, sampled, traced_call
from rstreams_fast.calls.usage import Weigh
from rstreams_fast.core import CallWindow

__all__ = ["CallEngine", "Surroundings", "surrounded"]

STEP_SECONDS: Final = 0.005
"""The argument ``patience`` of the ``CallWindow``: while enough items are queued, the window may
call ``on_ready`` up to this many seconds after a result."""

Call = Callable[..., Awaitable[Any]]


class _Journal(Protocol):
    def wrap(self, fn: Call, loop: Any) -> Call:
        """Return a wrapper that calls ``fn`` only if the journal has no answer for the key."""


@dataclass(frozen=True)
class Surroundings:
    """The wrappers and values around the calls of a function, in addition to ``CallSettings``.

    Attributes:
        client: A tuple with the client, each call's first argument; empty if there is no client.
        argument_of: Makes an argument of the user's function from a key.
        journal: The open journal of the policy.
        keyed: Whether each call stores its key, for ``call_id``.
        cache: Looks up and stores results in the policy's cache.
        key_of: Makes the cache key from the arguments of a call. Default: the arguments.
        failures: Adds a wrapper that turns the failure of a call into a result.
        weigh: Estimates the units of a call from its arguments. Default: ``Limit.weigh`` of the
            key, or the sum over a list of keys.
        wrap: Adds the outermost wrapper, which may clear a call's item (its arguments) to free
            memory.
        tracer: Traces some of the calls.
    """

    client: tuple[Any, ...] = ()
    argument_of: Callable[[Any], Any] | None = None
    journal: _Journal | None = None
    keyed: bool = False
    cache: CachedResults | None = None
    key_of: Callable[..., Any] | None = None
    failures: Callable[[Call], Call] | None = None
    weigh: Weigh | None = None
    wrap: Callable[[Call], Call] | None = None
    tracer: Tracer | None = None


def surrounded(
    call: Call,
    settings: CallSettings,
    surroundings: Surroundings,
    *,
    loop: asyncio.AbstractEventLoop | None,
    counts: CallCounts,
    gate: PermitGate | TimedGate | None,
    admitted: bool = False,
    wrap_unanswered: Callable[[Call], Call] | None = None,
) -> Call:
    """Return a wrapper of ``call`` that applies the policy, in the order that ``Policy`` documents.

    The innermost wrapper is added first. Without a ``loop`` no call may suspend. If ``admitted``,
    the caller itself applies the limit and ``RetryAfter``, so the wrapper ``guarded`` is not
    needed. ``wrap_unanswered`` adds a wrapper inside the cache and the journal, for example one
    that gathers keys in lists. This wrapper gets only calls that neither cache nor journal answers.
    """
    if surroundings.client:
        call = partial(call, *surroundings.client)
    if not admitted:
        call = guarded(call, settings, loop, counts, gate, weigh=surroundings.weigh)
    if surroundings.argument_of is not None:
        call = with_arguments(surroundings.argument_of, call)
    if wrap_unanswered is not None:
        call = wrap_unanswered(call)
    if surroundings.keyed:
        call = keyed(call)
    if surroundings.journal is not None:
        call = surroundings.journal.wrap(call, loop)
    if surroundings.cache is not None:
        call = surroundings.cache.wrap(call, surroundings.key_of)
    if surroundings.failures is not None:
        call = surroundings.failures(call)
    return call if surroundings.wrap is None else surroundings.wrap(call)


class CallEngine:
    """Makes the calls of a function under its policy, in a ``CallWindow``.

    Only the event loop's thread may use the engine.
    """

    def __init__(
        self,
        settings: CallSettings,
        loop: asyncio.AbstractEventLoop,
        counts: CallCounts,
        surroundings: Surroundings,
        on_ready: Callable[[], None],
        *,
        journal: JournalledCalls | None = None,
        threads: ThreadGroup | None = None,
        capacity: int,
        spread: bool = False,
        **words: Any,
    ) -> None:
        """``on_ready`` is called when results may be taken, or when more items may be submitted.

        The caller has opened the ``journal``. ``threads`` starts the threads that call a plain
        function. ``capacity``, ``spread`` and ``words`` are passed to the ``CallWindow``.
        """
        self._settings = settings
        self._loop = loop
        self._counts = counts
        self._on_ready = on_ready
        self._threads: ThreadedCalls | None = None
        self._lists: BatchedCalls | None = None
        self._waits_for_journal = False
        limit = settings.policy.limit
        gate = self._gate = None if limit is None else PermitGate(limit, loop)
        tracer = self._tracer = surroundings.tracer
        if gate is not None:
            gate.waits = counts.limit_waits
            gate.traced = tracer is not None
        inner: Call = settings.fn
        if threads is not None:
            inner = self._threads = ThreadedCalls(inner, settings.concurrency, loop, threads)
        if settings.batch is not None and gate is not None:
            inner = with_limit_hold(inner, gate, settings.policy.most_held)
        needs_key = settings.batch is None and names_call_id(settings.fn)
        plain = not (
            surroundings.failures is not None or settings.is_guarded or settings.batch is not None
        )
        # If no look-up is needed before a call, the CallWindow itself passes each result to the
        # journal. This takes less time than a wrapper around each call.
        stores = journal is not None and journal.needs_no_lookup and surroundings.cache is None
        window_journal = journal if plain and stores and not needs_key else None
        self._window_journal = window_journal
        remembers = settings.policy.remembers and window_journal is None
        # ``admitted``: whether each item gets a permit of the limit from ``gate.admit``. This does
        # not suit a cache or a journal: an item that they answer needs no permit.
        admitted = plain and not (remembers and gate is not None)
        # ``recovers``: whether the CallWindow itself repeats a call after RetryAfter. Then it needs
        # the call's item, which ``surroundings.wrap`` may have cleared. With a cache or a journal,
        # the CallWindow does not know which items make calls, and so cannot trace the calls.
        recovers = admitted and surroundings.wrap is None and not (remembers and tracer is not None)
        self._counts_attempts = recovers and not remembers
        if admitted and not recovers:
            inner = with_retry_after(inner, settings, counts, gate)
            if tracer is not None:
                inner = sampled(inner, tracer)
        elif recovers and remembers:
            inner = counts.attempted(inner)
        surroundings = replace(
            surroundings, keyed=needs_key, journal=None if window_journal else journal
        )
        wrap_unanswered = None
        if settings.makes_fewer_calls and not admitted:
            wrap_unanswered = self._wrap_unanswered
        self._counts_calls = wrap_unanswered is None
        call = surrounded(
            inner,
            settings,
            surroundings,
            loop=loop,
            counts=counts,
            gate=gate,
            admitted=admitted,
            wrap_unanswered=wrap_unanswered,
        )
        recovery = None
        if recovers:
            recovery = Recovery(call, spread, settings, counts, gate, times=self._counts_attempts)
        at_once = settings.running_rows
        self.window: Final = CallWindow(
            call,
            loop=loop,
            on_ready=on_ready,
            concurrency=at_once,
            capacity=capacity,
            # Even if all running calls end at the same moment, enough items wait for new calls.
            ahead=2 * at_once,
            patience=STEP_SECONDS,
            spread=spread,
            recover=None if recovery is None else recovery.recover,
            on_result=window_journal.make_on_result(loop, spread) if window_journal else None,
            **words,
        )
        self._samples: WindowSamples | None = None
        call_with: Callable[[Call], None] = self.window.call_with
        if gate is not None and admitted:
            call_with = gate.admit(self.window, call)
        if recovery is None and (admitted or wrap_unanswered is not None):
            tracer = None  # the wrapper ``sampled``, which is inside ``call``, traces the calls
        traced = call
        if tracer is not None:
            traced = traced_call(call, tracer) if recovery is None else recovery.traced(tracer)
        if self._counts_attempts or tracer is not None:
            timed = counts if self._counts_attempts else None
            self._samples = WindowSamples(
                self.window, call, call_with, counts=timed, tracer=tracer, traced=traced
            )

    def _wrap_unanswered(self, call: Call) -> Call:
        call = counted(call, self._counts)
        if self._tracer is not None:
            call = sampled(call, self._tracer)
        if self._settings.batch is not None:
            call = self._lists = BatchedCalls(
                call, self._settings, self._loop, self._on_ready, self._counts
            )
        return call

    @property
    def uses_threads(self) -> bool:
        """Whether threads make the calls. A call on a thread cannot be stopped."""
        return self._threads is not None

    @property
    def has_running_calls(self) -> bool:
        """Whether calls are running. If ``True``, ``on_ready`` is called when a call has ended."""
        self.window.take(0)  # the CallWindow calls ``on_ready`` again only after a take()
        if self.window.running:
            return True
        return self._lists is not None and bool(self._lists.running)

    @property
    def has_room(self) -> bool:
        """Whether items may be submitted: ``False`` while too many answers wait to be written.

        After ``False``, ``on_ready`` is called when the journal may be ready again. If the journal
        cannot be written, this property raises the error.
        """
        if self._window_journal is None or not self._window_journal.is_behind:
            return True
        if not self._waits_for_journal:
            self._waits_for_journal = True
            self._loop.call_later(WAIT_SECONDS, self._recheck_room)
        return False

    def _recheck_room(self) -> None:
        self._waits_for_journal = False
        self._on_ready()

    @property
    def running(self) -> int:
        """The number of running calls."""
        if self._lists is not None:
            return self._lists.calls
        return self.window.running

    @property
    def max_running(self) -> int:
        """The largest number of calls that have run at the same time."""
        return (self._lists or self.window).max_running

    def count(self) -> None:
        """Update the counts of calls and attempts. If a sample is due, time or trace a call."""
        counts, started = self._counts, self.window.started
        if self._counts_calls:
            counts.calls = started - counts.cache_hits - counts.journal_hits
        if self._counts_attempts:  # a call that still waits for a permit is not an attempt yet
            counts.attempts = started + counts.repeated_by_window - counts.limit_waits.unfinished
        if self._samples is not None:
            self._samples.sample_next()

    def flush(self) -> None:
        """Start calls with lists of keys that are not full, because no more items will come."""
        if self._lists is not None:
            self._lists.flush()

    def handle_failure(self, error: BaseException) -> None:
        """If ``error`` is a ``RetryAfter``, stop all calls under the limit for a while."""
        if self._gate is not None and isinstance(error, RetryAfter):
            self._gate.hold(min(error.seconds, self._settings.policy.most_held))

    def cancel(self) -> None:
        """Start no more calls, and cancel the running calls."""
        self.close_threads()
        self.window.cancel()
        if self._lists is not None:
            self._lists.cancel()

    def close_threads(self) -> None:
        """Start no more calls on threads. Each thread ends after its present call."""
        if self._threads is not None:
            self._threads.close()

    def end(self) -> None:
        """Return all permits to the limit; do not wait for the calls that are still running."""
        self.close_threads()
        if self._threads is not None:
            self._threads.abandon(self._gate)
        elif self._gate is not None:
            self._gate.close()
