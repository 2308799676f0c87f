"""Converts tables to HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

__all__ = ["html_of", "html_table"]


def html_table(table: Table) -> str:
    """Return a table as HTML. The first cell of each row becomes the heading of the row.

    Args:
        table: A table of rich. The cells are texts.
    """
    numeric = [column.justify == "right" for column in table.columns]
    columns = [[_cell_html(cell) for cell in column.cells] for column in table.columns]
    ends = [row.end_section for row in table.rows]
    heads = [_cell_html(column.header) for column in table.columns]
    return html_of(heads, list(zip(*columns, strict=True)), numeric=numeric, ends=ends)


def html_of(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numeric: Sequence[bool],
    ends: Sequence[bool] = (),
) -> str:
    """Return a table as HTML. The first cell of each row becomes the heading of the row.

    Args:
        heads: The headings of the columns, as HTML.
        rows: The cells, as HTML.
        numeric: For each column: whether it has numbers.
        ends: For each row: whether a section of the table ends after this row.
    """
    kinds = ["n" if is_numeric else "t" for is_numeric in numeric]
    body = []
    for index, (first, *others) in enumerate(rows):
        last = ' class="last"' if ends and ends[index] else ""
        cells = _cells("td", kinds[1:], others)
        body.append(f'<tr{last}><th scope="row">{first}</th>{cells}</tr>')
    heads = [head.replace("_", "_<wbr>") for head in heads]
    head = _cells('th scope="col"', kinds, heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _cells(tag: str, kinds: Iterable[str], cells: Iterable[str]) -> str:
    end = tag.partition(" ")[0]
    return "".join(
        f'<{tag} class="{kind}">{cell}</{end}>' for kind, cell in zip(kinds, cells, strict=True)
    )


def _cell_html(cell: RenderableType) -> str:
    text = cell if isinstance(cell, Text) else Text.from_markup(str(cell))
    return escape(text.plain)
