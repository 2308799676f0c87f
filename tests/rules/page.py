"""docs/rules.md: each rule, where the code keeps it, which tests prove it, what a broken one is.

Nothing of it is written by hand. The rules' texts are the kit's; places are the ``§n.m`` marks of
the sources; proofs are the kit's tests and the tests of the suite that name the rule; broken ones
are the classes registered in tests/broken. ``python -m tests.rules.page`` writes the page.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from rstreams_fast.tck import (
    IdentityProcessorVerification,
    PublisherVerification,
    SubscriberBlackboxVerification,
    SubscriberWhiteboxVerification,
)
from rstreams_fast.tck.rules import RULES, UNBREAKABLE
from rstreams_fast.tck.verification import Test, list_tests
from tests.broken.processors import processors
from tests.broken.publishers import publishers
from tests.broken.registry import Case
from tests.broken.subscribers import blackbox, whitebox
from tests.tck.official_names import OFFICIAL_NAMES

__all__ = ["PAGE", "Entry", "collect", "faults", "render"]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "rules.md"

VERIFICATIONS = {
    "publisher": PublisherVerification,
    "blackbox": SubscriberBlackboxVerification,
    "whitebox": SubscriberWhiteboxVerification,
    "processor": IdentityProcessorVerification,
}
OFFICIAL = frozenset(name for names in OFFICIAL_NAMES.values() for name in names)

_MARK = re.compile(r"§(\d\.\d+)")
_TEST = re.compile(r"test_spec(\d)(\d\d)_")
#: A definition in Cython, by its indentation; and a function in C, which begins a line.
_CYTHON = re.compile(r"^( *)(?:cdef |cpdef |def |class )(?:[^(:=]*[ *])?(\w+)\s*[(:]")
_C = re.compile(r"^(?:[a-z][\w *]*[ *])?(rsf_\w+)\(")

Places = dict[str, dict[str, list[str]]]


@dataclass
class Entry:
    """What is known about one rule."""

    number: str
    text: str
    why_unbreakable: str = ""
    places: dict[str, list[str]] = field(default_factory=dict)  #: file: names in it
    kit: dict[str, tuple[Test, list[str]]] = field(default_factory=dict)  #: name: test, of whom
    suite: dict[str, list[str]] = field(default_factory=dict)  #: file: names of tests
    broken: list[Case] = field(default_factory=list)

    @property
    def judged(self) -> list[tuple[Test, list[str]]]:
        """The kit's tests that can fail."""
        return [(test, of) for test, of in self.kit.values() if test.kind != "untested"]

    @property
    def left_out(self) -> list[Test]:
        """The kit's tests that only say why they cannot judge."""
        return [test for test, _ in self.kit.values() if test.kind == "untested"]


# -- marks in the sources --------------------------------------------------------------------------


def _marks(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, 1):
        for rule in _MARK.findall(line):
            yield number, rule


