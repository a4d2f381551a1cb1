"""Downloads a checkpoint from the hub into its cache.

Only what is loaded is downloaded, and a model that cannot be loaded is refused by its config.json, before its
weights come. All settings are huggingface_hub's own: HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, HF_HUB_CACHE.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from huggingface_hub import HfApi, constants, get_cached_repo_tree, snapshot_download
from huggingface_hub.errors import CachedRepoTreeNotFoundError, RevisionNotFoundError
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils.tqdm import disable_progress_bars

from models.checkpoint.config import read_config
from models.checkpoint.hub_files import DESCRIPTION, weight_files
from models.checkpoint.hub_problems import Target, problem_of, size_text
from models.errors import UnsupportedCheckpoint

ANSWER_SECONDS = 10.0
"""How long the hub may take to answer the first question."""

_SAY_EVERY_S = {True: 0.5, False: 10.0}
"""How often the progress is shown: on a terminal, and elsewhere."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def download(name: str, revision: str | None) -> Path:
    """Return the directory of a repository's snapshot in the cache; download what it lacks.

    revision: a branch, tag or commit; None for the main branch. A commit that the cache holds whole is taken
        without asking the hub. If the hub cannot be asked, what the cache holds of the revision is taken.
    Raises UnsupportedCheckpoint with one sentence that says what to do.
    """
    target = Target(name, revision)
    with _quiet():
        if revision is not None and _COMMIT.fullmatch(revision):
            directory = _cached(target)
            if directory is not None:
                return directory
        problem = _ask(target)
        if problem is None:
            return _download(target)
        directory = _cached(target)
        if directory is None:
            raise UnsupportedCheckpoint(problem)
        if not constants.is_offline_mode():
            _say(f"{problem}; using commit {directory.name} from the cache")
        return directory


def _ask(target: Target) -> str | None:
    """Ask the hub for the revision. Returns None if it is there, else why the hub cannot be asked for it.

    Raises UnsupportedCheckpoint if the hub says that there is no such revision.
    """
    try:
        HfApi().model_info(target.name, revision=target.revision, timeout=ANSWER_SECONDS)
    except RevisionNotFoundError as error:
        raise UnsupportedCheckpoint(problem_of(error, target)) from None
    except Exception as error:  # the hub's client raises many unrelated types
        return problem_of(error, target)
    return None


def _cached(target: Target) -> Path | None:
    """Return the directory of a revision if the cache holds all of it that is loaded."""
    try:
        directory = Path(_snapshot(target, DESCRIPTION, local_files_only=True))
    except (OSError, ValueError):
        return None
    present = _files_in(directory)
    weights = weight_files(directory, list(_sizes(target, directory) or present))
    return directory if "config.json" in present and weights and present.issuperset(weights) else None


def _download(target: Target) -> Path:
    try:
        directory = Path(_snapshot(target, DESCRIPTION))
        sizes = _sizes(target, directory) or dict.fromkeys(_files_in(directory), 0)
        if "config.json" not in sizes:
            raise UnsupportedCheckpoint(f"{target} has no config.json, so it is not a model of transformers")
        read_config(directory)  # before gigabytes come that could not be loaded
        weights = weight_files(directory, list(sizes))
        if not weights:
            raise UnsupportedCheckpoint(
                f"{target} has neither model.safetensors nor pytorch_model.bin; weights of other kinds "
                "(ONNX, OpenVINO, TensorFlow, GGUF) cannot be loaded"
            )
        missing = [file for file in weights if not (directory / file).exists()]
        if missing:
            size = sum(sizes[file] for file in missing if file in sizes)
            with _progress(target, directory, size):
                _snapshot(target, missing, commit=directory.name)
            _check_content(target, [directory / file for file in missing])
        return directory
    except UnsupportedCheckpoint:
        raise
    except Exception as error:  # the hub's client raises many unrelated types
        raise UnsupportedCheckpoint(problem_of(error, target)) from None


def _snapshot(
    target: Target, files: Sequence[str], *, commit: str | None = None, local_files_only: bool = False
) -> str:
    return snapshot_download(
        target.name,
        revision=commit or target.revision,
        allow_patterns=list(files),
        local_files_only=local_files_only,
    )


def _sizes(target: Target, directory: Path) -> dict[str, int] | None:
    """Return the size of each file of the repository, or None if the cache does not know them all."""
    try:
        return {file.path: file.size for file in get_cached_repo_tree(target.name, revision=directory.name)}
    except CachedRepoTreeNotFoundError:  # another program has filled the cache
        return None


def _files_in(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


def _check_content(target: Target, files: Sequence[Path]) -> None:
    """Raise UnsupportedCheckpoint if a file does not hold what the hub announced, and remove it.

    A large file lies in the cache under the SHA-256 that the hub announced for it.
    """
    for file in files:
        blob = file.resolve()
        if not _SHA256.fullmatch(blob.name):
            continue
        with blob.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != blob.name:
            blob.unlink()
            file.unlink()
            raise UnsupportedCheckpoint(
                f"{target}: {file.name} arrived broken (its SHA-256 is not the one that {target.host} "
                "announced); try again"
            )


@contextmanager
def _progress(target: Target, directory: Path, size: int) -> Iterator[None]:
    """Say what is downloaded, and meanwhile how far it is.

    size: the number of bytes to come. Raises UnsupportedCheckpoint if the disk has no room for them.
    """
    blobs = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=target.name, repo_type="model") / "blobs"
    free = shutil.disk_usage(directory).free
    if size > free:
        raise UnsupportedCheckpoint(
            f"{target} needs {size_text(size)}, and the disk of {constants.HF_HUB_CACHE} has "
            f"{size_text(free)} left; free some, or set HF_HUB_CACHE to a directory on another disk"
        )
    _say(f"downloading {target} (commit {directory.name[:12]}, {size_text(size)}) from {target.host}")
    before, done = _bytes_in(blobs), threading.Event()

    def watch() -> None:
        """Print how much has come, again and again, until the download ends."""
        is_terminal = sys.stderr.isatty()
        while not done.wait(_SAY_EVERY_S[is_terminal]):
            line = f"{size_text(max(0, _bytes_in(blobs) - before))} of {size_text(size)}"
            if is_terminal:
                print(f"\rheadroom: {line}   ", end="", file=sys.stderr, flush=True)
            else:
                _say(line)
        if is_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _bytes_in(directory: Path) -> int:
    """Return the size of all files in a directory, some of which may vanish meanwhile."""
    total = 0
    for file in directory.glob("*"):
        try:
            total += file.stat().st_size
        except OSError:
            continue
    return total


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the hub's client from showing bars and warnings, some of which name addresses."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(max(level, logging.ERROR))
    try:
        with disable_progress_bars() if constants.HF_HUB_DISABLE_PROGRESS_BARS is None else nullcontext():
            yield
    finally:
        logger.setLevel(level)


def _say(line: str) -> None:
    print(f"headroom: {line}", file=sys.stderr, flush=True)
