"""Answers that outlive the job: ``journal=rs.Journal(uri, version=...)``."""

from __future__ import annotations

import os
import re
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from rstreams_fast._checks import check_count
from rstreams_fast.calls.journal.segments import bound, folders_of
from rstreams_fast.calls.journal.uris import SCHEME, check_no_keys, shown_uri

__all__ = ["Journal"]


@dataclass(frozen=True, repr=False)
class Journal:
    """Where answers are written as they come, so that no job pays for one of them again.

    An answer is found by the function's name, its version, the declared types and the key. A
    retried task, a speculative copy and a job that is started again find the answers from before
    they began, however their rows are divided into partitions.

    Outside stages no type is declared: there answers are plain values (``None``, numbers, texts,
    bytes, dates and times, ``Decimal``, ``UUID``, record batches, and lists, tuples and dicts of
    such), which are stored as JSON. ``map_batches`` knows a batch by what is in it. Outside stages
    a journal is written when the loop or the interpreter ends.

    Stored are digests of keys, answers and times, unencrypted; nothing of ``using``, nor of the
    function or the values it holds, and no failures. A journal that cannot be written fails the
    task; a damaged segment is a warning, and its calls are made again. Immutable; stages may share
    it.

    Args:
        uri: A directory that the executors share: an absolute path, or a URI that
            ``pyarrow.fs.FileSystem.from_uri`` takes, such as ``s3://bucket/path``; Spark's names
            ``s3a`` and ``s3n`` do as well. pyarrow, not Spark, knows access and endpoint: the
            environment of the executors gives the keys, such as ``AWS_ACCESS_KEY_ID`` and
            ``AWS_SECRET_ACCESS_KEY``.
        version: The version of the function and of everything that its answers depend on. With
            another version all calls are made anew.
        max_bytes: The most bytes of everything that is stored at ``uri``; the oldest answers go
            first. Default: no bound.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``uri`` is not absolute, or has a key or a password in it, which the message
            does not show.
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
        """Merge small segments into larger ones, hold ``max_bytes``, and remove the unfinished
        files of killed processes.

        Stages may read and write meanwhile, and another process may compact, too.

        Returns:
            How many segments there are less.
        """
        removed = sum(folder.compact() for folder in folders_of(self.uri))
        bound(self.uri, self.max_bytes)
        return removed

    def __repr__(self) -> str:
        shown = shown_uri(self.uri)
        return f"Journal({shown!r}, version={self.version!r}, max_bytes={self.max_bytes})"
