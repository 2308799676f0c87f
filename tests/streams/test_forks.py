"""A stream lives in the process that subscribed to it: in the child of a fork every subscription
and every iterator says so, whatever it is made of.
"""

from __future__ import annotations

import os

import pytest

from tests.helpers import run_python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

SUBSCRIPTIONS = """
import os, threading, warnings
from concurrent.futures import ThreadPoolExecutor
import rstreams_fast as rsf
from tests.operators import SOURCES, firsts

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads

def chain():
    stream = rsf.range_(9)
    for _ in range(40):
        stream = stream.publish_on("caller")
    return stream

class Subscriber:
    def __init__(self):
        self.subscribed, self.ended, self.signals = threading.Event(), threading.Event(), []

    def on_subscribe(self, subscription):
        self.subscription = subscription
        self.subscribed.set()

    def on_next(self, element):
        self.signals.append(element)

    def on_complete(self):
        self.signals.append("complete")
        self.ended.set()

    def on_error(self, error):
        self.signals.append(error)
        self.ended.set()

pool = ThreadPoolExecutor(1)
for kind, stream in {
    **{name: use.over(rsf.range_(9)) for name, use in firsts().items()},
    **{name: gives.of(9) for source in SOURCES for name, gives in source.uses.items()},
    "publish_on a pool": rsf.range_(9).publish_on(pool),
    "a long chain": chain(),
}.items():
    subscriber = Subscriber()
    stream.subscribe(subscriber)
    assert subscriber.subscribed.wait(60), kind
    if (child := os.fork()) == 0:
        subscriber.subscription.request(1)
        subscriber.ended.wait(10)
        refused = [type(signal) for signal in subscriber.signals] == [rsf.WorkDroppedError]
        os._exit(0 if refused and "forked" in str(subscriber.signals[0]) else 1)
    served = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    subscriber.subscription.request(1)  # the parent goes on
    subscriber.subscription.cancel()
    if served:
        print(kind)
pool.shutdown()
"""


def test_a_subscription_refuses_to_work_in_the_child_of_a_fork() -> None:
    served = run_python("-c", SUBSCRIPTIONS).stdout
    assert served.splitlines() == []


ITERATORS = """
import asyncio, os, tempfile, warnings
import rstreams_fast as rsf

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads

class Lines:
    def __iter__(self):
        with open(file.name) as opened:
            yield from opened

lines = Lines()

def sync(begun):
    served = 0
    try:
        for _ in begun:
            served += 1
    except RuntimeError as refused:
        return served, "forked" in str(refused)
    return served, False

def in_loop(begun):
    async def consume():
        served = 0
        try:
            async for _ in begun:
                served += 1
        except RuntimeError as refused:
            return served, "forked" in str(refused)
        return served, False

    return asyncio.run(consume())

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
        for how, begun, consume in [
            ("for", begin(stream), sync),
            ("iterate", begin(stream.iterate(prefetch=8)), sync),
            ("async for", begin_async(stream), in_loop),
            ("async iterate", begin_async(stream.iterate(prefetch=8)), in_loop),
        ]:
            if (child := os.fork()) == 0:
                os._exit(0 if consume(begun) == (0, True) else 1)
            if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
                print("served in the child:", kind, how)
            if consume is sync and consume(begun) != (4999, False):  # the parent goes on
                print("not served in the parent:", kind, how)
            if consume is in_loop:
                loop.run_until_complete(begun.aclose())
loop.close()
"""


def test_an_iterator_that_the_parent_began_gives_nothing_in_the_child_of_a_fork() -> None:
    assert run_python("-c", ITERATORS).stdout.splitlines() == []


SHARED = """
import os, warnings
import rstreams_fast as rsf

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads

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
    run_python("-c", SHARED.replace("{share}", share))


CONSUMERS = {"with": "next(entered)", "run": "run.result(10)"}

CONSUMER = """
import os, warnings
import rstreams_fast as rsf

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads

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
    run_python("-c", CONSUMER.replace("{consume}", CONSUMERS[kind]))
