"""Runs one pipeline and judges it: by the rules on every signal, by the model, by what is left."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.errors import on_dropped_error
from tests.helpers import DEADLINE, bursts_of, wait_until
from tests.operators.entry import Boom
from tests.streams.pipelines import model as m
from tests.streams.pipelines.bench import Bench, Refused, Resources, Watch, plain

__all__ = ["Difference", "Record", "judge"]


#: Threads that all streams share; they end by themselves.
OF_THE_PROCESS = ("rstreams-fast-timer", "rstreams-fast-shared-")


class Difference(AssertionError):
    """A pipeline did not do what the rules and the model say."""


class Raised(Exception):
    """What a failing subscriber raises."""


class Record:
    """What one subscriber asked for and saw, outliving the subscriber itself."""

    def __init__(self, demand: m.Demand, stop: m.Stop, changed: threading.Condition) -> None:
        self.demand = demand
        self.stop = stop
        self.changed = changed  #: one for all subscribers of a pipeline
        self.outside = itertools.cycle(demand.outside)
        self.subscription: Any = None
        self.requested = 0
        self.seen: list[Any] = []
        self.end = ""  #: complete, or the name of the error's type
        self.stopped = False  #: cancelled, or has raised, within a signal: nothing may follow
        self.cancelled = False  #: from outside: what is on its way may follow
        self.bad = False  #: asked for something that is no number of elements
        self.violations: list[str] = []
        self.delivered: Callable[[Any], None] = lambda _element: None
        self._inside: int | None = None
        self._depth = 0

    # -- asking --

    def ask(self, n: int) -> None:
        with self.changed:
            self.requested = min(self.requested + n, UNBOUNDED)
        self._call("request", n)

    def cancel(self) -> None:
        """Cancel, and do what must have no effect any more (§3.6, §3.7)."""
        self._call("cancel")
        self._call("request", 1)
        self._call("cancel")
        self._call("request", -1)

    def ask_badly(self) -> None:
        self.bad = True
        self._call("request", self.stop.request)

    def _call(self, name: str, *args: Any) -> None:
        try:
            getattr(self.subscription, name)(*args)
        except Exception as raised:
            self.breaks("3.16" if name == "request" else "3.15", f"{name} raised {raised!r}")

    # -- the rules --

    def breaks(self, rule: str, how: str) -> None:
        with self.changed:
            self.violations.append(f"§{rule}: {how}")
            self.changed.notify_all()

    @contextmanager
    def signal(self, name: str) -> Iterator[None]:
        """The rules that hold for every signal, and around it."""
        me = threading.get_ident()
        if self._inside not in (None, me):
            self.breaks("1.3", f"{name} while another thread is in a signal")
        if self._depth:
            self.breaks("3.3", f"{name} within a signal")
        if self.end:
            self.breaks("1.7", f"{name} after {self.end}")
        if self.stopped:
            self.breaks("1.8", f"{name} after the subscriber cancelled or raised in a signal")
        if name != "on_subscribe" and self.subscription is None:
            self.breaks("1.9", f"{name} before on_subscribe")
        self._inside = me
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self._inside = None
            with self.changed:
                self.changed.notify_all()

    # -- its state --

    @property
    def is_satisfied(self) -> bool:
        return len(self.seen) >= self.requested

    @property
    def stop_is_due(self) -> bool:
        """Whether it is time for somebody outside to stop."""
        return (
            bool(self.stop.kind) and self.stop.where == "outside" and len(self.seen) >= self.stop.at
        )

    @property
    def over(self) -> bool:
        return bool(self.end) or self.stopped or self.cancelled

    @property
    def is_idle(self) -> bool:
        """Whether nothing will happen unless somebody does something."""
        return self.over or self.stop_is_due or (self.subscription and self.is_satisfied)

    def __str__(self) -> str:
        return f"requested {self.requested}, seen {self.seen}, end {self.end or 'none'}"


class Probe:
    """The subscriber. It knows its record; the record does not know it (§3.13)."""

    __slots__ = ("__weakref__", "record")

    def __init__(self, record: Record) -> None:
        self.record = record

    def on_subscribe(self, subscription: Any, /) -> None:
        record = self.record
        with record.signal("on_subscribe"):
            if record.subscription is not None:
                record.breaks("2.12", "a second on_subscribe")
            record.subscription = subscription
            if record.stop.where == "subscribe":
                self._stop()
            if not record.stopped and record.demand.first:
                record.ask(record.demand.first)

    def on_next(self, element: Any, /) -> None:
        record = self.record
        with record.signal("on_next"):
            if element is None:
                record.breaks("2.13", "on_next(None)")
            record.seen.append(plain(element))
            record.delivered(element)
            del element
            if len(record.seen) > record.requested:
                record.breaks("1.1", f"element {len(record.seen)} of {record.requested} requested")
            if record.stop.where == "next" and len(record.seen) == record.stop.at + 1:
                self._stop()
            if not record.stopped and record.demand.inside:
                record.ask(record.demand.inside)

    def on_error(self, error: BaseException, /) -> None:
        with self.record.signal("on_error"):
            if not isinstance(error, BaseException):
                self.record.breaks("2.13", f"on_error({error!r})")
            self.record.end = max(type(one).__name__ for one in _apart(error))

    def on_complete(self) -> None:
        with self.record.signal("on_complete"):
            self.record.end = "complete"

    def _stop(self) -> None:
        record = self.record
        if record.stop.kind == "bad":
            record.ask_badly()
        elif record.stop.kind == "cancel":
            record.cancel()
            record.stopped = True
        elif record.stop.kind == "raise":
            record.stopped = True
            raise Raised


def _apart(error: BaseException) -> Iterator[BaseException]:
    """The errors of a group, which delay_error makes; else the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _apart(one)
    else:
        yield error


