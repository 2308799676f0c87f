"""What several threads do to one subscription at the same time: decided once, told once.

On an interpreter with a GIL these tests find little; ``make freethreaded`` runs them without.
"""

from __future__ import annotations

import rstreams_fast as rsf
from tests.helpers import run_threads
from tests.rules.probes import Recorder, subscribed

ROUNDS = 30


def test_cancelled_by_several_threads_an_observer_is_told_once() -> None:
    for _ in range(ROUNDS):
        told: list[str] = []
        stream = rsf.range_(9).do_on_cancel(lambda told=told: told.append("cancel"))
        recorder = subscribed(stream, 1)
        run_threads([recorder.subscription.cancel] * 3)
        assert told == ["cancel"]


def test_requests_of_several_threads_add_up_across_a_boundary() -> None:
    for _ in range(20):
        recorder = subscribed(rsf.range_(600).publish_on(prefetch=16).map(lambda x: x + 1))

        def ask(recorder: Recorder = recorder) -> None:
            for _ in range(100):
                recorder.subscription.request(1)

        run_threads([ask] * 6)
        recorder.wait_terminal()
        assert recorder.elements == list(range(1, 601))
        recorder.check()


def test_closed_by_several_threads_an_iteration_cancels_once() -> None:
    for _ in range(ROUNDS):
        told: list[str] = []
        stream = rsf.range_(10**6).do_on_cancel(lambda told=told: told.append("cancel"))
        iteration = stream.iterate(prefetch=4)
        assert next(iteration) == 0
        run_threads([iteration.close] * 3)
        assert told == ["cancel"]
