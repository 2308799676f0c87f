"""Shows the progress of a running Spark job on a terminal or in a notebook.

It shows a bar for the rows, a line for each phase of the job, and a line for each stage that is
stalled: a stage with running calls, none of which ends.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, Self, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from rstreams_fast.spark.metrics import Metrics
from rstreams_fast.spark.report.notebook import NotebookBar
from rstreams_fast.spark.report.page import ENDED, FAILED, TITLE, Page
from rstreams_fast.spark.report.samples import Watch
from rstreams_fast.spark.report.server import PageServer
from rstreams_fast.spark.report.tables import human_bytes, print_tables_of
from rstreams_fast.spark.report.waits import Stall

__all__ = ["Display", "make_console", "watch"]

REFRESH_SECONDS: Final = 0.25
"""Seconds between two readings of the metrics by ``watch``."""

LINE_SECONDS: Final = 10.0
"""Seconds between two printed lines of progress, on a console that cannot show a bar."""

PLAIN_WIDTH: Final = 120
"""The width of the console in characters, if standard output is no terminal."""


def make_console(*, quiet: bool = False) -> Console:
    """Return a console for standard output; without a terminal it is ``PLAIN_WIDTH`` wide.

    In a notebook the console shows bars and tables as HTML. If the encoding of standard output
    lacks a character, the console prints a question mark.

    Args:
        quiet: Whether the console shows nothing.
    """
    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    console = _Console(quiet=quiet, width=width)
    if console.options.ascii_only:
        file: Any = _Replacing(sys.stdout)
        console = _Console(quiet=quiet, width=width, file=file)
    return console


class _Console(Console):
    """A console that shows nothing more when nobody reads standard output any more (``| head``)."""

    def on_broken_pipe(self) -> None:
        # rich would end the process: then the results of all calls would be lost.
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()


class _Replacing(io.TextIOBase):
    """A file that writes to another ``file``, with ``?`` for characters that its encoding lacks."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._file.encoding

    def write(self, text: str) -> int:
        return self._file.write(text.encode(self.encoding, "replace").decode(self.encoding))

    def flush(self) -> None:
        self._file.flush()

    def isatty(self) -> bool:
        return self._file.isatty()

    def fileno(self) -> int:
        return self._file.fileno()


@contextlib.contextmanager
def watch(
    metrics: Metrics,
    *,
    rows: int | None = None,
    stages: Sequence[str] = (),
    console: Console | None = None,
    page: bool = False,
    title: str = TITLE,
) -> Iterator[Watch]:
    """Show a progress bar while an action of Spark runs in the block, and then tables.

    A thread reads the metrics four times a second until the block ends. With ``page=True`` a
    browser can show the progress, too. The address of this page is printed, and is the ``url`` of
    the ``Watch``. The page's server is reachable only at the loopback address, by every user of
    this machine. It stops within two seconds when the block ends; an open page keeps the last
    figures.

    Args:
        metrics: The ``Metrics`` that the stages were given.
        rows: The number of rows of the whole job, if it is known.
        stages: The names of the stages, in the order in which a row passes them. Default: the order
            of their start.
        console: A console of rich. Default: ``make_console()``.
        page: Whether to serve an HTML page that shows the progress.
        title: The heading of the page.

    Yields:
        The ``Watch``. ``write_page`` takes this object, and ``draw`` takes its samples.

    Raises:
        OSError: There is no free port for the page.
    """
    sampler = Watch(metrics, stages)
    sampler.look()
    server = PageServer(Page(sampler, title, rows=rows)) if page else None
    ended = threading.Event()
    begin = time.monotonic()
    with Display(console or make_console()) as display:
        if server is not None:
            sampler.url = server.url
            display.say(f"Live page: {server.url}")
        display.show_phases([("Running", begin)])

        def refresh() -> None:
            while not ended.wait(REFRESH_SECONDS):
                display.show_rows(sampler, rows)

        thread = threading.Thread(target=refresh, name="rstreams-watch", daemon=True)
        thread.start()
        failed = True
        try:
            yield sampler
            failed = False
        finally:
            ended.set()
            thread.join()
            sampler.look()
            if server is not None:
                server.close(FAILED if failed else ENDED)
            display.finish(failed=failed)
    rows_out = sampler.samples[-1].rows
    print_tables_of(display.console, sampler.stages, rows_out, time.monotonic() - begin)