class Hooks:
    """What is made known because nobody could be told."""

    def __init__(self, changed: threading.Condition) -> None:
        self.changed = changed
        self.dropped: list[str] = []  #: the names of errors that pipelines are made to cause
        self.strange: list[str] = []  #: what no pipeline may cause

    @contextmanager
    def installed(self) -> Iterator[None]:
        # Names and texts: an error's traceback keeps whatever stood in its frames.
        before = on_dropped_error(self._keep_dropped)
        previous, sys.unraisablehook = sys.unraisablehook, self._keep_unraisable
        try:
            yield
        finally:
            sys.unraisablehook = previous
            on_dropped_error(before)

    def _keep_dropped(self, error: BaseException) -> None:
        if all(isinstance(one, (Raised, Boom, Refused)) for one in _apart(error)):
            self.dropped.append(type(error).__name__)
        else:
            self._keep_strange(error)

    def _keep_unraisable(self, args: Any) -> None:
        if not isinstance(args.exc_value, Boom):
            self._keep_strange(args.exc_value)

    def _keep_strange(self, error: BaseException) -> None:
        with self.changed:
            self.strange.append("".join(traceback.format_exception(error)))
            self.changed.notify_all()


def judge(
    pipeline: m.Pipeline,
    resources: Resources,
    *,
    patience: float = DEADLINE,
    broken: Callable[[Any], Any] = lambda stream: stream,
) -> None:
    """Run the pipeline once; ``Difference`` if anything is not as it should be.

    ``broken`` may put a faulty publisher between the stream and its subscriber.
    """
    changed = threading.Condition()
    hooks = Hooks(changed)
    try:
        with hooks.installed(), bursts_of(pipeline.burst):
            bench = Bench(pipeline, resources)
            records = [
                Record(pipeline.demand, m.Stop() if number else pipeline.stop, changed)
                for number in range(pipeline.subscribers)
            ]
            for record in records:
                record.delivered = bench.delivered
            _converse(bench, records, hooks, patience, broken)
            for record in records:
                _check_elements(bench, record)
            _check_same(records)
            _check_demand(bench, max(record.requested for record in records))
            _check_what_is_left(bench, records, patience)
            if m.counts_discards(pipeline):
                _check_discards(bench)
        _check_hooks(hooks, pipeline.stop, records[0])
    except Difference as difference:
        raise Difference(f"{difference}\nreproduce: judge({pipeline!r}, resources)") from None


