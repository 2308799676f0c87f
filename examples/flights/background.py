"""Work in a thread of its own, so that the main thread can watch it, and stop it on Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Background", "Interrupted", "run_until_done"]

T = TypeVar("T")

LOOK_SECONDS: Final = 0.25
"""How often the main thread looks."""

CANCEL_SECONDS: Final = 0.5
"""How often work that is to stop is told so again."""

_STOPPING: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """The work was told to stop."""


class Background(ABC, Generic[T]):
    """Work to be done once. Any thread may call the public methods."""

    def __init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="rstreams-demo", daemon=True)
        self._cancelled = threading.Event()
        self._spark: SparkSession | None = None
        self._value: list[T] = []
        self._error: BaseException | None = None

    @abstractmethod
    def work(self) -> T:
        """Do it, in the thread of its own; call :meth:`check` every now and then."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wait(self, timeout: float) -> bool:
        """Wait for the end, up to ``timeout`` seconds; return whether it has come."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Stop soon; does not wait. To be repeated: Spark only stops what runs at the moment."""
        self._cancelled.set()
        spark = self._spark
        if spark is not None:
            with contextlib.suppress(Exception):  # it may be on its way out already
                spark.sparkContext.cancelAllJobs()

    @property
    def failed(self) -> bool:
        """Whether :meth:`result` would raise."""
        return self._error is not None

    def result(self) -> T:
        """Return what came out, or raise what went wrong; :class:`Interrupted` after ``cancel``.

        Only after :meth:`wait` was true.
        """
        if self._error is not None:
            raise self._error
        return self._value[0]

    def check(self) -> None:
        """Raise :class:`Interrupted` if the work is to stop."""
        if self._cancelled.is_set():
            raise Interrupted

    @contextlib.contextmanager
    def attached(self, spark: SparkSession) -> Iterator[None]:
        """Let ``cancel`` stop the jobs of this session, too."""
        self._spark = spark
        try:
            yield
        finally:
            self._spark = None

    def _run(self) -> None:
        try:
            self._value.append(self.work())
        except BaseException as error:  # handed on by result()
            self._error = Interrupted() if self._cancelled.is_set() else error


def run_until_done(
    work: Background[T], look: Callable[[], object], stopping: Callable[[], object]
) -> None:
    """Start ``work`` and wait for its end; ``look`` is called several times a second.

    SIGINT and SIGTERM call ``stopping`` and cancel it. For the main thread.
    """
    stop = threading.Event()

    def asked_to_stop(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, asked_to_stop) for number in _STOPPING}
    try:
        work.start()
        while not work.wait(LOOK_SECONDS) and not stop.is_set():
            look()
        if stop.is_set():
            stopping()
            work.cancel()
            while not work.wait(CANCEL_SECONDS):
                work.cancel()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