def _python_names(text: str) -> list[str]:
    """For each line the innermost function or class it stands in, by its qualified name."""
    names = [""] * (text.count("\n") + 2)

    def visit(node: ast.AST, outer: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{outer}.{child.name}" if outer else child.name
                for line in range(child.lineno, (child.end_lineno or child.lineno) + 1):
                    names[line] = name
                visit(child, name)
            else:
                visit(child, outer)

    visit(ast.parse(text), "")
    return names


def _cython_names(text: str) -> list[str]:
    names = [""]
    stack: list[tuple[int, str]] = []
    for line in text.splitlines():
        found = _CYTHON.match(line)
        if found:
            indent = len(found[1])
            stack = [(depth, name) for depth, name in stack if depth < indent]
            stack.append((indent, found[2]))
        names.append(".".join(name for _, name in stack))
    return names


def _c_names(text: str) -> list[str]:
    """In C the comment right above a function belongs to it; what stands alone is the file's."""
    lines = text.splitlines()
    names = [""] * (len(lines) + 1)
    begins, inside = 1, ""
    for number, line in enumerate(lines, 1):
        found = _C.match(line)
        if found and not inside:
            names[begins : number + 1] = [found[1]] * (number + 1 - begins)
            inside = "" if line.endswith(";") else found[1]
        names[number] = names[number] or inside
        if line == "}":
            inside = ""
        if not line and not inside:
            begins = number + 1
    return names


_NAMES = {".py": _python_names, ".pyx": _cython_names, ".h": _c_names, ".c": _c_names}


def places_of(files: Iterable[Path]) -> Places:
    """Rule: file: the functions and classes whose text bears the rule's mark."""
    found: Places = defaultdict(lambda: defaultdict(list))
    for path in files:
        text = path.read_text(encoding="utf-8")
        if "§" not in text:
            continue
        names = _NAMES[path.suffix](text)
        for line, rule in _marks(text.splitlines()):
            here = found[rule][path.relative_to(ROOT).as_posix()]
            if names[line] not in here:
                here.append(names[line])
    return found


def sources() -> list[Path]:
    """What we ship, but for the kit, which judges, and the interfaces, which only promise.

    Of ``.pyx`` files Cython makes ``.c`` files beside them: those are not ours.
    """
    shipped = ROOT / "rstreams_fast"
    files = [*(ROOT / "csrc").glob("*.[ch]"), *shipped.rglob("*.py"), *shipped.rglob("*.pyx")]
    return sorted(
        path for path in files if path != shipped / "api.py" and shipped / "tck" not in path.parents
    )


# -- proofs ----------------------------------------------------------------------------------------


def suite_tests() -> Places:
    """Rule: file: the tests of the suite that bear its number in their name, or its mark."""
    found: Places = defaultdict(lambda: defaultdict(list))
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        file = path.relative_to(ROOT).as_posix()
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if not node.name.startswith("test_"):
                continue
            rules = {rule for _, rule in _marks(lines[node.lineno - 1 : node.end_lineno])}
            named = _TEST.match(node.name)
            if named:
                rules.add(f"{named[1]}.{int(named[2])}")
            for rule in rules:
                if node.name not in found[rule][file]:
                    found[rule][file].append(node.name)
    return found


@cache
def collect() -> dict[str, Entry]:
    """Everything known, by rule."""
    entries = {
        number: Entry(number, text, UNBREAKABLE.get(number, "")) for number, text in RULES.items()
    }
    for who, verification in VERIFICATIONS.items():
        for test in list_tests(verification):
            if test.rule:
                entries[test.rule].kit.setdefault(test.name, (test, []))[1].append(who)
    tests = {name: found for entry in entries.values() for name, found in entry.kit.items()}
    for case in (*publishers.cases, *blackbox.cases, *whitebox.cases, *processors.cases):
        entry = entries[case.rule]
        entry.broken.append(case)
        if not entry.judged:  # what every test of the kit looks at, such as that request returns
            entry.kit[case.test] = tests[case.test]
    for rule, files in places_of(sources()).items():
        entries[rule].places = dict(files)
    for rule, files in suite_tests().items():
        entries[rule].suite = dict(files)
    return entries


def faults(entry: Entry) -> list[str]:
    """What is missing for a rule to count as kept, in words."""
    missing = []
    if not entry.judged and not entry.suite and not entry.why_unbreakable:
        missing.append(f"§{entry.number} has no proof: no test of the kit judges it, none names it")
    if not entry.places and not entry.why_unbreakable:
        missing.append(f"§{entry.number} has no place: no line of the sources bears its mark")
    if not entry.broken and not entry.why_unbreakable:
        missing.append(f"§{entry.number} is not broken by any class of tests/broken")
    if entry.broken and entry.why_unbreakable:
        missing.append(f"§{entry.number} is called unbreakable, and {entry.broken[0].id} breaks it")
    return missing


# -- the page --------------------------------------------------------------------------------------

_HEAD = """\
# The rules, one by one

Written by `make docs` from the sources and the tests: do not edit it. CI fails when it is stale,
and when a rule has no place in the code, no proof, or no broken implementation that is rejected.

* **Kept by**: the functions and classes that bear the rule's mark (`§n.m`). Below `core/` the same
  rule is kept once by each backend.
* **Judged by**: tests of the kits, run on everything we ship. Those marked *both* are in the
  official kit and, under the same name, in ours; the others are ours alone. [docs/tck.md](tck.md)
  says what the outcomes mean{results}.
* **Also tested by**: tests of the suite that name the rule.
* **Broken**: an implementation that is wrong in this one point, the test that rejects it, and words
  of its message.

| Rule | In our words | Places | Judged by | Broken ones |
|---|---|---|---|---|
"""


def _link(file: str) -> str:
    return f"[{file.removeprefix('rstreams_fast/').removeprefix('tests/')}](../{file})"


def _per_file(files: dict[str, list[str]]) -> Iterator[str]:
    for file in sorted(files):
        names = ", ".join(f"`{name}`" for name in sorted(files[file]) if name)
        yield f"  * {_link(file)}{': ' if names else ''}{names}"


def _case(case: Case) -> str:
    file = case.broken.__module__.replace(".", "/")
    says = case.says.strip().replace("|", "\\|")
    return f"  * `{case.broken.__name__}` in {_link(file + '.py')}, by `{case.test}`: “{says}”"


def _entry(entry: Entry) -> Iterator[str]:
    yield f"\n## {entry.number}\n\n{entry.text[0].upper()}{entry.text[1:]}.\n"
    if entry.why_unbreakable:
        yield f"* **Cannot be seen broken**: {entry.why_unbreakable}."
    if entry.places:
        yield "* **Kept by**"
        yield from _per_file(entry.places)
    if entry.judged:
        yield "* **Judged by**"
        for test, of in entry.judged:
            kit = "both" if test.name in OFFICIAL else "ours"
            yield f"  * `{test.name}` ({kit}: {', '.join(of)}): {test.what}"
    if entry.left_out:
        yield "* **Left out by the official kit, by design**"
        for test in entry.left_out:
            yield f"  * `{test.name}`: {test.what}"
    if entry.suite:
        yield "* **Also tested by**"
        yield from _per_file(entry.suite)
    if entry.broken:
        yield "* **Broken**"
        yield from (_case(case) for case in sorted(entry.broken, key=lambda case: case.id))


def render() -> str:
    """The whole page."""
    entries = collect().values()
    results = (
        ", [docs/conformance.md](conformance.md) how they came out"
        if (PAGE.parent / "conformance.md").exists()
        else ""
    )
    rows = [
        f"| [{entry.number}](#{entry.number.replace('.', '')}) | {entry.text} "
        f"| {sum(map(len, entry.places.values())) or ''} "
        f"| {len(entry.judged) or ''} "
        f"| {'cannot be' if entry.why_unbreakable else len(entry.broken)} |"
        for entry in entries
    ]
    lines = [line for entry in entries for line in _entry(entry)]
    return _HEAD.format(results=results) + "\n".join([*rows, *lines]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
