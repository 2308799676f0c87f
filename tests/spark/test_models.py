"""Results as services and their clients give them: models, and declared types that are lenient."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, make_dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.spark.stages import batches, made, values

attrs = pytest.importorskip("attrs")
msgspec = pytest.importorskip("msgspec")
pydantic = pytest.importorskip("pydantic")

NAMES = ("a", "b")
MODELS: dict[str, Any] = {
    "data class": make_dataclass("Made", NAMES),
    "slots": make_dataclass("Slotted", NAMES, slots=True, frozen=True),
    "msgspec": msgspec.defstruct("Struct", NAMES),
    "pydantic": pydantic.create_model("Model", a=(Any, None), b=(Any, None)),
    "attrs": attrs.make_class("Attrs", list(NAMES)),
}
INNER = pa.struct([("a", pa.int64()), ("b", pa.string())])
OUTPUT = pa.schema([("a", pa.int64()), ("b", INNER)])
STAGES = ["lookup", "enrich", "map_batches", "journal"]


def run(stage: str, make: Any, output: Any, uri: str) -> list[Any]:
    """Return the rows that a stage makes of what ``make`` returns."""
    schema = output.declared if isinstance(output, type(rs.lenient(""))) else output
    if stage == "lookup":
        kind: Any = pa.struct(list(schema))
        column = rs.lookup(make, kind if schema is output else rs.lenient(kind))
        return values(column, [0])
    if stage == "map_batches":
        found = rs.map_batches(lambda batch: [make(0)], output).as_map_fn()(batches([0]))
        return [row for batch in found for row in batch.to_pylist()]
    words: Any = {"journal": rs.Journal(uri, version="1")} if stage == "journal" else {}
    enriched = made(rs.enrich, make, on="k", output=output, **words)
    for _ in range(2):
        (batch,) = enriched.as_map_fn()(batches([0]))
        (row,) = batch.to_pylist()
        del row["k"]
    return [row]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("model", MODELS)
def test_models_are_taken_as_dicts_are(stage: str, model: str, tmp_path: Any) -> None:
    kind = MODELS[model]

    def make(k: int) -> Any:
        return kind(a=k + 1, b=kind(a=None, b="x"))

    assert run(stage, make, OUTPUT, str(tmp_path)) == [{"a": 1, "b": {"a": None, "b": "x"}}]
    fewer = pa.schema([OUTPUT.field("a")])
    message = "fields|unknown: b|a: None"
    if stage != "journal" and model != "journal":
        with pytest.raises((TypeError, ValueError), match=message):
            run(stage, make, pa.schema([*fewer, ("c", pa.int64())]), str(tmp_path))


@dataclass
class Forecast:
    temp: float
    at: str
    source: str = "nobody declared it"


class Named(NamedTuple):
    at: str
    extra: int


FORECASTS: list[tuple[Any, Any]] = [
    ({"temp": 1, "at": "2026-03-04T05:06:07Z", "x": 1}, (1.0, "2026-03-04T05:06:07+00:00")),
    (Forecast(2.5, "2026-03-04 05:06:07.5+01:00"), (2.5, "2026-03-04T04:06:07.500000+00:00")),
    (Named("2026-03-04T05:06:07Z", 1), (None, "2026-03-04T05:06:07+00:00")),
    ({}, (None, None)),
    ({"at": dt.datetime(2026, 3, 4, tzinfo=dt.UTC)}, (None, "2026-03-04T00:00:00+00:00")),
]
LENIENT = pa.schema([("temp", pa.float64()), ("at", pa.timestamp("us", "UTC"))])


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("given", "expected"), FORECASTS)
def test_a_lenient_type_takes_more_and_less(
    stage: str, given: Any, expected: Any, tmp_path: Any
) -> None:
    if stage == "map_batches" and isinstance(given, Named):
        pytest.skip("a list of tuples is no rows")
    (row,) = run(stage, lambda k: given, rs.lenient(LENIENT), str(tmp_path))
    at = row["at"] and row["at"].isoformat()
    assert (row["temp"], at) == expected


def test_a_lenient_type_is_as_exact_as_without_in_all_else(tmp_path: Any) -> None:
    nested = pa.schema(
        [
            ("day", pa.date32()),
            ("local", pa.timestamp("us")),
            ("of", pa.list_(pa.struct([("a", pa.int64()), ("at", pa.date32())]))),
        ]
    )
    given = {
        "day": "2026-03-04",
        "local": "2026-03-04T05:06:07",
        "of": [{"a": 1, "at": "2026-03-05", "b": 2}, {}, None],
    }
    (row,) = run("enrich", lambda k: given, rs.lenient(nested), str(tmp_path))
    day = dt.date(2026, 3, 4)
    of = [{"a": 1, "at": dt.date(2026, 3, 5)}, {"a": None, "at": None}, None]
    assert row == {"day": day, "local": dt.datetime.fromisoformat(given["local"]), "of": of}
    wrong = ({"of": [{"a": 1.5}]}, {"day": "today"}, {"local": "2026-03-04T05:06:07Z"}, {"of": "x"})
    for each in wrong:
        with pytest.raises(TypeError, match=r"declared .*for the key k=0"):
            run("enrich", lambda k, each=each: each, rs.lenient(nested), str(tmp_path))
    for each in (given, {"day": None, "local": None}):
        with pytest.raises((TypeError, ValueError), match=re.escape("k=0")):
            run("enrich", lambda k, each=each: each, nested, str(tmp_path))
