"""A stream lives in the process that subscribed to it: in the child of a fork every subscription
and every iterator says so, whatever it is made of.
"""

from __future__ import annotations

import os

import pytest

from tests.helpers import run_python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def run(program: str) -> list[str]:
    """The lines that it prints; without the warning of a fork beside threads."""
    return run_python("-W", "ignore::DeprecationWarning", "-c", program).stdout.splitlines()


SUBSCRIPTIONS = """
import os, threading
from concurrent.futures import ThreadPoolExecutor
import rstreams_fast as rsf
from tests.operators import SOURCES, firsts
from tests.rules.probes import subscribed

def chain():
    stream = rsf.range_(9)
    for _ in range(40):
        stream = stream.publish_on("caller")
    return stream

def is_refused(recorder):
    recorder.subscription.request(1)
    recorder.wait_terminal()
    error = recorder.error
    return type(error) is rsf.WorkDroppedError and "forked" in str(error) and not recorder.elements

pool = ThreadPoolExecutor(1)
for kind, stream in {
    **{name: use.over(rsf.range_(9)) for name, use in firsts().items()},
    **{name: gives.of(9) for source in SOURCES for name, gives in source.uses.items()},
    "publish_on a pool": rsf.range_(9).publish_on(pool),
    "a long chain": chain(),
}.items():
    came = threading.Event()
    recorder = subscribed(stream, on_subscribe=lambda _recorder: came.set())
    assert came.wait(60), kind
    if (child := os.fork()) == 0:
        try:
            os._exit(0 if is_refused(recorder) else 1)
        finally:
            os._exit(2)
    served = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    recorder.subscription.request(1)  # the parent goes on
    recorder.subscription.cancel()
    if served:
        print(kind)
pool.shutdown()
"""


def test_a_subscription_refuses_to_work_in_the_child_of_a_fork() -> None:
    assert run(SUBSCRIPTIONS) == []


ITERATORS = """
import asyncio, os, tempfile
import rstreams_fast as rsf

class Lines:
    def __iter__(self):
        with open(file.name) as opened:
            yield from opened

lines = Lines()

def consume(how, begun):
    served = []

    async def in_loop():
        async for element in begun:
            served.append(element)

    try:
        if how.startswith("async"):
            asyncio.run(in_loop())
        else:
            served.extend(begun)
    except RuntimeError as refused:
        return len(served), "forked" in str(refused)
    return len(served), False

def begin_async(elements):
    begun = aiter(elements)
    loop.run_until_complete(anext(begun))
    return begun

def begin(elements):
    begun = iter(elements)
    next(begun)
    return begun

loop = asyncio.new_event_loop()
with tempfile.NamedTemporaryFile("w") as file:
    file.write("".join(f"{n}\\n" for n in range(5000)))
    file.flush()
    for kind, stream in {
        "pull": rsf.from_iterable(lines),
        "stages": rsf.from_iterable(lines).map(int).filter(lambda n: n >= 0),
        "publish_on": rsf.from_iterable(lines).publish_on(),
        "merge": rsf.merge(rsf.from_iterable(lines), rsf.empty()),
    }.items():
        for how, begun in {
            "for": begin(stream),
            "iterate": begin(stream.iterate(prefetch=8)),
            "async for": begin_async(stream),
            "async iterate": begin_async(stream.iterate(prefetch=8)),
        }.items():
            if (child := os.fork()) == 0:
                os._exit(0 if consume(how, begun) == (0, True) else 1)
            if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
                print("served in the child:", kind, how)
            if how.startswith("async"):
                loop.run_until_complete(begun.aclose())
            elif consume(how, begun) != (4999, False):  # the parent goes on
                print("not served in the parent:", kind, how)
loop.close()
"""


def test_an_iterator_that_the_parent_began_gives_nothing_in_the_child_of_a_fork() -> None:
    assert run(ITERATORS) == []


SHARED = """
import os
import rstreams_fast as rsf

ticks = rsf.interval(0.001, overflow=rsf.Overflow.DROP_LATEST)
shared = ticks.{share}
elements = iter(shared)
next(elements)
over = rsf.range_(3).replay(count=2)
assert over.to_list() == [0, 1, 2]
if (child := os.fork()) == 0:
    try:
        shared.take(1).to_list()
    except rsf.WorkDroppedError as refused:
        fresh = rsf.range_(3).share().to_list()
        right = "forked" in str(refused) and over.to_list() == [1, 2] and fresh == [0, 1, 2]
        os._exit(0 if right else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert len(shared.take(1).to_list()) == 1  # the parent goes on
elements.close()
"""


@pytest.mark.parametrize("share", ["share()", "multicast()", "replay(count=1)"])
def test_who_would_share_a_stream_of_the_parent_is_refused(share: str) -> None:
    run(SHARED.replace("{share}", share))


CONSUMERS = {"with": "next(entered)", "run": "run.result(10)"}

CONSUMER = """
import os
import rstreams_fast as rsf

entered = rsf.never().iterate().__enter__()  # parks
run = rsf.interval(99.0).for_each(print)
if (child := os.fork()) == 0:
    try:
        {consume}
    except RuntimeError as refused:
        os._exit(0 if "forked" in str(refused) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
run.cancel()
"""


@pytest.mark.parametrize("kind", CONSUMERS)
def test_a_consumer_refuses_to_wait_in_the_child_of_a_fork(kind: str) -> None:
    run(CONSUMER.replace("{consume}", CONSUMERS[kind]))
