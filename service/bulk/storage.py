"""The places of files: this machine's disks, or an object store (s3://, gs://, …) that pyarrow reaches.

Everything is written under another name first, so that a file is there whole or not at all.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO, Any, cast
from urllib.parse import unquote, urlsplit

from models.errors import ModelError
from service.bulk.formats import require_pyarrow

BUFFER_BYTES = 1 << 20
UNFINISHED = ".writing"
"""The ending of a file's name while it is written."""


@dataclass(frozen=True, slots=True)
class Stat:
    """The size of a file in bytes, and when it was changed last, in nanoseconds since 1970."""

    size: int
    modified: int


class Storage(ABC):
    """Files by name."""

    @abstractmethod
    def stat(self, name: str) -> Stat | None:
        """Return a file's size and time; None if there is no such file."""

    @abstractmethod
    def is_directory(self, name: str) -> bool:
        """Return whether `name` is a directory."""

    @abstractmethod
    def files(self, directory: str) -> list[str]:
        """Return the names of all files in a directory and below it, sorted; none if it does not exist."""

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
            found = Path(name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return None if stat.S_ISDIR(found.st_mode) else Stat(found.st_size, found.st_mtime_ns)

    def is_directory(self, name: str) -> bool:
        return Path(name).is_dir()

    def files(self, directory: str) -> list[str]:
        return sorted(str(path) for path in Path(directory).rglob("*") if path.is_file())

    def open(self, name: str) -> IO[bytes]:
        return Path(name).open("rb", buffering=BUFFER_BYTES)

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Open a new file for writing; it gets its name when it is whole."""
        draft = Path(name + UNFINISHED)
        try:
            with draft.open("wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
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
        Path(source).replace(target)

    def remove(self, name: str) -> None:
        if Path(name).is_dir():
            shutil.rmtree(name)
        else:
            Path(name).unlink(missing_ok=True)


class ObjectStore(Storage):
    """Files whose names begin with one URI, by pyarrow's file systems: s3, gs, gcs, abfs, hdfs and file."""

    def __init__(self, uri: str) -> None:
        require_pyarrow(uri)
        from pyarrow import fs

        try:
            self._fs, base = fs.FileSystem.from_uri(uri)
        except (ValueError, OSError) as error:
            raise ModelError(f"{uri} cannot be reached: {error}") from None
        self._base: str = base.rstrip("/")
        self._uri = uri.rstrip("/")
        self._is_type = fs.FileType
        self._below = fs.FileSelector

    def _path(self, name: str) -> str:
        name = name.rstrip("/")
        if name.startswith(self._uri):
            return self._base + name.removeprefix(self._uri)
        return self._base.removesuffix(self._uri.removeprefix(name))  # a directory above

    def _info(self, name: str) -> Any:
        return self._fs.get_file_info(self._path(name))

    def stat(self, name: str) -> Stat | None:
        info = self._info(name)
        return Stat(info.size, info.mtime_ns or 0) if info.type == self._is_type.File else None

    def is_directory(self, name: str) -> bool:
        return bool(self._info(name).type == self._is_type.Directory)

    def files(self, directory: str) -> list[str]:
        below = self._below(self._path(directory), recursive=True, allow_not_found=True)
        found = self._fs.get_file_info(below)
        base = len(self._base)
        return sorted(self._uri + info.path[base:] for info in found if info.type == self._is_type.File)

    def open(self, name: str) -> IO[bytes]:
        return io.BufferedReader(self._fs.open_input_file(self._path(name)), BUFFER_BYTES)

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        draft = self._path(name) + UNFINISHED
        with self._fs.open_output_stream(draft, buffer_size=BUFFER_BYTES) as stream:
            yield cast(IO[bytes], stream)
        self._fs.move(draft, self._path(name))  # not reached after an error, so the name never shows a torso

    def write(self, name: str, data: bytes) -> None:
        if self._uri.startswith(("file:", "hdfs:", "viewfs:")):
            super().write(name, data)
            return
        with self._fs.open_output_stream(self._path(name)) as stream:  # an object appears when it is whole
            stream.write(data)

    def make_directory(self, name: str) -> None:
        self._fs.create_dir(self._path(name), recursive=True)

    def move(self, source: str, target: str) -> None:
        self._fs.move(self._path(source), self._path(target))

    def remove(self, name: str) -> None:
        info = self._info(name)
        if info.type == self._is_type.Directory:
            self._fs.delete_dir(info.path)
        elif info.type == self._is_type.File:
            self._fs.delete_file(info.path)


def storage_of(name: str) -> Storage:
    """Return where a path or URI is."""
    return ObjectStore(name) if "://" in name else Disk()


def place_of(name: str) -> PurePath:
    """Return a name as a path that can be compared with another one."""
    if name.startswith("file://"):
        name = unquote(urlsplit(name).path)
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
