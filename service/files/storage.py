"""Files by name: on this machine's disks, or in an object store (s3://, gs://, …), by pyarrow's file systems.

A file appears whole or not at all. On a disk it is written under a name of this run alone, locked, and then
renamed. For an object store it is written to a temporary file and uploaded when it is whole, because pyarrow
cannot abort an upload.
"""

import fcntl
import glob
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, cast
from urllib.parse import quote

from pyarrow import fs

from headroom.models.errors import ModelError

UNFINISHED = ".writing"
"""The ending of a file's name while it is written."""

WORD_BYTES = 4
"""The length of the random word before that ending, which is in hex."""


class Stat(NamedTuple):
    """The size of a file in bytes, and when it was changed last, in nanoseconds since 1970."""

    size: int
    modified: int


class Storage:
    """The files whose names begin with one path or URI.

    name: a path, or a URI that holds an object's key as it is, with blanks, "#", "?" or "%"; in file:// "%20"
        is a blank.
    """

    def __init__(self, name: str) -> None:
        self._fs: fs.FileSystem = fs.LocalFileSystem()
        self._name = self._base = ""
        if "://" in name:
            scheme, _, rest = name.partition("://")
            host, slash, key = rest.partition("/")
            key = quote(key, safe="/%" if scheme == "file" else "/")
            try:
                self._fs, base = fs.FileSystem.from_uri(f"{scheme}://{host}{slash}{key}")
            except (ValueError, OSError) as error:
                raise ModelError(f"{name} cannot be reached: {error}") from None
            self._name = name.rstrip("/")
            self._base = base.rstrip("/")
        self._is_local = isinstance(self._fs, fs.LocalFileSystem)

    def _path(self, name: str) -> str:
        return self._base + name.removeprefix(self._name).rstrip("/")

    def _info(self, name: str) -> fs.FileInfo:
        return self._fs.get_file_info(self._path(name))

    def stat(self, name: str) -> Stat | None:
        """Return a file's size and time; None if there is no such file."""
        info = self._info(name)
        return Stat(info.size, info.mtime_ns or 0) if info.type == fs.FileType.File else None

    def is_directory(self, name: str) -> bool:
        """Return whether `name` is a directory."""
        return bool(self._info(name).type == fs.FileType.Directory)

    def files(self, directory: str) -> list[str]:
        """Return the names of all files in a directory and below it, sorted; none if it does not exist."""
        below = fs.FileSelector(self._path(directory), recursive=True, allow_not_found=True)
        files = [info.path for info in self._fs.get_file_info(below) if info.type == fs.FileType.File]
        return sorted(self._name + path[len(self._base) :] for path in files)

    def open(self, name: str) -> Any:
        """Open a file for reading."""
        return self._fs.open_input_file(self._path(name))

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Open a new file for writing. It is there when the block ends without an error."""
        path = self._path(name)
        if not self._is_local:
            with tempfile.NamedTemporaryFile() as whole:
                yield cast(IO[bytes], whole)
                whole.flush()
                fs.copy_files(whole.name, path, fs.LocalFileSystem(), self._fs)
            return
        draft = Path(f"{path}.{secrets.token_hex(WORD_BYTES)}{UNFINISHED}")
        draft.parent.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("xb") as stream:
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(stream, fcntl.LOCK_EX)
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
                draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def remove_drafts(self, name: str) -> None:
        """Remove what killed runs left of files that begin with `name`; what a run is writing is locked."""
        if not self._is_local:
            return
        path = Path(self._path(name))
        pattern = f"{glob.escape(path.name)}*.{'[0-9a-f]' * 2 * WORD_BYTES}{UNFINISHED}"
        for draft in path.parent.glob(pattern):
            with suppress(OSError), draft.open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                draft.unlink()

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all that is in it; nothing happens if there is none."""
        kind = self._info(name).type
        if kind == fs.FileType.Directory:
            self._fs.delete_dir(self._path(name))
        elif kind == fs.FileType.File:
            self._fs.delete_file(self._path(name))
