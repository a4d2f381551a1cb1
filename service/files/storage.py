"""Files by name: on this machine's disks, or in an object store (s3://, gs://, …) that pyarrow reaches.

A file is there whole or not at all. On a disk it is written under another name first. For an object store it
is written to a temporary file and uploaded when it is whole, because pyarrow cannot abort an upload.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast
from urllib.parse import quote

from pyarrow import fs

from models.errors import ModelError

BUFFER_BYTES = 1 << 20
UNFINISHED = ".writing"
"""The ending of a file's name while it is written."""


class Stat(NamedTuple):
    """The size of a file in bytes, and when it was changed last, in nanoseconds since 1970.

    identity: differs if another file has taken the name; 0 in an object store.
    """

    size: int
    modified: int
    identity: int = 0


class Disk:
    """Files of this machine. check: called before each change of a file; its error prevents the change."""

    def __init__(self) -> None:
        self.check: Callable[[], None] = lambda: None

    def stat(self, name: str) -> Stat | None:
        """Return a file's size and time; None if there is no such file."""
        try:
            status = Path(name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISDIR(status.st_mode):
            return None
        return Stat(status.st_size, status.st_mtime_ns, status.st_ino)

    def is_directory(self, name: str) -> bool:
        """Return whether `name` is a directory."""
        return Path(name).is_dir()

    def files(self, directory: str) -> list[str]:
        """Return the names of all files in a directory and below it, sorted; none if it does not exist.

        Links are followed. Raises OSError if a directory cannot be read.
        """
        return sorted(_files(directory)) if Path(directory).is_dir() else []

    def open(self, name: str) -> Any:
        """Open a file for reading."""
        return Path(name).open("rb", buffering=BUFFER_BYTES)

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Open a new file for writing. It gets its name when the block ends without an error."""
        self.check()
        draft = Path(name + UNFINISHED)
        draft.parent.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            self.check()
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        draft.replace(name)
        descriptor = os.open(draft.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all that is in it; nothing happens if there is none."""
        self.check()
        if Path(name).is_dir():
            shutil.rmtree(name)
        else:
            Path(name).unlink(missing_ok=True)


def _files(directory: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the files in a directory and below it. above: the directories around it, so that loops end."""
    real = os.path.realpath(directory)
    if real in above:
        return
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(entry.path, (*above, real))
            elif entry.is_file():
                yield entry.path


class ObjectStore:
    """Files whose names begin with one URI, by pyarrow's file systems.

    Its methods are those of `Disk`.

    uri: holds an object's key as it is, with blanks, "#", "?" or "%"; in file:// "%20" is a blank.
    """

    def __init__(self, uri: str) -> None:
        self.check: Callable[[], None] = lambda: None
        scheme, _, rest = uri.partition("://")
        host, slash, key = rest.partition("/")
        key = quote(key, safe="/%" if scheme == "file" else "/")
        try:
            self._fs, base = fs.FileSystem.from_uri(f"{scheme}://{host}{slash}{key}")
        except (ValueError, OSError) as error:
            raise ModelError(f"{uri} cannot be reached: {error}") from None
        self._uri = uri.rstrip("/")
        self._base: str = base.rstrip("/")
        self._renames = scheme in ("file", "hdfs", "viewfs")

    def _path(self, name: str) -> str:
        return self._base + name.rstrip("/").removeprefix(self._uri)

    def _type(self, name: str) -> Any:
        return self._fs.get_file_info(self._path(name)).type

    def stat(self, name: str) -> Stat | None:
        info = self._fs.get_file_info(self._path(name))
        return Stat(info.size, info.mtime_ns or 0) if info.type == fs.FileType.File else None

    def is_directory(self, name: str) -> bool:
        return bool(self._type(name) == fs.FileType.Directory)

    def files(self, directory: str) -> list[str]:
        below = fs.FileSelector(self._path(directory), recursive=True, allow_not_found=True)
        files = [info.path for info in self._fs.get_file_info(below) if info.type == fs.FileType.File]
        return sorted(self._uri + path[len(self._base) :] for path in files)

    def open(self, name: str) -> Any:
        return self._fs.open_input_file(self._path(name))

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Open a new file for writing. It is there when the block ends without an error."""
        self.check()
        path = self._path(name)
        draft = path + UNFINISHED if self._renames else path
        with tempfile.NamedTemporaryFile() as whole:
            yield cast(IO[bytes], whole)
            whole.flush()
            self.check()
            if self._renames:
                self._fs.create_dir(draft.rpartition("/")[0], recursive=True)
            fs.copy_files(whole.name, draft, fs.LocalFileSystem(), self._fs)
        if self._renames:
            self._fs.move(draft, path)

    def remove(self, name: str) -> None:
        self.check()
        kind = self._type(name)
        if kind == fs.FileType.Directory:
            self._fs.delete_dir(self._path(name))
        elif kind == fs.FileType.File:
            self._fs.delete_file(self._path(name))


Storage = Disk | ObjectStore


def storage_of(name: str) -> Storage:
    """Return where a path or URI is."""
    return ObjectStore(name) if "://" in name else Disk()
