"""Writes failed rows (dead letters) to Parquet files, one file for each partition that succeeds."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote, urlsplit

from rstreams_fast._third_parties import pyarrow_for
from rstreams_fast.calls.journal.uris import SCHEME, check_no_keys, shown_uri, without_secrets
from rstreams_fast.spark.options import Failures

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "DeadLetterFile",
    "DeadLetters",
    "check_not_read",
    "dead_letters",
    "remove_other_files",
]

_WHOLE_AT_CLOSE: Final = ("s3", "gcs", "abfs")
"""The object stores in which a file appears only when it is complete."""

COPY_BYTES: Final = 1 << 20
"""The number of bytes in each step of a copy from the worker's disk."""


def dead_letters(path: str | os.PathLike[str], *, at_most: float | None = None) -> DeadLetters:
    """Let a write continue after rows have failed, and write the failed rows to Parquet files.

    A file has the columns of the frame, and a last column ``outcome``: a struct of ``error``
    (``type``, ``message``), ``attempts``, ``seconds`` and, if the policy counts units, ``usage``,
    as in ``lookup``. Each partition with failed rows has one file. If Spark repeats a partition or
    a batch, the new file replaces the old file.

    ```python
    import rstreams_fast.spark as rs

    letters = rs.dead_letters("/data/rejected", at_most=0.05)
    ```

    Args:
        path: A directory that the executors share: an absolute path, or a URI that
            ``pyarrow.fs.FileSystem.from_uri`` takes. Access to it is configured as for a
            ``Journal``.
        at_most: How many rows of a partition may fail before the task fails: a number (an ``int``)
            or a fraction of the rows (a ``float``). During the first hundred rows, the fraction is
            taken of a hundred rows. Default: all rows.

    Returns:
        A value for the argument ``on_failure`` of ``write`` and ``writer``.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``path`` is not absolute or contains a key, or ``at_most`` has a wrong value.
    """
    Failures("column", at_most)
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"dead_letters(path) must be a path or a URI, got {type(path).__name__}")
    uri = os.fspath(path)
    if SCHEME.match(uri):
        check_no_keys("dead_letters(path)", uri)
    elif not Path(uri).is_absolute():
        raise ValueError(f"dead_letters(path) must be an absolute path or a URI, got {uri!r}")
    return DeadLetters(uri, at_most)


@dataclass(frozen=True, repr=False)
class DeadLetters:
    """The directory to which failed rows are written, made by ``dead_letters``. Immutable.

    Args:
        uri: The directory, as a path or a URI.
        at_most: How many rows of a partition may fail: a number or a fraction.
    """

    uri: str
    at_most: float | None = None

    def __repr__(self) -> str:
        return f"dead_letters({shown_uri(self.uri)!r})"


def check_not_read(dead_letters: DeadLetters, prefix: str, files: Iterable[str]) -> None:
    """Raise an error if the write may replace one of the ``files`` that the frame reads.

    Args:
        dead_letters: The directory to which the write writes failed rows.
        prefix: The prefix of the names of the files that the write replaces.
        files: The addresses of the files that the frame reads, as Spark gives them.
    """
    uri = dead_letters.uri
    folder = (urlsplit(uri).path if SCHEME.match(uri) else uri).rstrip("/")
    for file in files:
        place, _, name = unquote(urlsplit(file).path).rpartition("/")
        if place == folder and name.startswith(prefix):
            raise ValueError(
                f"the frame reads the dead letters {name}, which this write replaces: give another "
                "directory or another name (job=)"
            )


def remove_other_files(dead_letters: DeadLetters, prefix: str, names: list[str]) -> None:
    """Remove the files whose names begin with ``prefix``, except ``names``.

    These files are from an earlier run of the same write, which had more partitions.
    """
    from pyarrow import fs

    try:
        files, folder = _make_folder(dead_letters)
        for info in files.get_file_info(fs.FileSelector(folder)):
            name = info.base_name.removesuffix(".parquet")
            if name.startswith(prefix) and name not in names:
                files.delete_file(info.path)
    except (OSError, ValueError) as refused:
        logging.getLogger("rstreams_fast").warning(
            "dead letters of an earlier run of this write may be left: %s", refused
        )


def _make_folder(dead_letters: DeadLetters) -> tuple[Any, str]:
    """Make the directory if it is missing. Return its pyarrow file system and its path there."""
    pa = pyarrow_for("dead_letters")
    from pyarrow import fs

    uri, why = dead_letters.uri, None
    try:
        files, root = fs.FileSystem.from_uri(uri)
        folder = root.rstrip("/")
        files.create_dir(folder, recursive=True)
    except (pa.ArrowException, OSError) as refused:
        why = without_secrets(str(refused), uri)
    # Raise the error outside the except clause. Otherwise the traceback would also show pyarrow's
    # error, which contains the URI and perhaps a secret.
    if why is not None:
        raise ValueError(f"dead_letters: {shown_uri(uri)!r} cannot be used: {why}")
    return files, folder


class DeadLetterFile:
    """Writes a partition's dead letters to a local file; copies it if the partition succeeds."""

    def __init__(self, dead_letters: DeadLetters, name: str) -> None:
        # Make the directory before the first row is sent: if this fails, no row was sent in vain.
        self._files, self._folder = _make_folder(dead_letters)
        self._path = f"{self._folder}/{name}.parquet"
        self._aside: IO[bytes] | None = None
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def put(self, rows: pa.RecordBatch) -> None:
        """Write failed rows to the local file."""
        from pyarrow import parquet

        if self._writer is None:
            self._aside = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
            self._writer = parquet.ParquetWriter(self._aside, rows.schema)
        self._writer.write_batch(rows)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._aside is None:
            # If the partition succeeded without dead letters, remove the file of an earlier
            # attempt.
            if kind is None:
                with contextlib.suppress(OSError):
                    self._files.delete_file(self._path)
            return
        with self._aside as aside:
            self._writer.close()
            if kind is None:
                aside.seek(0)
                self._copy_to_folder(aside)

    def _copy_to_folder(self, content: IO[bytes]) -> None:
        whole = self._files.type_name in _WHOLE_AT_CLOSE
        # Use a random name: two attempts of a partition may write at the same time, and in
        # containers they may have the same process id.
        aside = f"{self._folder}/.{uuid.uuid4().hex}-{Path(self._path).name}"
        path = self._path if whole else aside
        with self._files.open_output_stream(path) as file:
            shutil.copyfileobj(content, file, COPY_BYTES)
        if not whole:
            self._files.move(path, self._path)
