"""``CallWindow``: calls that wait, or do not, in every mode, to the end or until cancelled."""

from __future__ import annotations

import asyncio

from rstreams_fast.core import CallWindow
from tests.helpers import DEADLINE
from tests.soak.chance import Chance
from tests.soak.ledger import Element, Reader
from tests.soak.place import Place
from tests.soak.scenarios.registry import scenario


@scenario
def calls(chance: Chance, place: Place) -> None:
    """Every item once; in order, if so asked; never more at once than allowed."""
    n = chance.size(1500)
    concurrency = chance.size(40)
    capacity = concurrency + chance.size(100)
    ordered, dedupe = chance.one_in(2), chance.one_in(3)
    fails_at = chance.randrange(n) if chance.one_in(4) else None
    stops_at = chance.size(1500) if chance.one_in(4) else None
    seldom = chance.size(10)
    running = most = 0

    async def fn(item: Element) -> Element:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            if item.number % seldom == 0:
                for _ in range(item.number % 4):
                    await asyncio.sleep(0)
            if item.number == fails_at:
                raise ValueError("meant")
            return item
        finally:
            running -= 1

    async def main() -> list[Element]:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        items = [Element("a", k) for k in range(n)]
        taken: list[Element] = []
        at = 0

        def pump() -> None:
            nonlocal at
            try:
                at += window.submit_many(items, at)
                assert window.pending <= capacity
                while results := window.take(chance.size(300)):
                    taken.extend(results)
                    at += window.submit_many(items, at)
                if stops_at is not None and len(taken) >= stops_at:
                    window.cancel()
                over = window.failure or len(taken) >= n or (stops_at or n) <= len(taken)
                if over and not window.running and not done.done():
                    done.set_result(None)
            except BaseException as error:
                if not done.done():
                    done.set_exception(error)

        window = CallWindow(
            fn,
            loop=loop,
            on_ready=pump,
            concurrency=concurrency,
            capacity=capacity,
            ordered=ordered,
            dedupe=dedupe,
        )
        loop.call_soon(pump)
        try:
            await asyncio.wait_for(done, DEADLINE)
            assert window.running == 0
            assert window.max_running <= concurrency
            assert (window.failure is not None) <= (fails_at is not None)
            if stops_at is None and window.failure is None:
                assert len(taken) == n, (len(taken), n)
        finally:
            window.cancel()
        return taken

    taken = place.on_loop(main())
    assert most <= concurrency, (most, concurrency)
    if ordered:
        reader = Reader()
        for element in taken:
            reader.see(element)
        reader.check()
    else:
        assert len({element.number for element in taken}) == len(taken)
