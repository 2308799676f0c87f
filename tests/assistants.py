"""Writes ``docs/assistants.md`` and ``docs/llms.txt``: ``python -m tests.assistants``.

Both have each public name with its signature and the first sentence of its docstring.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path

from rstreams_fast import UNBOUNDED
from tests.public_names import PUBLIC, names_of

DOCS = Path(__file__).parents[1] / "docs"
WIDTH = 76  # of a block of code in the site
SITE = "https://github.com/rstreams-fast/rstreams-fast/blob/main/docs/"
SUMMARY = """\
Reactive Streams for Python on a C core, and bounded concurrency inside PySpark stages.
Python 3.11 or later."""
RULES = """\
* `import rstreams_fast as rsf` for streams, `import rstreams_fast.spark as rs` for Spark.
* A stream is a description: nothing runs until an end is called (`to_list`, `for_each`,
  `subscribe`, a `for` loop). Inside a running loop take the ends named `..._async`, or `async for`.
* `None` is no element: a function that may return it goes into `map_not_none`. A coroutine function
  goes into `map_async`, a function that blocks into `map_blocking`.
* `publish_on` and `subscribe_on` change threads; `prefetch` is the bound between them.
* In Spark: `rs.lookup` for one column, `rs.enrich` for several, `rs.map_batches` for Arrow batches,
  `rs.stage` for any stream of batches. `using` makes a client for each partition; `retry`,
  `timeout`, `limit` and `on_failure` surround each call.
* UDFs that a job has overlap by two settings, without a change: `docs/drop-in.md`.
* Extras: `numpy`, `arrow`, `spark` (on a platform that has PySpark), `pyspark`, `report`,
  `reactivex`, `rsocket`, `cffi`."""


def sentence(described: object) -> str:
    """The first sentence of a docstring, in one line."""
    text = " ".join((inspect.getdoc(described) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.:]) (?=[A-Z`])", text)[0].replace("``", "`")


def signature(described: object) -> str:
    """The parameters with their defaults, without their types; empty for what nobody calls."""
    uncalled = (BaseException, Enum)
    if not callable(described) or getattr(described, "_is_protocol", False):
        return ""
    if inspect.isclass(described) and issubclass(described, uncalled):
        return ""
    try:
        found = inspect.signature(described)
    except ValueError:
        return "(...)"
    parameters = [
        each.replace(annotation=each.empty)
        for name, each in found.parameters.items()
        if name not in ("self", "cls")
    ]
    shown = str(found.replace(parameters=parameters, return_annotation=found.empty))
    return re.sub(r"<[^<>]*>", "...", shown.replace(str(UNBOUNDED), "UNBOUNDED"))


def described(module: str) -> dict[str, tuple[str, str]]:
    """The signature and the first sentence of each public name of a module."""
    found = importlib.import_module(module)
    said = {}
    for name in names_of(module):
        owner, dot, member = name.partition(".")
        of = getattr(found, owner)
        if dot:
            of = inspect.getattr_static(of, member, None)
            of = getattr(of, "__func__", of)
        is_value = not (callable(of) or inspect.isdatadescriptor(of) or inspect.ismodule(of))
        said[name] = signature(of), "" if is_value else sentence(of)
    return said


def in_full() -> str:
    """A line for each name, members below their class; each class once."""
    parts, seen = [], set[str]()
    for module in PUBLIC:
        lines = [f"# {module}"]
        names = described(module)
        for name, (parameters, said) in names.items():
            owner, dot, member = name.partition(".")
            if owner == "Group" and f"Stream.{member}" in names:
                continue  # a group is a stream
            if owner not in seen and (said or not dot):
                shown = f"  .{member}{parameters}" if dot else f"{owner}{parameters}"
                lines.append(f"{shown}  # {said}" if said else shown)
        seen |= {name.partition(".")[0] for name in names}
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def in_one_screen() -> str:
    """What a user calls, with its parameters, and the methods of a stream."""
    own, spark = described("rstreams_fast"), described("rstreams_fast.spark")
    chosen = {
        "rstreams_fast": {name: own[name][0] for name in own if "." not in name},
        "Stream": {
            member: parameters
            for name, (parameters, _) in own.items()
            for owner, _, member in [name.partition(".")]
            if owner == "Stream" and member
        },
        "rstreams_fast.spark": {name: spark[name][0] for name in spark if "." not in name},
    }
    return "\n\n".join(
        "\n".join(
            [f"# {title}", *_filled(f"{name}{parameters}" for name, parameters in names.items())]
        )
        for title, names in chosen.items()
    )


def _filled(items: Iterable[str]) -> list[str]:
    lines = [""]
    for item in items:
        if lines[-1] and len(lines[-1]) + len(item) > WIDTH:
            lines.append("")
        lines[-1] += f"   {item}" if lines[-1] else item
    return lines


def pages() -> Iterator[str]:
    """The site's pages, in the order of its navigation, with their titles."""
    navigation = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1]
    for place in re.findall(r"([\w/-]+\.md)$", navigation, re.MULTILINE):
        if place != "index.md":
            title = (DOCS / place).read_text(encoding="utf-8").split("\n", 1)[0].strip("# ")
            yield f"* [{title}]({SITE}{place})"


def written() -> dict[Path, str]:
    """The text of each file."""
    made = "Made from the docstrings; [llms.txt](llms.txt) has a sentence on each name."
    page = [
        f"# For code assistants\n\n{SUMMARY}\n{made}\n\n## Rules\n\n{RULES}",
        f"## The interface in one screen\n\n```text\n{in_one_screen()}\n```",
    ]
    index = "\n".join(pages())
    text = [
        f"# rstreams_fast\n\n> {SUMMARY}\n\n{RULES}",
        f"## Pages\n\n{index}\n\n## Interface\n\n```text\n{in_full()}\n```",
    ]
    parts = {"assistants.md": page, "llms.txt": text}
    return {DOCS / name: "\n\n".join(part) + "\n" for name, part in parts.items()}


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
