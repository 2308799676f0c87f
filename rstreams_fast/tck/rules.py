"""The rules of Reactive Streams 1.0, a sentence for each, and the order in which to repair them."""

from __future__ import annotations

from typing import Final

__all__ = ["MEND_FIRST", "NOT_OBSERVABLE", "RULES"]

RULES: Final[dict[str, str]] = {
    "1.1": "a publisher must never signal more elements than were requested",
    "1.2": "a publisher may signal fewer elements than requested and then end",
    "1.3": "the signals to one subscriber must not overlap",
    "1.4": "a publisher that fails must signal on_error",
    "1.5": "a finite stream that succeeds must end with on_complete",
    "1.6": "after on_error or on_complete the subscription counts as cancelled",
    "1.7": "nothing may follow on_error or on_complete",
    "1.8": "a cancelled subscription must stop signalling, sooner or later",
    "1.9": "subscribe must call on_subscribe first, return normally, and raise for None",
    "1.10": "a subscriber is subscribed only once",
    "1.11": "a publisher may serve several subscribers, and must serve each by its own demand",
    "2.1": "a subscriber must ask for elements by request(n)",
    "2.2": "a subscriber whose work is slow should do it in another thread",
    "2.3": "on_complete and on_error must not call the subscription",
    "2.4": "after on_complete or on_error the subscriber counts its subscription as cancelled",
    "2.5": "a subscriber that has a subscription must cancel every further one",
    "2.6": "a subscriber that stops early must cancel its subscription",
    "2.7": "a subscriber's calls on its subscription must not overlap",
    "2.8": "a subscriber must accept elements that arrive after its cancel",
    "2.9": "a subscriber must accept on_complete at any time, requested or not",
    "2.10": "a subscriber must accept on_error at any time, requested or not",
    "2.11": "a subscriber must see every signal, in order, from any thread",
    "2.12": "on_subscribe must be called at most once on a subscriber",
    "2.13": "a subscriber's methods must return normally, but raise when they are given None",
    "3.1": "a subscription is used by its own subscriber only",
    "3.2": "request may be called from within on_subscribe and on_next",
    "3.3": "request and on_next must not call each other without a bound on the depth",
    "3.4": "request should return soon",
    "3.5": "cancel must return soon, from any thread, any number of times",
    "3.6": "after cancel, request must do nothing",
    "3.7": "after cancel, cancel must do nothing",
    "3.8": "what is requested must add up and be delivered",
    "3.9": "request(n) needs n >= 1; on_error must answer any other n, and name this rule",
    "3.10": "request may call on_next before it returns",
    "3.11": "request may call on_complete or on_error before it returns",
    "3.12": "cancel must make the publisher stop signalling, sooner or later",
    "3.13": "cancel must make the publisher drop its references to the subscriber",
    "3.14": "the last cancel may shut a publisher down",
    "3.15": "cancel must return normally",
    "3.16": "request must return normally",
    "3.17": "demand up to 2**63 - 1 must be kept exactly; more may count as unbounded",
    "4.1": "a processor must keep the rules of both a subscriber and a publisher",
    "4.2": "a processor must pass an upstream error on at once, or recover from it",
}

#: Rules that no test can check, because nobody can see from outside that they are broken.
NOT_OBSERVABLE: Final[dict[str, str]] = {
    "2.2": "a recommendation, and what is slow depends on the work",
    "3.1": "it binds the owner of a subscription, and a call does not tell who makes it",
    "3.10": "a permission: publishers may answer at once, or later",
    "3.11": "a permission: publishers may end at once, or later",
    "3.14": "a permission: publishers may shut down, or stay",
}

#: Repair these rules first, in this order, because other rules depend on them. Repair the other
#: rules in the order of their numbers.
MEND_FIRST: Final = (
    "1.9", "2.12", "2.1", "2.5", "1.1", "3.8", "1.3", "2.7", "3.2", "3.3", "3.16", "3.15",
    "2.13", "1.5", "1.2", "1.7", "1.4", "3.9", "3.6", "3.7", "1.8", "3.12", "2.3",
)  # fmt: skip
