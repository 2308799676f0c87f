"""The site: it builds without a warning, and its reference is complete, readable, and true."""

from __future__ import annotations

import ast
import json
import re
import zlib
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests import assistants
from tests.helpers import run_python
from tests.public_names import PUBLIC, homes_of, names_of
from tests.test_readme import TOGETHER, code_of, examples

ROOT = Path(__file__).parents[1]
ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod|py:\w+):")


@dataclass
class Entry:
    """What the reference says of one name."""

    name: str
    signature: str = ""
    listed: set[str] = field(default_factory=set)  # in tables: parameters, attributes, errors

    @property
    def parameters(self) -> set[str]:
        """The names in the signature."""
        if not re.match(r"\w+\(", self.signature):  # a constant, or a property
            return set()
        tree = ast.parse(f"def {self.signature.strip()}: ...").body[0]
        assert isinstance(tree, ast.FunctionDef)
        given = tree.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        return {each.arg for each in every if each is not None} - {"self", "cls"}


class Page(HTMLParser):
    """One built page: its entries, its sentences and its blocks of code."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.entries: list[Entry] = []
        self.sentences = ""
        self.examples: list[str] = []
        self._open: list[tuple[str, str]] = []  # the tags around this place, and their classes
        self._code = ""
        self._first_cell = False
        article = re.search(r"<article.*</article>", path.read_text(encoding="utf-8"), re.DOTALL)
        assert article, path
        self.feed(article[0])

    def _within(self, wanted: str) -> bool:
        return any(wanted == tag or wanted in classes.split() for tag, classes in self._open)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        classes = found.get("class") or ""
        if re.fullmatch("h[1-6]", tag) and "doc-heading" in classes:
            self.entries.append(Entry(found.get("id") or ""))
        if tag == "tr":
            self._first_cell = "doc-section-item" in classes
        if tag == "pre":
            self._code = ""
        if tag not in ("br", "hr", "img", "input", "link", "meta", "source"):
            self._open.append((tag, classes))

    def handle_endtag(self, tag: str) -> None:
        if tag == "pre":
            if self._within("doc-signature"):
                self.entries[-1].signature = self._code
            elif self._within("language-python"):
                self.examples.append(self._code)
        if tag == "td":
            self._first_cell = False
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._within("pre"):
            self._code += data
            return
        self.sentences += data
        if self._first_cell and self._within("code"):
            self.entries[-1].listed.add(data.strip().lstrip("*"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    place = tmp_path_factory.mktemp("site")
    run_python(
        *("-m", "mkdocs", "build", "-q", "-d", str(place)),
        cwd=ROOT,
        env={"NO_MKDOCS_2_WARNING": "1"},
        timeout=110,
    )
    return place


@pytest.fixture(scope="module")
def reference(site: Path) -> dict[str, Page]:
    """The pages of the reference."""
    return {path.name: Page(path) for path in sorted((site / "reference").glob("*.html"))}


@pytest.fixture(scope="module")
def documented(site: Path, reference: dict[str, Page]) -> set[str]:
    """The names that have an entry, or a row in the table of the class that they belong to."""
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    entries = re.findall(r"^(\S+) py:", zlib.decompress(inventory).decode(), re.MULTILINE)
    pages = [entry for page in reference.values() for entry in page.entries]
    return {*entries, *(f"{entry.name}.{row}" for entry in pages for row in entry.listed)}


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module: str, documented: set[str]) -> None:
    missing = {
        name
        for name in names_of(module)
        if not any(
            f"{place}.{home}" in documented for place in PUBLIC for home in homes_of(module, name)
        )
    }
    assert not missing


def test_the_reference_has_public_names_only(reference: dict[str, Page]) -> None:
    public = {f"{module}.{name}" for module in PUBLIC for name in names_of(module)}
    shown = [entry.name for page in reference.values() for entry in page.entries]
    assert len(shown) > 300
    assert sorted(set(shown) - public) == []
    assert len(set(shown)) == len(shown)


def test_every_parameter_is_in_a_table(reference: dict[str, Page]) -> None:
    entries = [entry for page in reference.values() for entry in page.entries]
    missing = {
        f"{entry.name}({name})" for entry in entries for name in entry.parameters - entry.listed
    }
    assert not missing
    lookup = next(entry for entry in entries if entry.name == "rstreams_fast.spark.lookup")
    assert {"fn", "concurrency", "on_failure", "loop_factory"} <= lookup.parameters


def test_no_markup_is_left_raw(site: Path) -> None:
    for path in site.rglob("*.html"):
        if "<article" not in path.read_text(encoding="utf-8"):
            continue
        page = Page(path)
        assert not ROLE.search(page.sentences), (path, ROLE.findall(page.sentences))
        assert "::" not in page.sentences, (path, page.sentences.split("::")[0][-80:])
        assert "``" not in page.sentences, (path, page.sentences.split("``")[0][-80:])


def test_no_docstring_has_a_role_of_another_tool() -> None:
    sources = [*(ROOT / "rstreams_fast").rglob("*.py"), *(ROOT / "rstreams_fast").rglob("*.pyx")]
    assert len(sources) > 100
    found = [path for path in sources if ROLE.search(path.read_text(encoding="utf-8"))]
    assert not found


def test_every_example_of_the_reference_runs(reference: dict[str, Page]) -> None:
    run = {example.code.strip() for example in examples()}
    run |= {code.strip() for path in TOGETHER_PAGES for code in code_of(path)}
    shown = [code for page in reference.values() for code in page.examples]
    assert len(shown) > 5
    for code in shown:
        assert code.strip() in run, code


TOGETHER_PAGES = [path for path in (ROOT / "docs").rglob("*.md") if path.name in TOGETHER]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md", "docs/claims.md"])
def test_what_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make ([a-z-]+)", text):
        assert f"\n{target}:" in makefile, target
    places = re.findall(
        r"[`=]((?:\.ci|bench|csrc|docs|examples|rstreams_fast|tests)/[\w./*-]+)", text
    )
    for place in places:
        assert "NAME" in place or list(ROOT.glob(place)), place


def test_the_assistants_pages_say_what_the_docstrings_say() -> None:
    for path, text in assistants.written().items():
        assert path.read_text(encoding="utf-8") == text, "run: python -m tests.assistants"


@pytest.mark.parametrize("page", sorted((ROOT / "docs/platforms").glob("*.md")), ids=str)
def test_a_platforms_page_says_what_it_must(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[-4:] == [
        "Where the package goes",
        "Where the settings go",
        '`scope="job"`',
        "Tried",
    ]
    for block in re.findall(r"^```json\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        json.loads(block)
    assert "spark.python.daemon.module" in text
    drop_in = (ROOT / "docs/drop-in.md").read_text(encoding="utf-8")
    for setting in re.findall(r"RSTREAMS_FAST_\w+", text):
        assert setting in drop_in, setting
    assert f"platforms/{page.name}" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
