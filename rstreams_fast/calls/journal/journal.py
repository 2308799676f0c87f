"""``Journal``: answers (results of calls) that outlive a job, for ``journal=rs.Journal(...)``."""

from __future__ import annotations

import os
import re
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from rstreams_fast._checks import check_count
from rstreams_fast.calls.journal.segments import enforce_max_bytes, folders_of
from rstreams_fast.calls.journal.uris import SCHEME, check_no_keys, shown_uri

__all__ = ["Journal"]


@dataclass(frozen=True, repr=False)
class Journal:
    """Stores each answer (result) when its call ends, so that no job pays for the same call again.

    An answer is found by the function's name, its version, the declared types and the key. If a
    result has several columns, and always in ``map_batches``, the names of the columns count, too.
    So a retried task, a speculative copy and a restarted job find all earlier answers, even if the
    data is partitioned differently.

    Outside stages (such as ``rs.lookup``) no type is declared. There, answers must be plain values:
    ``None``, numbers, texts, bytes, dates and times, ``Decimal``, ``UUID``, record batches, and
    lists, tuples and dicts of these. They are stored as JSON. A later call gets Python's number in
    place of a NumPy number. A ``ZoneInfo`` with a key is kept. In place of any other time zone, a
    later call gets a ``datetime.timezone`` with the UTC offset of the answer; a ``time`` must have
    such an offset. The key of a record batch is its content. Outside stages, all answers are at
    ``uri`` when the loop or the process has ended.

    A journal stores digests of keys, answers and times, unencrypted. It does not store failures,
    the client of ``using``, the function, or values that the function holds. If the journal cannot
    be written, the task fails. Outside stages, each call then fails before it is made, until the
    journal can be written again. If a file is damaged, a warning is logged, and its calls are made
    again. Immutable; stages may share it.

    Args:
        uri: A directory that the executors share: an absolute path, or a URI that
            ``pyarrow.fs.FileSystem.from_uri`` takes, such as ``s3://bucket/path``. Spark's names
            ``s3a`` and ``s3n`` mean ``s3``. pyarrow, not Spark, accesses the storage: it takes the
            keys from the environment of the executors, such as ``AWS_ACCESS_KEY_ID`` and
            ``AWS_SECRET_ACCESS_KEY``.
        version: The version of the function and of everything that its answers depend on. With
            another version all calls are made anew.
        max_bytes: The most bytes of all answers at ``uri``. The oldest answers are removed first.
            Other files at ``uri`` do not count, and stay. Default: no bound.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``uri`` is not absolute, or contains a key or a password. The message does not
            show the key or the password.
    """

    uri: str
    _: KW_ONLY
    version: str
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        uri: object = self.uri
        if isinstance(uri, os.PathLike):
            uri = str(Path(uri).absolute())
        for name, value in (("uri", uri), ("version", self.version)):
            if not isinstance(value, str):
                raise TypeError(f"Journal({name}) must be a str, got {type(value).__name__}")
            if not value:
                raise ValueError(f"Journal({name}) is empty")
        object.__setattr__(self, "uri", re.sub("^s3[an]:/", "s3:/", str(uri)))
        check_no_keys("Journal(uri)", self.uri)
        if not SCHEME.match(self.uri) and not Path(self.uri).is_absolute():
            shown = shown_uri(self.uri)
            raise ValueError(f"Journal(uri) must be an absolute path or a URI, got {shown!r}")
        if self.max_bytes is not None:
            check_count("Journal(max_bytes)", self.max_bytes, 1)

    def compact(self) -> int:
        """Merge small files of answers, enforce ``max_bytes``, and remove abandoned files.

        An abandoned file was left unfinished by a killed process. Stages may read and write
        meanwhile, and other processes may compact, too.

        Returns:
            By how much merging has reduced the number of files.
        """
        removed = sum(folder.compact() for folder in folders_of(self.uri))
        enforce_max_bytes(self.uri, self.max_bytes)
        return removed

    def __repr__(self) -> str:
        shown = shown_uri(self.uri)
        return f"Journal({shown!r}, version={self.version!r}, max_bytes={self.max_bytes})"
