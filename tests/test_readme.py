"""Every example of the README, the docs and the docstrings runs, and prints what it says it prints.

An example is a ``python`` block. A ``print`` followed by a comment prints that comment, or what
follows its last colon.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers import FENCE, PROMISE, run_python
from tests.public_names import PUBLIC, names_of

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Pages whose examples run elsewhere, all of one together: tests/tck/test_docs.py,
#: tests/spark/test_getting_there.py, tests/spark/test_streams.py.
TOGETHER = {"tck.md", "judge.md", "getting-there.md", "streaming.md"}
LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#]+)")


@dataclass(frozen=True)
class Example:
    page: Path
    number: int
    code: str

    @property
    def promises(self) -> list[str]:
        """The lines that the example's comments say it prints."""
        return PROMISE.findall(self.code)

    def __str__(self) -> str:
        return f"{self.page.name}-{self.number}"


def code_of(page: Path) -> list[str]:
    return FENCE.findall(page.read_text(encoding="utf-8"))


def in_docstrings() -> list[Example]:
    """The examples in the docstrings of public names."""
    found: dict[str, Example] = {}
    for module in PUBLIC:
        for name in names_of(module):
            described: object = importlib.import_module(module)
            for part in name.split("."):
                described = getattr(described, part, None)
            for number, code in enumerate(FENCE.findall(inspect.getdoc(described) or ""), 1):
                found.setdefault(code, Example(Path(f"{module}.{name}"), number, code))
    return list(found.values())


@functools.cache
def examples() -> list[Example]:
    pages = [
        Example(page, number, code)
        for page in PAGES
        if page.name not in TOGETHER
        for number, code in enumerate(code_of(page), 1)
    ]
    return pages + in_docstrings()


def needs_spark(example: Example) -> bool:
    return re.search(r"\brs\.", example.code) is not None


def check_promises(example: Example, printed: str) -> None:
    lines = iter(printed.splitlines())
    for promise in example.promises:
        assert promise in lines, f"{example} promises {promise!r}; it printed:\n{printed}"


PLAIN = [example for example in examples() if not needs_spark(example)]
WITH_SPARK = [example for example in examples() if needs_spark(example)]


@pytest.mark.parametrize("example", PLAIN, ids=str)
def test_an_example_runs(example: Example) -> None:
    printed = io.StringIO()
    code = compile(example.code, str(example), "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, {"__name__": "__main__"})
    check_promises(example, printed.getvalue())


#: What the Spark examples take for given, each by the name that it uses.
GIVEN = """
import os, sys, tempfile
from pathlib import Path
from pyspark.sql import SparkSession
import rstreams_fast.spark as rs
from examples.flights import data
from examples.flights.service import Behaviour
from examples.flights.service_process import ServiceProcess

directory = Path(sys.argv[1])
data.write_database(data.find_files(), directory / "lookups.sqlite")
service = ServiceProcess(directory / "lookups.sqlite", Behaviour(), directory / "log")
URL = service.url
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
    .getOrCreate()
)
flights = spark.createDataFrame(
    [("N14228",), (None,), ("N619AA",), ("N3739P",), ("unknown",)], "tailnum string"
)
"""

AFTER = """
spark.stop()
service.close()
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_examples_run_in_spark(tmp_path: Path) -> None:
    script = tmp_path / "pages.py"
    script.write_text(
        "\n".join([GIVEN, *(example.code for example in WITH_SPARK), AFTER]), encoding="utf-8"
    )
    env = {"PYTHONPATH": str(ROOT)}
    done = run_python(str(script), str(tmp_path), cwd=tmp_path, env=env, timeout=290)
    for example in WITH_SPARK:
        check_promises(example, done.stdout)
    table = [line.split("|")[1:3] for line in done.stdout.splitlines() if line.startswith("|")]
    shown = {tailnum.strip(): seats.strip() for tailnum, seats in table[1:]}
    assert shown == {
        "N14228": "149",
        "NULL": "NULL",
        "N619AA": "178",
        "N3739P": "189",
        "unknown": "NULL",
    }


def links() -> list[tuple[Path, str]]:
    return [
        (page, target)
        for page in PAGES
        for target in LINK.findall(page.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize(("page", "target"), links(), ids=lambda value: Path(value).name)
def test_a_link_leads_somewhere(page: Path, target: str) -> None:
    assert (page.parent / target).exists()


def test_there_are_examples_of_all_three_uses() -> None:
    readme = [example.code for example in examples() if example.page.name == "README.md"]
    for use in ("rs.lookup(", ".subscribe(", "SpscRing("):
        assert any(use in code for code in readme), use
    for example in PLAIN:
        silent = "print(" not in example.code or "describe()" in example.code
        assert silent or example.promises, f"{example} prints, and does not say what"


def test_the_kit_accepts_the_recipes_publisher(tmp_path: Path) -> None:
    page = (ROOT / "docs/recipes/judge.md").read_text(encoding="utf-8")
    files = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for name, text in files:
        (tmp_path / name).write_text(text, encoding="utf-8")
    run_python("-m", "rstreams_fast.cli", "tck", "numbers_factory:Factory", cwd=tmp_path)
