"""The progress bar, and what is said where there is no terminal to draw one."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from rstreams_fast.demo.run import ENRICHING

if TYPE_CHECKING:
    from rstreams_fast.demo.run import MainJob
    from rstreams_fast.demo.watch import Stall, Watch

__all__ = ["Display", "complain", "human_bytes", "make_console"]

LINE_SECONDS: Final = 10.0
"""How often a line is printed where there is no bar."""

PLAIN_WIDTH: Final = 120
"""Columns where there is no terminal to ask."""

_KIB: Final = 1024
_FRAMES: Final = ("\tat ", "\t...", "        at ", "        ...")


def make_console() -> Console:
    """Return the console for standard output; where it is no terminal, lines may be long."""
    return Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)


def complain(text: str) -> None:
    """Print an error to standard error, without the JVM's stack frames: those are in the log."""
    lines = [line for line in text.splitlines() if not line.startswith(_FRAMES)]
    print("rstreams-fast demo: " + "\n".join(lines), file=sys.stderr)


def human_bytes(count: float) -> str:
    """Write a number of bytes as people read it: ``3.1 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < _KIB:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _KIB
    return f"{count:.1f} GiB"


class Display:
    """Shows one run: a line for each phase, a bar for the rows, a line for each stall.

    ``update`` is called a few times a second by the thread that watches.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TaskProgressColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._shown = 0
        self._next_line = 0.0
        self._stalls: dict[str, Stall] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(line, highlight=False)

    def update(self, job: MainJob, watch: Watch) -> None:
        """Show how far the job is."""
        self._show_phases(job)
        if self._task is None or not job.phases or job.phases[-1][0] != ENRICHING:
            return
        sample = watch.look()
        flying = sum(sample.running.values())
        figures = (
            f"{sample.rows:,} of {job.rows:,} rows, {watch.rate():,.0f} rows/s, "
            f"{flying:,} in flight, {human_bytes(sum(sample.buffered.values()))} buffered"
        )
        self._show_stalls(watch)
        if self._stalls:
            longest = max(stall.seconds for stall in self._stalls.values())
            figures += f" [bold red]no answer for {longest:.0f} s[/]"
        self._progress.update(
            self._task, completed=sample.rows, total=job.rows or None, figures=figures
        )
        now = time.monotonic()
        if not self._console.is_terminal and now >= self._next_line:
            self._next_line = now + LINE_SECONDS
            self.say(f"  {figures}")

    def finish(self, job: MainJob) -> None:
        """Show how long the last phase took, and how it ended."""
        self._show_phases(job)
        if job.phases:
            self._tick(job.phases[-1], time.monotonic(), failed=job.failed)

    def _show_phases(self, job: MainJob) -> None:
        phases = list(job.phases)
        for index in range(self._shown, len(phases)):
            if index:
                self._tick(phases[index - 1], phases[index][1])
            if self._task is not None:
                self._progress.remove_task(self._task)
            name = phases[index][0]
            self._task = self._progress.add_task(name, total=None, figures="")
            self._next_line = time.monotonic() + LINE_SECONDS
        self._shown = len(phases)

    def _tick(self, phase: tuple[str, float], end: float, *, failed: bool = False) -> None:
        name, begin = phase
        mark = "[bold red]✗[/]" if failed else "[green]✓[/]"
        self.say(f"{mark} {name} [dim]{end - begin:.1f} s[/]")

    def _show_stalls(self, watch: Watch) -> None:
        stalled = {stall.stage: stall for stall in watch.stalls}
        for name, stall in stalled.items():
            if name not in self._stalls:
                self.say(
                    f"[bold red]stalled:[/] {name} has had no answer for {stall.seconds:.0f} s; "
                    f"{stall.running} look-ups are waiting"
                )
        for name, stall in self._stalls.items():
            if name not in stalled:
                self.say(f"[green]resumed:[/] {name} after more than {stall.seconds:.0f} s")
        self._stalls = stalled
