"""Reads the input of ``rstreams-fast run``, and makes its complete output appear atomically."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import re
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rstreams_fast.calls.journal.uris import SCHEME
from rstreams_fast.spark.declared import resolve_schema
from rstreams_fast.spark.shell.errors import CommandError, JobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "Target",
    "check_apart",
    "kind_of",
    "read",
    "reader_path",
    "settings_of",
    "target_of",
    "with_types",
]

KINDS: Final = ("parquet", "csv", "json")

_SUFFIXES: Final = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
_COMPRESSIONS: Final = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate", ".xz")

_ESCAPE_OF_ESCAPE: Final = "charToEscapeQuoteEscaping"
_READ_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "parquet": {},
    # Read ``""`` in a quoted value as one quote, as other programs write it. Refuse lines with too
    # many or too few fields.
    "csv": {
        "header": "true",
        "escape": '"',
        _ESCAPE_OF_ESCAPE: '"',  # with Spark's default, NUL, the reader drops NULs
        "mode": "FAILFAST",
        "enforceSchema": "false",
    },
    "json": {"mode": "FAILFAST"},
}
# Write microseconds, and seconds in offsets from UTC, which exist in times before standard time.
# Spark's default formats cut times to milliseconds, and offsets to minutes.
_TIME_FORMATS: Final[Mapping[str, str]] = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]XXXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]",
}
_WRITE_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "parquet": {},
    "csv": {
        "header": "true",
        "escape": '"',
        "ignoreLeadingWhiteSpace": "false",
        "ignoreTrailingWhiteSpace": "false",
        **_TIME_FORMATS,
    },
    "json": _TIME_FORMATS,
}
_REPLACED: Final = "replaced"
"""The name that the previous output gets in the ``.partial`` directory when it is replaced."""

_MADE_BY_RUN: Final = re.compile(f"[0-9a-f]{{32}}|{_REPLACED}").fullmatch
"""Matches the names that ``rstreams-fast run`` uses inside the ``.partial`` directory."""

_PARTITION_TYPES: Final = "spark.sql.sources.partitionColumnTypeInference.enabled"


def settings_of(kind: str) -> dict[str, str]:
    """Return Spark's settings for an input of this ``kind``.

    All columns of CSV are strings, also the columns from directory names such as ``code=0012``.
    """
    return {_PARTITION_TYPES: "false"} if kind == "csv" else {}


def check_apart(paths: Mapping[str, str], targets: Collection[str]) -> None:
    """Raise an error if a path is inside a target directory, which the command replaces.

    ``paths`` has the path of each option; ``targets`` are the options whose paths are targets.
    """
    places = {option: _comparable_path(path) for option, path in paths.items()}
    for target in targets:
        for option, place in places.items():
            if option != target and place.is_relative_to(places[target]):
                raise CommandError(
                    f"{option} {paths[option]} is inside of {target} {paths[target]}, which the "
                    "run replaces: give another path"
                )


def _comparable_path(path: str) -> Path:
    """Return ``path``, a local path or a URI, in a form that can be compared with other paths."""
    local = re.sub("^file:(//)?", "", path)
    if SCHEME.match(local):
        return Path(re.sub("^s3[an]:", "s3:", local))
    return Path(local).resolve()


def kind_of(path: str, option: str, otherwise: str | None) -> str:
    """Return the kind of the files at ``path``, by its suffix. ``otherwise`` is the default."""
    name = path.rstrip("/").rpartition("/")[2].lower()
    for suffix in _COMPRESSIONS:
        name = name.removesuffix(suffix)
    kind = _SUFFIXES.get(os.path.splitext(name)[1], otherwise)  # noqa: PTH122 - may be a URI
    if kind is None:
        raise CommandError(
            f"{option} {path}: no suffix says what kind of files it is; "
            f"give --format {', '.join(KINDS[:-1])} or {KINDS[-1]}"
        )
    return kind


def read(
    spark: SparkSession,
    path: str,
    kind: str,
    *,
    here: bool,
    types: str | None,
    options: Mapping[str, str],
) -> DataFrame:
    """Return the input as a DataFrame. Columns of CSV are strings, except the columns in ``types``.

    Args:
        spark: The session.
        path: A file, a directory or a pattern.
        kind: One of ``KINDS``.
        here: Whether a path without a scheme is on this machine.
        types: The types of some columns, as DDL.
        options: Options of Spark's reader.
    """
    if here and not SCHEME.match(path):
        path = reader_path(path)
    words = dict(_READ_OPTIONS[kind])
    if "escape" in map(str.lower, options):
        words.pop(_ESCAPE_OF_ESCAPE, None)  # by default Spark uses the value of ``escape``
    reader = spark.read.format(kind).options(**{**words, **options})
    if types is None:
        return reader.load(path)
    if kind == "parquet":
        raise CommandError("--types: the columns of Parquet have types already")
    declared, _ = resolve_schema(types, "--types")
    return reader.schema(with_types(reader.load(path).schema, declared)).load(path)


def with_types(before: StructType, declared: StructType) -> StructType:
    """Return the schema ``before``, with the types of the columns in ``declared`` replaced.

    The columns keep their names, because Spark matches the field names of JSON with their case.
    """
    from pyspark.sql.types import StructField, StructType

    given = {field.name.lower(): field.dataType for field in declared}
    known = {name.lower() for name in before.names}
    for name in declared.names:
        if name.lower() not in known:
            raise CommandError(
                f"--types: the input has no column {name!r}; it has {', '.join(before.names)}"
            )
    return StructType(
        [StructField(field.name, given.get(field.name.lower(), field.dataType)) for field in before]
    )


def reader_path(path: str) -> str:
    """Return ``path`` for Spark's reader, with its special characters escaped if it is a file."""
    absolute = str(Path(path).absolute())
    if Path(absolute).exists():
        return "file:" + re.sub(r"[\\*?{}\[\]]", r"\\\g<0>", absolute)
    # glob does not know "{a,b}" and "[^a]", which Spark expands: leave these patterns to Spark.
    if not (re.search(r"\{|\[\^", absolute) or glob.glob(absolute)):  # noqa: PTH207 - absolute
        raise CommandError(f"--input {path}: there is no such file or directory")
    return f"file:{absolute}"


