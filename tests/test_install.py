"""The package without its neighbours, and what its metadata says."""

from __future__ import annotations

import re
import tomllib
import venv
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.helpers import run_python

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
FOR_DEVELOPERS = {"bench", "demo", "docs", "test"}
SENTENCE = re.compile(
    r".+ needs (\w+), which is not installed: pip install (?:(\w+)|'.+\[(\w+)\]')"
)


def test_alone_it_runs_and_each_optional_part_says_what_to_install(tmp_path: Path) -> None:
    venv.create(tmp_path / "empty", symlinks=True)
    (python,) = (tmp_path / "empty").glob("*/python")
    # -P: beside the program is a folder called "typing".
    done = run_python(
        *("-P", str(ROOT / "tests/alone.py"), str(ROOT / "README.md")),
        executable=str(python),
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
    )
    lines = done.stdout.splitlines()
    (start,) = (place for place, line in enumerate(lines) if line.startswith("package "))
    assert str(tmp_path / "empty") in lines[start]
    assert "a ['b', 'c', 'd']" in lines[:start]  # the last program of the README
    parts = lines[start + 1 :]
    assert len(parts) > 10
    for part in parts:
        said = SENTENCE.fullmatch(part.split(" ", 1)[1])
        assert said is not None, part
        needed, by_itself, extra = said.groups()
        assert by_itself == needed or any(needed in line for line in EXTRAS[extra]), part


@pytest.mark.parametrize(
    ("missing", "use"),
    [
        ("matplotlib", "from rstreams_fast.spark.report import draw; draw([], 'picture.png')"),
        (
            "cachetools",
            (
                "import pyarrow as pa; import rstreams_fast.spark as rs; "
                "look = rs.lookup(rs.Policy(cache=rs.Cache())(str), pa.string()); "
                "list(look.as_map_fn()([pa.RecordBatch.from_pydict({'k': [1]})]))"
            ),
        ),
    ],
)
def test_without_one_library_its_use_says_what_is_missing(missing: str, use: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        f"try:\n    {use}\nexcept ImportError as missing:\n    print(missing)\n"
    )
    done = run_python("-c", program)
    said = SENTENCE.fullmatch(done.stdout.splitlines()[-1])
    assert said is not None, done.stdout
    assert said[1] == missing


def test_a_library_that_does_not_load_gives_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('built for another numpy')")
    program = "import rstreams_fast as rsf; rsf.range_(3).to_numpy()"
    done = run_python("-c", program, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"}, check=False)
    assert done.stderr.splitlines()[-1] == "ImportError: built for another numpy"


def test_the_spark_extra_takes_the_platforms_libraries() -> None:
    names = {re.match(r"[\w-]+", line)[0] for line in EXTRAS["spark"]}  # type: ignore[index]
    assert not names & {"pyspark", "pyarrow", "pandas", "numpy"}


def test_the_readme_names_every_extra() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not {name for name in EXTRAS.keys() - FOR_DEVELOPERS if f"`{name}`" not in readme}
    assert readme.index("pip install") < readme.index("make ")
    assert len(readme.splitlines()) < 180


def test_the_readmes_links_lead_somewhere_from_an_index_too() -> None:
    tokens = MarkdownIt().parse((ROOT / "README.md").read_text(encoding="utf-8"))
    inline = [part for token in tokens for part in token.children or []]
    targets = {str(part.attrs["href"]) for part in inline if part.type == "link_open"}
    own = f"{PROJECT['urls']['Repository']}/blob/main/"
    paths = {target.removeprefix(own) for target in targets if target.startswith(own)}
    assert {"LICENSE", "docs/spark.md"} <= paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert [target for target in targets if not target.startswith("https://")] == []
    unresolved = [part.content for part in inline if part.type == "text" and "[" in part.content]
    assert unresolved == []


def test_the_metadata_leads_to_the_pages() -> None:
    assert {"Homepage", "Documentation", "Repository", "Changelog"} <= PROJECT["urls"].keys()
