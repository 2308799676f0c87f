"""Shows the progress bar of a job, and tables, in a notebook."""

from __future__ import annotations

import html
import io
import threading
import time
import uuid
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.progress import TaskID
from rich.table import Table
from rich.text import Text

from rstreams_fast.spark.report.html import html_table

__all__ = ["NotebookBar", "ShownTable", "say", "show"]

PLAIN_WIDTH: Final = 120

_BAR: Final = '<progress style="width:16em;vertical-align:middle" {words}></progress>'


class ShownTable(Table):
    """A table of rich that a notebook shows as HTML."""

    def _repr_mimebundle_(
        self,
        include: object = (),  # noqa: ARG002
        exclude: object = (),  # noqa: ARG002
        **_: object,
    ) -> dict[str, str]:
        return {"text/html": html_table(self), "text/plain": _plain_text(self)}


def show(title: str, table: Table) -> None:
    """Show a title and a table as output of the notebook cell that is running."""
    found = f"<p><b>{html.escape(title)}</b></p>{html_table(table)}"
    _display({"text/html": found, "text/plain": f"{title}\n{_plain_text(table)}"})


def say(line: str) -> None:
    """Show a line of text as output of the notebook cell that is running."""
    _display({"text/html": f"<div>{html.escape(line)}</div>", "text/plain": line})


def _display(bundle: dict[str, str], **words: Any) -> None:
    from IPython.display import display

    display(bundle, raw=True, **words)  # type: ignore[no-untyped-call]


def _plain_text(shown: RenderableType) -> str:
    """Return the text that a terminal without colours would show for a renderable of rich."""
    file = io.StringIO()
    console = Console(
        file=file,
        width=PLAIN_WIDTH,
        force_jupyter=False,
        force_terminal=False,
        color_system=None,
    )
    console.print(shown)
    return file.getvalue()


class NotebookBar:
    """A progress bar below lines of text, in one output of a notebook cell.

    It has the methods of rich's ``Progress`` that a ``Display`` calls. Any thread may use the
    object.
    """

    def __init__(self) -> None:
        self._id = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._task: dict[str, Any] | None = None
        self._begin = 0.0
        self._number = 0

    def start(self) -> None:
        """Show an empty output, which later calls update."""
        _display(self._bundle(), display_id=self._id)

    def stop(self) -> None:
        """Remove the bar. The lines that ``say`` has shown remain."""
        self._change(None)

    def say(self, line: str) -> None:
        """Show a line above the bar. The line may have rich's markup."""
        self._lines.append(Text.from_markup(line).plain)
        self._change(self._task)

    def add_task(self, description: str, total: float | None = None, **fields: Any) -> TaskID:
        """Show a new bar, which replaces the current bar."""
        self._number, self._begin = self._number + 1, time.monotonic()
        self._change({"name": description, "total": total, "completed": 0, **fields})
        return TaskID(self._number)

    def remove_task(self, _: TaskID) -> None:
        self._change(None)

    def update(self, _: TaskID, **fields: Any) -> None:
        """Change ``fields`` of the bar, and show the changed bar."""
        self._change({**(self._task or {}), **fields})

    def _change(self, task: dict[str, Any] | None) -> None:
        from IPython.display import update_display

        with self._lock:
            self._task = task
            update_display(self._bundle(), display_id=self._id, raw=True)  # type: ignore[no-untyped-call]

    def _bundle(self) -> dict[str, str]:
        lines = [f"<div>{html.escape(line)}</div>" for line in self._lines]
        texts = list(self._lines)
        if (task := self._task) is not None:
            total = task["total"]
            words = f'max="{total}" value="{task["completed"]}"' if total else ""
            counts = Text.from_markup(task["counts"]).plain
            text = f"{task['name']} {counts}, {time.monotonic() - self._begin:.0f} s"
            lines.append(f"<div>{_BAR.format(words=words)} {html.escape(text)}</div>")
            texts.append(text)
        return {"text/html": "".join(lines) or "<div></div>", "text/plain": "\n".join(texts)}