def _converse(
    bench: Bench, records: list[Record], hooks: Hooks, patience: float, broken: Callable[[Any], Any]
) -> None:
    """Subscribe, and ask until it is over."""
    publisher = broken(bench.build())
    for record in records:
        try:
            publisher.subscribe(bench.subscribers.add(Probe(record)))
        except Exception as raised:
            raise Difference(f"§1.9: subscribe raised {raised!r}") from None
    del publisher
    while True:
        waiting = [record for record in records if not record.over]

        def is_due(waiting: list[Record] = waiting) -> bool:
            return (
                not waiting
                or any(record.is_idle for record in waiting)
                or any(record.violations for record in records)
                or bool(hooks.strange)
            )

        in_time = _wait_while_heard(records, is_due, patience)
        _check_rules(records)
        _check_strange(hooks)
        if not in_time:
            raise Difference(
                f"an element that was requested, or the end, did not come within {patience} s; "
                + "; ".join(map(str, records))
            )
        if not waiting:
            return
        for record in waiting:
            if record.over:
                continue
            if record.stop_is_due:
                _from_outside(bench, record, _stop_outside)
                record.stop = m.Stop()
            elif record.is_idle:
                n = next(record.outside)
                _from_outside(bench, record, lambda record, n=n: record.ask(n))


def _wait_while_heard(records: list[Record], is_due: Callable[[], bool], patience: float) -> bool:
    """Wait until it is due; false if all has been silent for so long before that."""
    changed = records[0].changed
    with changed:
        while not is_due():
            heard = [len(record.seen) for record in records]
            if not changed.wait_for(
                lambda heard=heard: is_due() or heard != [len(record.seen) for record in records],
                patience,
            ):
                return False
    return True


def _check_rules(records: list[Record]) -> None:
    violations = [violation for record in records for violation in record.violations]
    if violations:
        raise Difference("; ".join(violations))


def _stop_outside(record: Record) -> None:
    if record.stop.kind == "bad":
        record.ask_badly()
    else:
        record.cancelled = True
        record.cancel()


def _from_outside(bench: Bench, record: Record, call: Callable[[Record], object]) -> None:
    """Make a call on this thread, on another one, or on two at once."""
    by = bench.pipeline.demand.by
    if by == "main":
        call(record)
        return
    count = 2 if by == "two" else 1
    for done in [bench.resources.askers.submit(call, record) for _ in range(count)]:
        done.result(DEADLINE)


# -- judging ---------------------------------------------------------------------------------------


def _check_elements(bench: Bench, record: Record) -> None:
    pipeline = bench.pipeline
    expected = m.expect(pipeline)

    def must(condition: object, what: str) -> None:
        if not condition:
            due = "an error" if expected.failed else "complete"
            raise Difference(
                f"{what}\n  seen:     {record.seen}, end {record.end or 'none'}"
                f"\n  expected: {expected.elements}, {due}"
                f"\n  unfailing: {expected.everything}"
            )

    seen, end = record.seen, record.end
    must(expected.begins_with(seen), "other elements")
    if not end:
        return
    refused = any(executor.refused for executor in bench.refusing)
    may_fail = expected.failed or not expected.exact
    if end == "complete":
        must(expected.is_whole(seen), "on_complete without all elements")
        must(
            not expected.failed or not expected.ordered or expected.races,
            "on_complete, and a failure was due",
        )
    elif end == "Refused":
        must(refused, "an executor's refusal that was none")
    elif end in ("InvalidRequestError", "InvalidRequestTypeError"):
        must(record.bad, "§3.9: an invalid request that was none")
    else:
        must(end == "Boom", f"on_error with {end}")
        must(m.fails_somewhere(pipeline) and may_fail, "on_error, and nothing failed")
    if expected.exact and end in ("complete", "Boom"):
        must((end == "Boom") == expected.failed, "another end")
        must(seen == expected.elements, "not the elements before the end")


