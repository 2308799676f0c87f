"""How the official kit is brought: what is missing or wrong is one sentence, never a guess."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.jvm_tck import jars
from tests.jvm_tck.maven import COMPILER, Jars, find_java

fcntl = pytest.importorskip("fcntl", reason="the kit is brought on POSIX systems")


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jars:
    """A machine without the jars; what is in ``bin`` is all its commands."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return replace(jars.KIT, build=tmp_path)


def script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_without_maven(empty: Jars) -> None:
    with pytest.raises(jars.CannotJudge, match="there is no mvn on this machine; install it with"):
        empty.bring()


def test_a_maven_that_fails_is_quoted(empty: Jars) -> None:
    script(empty.build / "bin" / "mvn", "echo no route to the repository; exit 1")
    with pytest.raises(jars.CannotJudge, match="mvn failed: no route to the repository"):
        empty.bring()


def test_jars_that_are_not_those_pinned_are_refused_and_not_kept(empty: Jars) -> None:
    files = " ".join(f"'{empty.build}/jars/{name}'" for name in jars.KIT.pinned())
    body = f"/bin/mkdir -p '{empty.build}/jars'; for f in {files}; do echo another >\"$f\"; done"
    script(empty.build / "bin" / "mvn", body)
    with pytest.raises(jars.CannotJudge, match=r"is not what jars\.sha256 pins"):
        empty.bring()
    assert not list(empty.build.glob("jars/*.jar"))


def test_without_java(empty: Jars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(jars.CannotJudge, match="there is no Java on this machine"):
        find_java()


def test_every_coordinate_is_pinned() -> None:
    pom = (jars.HERE / "pom.xml").read_text()
    assert set(jars.KIT.pinned()) > {"reactive-streams-tck-1.0.4.jar", COMPILER}
    for name in ("reactive-streams-tck", "reactive-streams-examples", "testng", "ecj"):
        assert f"<artifactId>{name}</artifactId>" in pom
        assert any(jar.startswith(f"{name}-") for jar in jars.KIT.pinned())
    assert all(len(digest) == 64 for digest in jars.KIT.pinned().values())
