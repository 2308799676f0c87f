"""A private folder of a user in the host's temporary directory, for files that workers share."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["naming_path", "private_folder"]


def private_folder(name: str) -> Path:
    """Return the folder ``rstreams-NAME-UID`` in the temporary directory; make it if it is missing.

    Raises ``PermissionError`` if the path is not a directory (but a link, for example), or if other
    users can access it.
    """
    path = Path(tempfile.gettempdir()) / f"rstreams-{name}-{os.getuid()}"
    found = None
    while found is None:
        with contextlib.suppress(FileExistsError):
            path.mkdir(0o700)
        # Another process may have removed the folder after mkdir: then try again.
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{path} is no directory, or a link, which others may have put there")
    if found.st_uid != os.getuid() or found.st_mode & 0o777 != 0o700:  # noqa: PLR2004
        raise PermissionError(f"{path} belongs to another user, or others may use it")
    return path


@contextlib.contextmanager
def naming_path(path: Path) -> Iterator[None]:
    """If the block raises an ``OSError`` without a file name (full disk, say), add ``path``."""
    try:
        yield
    except OSError as raised:
        if raised.errno is not None and raised.filename is None:
            raised.filename = os.fspath(path)
        raise
