"""How the output takes the place of an older one. Needs no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.flights.job import appearing


@pytest.mark.parametrize("older", ["nothing", "directory", "file", "link", "dead link"])
def test_the_output_takes_the_place_of_whatever_was_there(tmp_path: Path, older: str) -> None:
    target, elsewhere = tmp_path / "flights.parquet", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "thesis.txt").write_text("precious")
    if older == "directory":
        target.mkdir()
        (target / "old").touch()
    elif older == "file":
        target.touch()
    elif "link" in older:
        target.symlink_to(elsewhere if older == "link" else tmp_path / "gone")
    with appearing(target) as partial:
        partial.mkdir()
        (partial / "new").touch()
    assert not target.is_symlink()
    assert [path.name for path in target.iterdir()] == ["new"]
    assert (elsewhere / "thesis.txt").read_text() == "precious"
    assert not partial.exists()


def test_what_fails_leaves_the_older_output(tmp_path: Path) -> None:
    target = tmp_path / "flights.parquet"
    target.touch()

    def fail() -> None:
        with appearing(target) as partial:
            partial.mkdir()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert target.is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["flights.parquet"]
