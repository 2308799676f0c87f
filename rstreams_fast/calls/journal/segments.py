"""Segments: files of answers on any file system that pyarrow supports.

A segment is an Arrow IPC file with the columns ``key`` (a digest), ``answer`` and ``time``. Its
name contains the time of writing and the checksum of its content. A segment is complete, or it does
not exist.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rstreams_fast._third_parties import pyarrow_for
from rstreams_fast.calls.journal.uris import shown_uri, without_secrets
from rstreams_fast.calls.keys import KEY_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "BATCH_ROWS",
    "LARGE_BYTES",
    "Folder",
    "enforce_max_bytes",
    "folders_of",
    "latest_time",
    "table_of",
]

BATCH_ROWS: Final = 1024
"""Rows of a record batch. To read one answer, a whole batch is read."""

LARGE_BYTES: Final = 16 << 20
"""A segment file of this many bytes or more is not merged."""

STALE_SECONDS: Final = 3600.0
"""An unfinished file is taken for that of a dead process if it is this many seconds old."""

TRIES: Final = 20
"""The most attempts to write a segment file if other processes remove the unfinished file."""

COLUMNS: Final = ("key", "answer", "time")

_SUFFIX: Final = ".arrow"
_UNFINISHED: Final = ".tmp"
_OBJECT_STORES: Final = ("s3", "gcs", "abfs")
"""pyarrow's file systems for object stores. They cannot rename a file, and a file appears only when
its upload is complete."""

# Other programs may have files in a journal's directory: touch only files with these names.
_is_folder: Final = re.compile("[0-9a-f]{32}").fullmatch
"""Matches the name of a folder of segment files, as ``folder_name_of`` makes it."""
_is_segment: Final = re.compile(r"[0-9]{20}-[0-9a-f]{8}-[0-9a-f]{12}\.arrow").fullmatch
"""Matches the name of a segment file, as ``Folder.write`` makes it."""
_is_unfinished: Final = re.compile(
    r"([0-9]{20}-[0-9a-f]{8}-[0-9a-f]{12}|[0-9a-f]{32})\.arrow\.tmp"
).fullmatch
"""Matches the name of an unfinished segment file, or of the test file of ``check_writable``."""

_warned: Final[set[str]] = set()


def table_of(keys: list[bytes], answers: pa.Array) -> pa.Table:
    """Return a table of new answers. Their time is the present."""
    import pyarrow as pa

    now = pa.scalar(datetime.now(UTC), pa.timestamp("ms", "UTC"))
    columns = [pa.array(keys, pa.binary(KEY_BYTES)), answers, pa.repeat(now, len(keys))]
    return pa.table(columns, names=COLUMNS)


class Merged(NamedTuple):
    """A segment file that was merged from others: its name, its bytes, and how many it replaces."""

    name: str
    size: int
    parts: int


class Folder:
    """The directory with the segment files of one function and ``Journal(version=...)``.

    Any thread may use the object.
    """

    def __init__(self, uri: str, place: str = "") -> None:
        pa = pyarrow_for("a Journal")
        from pyarrow import fs

        why = None
        try:
            self.files, root = fs.FileSystem.from_uri(uri)
        except (pa.ArrowException, OSError) as refused:
            # ``from_uri`` fails, for example, if pyarrow lacks the library for the file system.
            why = without_secrets(str(refused), uri)
        # Raise outside the except clause: else the context of the new error would show the URI.
        if why is not None:
            raise ValueError(f"Journal(uri): {shown_uri(uri)!r} cannot be used: {why}")
        self.path = f"{root.rstrip('/')}/{place}".rstrip("/")
        self.is_local = isinstance(self.files, fs.LocalFileSystem)
        self.latest_time = 0
        """The latest time in the name of a segment file, in nanoseconds. No new file gets an
        earlier time, even if a clock is set back: ``enforce_max_bytes`` would take the file for the
        oldest, and remove it."""
        self._is_writable = False

    def check_writable(self) -> None:
        """Raise ``OSError`` if the folder cannot be written, before a paid call.

        The first successful check writes a test file. Later checks return immediately.
        """
        if self._is_writable:
            return
        self.make()
        name = f"{uuid.uuid4().hex}{_SUFFIX}{_UNFINISHED}"
        try:
            self._put(f"{self.path}/{name}", b"?")
        except OSError as refused:
            refused.add_note(f"rstreams_fast: Journal(uri): {self.path} cannot be written")
            raise
        finally:
            self.remove(name)
        self._is_writable = True

    def make(self) -> None:
        try:
            self.files.create_dir(self.path, recursive=True)
        except OSError as refused:
            refused.add_note(
                f"rstreams_fast: Journal(uri): the directory cannot be made: {self.path}"
            )
            raise

    def remove_all(self) -> None:
        """Remove the directory and its segment files, if it exists."""
        with contextlib.suppress(OSError):
            self.files.delete_dir(self.path)

    def names(self) -> set[str]:
        """Return the names of all segment files, even if another process merges some meanwhile.

        A merge first writes the merged file, then removes its parts. A listing may miss both. So
        the folder is listed again until all files of the previous listing are still there.
        """
        found = self._list()
        while True:
            before, found = found, self._list()
            if before <= found:
                self.latest_time = max(self.latest_time, _latest_time_in(found))
                return found

    def _list(self) -> set[str]:
        if not self.is_local:
            return set(self.sizes())
        try:
            # pyarrow's listing also asks for the size of each file, which takes ten times as long.
            with os.scandir(self.path) as entries:
                return {entry.name for entry in entries if _is_segment(entry.name)}
        except FileNotFoundError:
            return set()

    def sizes(self) -> dict[str, int]:
        """Return names and bytes of the segment files. A merge at the same time may hide files."""
        from pyarrow import fs

        selector = fs.FileSelector(self.path, allow_not_found=True)
        infos = self.files.get_file_info(selector)
        return {info.base_name: info.size for info in infos if _is_segment(info.base_name)}

    def write(self, table: pa.Table, since: str | None = None) -> str:
        """Write a segment file; return its name.

        The name begins with a time: that of the segment file ``since``, the oldest of the merged
        files. Without ``since`` it is the present time.
        """
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table.combine_chunks(), max_chunksize=BATCH_ROWS)
        content = sink.getvalue()
        if since is None:
            self.latest_time = max(time.time_ns(), self.latest_time + 1)
        when = f"{self.latest_time:020d}" if since is None else since.split("-", 1)[0]
        name = f"{when}-{zlib.crc32(content):08x}-{uuid.uuid4().hex[:12]}{_SUFFIX}"
        path = f"{self.path}/{name}"
        if self.files.type_name in _OBJECT_STORES:
            self._put(path, content)
            return name
        for tries_left in reversed(range(TRIES)):
            self.make()
            try:
                with _lock_file(path + _UNFINISHED) if self.is_local else contextlib.nullcontext():
                    self._put(path + _UNFINISHED, content)
                    self.files.move(path + _UNFINISHED, path)
                break
            except FileNotFoundError:
                # A host whose clock differs has taken the unfinished file for old, and removed it.
                if not tries_left:
                    raise
            except OSError:
                self.remove(name + _UNFINISHED)
                raise
        return name

    def _put(self, path: str, content: pa.Buffer | bytes) -> None:
        with self.files.open_output_stream(path) as file:
            file.write(content)

    def remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            self.files.delete_file(f"{self.path}/{name}")

    def open(self, name: str, checked: bool = False) -> Any:
        """Return a reader of a segment file's record batches, or ``None`` if the file is damaged.

        On a local file system the checksum is verified, unless the file was ``checked`` before.
        Raises ``FileNotFoundError`` if the file was merged or removed.
        """
        import pyarrow as pa

        path = f"{self.path}/{name}"
        # Map local files, because a mapped file takes no memory of its own.
        file = pa.memory_map(path) if self.is_local else self.files.open_input_file(path)
        try:
            if self.is_local and not checked:
                if f"{zlib.crc32(file.read_buffer()):08x}" != name.split("-")[1]:
                    raise pa.ArrowInvalid("the checksum is another")
                file.seek(0)
            reader = pa.ipc.open_file(file)
            _check_columns(reader.schema)
        except pa.ArrowException as damaged:
            self.warn_of_damage(name, damaged)
            return None
        return reader

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Raise ``FileNotFoundError`` if the ``with`` block fails because the file is gone.

        An object store raises the same error for a removed file as for other failures. So this
        method checks whether the file still exists.
        """
        from pyarrow import fs

        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as failure:
            info = self.files.get_file_info(f"{self.path}/{name}")
            if info.type != fs.FileType.NotFound:
                raise
            raise FileNotFoundError(name) from failure

    def warn_of_damage(self, name: str, why: Exception) -> None:
        """Log a warning that a segment file is damaged, once for each file."""
        path = f"{self.path}/{name}"
        if path not in _warned:
            _warned.add(path)
            logging.getLogger("rstreams_fast").warning(
                "journal: the segment %s is damaged, and its answers are not used (%s)", path, why
            )

    def compact(self) -> int:
        """Merge the segment files that are not large; return by how much their number decreased.

        Another process may read, write or compact meanwhile. A file is removed only after its
        answers are in the merged file. Files that another process has merged are skipped.
        """
        groups: list[list[str]] = [[]]
        size = 0
        for name, length in sorted(self.sizes().items()):
            if length >= LARGE_BYTES:
                continue
            groups[-1].append(name)
            size += length
            if size >= LARGE_BYTES:
                groups.append([])
                size = 0
        return sum(merged.parts - 1 for merged in map(self.merge, groups) if merged is not None)

    def merge(self, names: list[str]) -> Merged | None:
        """Merge the segment files ``names`` into one file, and remove them.

        Returns ``None`` if nothing was merged: a file is missing, or fewer than two are undamaged.
        """
        import pyarrow as pa

        tables: list[pa.Table] = []
        whole: list[str] = []
        for name in names:
            try:
                with self.reading(name):
                    reader = self.open(name)
                    # A file with another schema is not of this function: do not merge it.
                    if reader is not None and (not tables or reader.schema == tables[0].schema):
                        tables.append(reader.read_all())
                        whole.append(name)
            except FileNotFoundError:
                return None
        if len(whole) < 2:  # noqa: PLR2004 - one is merged already
            return None
        merged = pa.concat_tables(tables)
        # Several jobs may have stored an answer for the same key: keep the first.
        first = merged.append_column("row", pa.array(range(merged.num_rows), pa.int64()))
        rows = first.group_by("key").aggregate([("row", "min")])["row_min"]
        kept = merged.take(rows)
        written = self.write(kept, since=whole[0])
        for name in whole:
            self.remove(name)
        return Merged(written, kept.nbytes, len(whole))


