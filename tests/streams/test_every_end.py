"""Every end of the table: what it gives, how it fails, and where it may be called."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import start_thread
from tests.operators import ENDS, End
from tests.operators.entry import NoStream
from tests.rules.probes import ManualPublisher, raising

BOOM = RuntimeError("boom")
TWINS = [name for name, end in ENDS.items() if end.has_twin]


def _awaited(end: End) -> Callable[[Any], Any]:
    async def main(stream: Any) -> Any:
        return end.read(await end.call_twin(stream))

    return lambda stream: asyncio.run(main(stream))


def _called(end: End) -> Callable[[Any], Any]:
    return lambda stream: end.read(end.call(stream))


#: Each end, and each twin, as a function of the stream.
BLOCKING = {name: _called(end) for name, end in ENDS.items()}
CALLS = BLOCKING | {f"{name}_async": _awaited(ENDS[name]) for name in TWINS}


@pytest.mark.parametrize("numbers", [[], [0], [1, 2], [1, 0, 2], list(range(3000))], ids=len)
@pytest.mark.parametrize("name", CALLS)
def test_it_gives_what_its_entry_says(name: str, numbers: list[int]) -> None:
    expected = ENDS[name.removesuffix("_async")].gives(numbers)
    stream = rsf.from_iterable(numbers)
    for source in (stream, rsf.from_publisher(NoStream(stream)), stream.publish_on()):
        assert CALLS[name](source) == expected


@pytest.mark.parametrize("how", ["signalled", "out of subscribe", "out of request"])
@pytest.mark.parametrize("name", CALLS)
def test_an_error_is_raised_as_itself(name: str, how: str) -> None:
    class Failing(ManualPublisher):
        def subscribe(self, subscriber: Any, /) -> None:
            if how == "out of subscribe":
                raise BOOM
            super().subscribe(subscriber)

        def request(self, n: int, /) -> None:
            super().request(n)
            if how == "out of request":
                raise BOOM
            self.subscriber.on_error(BOOM)

    publisher = Failing()
    with pytest.raises(RuntimeError) as raised:
        CALLS[name](rsf.from_publisher(publisher))
    assert raised.value is BOOM
    assert raised.value.__context__ is None
    assert publisher.cancels == (how == "out of request")


@pytest.mark.parametrize("name", TWINS)
def test_a_cancelled_error_of_the_stream_does_not_end_the_task_in_silence(name: str) -> None:
    with pytest.raises(RuntimeError, match="CancelledError"):
        CALLS[f"{name}_async"](rsf.error(asyncio.CancelledError()))


def _cancelled(_: object = None) -> Any:
    raise asyncio.CancelledError


def _one_and_cancelled() -> Iterator[int]:
    yield 1
    _cancelled()


#: Streams of which a function of the user raises a ``CancelledError`` on the thread of the end.
CANCELLED: dict[str, Callable[[], rsf.Stream[Any]]] = {
    "map": lambda: rsf.range_(1).map(_cancelled),
    "flat_map": lambda: rsf.range_(1).flat_map(_cancelled),
    "group_by": lambda: rsf.range_(1).group_by(_cancelled),
    "generator": lambda: rsf.from_iterable(_one_and_cancelled()).filter(lambda n: n > 1),
    "defer": lambda: rsf.defer(_cancelled),
    "create": lambda: rsf.create(_cancelled),
    "a later request": lambda: (
        rsf.range_(2000).map(lambda n: n if n < 1500 else _cancelled()).skip(1500)
    ),
}


async def _for_each(stream: rsf.Stream[Any]) -> None:
    await stream.for_each(lambda _element: None)


@pytest.mark.parametrize("of", CANCELLED)
@pytest.mark.parametrize("name", [*TWINS, "for_each"])
async def test_a_cancelled_error_of_a_function_does_not_end_the_task_in_silence(
    name: str, of: str
) -> None:
    call = _for_each if name == "for_each" else ENDS[name].call_twin
    with pytest.raises(RuntimeError, match="nobody cancelled") as raised:
        await call(CANCELLED[of]())
    assert isinstance(raised.value.__cause__, asyncio.CancelledError)


#: Further streams, of which the function is called on another thread, or by an operator below.
BELOW: dict[str, Callable[[rsf.Stream[Any]], rsf.Stream[Any]]] = {
    "publish_on": lambda s: s.publish_on(),
    "flat_map": lambda s: s.flat_map(rsf.range_),
    "retry": lambda s: s.retry(1),
    "itself": lambda s: s,
}


@pytest.mark.parametrize("below", BELOW)
@pytest.mark.parametrize("name", BLOCKING)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_cancelled_error_of_a_function_is_explained_and_not_reported(
    name: str, below: str, dropped: list[BaseException]
) -> None:
    stream = BELOW[below](rsf.range_(1).map(_cancelled))
    with pytest.raises(RuntimeError, match="nobody cancelled") as raised:
        BLOCKING[name](stream)
    assert isinstance(raised.value.__cause__, asyncio.CancelledError)
    assert dropped == []


@pytest.mark.parametrize("name", TWINS)
async def test_in_a_running_loop_it_names_its_twin(name: str) -> None:
    publisher = ManualPublisher()
    for stream in (rsf.from_publisher(publisher), rsf.range_(3)):
        with pytest.raises(RuntimeError, match=f"{name}_async"):
            ENDS[name].call(stream)
    assert publisher.subscribes == 0


@pytest.mark.parametrize("name", TWINS)
async def test_a_cancelled_task_cancels_upstream_once(name: str) -> None:
    publisher = ManualPublisher()
    task = asyncio.ensure_future(ENDS[name].call_twin(rsf.from_publisher(publisher)))
    await asyncio.to_thread(publisher.wait_requested, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert publisher.cancels == 1


@pytest.mark.parametrize("name", BLOCKING)
def test_an_interrupt_out_of_upstream_leaves_and_cancels_once(name: str) -> None:
    publisher = ManualPublisher(raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        CALLS[name](rsf.from_publisher(publisher))
    assert publisher.cancels == 1


@pytest.mark.skipif(os.name == "nt", reason="os.kill with SIGINT ends the process on Windows")
@pytest.mark.parametrize("name", [*TWINS, "iterate"])
def test_ctrl_c_wakes_who_waits_cancels_and_leaves(name: str) -> None:
    publisher = ManualPublisher()

    def interrupt() -> None:
        publisher.wait_requested(1)
        os.kill(os.getpid(), signal.SIGINT)

    sending = start_thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        CALLS[name](rsf.from_publisher(publisher))
    sending.result()
    assert publisher.cancels == 1
