"""Compiles our kernels (`native/`) when headroom is installed: every level of machines like this one.

The libraries lie in the package, so an image that is built on one processor serves on any other. Nothing is
compiled when the service starts. A library's name holds a digest of the source, the compiler's flags and the
C library, and one of the compiler. A failure is kept as a file beside them, for the log of later starts.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import platform
import shlex
import stat
import struct
import subprocess
import tempfile
from pathlib import Path

from models.ops.kernel_levels import Level

SOURCES = Path(__file__).with_name("native")
BUILT = Path(__file__).with_name("built")
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-fopenmp",
    "-fno-exceptions",
    "-fno-math-errno",
    "-Wno-psabi",
)

SECONDS_TO_COMPILE = 120
_IN_ENGLISH = {"LC_ALL": "C"}


def build_all(levels: tuple[Level, ...]) -> dict[str, str | None]:
    """Compile the kernels for each level, unless that was done before.

    Returns the compiler's (or the system's) message for each level by name; None for a level that is there.
    """
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip((level.name for level in levels), pool.map(_failure, levels), strict=True))


def _failure(level: Level) -> str | None:
    try:
        build(level)
    except (OSError, RuntimeError) as error:
        return str(error)
    return None


def build(level: Level) -> Path:
    """Compile the kernels for a level, unless this compiler did before. Returns the library's path.

    A damaged library is compiled again. Raises RuntimeError with the compiler's message; OSError without a
    compiler, without disk space, or if others may write where the library would lie.
    """
    compiler, version = _compiler()
    library = BUILT / f"{_stem(level)}-{_digest(version)}.so"
    if library.exists() and is_whole(library):
        return library
    BUILT.mkdir(exist_ok=True)
    BUILT.chmod(0o755)  # whatever the umask: nobody else may write
    check_safe(BUILT)
    with tempfile.TemporaryDirectory(dir=BUILT) as scratch:
        made = Path(scratch) / library.name
        command = [*compiler, *FLAGS, *level.flags, "-o", str(made), str(SOURCES / "kernels.cpp")]
        try:
            _run(command)
        except RuntimeError as error:
            made.write_text(str(error), encoding="utf-8", errors="replace")
            made.replace(library.with_suffix(".failed"))
            raise
        made.chmod(0o644)
        with made.open("rb") as file:
            os.fsync(file)  # or the file may be empty after a power failure, under its final name
        made.replace(library)  # atomic: other processes may be building or loading it
    for old in BUILT.glob(f"kernels-{level.name}-*"):
        if old != library:
            old.unlink(missing_ok=True)
    return library


def _compiler() -> tuple[list[str], bytes]:
    """Return the compiler's command and what it says of its version. Raises OSError if it does not run."""
    try:
        compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
        done = subprocess.run(
            [*compiler, "--version"], capture_output=True, check=True, env=os.environ | _IN_ENGLISH
        )
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise OSError(f"no C++ compiler: {error}") from None
    return compiler, done.stdout


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=os.environ | _IN_ENGLISH,  # in ASCII, which every terminal shows
            timeout=SECONDS_TO_COMPILE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{command[0]} took more than {SECONDS_TO_COMPILE} s") from None
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")


def library_of(level: Level) -> Path:
    """Return the library that `build` compiled for a level, from this source and for this C library.

    Raises OSError if there is none, saying why, or if somebody else could have written it.
    """
    if not BUILT.is_dir():
        raise FileNotFoundError("not compiled")
    check_safe(BUILT)
    libraries = sorted(BUILT.glob(f"{_stem(level)}-*.so"))
    if libraries:
        check_safe(libraries[0])
        if not is_whole(libraries[0]):
            raise FileNotFoundError(f"{libraries[0]} is damaged")
        return libraries[0]
    for failed in BUILT.glob(f"{_stem(level)}-*.failed"):
        message = failed.read_text(encoding="utf-8", errors="replace")
        raise FileNotFoundError(f"could not be compiled: {message}")
    if any(BUILT.glob(f"kernels-{level.name}-*.so")):
        raise FileNotFoundError("compiled from another source or for another C library")
    raise FileNotFoundError("not compiled")


def is_whole(library: Path) -> bool:
    """Return whether a library has the size that its header (ELF, 64 bits) tells.

    It is not loaded for this: a processor without the library's level would stop the process.
    """
    with library.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or not header.startswith(b"\x7fELF"):
        return False
    (table,) = struct.unpack_from("<Q", header, 0x28)  # of sections, which linkers write at the end
    size, count = struct.unpack_from("<HH", header, 0x3A)
    end: int = table + size * count
    return library.stat().st_size >= end


def check_safe(path: Path) -> None:
    """Raise PermissionError unless a file or directory is this user's or root's and nobody else may write it.

    It may not be a link. The directories above hold the package's own code, so only those that everybody may
    write are refused (unless, like /tmp, they let only owners remove what is theirs).
    """
    status = path.lstat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise PermissionError(f"{path} is neither a file nor a directory")
    if status.st_uid not in (0, os.geteuid()):
        raise PermissionError(f"{path} belongs to user {status.st_uid}, who is neither you nor root")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"others may write {path}; run chmod go-w {path}")
    for parent in path.resolve().parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise PermissionError(f"everybody may write {parent}; run chmod o-w {parent}")


def _stem(level: Level) -> str:
    """Return the start of the name of a level's library: all that it depends on but the compiler."""
    sources = [file.read_bytes() for file in sorted(SOURCES.iterdir()) if file.suffix in (".h", ".cpp")]
    recipe = [*FLAGS, *level.flags, *platform.libc_ver(), level.machine]
    return f"kernels-{level.name}-{_digest(bytes(1).join([*sources, *map(str.encode, recipe)]))}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