def _check_columns(schema: pa.Schema) -> None:
    import pyarrow as pa

    if tuple(schema.names) != COLUMNS or schema.field("key").type != pa.binary(KEY_BYTES):
        columns = ", ".join(f"{field.name} {field.type}" for field in schema)
        raise pa.ArrowInvalid(f"its columns are {columns}, and not those of a segment")


def _latest_time_in(names: Iterable[str]) -> int:
    """Return the latest time in the ``names`` of segment files; 0 if there are no such files."""
    return int(max((name[:20] for name in names if _is_segment(name)), default="0"))


@contextlib.contextmanager
def _lock_file(path: str) -> Iterator[None]:
    """Create a file and lock it: the lock shows other processes that its writer is alive."""
    import fcntl

    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        # Some file systems have no locks: then the file stays unlocked.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _is_being_written(path: str) -> bool:
    """Whether a living process has locked the file at ``path``."""
    import fcntl

    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
    return False


def folders_of(uri: str) -> list[Folder]:
    """Return the folders of a journal, for all functions and versions."""
    return [Folder(uri, info.base_name) for info in _folders_in(Folder(uri))]


def latest_time(uri: str) -> int:
    """Return the latest time in the names of all segment files of a journal; 0 if it has none."""
    return _latest_time_in(info.base_name for info in _files_of(Folder(uri)))


def _folders_in(root: Folder) -> list[Any]:
    from pyarrow import fs

    infos = root.files.get_file_info(fs.FileSelector(root.path, allow_not_found=True))
    return [
        info for info in infos if info.type == fs.FileType.Directory and _is_folder(info.base_name)
    ]


def _files_of(root: Folder) -> Iterator[Any]:
    from pyarrow import fs

    for folder in _folders_in(root):
        yield from root.files.get_file_info(fs.FileSelector(folder.path, allow_not_found=True))


def enforce_max_bytes(uri: str, most: int | None) -> None:
    """Remove the oldest segment files beyond ``most`` bytes, and unfinished files of dead writers.

    Several processes may call this function at the same time.
    """
    root, total = Folder(uri), 0
    for info in sorted(_files_of(root), key=lambda info: str(info.base_name), reverse=True):
        if _is_segment(info.base_name):
            total += info.size
            gone = most is not None and total > most
        else:
            oldest = time.time_ns() - STALE_SECONDS * 1e9
            gone = bool(_is_unfinished(info.base_name)) and info.mtime_ns < oldest
            if gone and root.is_local and _is_being_written(info.path):
                continue
        if gone:
            with contextlib.suppress(OSError):
                root.files.delete_file(info.path)
