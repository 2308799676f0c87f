"""The job's answers: how late flights leave, by wind and visibility, and by the plane's age."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from examples.flights import data

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["AGE", "VISIBILITY", "WIND", "Answers", "Cell", "Scale", "answer"]

UNKNOWN: Final = "unknown"


@dataclass(frozen=True)
class Scale:
    """Classes of a quantity, from each limit up to the next; the first one starts below all."""

    title: str
    unit: str
    limits: tuple[int, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Name the classes, the unknown last."""
        first, *_, last = self.limits
        between = zip(self.limits, self.limits[1:], strict=False)
        return (f"< {first}", *(f"{a} - {b}" for a, b in between), f">= {last}", UNKNOWN)

    def place(self, quantity: Column) -> Column:
        """Return the number of the class that a value is in: an index into ``labels``."""
        from pyspark.sql import functions as f

        reached = [f.when(quantity >= limit, 1).otherwise(0) for limit in self.limits]
        known = reached[0]
        for one in reached[1:]:
            known = known + one
        return f.when(quantity.isNull(), len(self.limits) + 1).otherwise(known)


WIND: Final = Scale("wind", "mph", (5, 10, 15, 20))
VISIBILITY: Final = Scale("visibility", "miles", (1, 3, 10))
AGE: Final = Scale("age of the plane", "years", (5, 10, 15, 20))


@dataclass(frozen=True)
class Cell:
    """The flights of one class: how many there were, and how late they left on average."""

    place: tuple[int, ...]
    """The class on each scale: indices into their ``labels``."""
    flights: int
    minutes: float | None
    """The mean delay of those that left at all."""


@dataclass(frozen=True)
class Answers:
    """Mean departure delays, by wind and visibility together, and by age."""

    weather: list[Cell]
    age: list[Cell]


def answer(enriched: DataFrame) -> Answers:
    """Let Spark compute the answers from the job's output."""
    from pyspark.sql import functions as f

    age = f.lit(data.YEAR) - f.col("plane.built")
    return Answers(
        weather=_mean_delays(
            enriched, [WIND.place(f.col("wind_speed")), VISIBILITY.place(f.col("visib"))]
        ),
        age=_mean_delays(enriched, [AGE.place(age)]),
    )


def _mean_delays(enriched: DataFrame, places: Sequence[Column]) -> list[Cell]:
    from pyspark.sql import functions as f

    names = [f"place{index}" for index in range(len(places))]
    rows = (
        enriched.groupBy(*(place.alias(name) for place, name in zip(places, names, strict=True)))
        .agg(f.count("*").alias("flights"), f.avg("dep_delay").alias("minutes"))
        .orderBy(*names)
        .collect()
    )
    return [Cell(tuple(row[n] for n in names), row["flights"], row["minutes"]) for row in rows]