class Target(ABC):
    """An output directory that appears complete or not at all. Only one thread may use it."""

    def __init__(self, path: str, option: str, *, overwrite: bool) -> None:
        self.path = path
        self.option = option
        self.is_visible = False
        """Whether the new output is at ``path``."""
        self._overwrite = overwrite

    @property
    @abstractmethod
    def written_to(self) -> str:
        """The path that Spark writes to. Spark replaces existing files at this path."""

    def claim(self) -> None:  # noqa: B027 - Spark may be needed to know
        """Reserve a local target. Raise an error if it exists or cannot be written."""

    def check(self, spark: SparkSession) -> None:  # noqa: B027 - Spark may not be needed
        """Raise an error if the target exists in a file system that only Spark can reach."""

    def write(self, frame: DataFrame, kind: str, options: Mapping[str, str]) -> None:
        """Write ``frame`` as files of this ``kind`` to ``written_to``."""
        writer = frame.write.format(kind).options(**{**_WRITE_OPTIONS[kind], **options})
        writer.mode("overwrite").save(self.written_to)

    def publish(self) -> None:  # noqa: B027 - Spark may have done it
        """Make the complete output appear at ``path``."""

    def close(self) -> None:  # noqa: B027
        """Remove files that were written, but not published. May be called again."""

    def _exists_error(self) -> CommandError:
        return CommandError(f"{self.option} {self.path} exists; --overwrite replaces it")