def _check_same(records: list[Record]) -> None:
    """Those who share a stream see the same, in the same sequence."""
    longest = max((record.seen for record in records), key=len)
    for record in records:
        if longest[: len(record.seen)] != record.seen:
            raise Difference(f"§1.11: one saw {longest}, another {record.seen}")


def _check_discards(bench: Bench) -> None:
    """Each element is delivered, discarded, or used by a function: one of these, once."""
    fates: dict[int, list[str]] = {key: [] for key in bench.given}
    for key, fate in bench.fates:
        if key in fates:  # others were made with the stream: a seed, an element for an empty one
            fates[key].append(fate)
    first = min(bench.given, default=0)
    wrong = {key - first: found for key, found in fates.items() if len(found) != 1}
    if wrong:
        raise Difference(f"neither delivered nor discarded once: {wrong} of {len(bench.given)}")


def _check_demand(bench: Bench, wanted: int) -> None:
    """Upstream is asked for no more than the stages and prefetches make use of."""
    pipeline = bench.pipeline
    if wanted >= UNBOUNDED:
        return
    most = m.most_asked(pipeline, wanted)
    asked = bench.foreign.asked if bench.foreign is not None else 0
    pulled = bench.counting.pulled if bench.counting is not None else 0
    if max(asked, pulled) > most:
        raise Difference(
            f"§1.1 upstream: {wanted} elements were requested, for which at most {most} are needed "
            f"of the source; it was asked for {max(asked, pulled)}"
        )
    if bench.counting is not None and m.is_one_run(pipeline):
        lazily = m.pulled_lazily(pipeline, wanted)
        if pulled > lazily:
            raise Difference(
                f"{wanted} elements were requested, for which a lazy consumer takes {lazily} of "
                f"the source; {pulled} were taken"
            )


def _check_what_is_left(bench: Bench, records: list[Record], patience: float) -> None:
    """After the end nothing is kept: §3.13, elements, functions, threads, tasks."""
    for watch, what in ((bench.subscribers, "the subscriber"), (bench.elements, "elements")):
        if not watch.wait_dead(patience, gc.collect):
            _leak(watch, f"{what}, while the subscription is held")
    _check_rules(records)
    for record in records:
        record.subscription = None
    if not bench.functions.wait_dead(patience, gc.collect):
        _leak(bench.functions, "functions")
    # A group that the collector finds is closed by another thread, after its weak references are.
    with suppress(AssertionError):
        wait_until(lambda: len(bench.closed) >= len(bench.opened), "closing", timeout=patience)
    if sorted(bench.closed) != sorted(bench.opened):
        raise Difference(f"of the resources {bench.opened} there were closed {bench.closed}")
    deadline = time.monotonic() + patience
    for thread in set(threading.enumerate()) - bench.resources.threads:
        if thread.name.startswith(OF_THE_PROCESS):
            continue
        while thread.ident is None:  # another thread is just starting it
            time.sleep(0)
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            raise Difference(f"the thread {thread.name!r} is left running")
    if bench.uses_loop:
        left = bench.resources.tasks_left(patience)
        if left or bench.resources.complaints:
            complaints = [*bench.resources.complaints]
            bench.resources.complaints.clear()
            raise Difference(f"tasks are left: {left}; the loop complains: {complaints}")


def _leak(watch: Watch, what: str) -> None:
    keepers = [
        f"{thing!r} by " + ", ".join(sorted({type(r).__name__ for r in gc.get_referrers(thing)}))
        for thing in watch.alive()[:3]
    ]
    raise Difference(f"kept: {what}: {'; '.join(keepers)}")


def _check_strange(hooks: Hooks) -> None:
    if hooks.strange:
        raise Difference("reported, and nobody's: " + "\n".join(hooks.strange))


def _check_hooks(hooks: Hooks, stop: m.Stop, record: Record) -> None:
    _check_strange(hooks)
    raised = stop.kind == "raise" and record.stopped
    if hooks.dropped.count("Raised") != raised:
        raise Difference(f"§2.13: a subscriber that raised {raised:d} times: {hooks.dropped}")
