"""The places of files: this machine's disks, or an object store (s3://, gs://, …) that pyarrow reaches.

A file is there whole or not at all: on a disk it is written under another name first. For an object store it
is written to a temporary file, and uploaded when it is whole: pyarrow cannot abort an upload that has begun.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import io
import os
import shutil
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO, Any, cast
from urllib.parse import quote, unquote

from models.errors import ModelError
from service.files.formats import require_pyarrow

BUFFER_BYTES = 1 << 20
UNFINISHED = ".writing"
"""The ending of a file's name while it is written."""


@dataclass(frozen=True, slots=True)
class Stat:
    """The size of a file in bytes, and when it was changed last, in nanoseconds since 1970.

    identity: differs if another file has taken the name; 0 in an object store.
    """

    size: int
    modified: int
    identity: int = 0


def _nothing() -> None:
    pass


class Storage(ABC):
    """Files by name.

    check: is called before a file is begun, gets its name, is moved or is removed; its error prevents that.
    """

    def __init__(self, check: Callable[[], None] = _nothing) -> None:
        self._check = check

    @abstractmethod
    def stat(self, name: str) -> Stat | None:
        """Return a file's size and time; None if there is no such file."""

    @abstractmethod
    def is_directory(self, name: str) -> bool:
        """Return whether `name` is a directory."""

    @abstractmethod
    def files(self, directory: str) -> list[str]:
        """Return the names of all files in a directory and below it, sorted; none if it does not exist.

        Links are followed. Raises OSError if a directory cannot be read.
        """

    @abstractmethod
    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading."""

    @abstractmethod
    def create(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """Open a new file for writing. It gets its name when the block ends without an error."""

    @abstractmethod
    def make_directory(self, name: str) -> None:
        """Create a directory; nothing happens if it exists."""

    @abstractmethod
    def move(self, source: str, target: str) -> None:
        """Give a file or a directory another name."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all that is in it; nothing happens if there is none."""

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file."""
        with self.create(name) as stream:
            stream.write(data)


class Disk(Storage):
    """Files of this machine."""

    def stat(self, name: str) -> Stat | None:
        try:
            status = Path(name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISDIR(status.st_mode):
            return None
        return Stat(status.st_size, status.st_mtime_ns, status.st_ino)

    def is_directory(self, name: str) -> bool:
        return Path(name).is_dir()

    def files(self, directory: str) -> list[str]:
        return sorted(_files(directory)) if Path(directory).is_dir() else []

    def open(self, name: str) -> IO[bytes]:
        return Path(name).open("rb", buffering=BUFFER_BYTES)

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Open a new file for writing; it gets its name when it is whole."""
        draft = Path(name + UNFINISHED)
        self._check()
        try:
            with draft.open("wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            self._check()
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        draft.replace(name)
        descriptor = os.open(draft.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_directory(self, name: str) -> None:
        Path(name).mkdir(parents=True, exist_ok=True)

    def move(self, source: str, target: str) -> None:
        self._check()
        Path(source).replace(target)

    def remove(self, name: str) -> None:
        self._check()
        if Path(name).is_dir():
            shutil.rmtree(name)
        else:
            Path(name).unlink(missing_ok=True)


def _files(directory: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the files in a directory and below it. above: the directories around it, which hold no more."""
    real = os.path.realpath(directory)
    if real in above:
        return
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(entry.path, (*above, real))
            elif entry.is_file():
                yield entry.path


class ObjectStore(Storage):
    """Files whose names begin with one URI, by pyarrow's file systems: s3, gs, gcs, abfs, hdfs and file.

    uri: holds an object's key as it is, with blanks, "#", "?" or "%"; in file:// "%20" is a blank.
    """

    def __init__(self, uri: str, check: Callable[[], None] = _nothing) -> None:
        super().__init__(check)
        require_pyarrow(uri)
        from pyarrow import fs

        scheme, _, rest = uri.partition("://")
        host, slash, key = rest.partition("/")
        key = quote(key, safe="/%" if scheme == "file" else "/")
        try:
            self._fs, base = fs.FileSystem.from_uri(f"{scheme}://{host}{slash}{key}")
        except (ValueError, OSError) as error:
            raise ModelError(f"{uri} cannot be reached: {error}") from None
        self._base: str = base.rstrip("/")
        self._uri = uri.rstrip("/")
        self._renames = scheme in ("file", "hdfs", "viewfs")
        self._is_type = fs.FileType
        self._below = fs.FileSelector

    def _path(self, name: str) -> str:
        name = name.rstrip("/")
        if name.startswith(self._uri):
            return self._base + name.removeprefix(self._uri)
        levels = self._uri.removeprefix(name).count("/")
        return self._base.rsplit("/", levels)[0]  # a directory above

    def _info(self, name: str) -> Any:
        return self._fs.get_file_info(self._path(name))

    def stat(self, name: str) -> Stat | None:
        info = self._info(name)
        return Stat(info.size, info.mtime_ns or 0) if info.type == self._is_type.File else None

    def is_directory(self, name: str) -> bool:
        return bool(self._info(name).type == self._is_type.Directory)

    def files(self, directory: str) -> list[str]:
        below = self._below(self._path(directory), recursive=True, allow_not_found=True)
        entries = self._fs.get_file_info(below)
        base = len(self._base)
        return sorted(self._uri + info.path[base:] for info in entries if info.type == self._is_type.File)

    def open(self, name: str) -> IO[bytes]:
        return io.BufferedReader(self._fs.open_input_file(self._path(name)), BUFFER_BYTES)

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Open a new object for writing; it appears when it is whole, and never after an error."""
        path = self._path(name)
        draft = path + UNFINISHED if self._renames else path
        self._check()
        with tempfile.TemporaryFile() as whole:
            yield cast(IO[bytes], whole)
            self._check()
            whole.seek(0)
            stream = self._fs.open_output_stream(draft, buffer_size=BUFFER_BYTES)
            try:
                shutil.copyfileobj(whole, stream, BUFFER_BYTES)
                self._check()
            except BaseException:
                if self._renames:
                    with contextlib.suppress(OSError):
                        stream.close()
                        self._fs.delete_file(draft)
                else:  # pyarrow completes an upload when its stream is closed or freed, so it is never freed
                    ctypes.pythonapi.Py_IncRef(ctypes.py_object(stream))
                raise
        stream.close()
        if self._renames:
            self._fs.move(draft, path)

    def make_directory(self, name: str) -> None:
        self._fs.create_dir(self._path(name), recursive=True)

    def move(self, source: str, target: str) -> None:
        self._check()
        self._fs.move(self._path(source), self._path(target))

    def remove(self, name: str) -> None:
        self._check()
        info = self._info(name)
        if info.type == self._is_type.Directory:
            self._fs.delete_dir(info.path)
        elif info.type == self._is_type.File:
            self._fs.delete_file(info.path)


def storage_of(name: str, check: Callable[[], None] = _nothing) -> Storage:
    """Return where a path or URI is. check: see `Storage`."""
    return ObjectStore(name, check) if "://" in name else Disk(check)


def place_of(name: str) -> PurePath:
    """Return a name as a path that can be compared with another one."""
    if name.startswith("file://"):
        name = unquote(name.removeprefix("file://"))
    return PurePath(name) if "://" in name else Path(name).resolve()


def decompressed(stream: IO[bytes], compression: str) -> IO[bytes]:
    """Return the bytes of a file that is compressed with gz or zst, or with "" not at all."""
    if compression == "gz":
        return io.BufferedReader(cast(Any, gzip.GzipFile(fileobj=stream)), BUFFER_BYTES)
    if compression == "zst":
        import pyarrow

        plain = pyarrow.CompressedInputStream(pyarrow.PythonFile(stream, mode="r"), "zstd")
        return io.BufferedReader(plain, BUFFER_BYTES)
    return stream


def compressed(data: bytes, compression: str) -> bytes:
    """Return data as one gz member or zst frame of its own: files may hold several, one after the other."""
    if compression == "gz":
        return gzip.compress(data, compresslevel=6, mtime=0)
    if compression == "zst":
        import pyarrow

        return cast(bytes, pyarrow.Codec("zstd").compress(data, asbytes=True))
    return data
