"""``DemandCounter``: what is requested is fulfilled once, and after the end nothing counts."""

from __future__ import annotations

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core import CANCELLED, TERMINATED, DemandCounter
from rstreams_fast.errors import DemandExceededError
from tests.soak.chance import Chance
from tests.soak.place import Place
from tests.soak.scenarios.registry import scenario


@scenario
def requests_and_fulfils(chance: Chance, place: Place) -> None:
    """Several ask, several deliver: the books agree at the end."""
    counter = DemandCounter(chance.randrange(5))
    initial = counter.value

    def request(chance: Chance) -> int:
        asked = 0
        for _ in range(chance.size(500)):
            n = chance.size(50)
            assert counter.request(n) >= 0
            asked += n
        return asked

    def fulfil(chance: Chance) -> int:
        done = 0
        for _ in range(chance.size(500)):
            n = chance.size(20)
            try:
                left = counter.fulfil(n)
            except DemandExceededError:
                continue
            assert left >= 0
            done += n
        return done

    asking = [place.thread(request, chance.fork()) for _ in range(chance.randint(1, 3))]
    giving = [place.thread(fulfil, chance.fork()) for _ in range(chance.randint(1, 2))]
    asked = sum(thread.result() for thread in asking)
    done = sum(thread.result() for thread in giving)
    assert counter.value == initial + asked - done, (counter.value, initial, asked, done)


@scenario
def ends(chance: Chance, place: Place) -> None:
    """One of several ends counts, and all see the same one; saturation does not undo it."""
    counter = DemandCounter()
    start = chance.size(300)

    def request(chance: Chance) -> None:
        seen = 0
        for _ in range(400):
            before = counter.request(UNBOUNDED if chance.one_in(50) else chance.size(9))
            assert seen >= 0 or before == seen, "demand after the end"
            seen = before

    def end(name: str) -> bool:
        for _ in range(start):
            counter.pending  # noqa: B018 - to pass the time, and to look
        return bool(getattr(counter, name)())

    asking = [place.thread(request, chance.fork()) for _ in range(2)]
    ending = [place.thread(end, chance.choice(("cancel", "terminate"))) for _ in range(3)]
    assert sum(thread.result() for thread in ending) == 1
    for thread in asking:
        thread.result()
    assert counter.value in (CANCELLED, TERMINATED)
    assert counter.pending == 0
