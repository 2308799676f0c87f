"""Each rule of Reactive Streams 1.0 in one sentence of our own, for failure messages and docs."""

from __future__ import annotations

from typing import Final

__all__ = ["RULES", "UNBREAKABLE"]

RULES: Final[dict[str, str]] = {
    "1.1": "a publisher never signals more elements than were requested",
    "1.2": "a publisher may signal fewer elements than requested and then end",
    "1.3": "the signals to one subscriber never overlap",
    "1.4": "a publisher that fails says so by on_error",
    "1.5": "a finite stream that succeeds ends with on_complete",
    "1.6": "after on_error or on_complete the subscription counts as cancelled",
    "1.7": "nothing follows on_error or on_complete",
    "1.8": "a cancelled subscription stops signalling",
    "1.9": "subscribe calls on_subscribe first and once, returns normally, and refuses None",
    "1.10": "a subscriber is subscribed once only",
    "1.11": "a publisher that serves several subscribers serves each of them properly",
    "2.1": "a subscriber asks for elements by request(n)",
    "2.2": "a subscriber whose work is slow should do it elsewhere",
    "2.3": "on_complete and on_error call nothing on the subscription",
    "2.4": "after on_complete or on_error the subscriber counts its subscription as cancelled",
    "2.5": "a subscriber that has a subscription cancels every further one",
    "2.6": "a subscriber that stops early cancels its subscription",
    "2.7": "a subscriber's calls on its subscription never overlap",
    "2.8": "a subscriber bears elements that arrive after its cancel",
    "2.9": "a subscriber bears on_complete at any time, requested or not",
    "2.10": "a subscriber bears on_error at any time, requested or not",
    "2.11": "a subscriber sees every signal, in order, from whichever thread it comes",
    "2.12": "on_subscribe is called at most once on a subscriber",
    "2.13": "a subscriber's methods return normally, except for a TypeError when given None",
    "3.1": "a subscription is used by its own subscriber only",
    "3.2": "request may be called from within on_subscribe and on_next",
    "3.3": "request and on_next do not call each other to an unbounded depth",
    "3.4": "request returns soon",
    "3.5": "cancel returns soon, from any thread, any number of times",
    "3.6": "after cancel, request does nothing",
    "3.7": "after cancel, cancel does nothing",
    "3.8": "what is requested adds up and is delivered",
    "3.9": "request(n) with n < 1, or with no int, is an on_error that names this rule",
    "3.10": "request may call on_next before it returns",
    "3.11": "request may call on_complete or on_error before it returns",
    "3.12": "cancel makes the publisher stop signalling, sooner or later",
    "3.13": "cancel makes the publisher let go of its subscriber, sooner or later",
    "3.14": "the last cancel may shut a publisher down",
    "3.15": "cancel returns normally",
    "3.16": "request returns normally",
    "3.17": "demand up to 2**63 - 1 is kept exactly, and more counts as unbounded",
    "4.1": "a processor keeps the rules of both a subscriber and a publisher",
    "4.2": "a processor passes an upstream error on at once, or recovers from it",
}

#: Rules that no implementation can be seen to break from outside, and why.
UNBREAKABLE: Final[dict[str, str]] = {
    "2.2": "a recommendation, and what is slow depends on the work",
    "3.1": "it binds whoever holds a subscription, and a call does not tell whose it is",
    "3.10": "a permission: publishers may answer at once, or later",
    "3.11": "a permission: publishers may end at once, or later",
    "3.14": "a permission: publishers may shut down, or stay",
}
