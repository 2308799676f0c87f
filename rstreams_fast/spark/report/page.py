"""A run as one HTML file: tables and the picture, nothing beside it."""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

__all__ = ["write_page"]

_WIDTH: Final = 120

_PAGE: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<style>body {{ font-family: sans-serif; margin: 2em auto; max-width: 70em }}
pre {{ overflow-x: auto }} img {{ max-width: 100% }}</style>
<h1>{title}</h1>
{parts}
</html>
"""


def write_page(
    path: str | os.PathLike[str],
    title: str,
    tables: Sequence[tuple[str, Table]],
    picture: str | os.PathLike[str] | None = None,
) -> Path:
    """Write tables and a picture to one HTML file.

    Args:
        path: The file.
        title: The heading of the page.
        tables: Tables of rich, each with its heading.
        picture: A PNG file, which the page then holds.

    Returns:
        The path of the file.
    """
    parts = []
    if picture is not None:
        data = base64.b64encode(Path(picture).read_bytes()).decode("ascii")
        parts.append(f'<img alt="{html.escape(title)}" src="data:image/png;base64,{data}">')
    for heading, table in tables:
        with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
            console = Console(record=True, width=_WIDTH, file=nowhere)
            console.print(table)
        text = console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
        parts.append(f"<h2>{html.escape(heading)}</h2>\n{text}")
    target = Path(path)
    page = _PAGE.format(title=html.escape(title), parts="\n".join(parts))
    target.write_text(page, encoding="utf-8")
    return target