class _LocalTarget(Target):
    """A target on this machine. Spark writes to a directory beside it; ``publish`` renames it."""

    def __init__(self, path: str, option: str, *, overwrite: bool) -> None:
        super().__init__(path, option, overwrite=overwrite)
        place = Path(path).absolute()
        # Resolve a path without a name, such as "..". Do not resolve a symbolic link: the command
        # replaces the link itself.
        self._place = place.resolve() if place.name in ("", "..") else place
        if not self._place.name:
            raise CommandError(f"{option} {path}: cannot be replaced")
        self._partial = self._place.with_name(f"{self._place.name}.partial")
        # Use a new name each time: the JVM of a killed command may still write to the old
        # directory.
        self._new_folder = self._partial / uuid.uuid4().hex
        self._lock = -1
        self._keeps_files = False

    @property
    def written_to(self) -> str:
        return f"file:{self._new_folder}"

    def claim(self) -> None:
        if os.path.ismount(self._place):
            raise CommandError(
                f"{self.option} {self.path}: is a mount point, which a run cannot replace; give a "
                "directory inside of it"
            )
        if os.path.lexists(self._place) and not self._overwrite:
            raise self._exists_error()
        try:
            self._partial.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._partial, os.O_RDONLY)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in self._partial.iterdir():
                if not _MADE_BY_RUN(left.name):
                    raise CommandError(
                        f"{self.option} {self.path}: the run writes to {self._partial}, which has "
                        f"other files, such as {left.name}"
                    )
            if self._restore_former() and not self._overwrite:
                raise self._exists_error()
            self._remove_own_files()
        except BlockingIOError:
            os.close(self._lock)
            self._lock = -1
            raise CommandError(f"{self.option} {self.path}: another run is writing it") from None
        except OSError as refused:
            raise CommandError(f"{self.option} {self.path}: {refused.strerror}") from None

    def publish(self) -> None:
        try:
            if os.path.lexists(self._place):
                self._place.rename(self._former)
            self._new_folder.rename(self._place)
        except OSError as refused:
            self._keeps_files = True
            raise JobError(
                f"{self.option} {self.path}: {refused.strerror}; the rows are in {self._new_folder}"
            ) from None
        self.is_visible = True

    def close(self) -> None:
        if self._lock >= 0:
            with contextlib.suppress(OSError):  # OSError: the directory has other files
                self._restore_former()
                if not self._keeps_files:
                    self._remove_own_files()
                    self._partial.rmdir()
            os.close(self._lock)
            self._lock = -1

    @property
    def _former(self) -> Path:
        return self._partial / _REPLACED

    def _restore_former(self) -> bool:
        """Move the previous output back to ``path``, if a stopped command has moved it away.

        Return whether the previous output was moved back.
        """
        moved = os.path.lexists(self._former) and not os.path.lexists(self._place)
        if moved:
            self._former.rename(self._place)
        return moved

    def _remove_own_files(self) -> None:
        for left in self._partial.iterdir():
            if _MADE_BY_RUN(left.name):
                _remove(left)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:  # for a symbolic link: remove the link itself
        path.unlink(missing_ok=True)


class _SparkTarget(Target):
    """A target in a file system that only Spark reaches. Spark's own commit makes it appear."""

    @property
    def written_to(self) -> str:
        return self.path

    def write(self, frame: DataFrame, kind: str, options: Mapping[str, str]) -> None:
        super().write(frame, kind, options)
        self.is_visible = True

    def check(self, spark: SparkSession) -> None:
        if not self._overwrite and _has_files(spark, self.path):
            raise self._exists_error()


def _has_files(spark: SparkSession, path: str) -> bool:
    """Whether ``path`` has files. Spark does not list the unfinished files of a killed job."""
    from pyspark.errors import AnalysisException

    files = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        return bool(files.load(path).select("path").take(1))
    except AnalysisException:  # the path does not exist
        return False


def target_of(path: str, option: str, *, here: bool, overwrite: bool) -> Target:
    """Return the target at an option's ``path``.

    ``here`` says whether a path without a scheme is on this machine.
    """
    local = path.removeprefix("file://").removeprefix("file:")
    if local != path or (here and not SCHEME.match(path)):
        return _LocalTarget(local, option, overwrite=overwrite)
    return _SparkTarget(path, option, overwrite=overwrite)
