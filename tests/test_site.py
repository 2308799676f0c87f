"""The site: it builds without a warning, and no public name is missing from its reference."""

from __future__ import annotations

import importlib
import inspect
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import run_python

ROOT = Path(__file__).parents[1]
PUBLIC = (
    "rstreams_fast",
    "rstreams_fast.core",
    "rstreams_fast.queues",
    "rstreams_fast.spark",
    "rstreams_fast.spark.report",
    "rstreams_fast.tck",
)
#: What the engine gives its own classes, public ones among them, to find one another by.
INTERNAL = {"custody", "depth", "trampoline", "turns"}


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names that the site's reference has an entry for."""
    site = tmp_path_factory.mktemp("site")
    run_python(
        *("-m", "mkdocs", "build", "-q", "-d", str(site)),
        cwd=ROOT,
        env={"NO_MKDOCS_2_WARNING": "1"},
        timeout=110,
    )
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return set(re.findall(r"^(\S+) py:", zlib.decompress(inventory).decode(), re.MULTILINE))


def names_of(module: str) -> Iterator[str]:
    """What a user can reach: what the module exports, and the public members of its classes."""
    found = importlib.import_module(module)
    for name in found.__all__:
        public = getattr(found, name)
        others = inspect.isclass(public) and not public.__module__.startswith("rstreams_fast")
        if name.startswith("__") or others:
            continue
        yield name
        if inspect.isclass(public):
            yield from (
                f"{name}.{member}"
                for owner in public.__mro__
                if owner.__module__.startswith("rstreams_fast")
                for member in vars(owner)
                if not (
                    member.startswith("_") or member in INTERNAL or member in vars(BaseException)
                )
            )


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module: str, documented: set[str]) -> None:
    missing = {
        name
        for name in names_of(module)
        if not any(f"{place}.{name}" in documented for place in PUBLIC)
    }
    assert not missing


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
