"""The conda recipe: its floors are the extras', and it builds and passes its own tests.

It builds offline, from a channel that the test makes: Python and the tools to build are packed from
this environment, and the system's compiler takes the place of conda's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from tests.helpers import run_python

ROOT = Path(__file__).parents[1]
RECIPE = yaml.safe_load((ROOT / "conda/recipe.yaml").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
#: conda's name for what the index calls otherwise.
RENAMED = {"matplotlib-base": "matplotlib", "python-lmdb": "lmdb"}


def ranges(lines: list[str]) -> dict[str, str]:
    """The range of each name, in one order."""
    parsed = [line.partition(" ") for line in lines]
    return {RENAMED.get(name, name): ",".join(sorted(said.split(","))) for name, _, said in parsed}


def test_the_recipe_has_the_ranges_of_the_project() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    used = ("cffi", "numpy", "arrow", "cache", "spark", "pyspark", "report", "reactivex")
    wanted = [Requirement(line) for name in used for line in extras[name]]
    expected = {each.name: ",".join(sorted(str(each.specifier).split(","))) for each in wanted}
    del expected["rstreams_fast"]  # an extra that brings other extras
    assert ranges(RECIPE["requirements"]["run_constraints"]) == expected
    build = [Requirement(line) for line in PROJECT["build-system"]["requires"]]
    host = ranges(RECIPE["requirements"]["host"])
    assert {each.name: str(each.specifier) for each in build}.items() <= host.items()
    assert RECIPE["build"]["skip"] == ['match(python, "<3.11")']
    assert PROJECT["project"]["requires-python"] == ">=3.11"
    version = run_python("-c", "import rstreams_fast; print(rstreams_fast.__version__)").stdout
    assert RECIPE["context"]["version"] == version.strip()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_recipe_builds_and_passes_its_tests(tmp_path: Path) -> None:
    rattler = pytest.importorskip("rattler_build", reason="needs py-rattler-build")
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    if "site-packages" not in sysconfig.get_path("purelib", scheme="posix_prefix"):
        pytest.skip("needs a Python with site-packages of its own")
    channel = tmp_path / "channel"
    platform = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}[os.uname().machine]

    index: dict[str, dict[str, object]] = {}

    def pack(name: str, version: str, depends: list[str], files: Path) -> None:
        files.mkdir(parents=True, exist_ok=True)
        made = rattler.assemble_package(
            *(name, version, platform, "0", channel / platform),
            files_dir=files,
            depends=depends,
            compression_level=1,
            archive_type=rattler.ArchiveType.TarBz2,
        )
        with tarfile.open(made.path) as archive:
            said = archive.extractfile("info/index.json")
            assert said is not None
            index[made.path.name] = json.load(said)

    python = tmp_path / "python"
    stdlib = Path(sysconfig.get_path("stdlib"))
    left_out = shutil.ignore_patterns("site-packages", "test", "__pycache__", "idlelib")
    shutil.copytree(stdlib, python / f"lib/python{minor}", ignore=left_out)
    include = Path(sysconfig.get_path("include"))
    shutil.copytree(include, python / f"include/python{minor}")
    (python / "bin").mkdir()
    shutil.copy(Path(sys.executable).resolve(), python / f"bin/python{minor}")
    (python / "bin/python").symlink_to(f"python{minor}")
    pack("python", sys.version.split()[0], [], python)
    for name in ("pip", "setuptools", "cython", "cffi"):
        tools = tmp_path / name
        site = tools / f"lib/python{minor}/site-packages"
        command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(site), name]
        subprocess.run(command, check=True, timeout=120)
        (found,) = site.glob(f"{name}-*.dist-info")
        pack(name, found.name.removesuffix(".dist-info").partition("-")[2], ["python"], tools)
    for name in ("compiler", "library"):
        pack(f"{name}_{platform}", "1.0", [], tmp_path / "nothing")

    source = shutil.copytree(
        ROOT, tmp_path / "checkout", ignore=shutil.ignore_patterns(".*", "build", "*.so")
    )
    for place, packages in ((platform, index), ("noarch", {})):
        (channel / place).mkdir(exist_ok=True)
        text = json.dumps({"info": {"subdir": place}, "packages": packages, "packages.conda": {}})
        (channel / place / "repodata.json").write_text(text, encoding="utf-8")

    variants = {"python": [minor], "c_compiler": ["compiler"], "c_stdlib": ["library"]}
    recipe = rattler.Stage0Recipe.from_file(source / "conda/recipe.yaml")
    (rendered,) = recipe.render(rattler.VariantConfig(variants))
    built = rendered.run_build(
        tool_config=rattler.ToolConfiguration(test_strategy="native"),
        output_dir=tmp_path / "built",
        channels=[channel.as_uri()],
    )
    assert [path.suffix for path in built.packages] == [".conda"]
