"""Verification of a subscriber that tells the kit's probe which signals it has processed."""

# The checks have the names of the official Java kit, so that results of both kits can be compared.
# ruff: noqa: N802

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from rstreams_fast.tck.environment import Environment
from rstreams_fast.tck.history import show, show_call
from rstreams_fast.tck.outcome import HookFailed, RuleBroken
from rstreams_fast.tck.probes import is_same
from rstreams_fast.tck.subscriber.checks import SubscriberChecks
from rstreams_fast.tck.subscriber.controlled_upstream import ControlledUpstream
from rstreams_fast.tck.subscriber.races import SubscriberRaceChecks
from rstreams_fast.tck.verification import Verification, check

__all__ = ["Puppet", "SubscriberWhiteboxVerification", "WhiteboxProbe"]


class Puppet(Protocol):
    """An object by which the kit makes the subscriber request and cancel.

    The subscriber passes its puppet to ``WhiteboxProbe.register_on_subscribe``.
    """

    def trigger_request(self, n: int, /) -> None:
        """Make the subscriber request elements, in one call of ``request`` or in several.

        Args:
            n: The number of elements.
        """

    def signal_cancel(self) -> None:
        """Make the subscriber cancel its subscription."""


class WhiteboxProbe:
    """A subscriber under test calls the probe after it has processed a signal.

    Any thread may call the probe.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.puppet: Any = None
        self.elements: list[Any] = []
        self.terminal: tuple[Any, ...] | None = None
        self._read = 0

    def register_on_subscribe(self, puppet: Puppet, /) -> None:
        """Call this when the subscriber has accepted a subscription.

        Args:
            puppet: The kit calls this object to make the subscriber request and cancel.
        """
        if self.puppet is not None:
            came = "register_on_subscribe was called again"
            self._environment.flag("2.5", "one subscription is accepted", came)
            return
        self._environment.history.add("probe.register_on_subscribe()")
        self.puppet = puppet
        self._environment.notify()

    def register_on_next(self, element: Any, /) -> None:
        """Call this when the subscriber has processed an element.

        Args:
            element: The element.
        """
        with self._environment.changed:
            self._environment.history.add(f"probe.register_on_next({show(element)})")
            if self.terminal == ("on_complete",):
                expected = "on_complete is processed after every element"
                came = f"on_next({show(element)}) was processed after it"
                self._environment.flag("2.11", expected, came)
            self.elements.append(element)
            self._environment.notify()

    def register_on_error(self, error: BaseException, /) -> None:
        """Call this when the subscriber has processed an error.

        Args:
            error: The error.
        """
        self._register_terminal("on_error", error)

    def register_on_complete(self) -> None:
        """Call this when the subscriber has processed ``on_complete``."""
        self._register_terminal("on_complete")

    def _register_terminal(self, *signal: Any) -> None:
        with self._environment.changed:
            self._environment.history.add(f"probe.register_{signal[0]}()")
            self.terminal = self.terminal or signal
            self._environment.notify()

    def came(self) -> str:
        unread = self.elements[self._read :]
        texts = [show_call("on_next", element) for element in unread[:8]]
        if self.terminal is not None:
            texts.append(show_call(*self.terminal))
        return "the subscriber processed " + (", ".join(texts) or "nothing")

    def expect_next(self, element: Any, rule: str) -> None:
        expected = f"the subscriber processes on_next({show(element)})"
        self._environment.wait(lambda: len(self.elements) > self._read, rule, expected, self.came)
        if not is_same(self.elements[self._read], element):
            raise RuleBroken(rule, expected, self.came())
        self._read += 1

    def expect_none(self, rule: str) -> None:
        self._environment.expect_quiet(
            lambda: len(self.elements) > self._read, rule, "no further element", self.came
        )

    def expect_terminal(self, rule: str, *signal: Any) -> None:
        expected = f"the subscriber processes {show_call(*signal)}"
        self._environment.wait(lambda: self.terminal, rule, expected, self.came)
        if self.terminal != signal:
            raise RuleBroken(rule, expected, self.came())


class _WhiteboxUpstream(ControlledUpstream):
    """The kit's publisher above a whitebox subscriber. Uses the subscriber's puppet and probe."""

    def __init__(
        self, verification: Any, subscriber: Any, waiting_calls: int, probe: WhiteboxProbe
    ) -> None:
        super().__init__(verification, subscriber, waiting_calls)
        self.probe = probe
        self._completed = False
        self._deferred: list[Any] = []  # sent elements whose processing was not checked yet

    def start(self, answers: list[Any]) -> None:
        self.send_subscription()
        self.environment.wait(
            lambda: self.probe.puppet is not None,
            "2.1",
            "the subscriber calls probe.register_on_subscribe(puppet)",
            lambda: "no such call",
        )
        self.answer_by(answers)  # before its registration a subscriber might drop elements

    def trigger_request(self, n: int) -> None:
        self._call_puppet("trigger_request", n)

    def trigger_cancel(self) -> None:
        self._call_puppet("signal_cancel")

    def _call_puppet(self, name: str, *arguments: Any) -> None:
        self.environment.history.record_call("puppet", name, *arguments)
        if self.probe.puppet is None:
            raise HookFailed("the subscriber did not call probe.register_on_subscribe(puppet)")
        self.verification._call_user("the puppet's ", self.probe.puppet, name, *arguments)

    def drop_references(self) -> None:
        self.probe.puppet = None

    def send(self, name: str, *arguments: Any) -> None:
        super().send(name, *arguments)
        if name == "on_complete":
            self._completed = True

    def expect_processed(self, elements: list[Any], rule: str) -> None:
        self._deferred += elements
        if self._completed or not self.verification.delivers_at_end:
            for element in self._deferred:
                self.probe.expect_next(element, rule)
            self._deferred.clear()

    def expect_terminal(self, rule: str, *signal: Any) -> None:
        if signal == ("on_complete",):
            self.expect_processed([], rule)
        self.probe.expect_terminal(rule, *signal)


class SubscriberWhiteboxVerification(SubscriberChecks, SubscriberRaceChecks, Verification):
    """Verifies a subscriber: define ``create_whitebox_subscriber(probe)`` in a subclass."""

    delivers_at_end: bool = False
    """Whether the subscriber processes elements only after ``on_complete``, as a sorting stage
    does. The kit then expects the elements after the end.
    """

    essential_hook = "create_whitebox_subscriber"
    hooks: ClassVar[tuple[str, ...]] = (*SubscriberChecks.hooks, "create_whitebox_subscriber")
    settings: ClassVar[tuple[str, ...]] = (*Verification.settings, "delivers_at_end")

    def create_whitebox_subscriber(self, probe: WhiteboxProbe) -> Any:
        """Return a new subscriber that requests only through its puppet, and calls ``probe``.

        Args:
            probe: The subscriber must call the probe after it has processed a signal.
        """
        raise NotImplementedError(
            "create_whitebox_subscriber(probe) is the hook that makes a subscriber"
        )

    def _make_upstream(self, waiting_calls: int) -> _WhiteboxUpstream:
        probe = WhiteboxProbe(self.environment)
        subscriber = self._make("create_whitebox_subscriber", probe)
        return _WhiteboxUpstream(self, subscriber, waiting_calls, probe)

    @check("2.1", needs="a request")
    def required_exerciseWhiteboxHappyPath(self) -> None:
        """The subscriber twice requests an element and processes it. (So puppet and probe work.)
        Look at the subscriber's calls of the probe, and at its puppet."""
        upstream = self._upstream()
        upstream.trigger_request(1)
        upstream.trigger_request(1)
        first = upstream.expect_request()
        self._process_one(upstream, 0, "2.1")
        upstream.trigger_request(1)
        if first == 1:
            upstream.expect_request()
        self._process_one(upstream, 1, "2.1")

    @check("3.8", needs="a request")
    def required_spec308_requestMustRegisterGivenNumberElementsToBeProduced(self) -> None:
        """The puppet requests two elements, in one call or in two. Both are processed.
        Look at puppet.trigger_request, and at what happens after the first of several elements."""
        upstream = self._upstream()
        upstream.trigger_request(2)
        requested = upstream.expect_request("3.8")
        self._process_one(upstream, 0, "3.8")
        if requested == 1:
            upstream.expect_request("3.8", "a request for the second element")
        self._process_one(upstream, 1, "3.8")
        upstream.probe.expect_none("3.8")
        upstream.trigger_request(3)

    def _process_one(self, upstream: ControlledUpstream, index: int, rule: str) -> None:
        element = self._element(index)
        upstream.send_next(element)
        upstream.expect_processed([element], rule)
