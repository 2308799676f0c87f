"""Judges memcheck's report: an error counts when a module of ours, or a C program, is in its stack.

``python -m tests.memcheck.judge REPORT.xml NAME...``: what of NAME is in the path of an object. The
interpreter and numpy have findings of their own, which are not ours to mend, and differ from
version to version: a list of them would be wrong by the next.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree as ET


def ours(report: Path, names: list[str]) -> list[str]:
    """The errors, in words, that have one of ``names`` in their stack."""
    found = []
    for error in ET.parse(report).iterfind("error"):
        stacks = [
            [(frame.findtext("obj", "?"), frame.findtext("fn", "?")) for frame in stack]
            for stack in error.iterfind("stack")
        ]
        if any(name in obj for stack in stacks for obj, _ in stack for name in names):
            what = error.findtext("what") or error.findtext("xwhat/text") or "?"
            lines = [f"    {fn} ({obj})" for stack in stacks for obj, fn in stack[:12]]
            found.append("\n".join([f"{error.findtext('kind')}: {what}", *lines]))
    return found


def main() -> int:
    errors = ours(Path(sys.argv[1]), sys.argv[2:])
    print("\n".join(errors), end="\n" if errors else "")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