class Display:
    """Shows the progress of one job: a line for each phase, a bar, a line for each stalled stage.

    Its methods may be called by one thread at a time, a few times a second. The object is a context
    manager.

    Args:
        console: A console of rich.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._is_ascii = console.options.ascii_only
        self._notebook = NotebookBar() if console.is_jupyter and not console.quiet else None
        self._progress = self._notebook or Progress(
            SpinnerColumn("line" if self._is_ascii else "dots"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TaskProgressColumn(),
            TextColumn("{task.fields[counts]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._phases: list[tuple[str, float]] = []
        self._next_line = 0.0
        self._stalls: dict[str, Stall] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def say(self, line: str) -> None:
        """Print a line above the bar.

        Args:
            line: The line, with rich's markup.
        """
        if self._notebook is not None:
            self._notebook.say(line)
        else:
            self.console.print(line, highlight=False)

    def show_phases(self, phases: Sequence[tuple[str, float]]) -> None:
        """Show the phases that have begun since the last call.

        Args:
            phases: All phases so far, each with its name and its start time (``time.monotonic``).
        """
        for name, begin in list(phases)[len(self._phases) :]:
            if self._phases:
                self._print_phase(begin)
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(name, total=None, counts="")
            self._next_line = time.monotonic() + LINE_SECONDS
            self._phases.append((name, begin))

    def show_rows(self, watch: Watch, rows: int | None) -> None:
        """Read the metrics, and show how many rows the last stage has passed on.

        Args:
            watch: The ``Watch`` that reads the metrics.
            rows: The number of rows of the whole job, if it is known.
        """
        sample = watch.look()
        of = f" of {rows:,}" if rows else ""
        counts = (
            f"{sample.rows:,}{of} rows, {watch.rate():,.0f} rows/s, "
            f"{sum(sample.running.values()):,} in flight, "
            f"{human_bytes(sum(sample.buffered.values()))} buffered"
        )
        self._show_stalls(watch.stalls)
        if self._stalls:
            longest = max(stall.seconds for stall in self._stalls.values())
            counts += f" [bold red]no answer for {longest:.0f} s[/]"
        if self._task is not None:
            self._progress.update(
                self._task, completed=sample.rows, total=rows or None, counts=counts
            )
        now = time.monotonic()
        bar = self.console.is_terminal or self._notebook is not None
        if not bar and now >= self._next_line:
            self._next_line = now + LINE_SECONDS
            self.say(f"  {counts}")

    def finish(self, *, failed: bool) -> None:
        """Print how long the last phase took, and whether it failed.

        Args:
            failed: Whether the phase failed.
        """
        if self._phases:
            self._print_phase(time.monotonic(), failed=failed)

    def _print_phase(self, end: float, *, failed: bool = False) -> None:
        name, begin = self._phases[-1]
        no, yes = ("failed:", "ok:") if self._is_ascii else ("✗", "✓")
        mark = f"[bold red]{no}[/]" if failed else f"[green]{yes}[/]"
        self.say(f"{mark} {name} [dim]{end - begin:.1f} s[/]")

    def _show_stalls(self, stalls: Sequence[Stall]) -> None:
        stalled = {stall.stage: stall for stall in stalls}
        for name, stall in stalled.items():
            if name not in self._stalls:
                self.say(
                    f"[bold red]stalled:[/] {escape(name)} has had no answer "
                    f"for {stall.seconds:.0f} s; "
                    f"{stall.running} calls are waiting"
                )
        for name, stall in self._stalls.items():
            if name not in stalled:
                self.say(f"[green]resumed:[/] {escape(name)} after more than {stall.seconds:.0f} s")
        self._stalls = stalled
