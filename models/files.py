"""Opens files that a config, a request or the command line names: regular ones of a bounded size; and writes
files whole or not at all.

A FIFO would be waited for without end, and a device such as /dev/zero would fill the memory.
"""

import os
import stat
from pathlib import Path
from typing import Any

from headroom.models.errors import ModelError

Json = dict[str, Any]
"""A JSON object."""

MAX_BYTES = 64 << 20
"""The largest file that is read whole, unless a caller allows more: configs and masks have kilobytes."""


LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""The beginning of the small file that git has in place of one that Git LFS keeps."""

LFS_ADVICE = "a pointer of Git LFS, not the file itself; run git lfs pull where it was cloned"


def check_regular(file: Path | str) -> None:
    """Raise OSError if a file is missing, or is not a regular one, or no link to one."""
    mode = Path(file).stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError("it is a directory")
    if not stat.S_ISREG(mode):
        raise OSError("it is not a regular file")


def check_no_pointer(file: Path | str) -> None:
    """Raise OSError if a file is a pointer of Git LFS."""
    with Path(file).open("rb") as stream:
        if stream.read(len(LFS_POINTER)) == LFS_POINTER:
            raise OSError(f"it is {LFS_ADVICE}")


def read_bytes(file: Path | str, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file. Raises OSError, also if it has more than `max_bytes`."""
    check_regular(file)  # before it is opened, because that alone may do something to a device
    if Path(file).stat().st_size > max_bytes:
        raise OSError(f"it is larger than {max_bytes >> 20} MiB")
    return Path(file).read_bytes()


def read_text(file: Path | str, max_bytes: int = MAX_BYTES) -> str:
    """Return the text of a regular UTF-8 file, without a byte order mark.

    Raises OSError, also if it has more than `max_bytes`, or UnicodeDecodeError.
    """
    return read_bytes(file, max_bytes).decode("utf-8-sig")


def check_no_file(directory: Path) -> None:
    """Raise ModelError if a directory to write, or the one that it is to be in, is a file."""
    for path in (directory, *directory.parents):
        if path.exists():
            if not path.is_dir():
                raise ModelError(f"{path} is a file; name a directory")
            return


def write_whole(file: Path, content: bytes) -> None:
    """Write a file under another name first, so that it is never there in part; make its directory."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    draft.write_bytes(content)
    draft.replace(file)
