"""Downloads a checkpoint from the hub into its cache.

Only what is loaded is downloaded, and a model that cannot be loaded is refused by its config.json, before its
weights come. If the hub cannot be asked, what the cache holds of the revision is taken. All settings are
huggingface_hub's own: HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, HF_HUB_CACHE.
"""

from __future__ import annotations

import errno
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, constants, get_cached_repo_tree, get_token, snapshot_download
from huggingface_hub.errors import (
    CachedRepoTreeNotFoundError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from models.checkpoint.config import read_config
from models.checkpoint.files import DESCRIPTION, weight_files
from models.errors import UnsupportedCheckpoint

ANSWER_SECONDS = 10.0
"""How long the hub may take to answer the first question."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ADDRESS = re.compile(r"\b\w+://\S+")


def download(name: str, revision: str | None) -> Path:
    """Return the directory of a repository's snapshot in the cache; download what it lacks.

    revision: a branch, tag or commit; None for the main branch.
    Raises UnsupportedCheckpoint with one sentence that says what to do.
    """
    target = name if revision is None else f"{name}@{revision}"
    try:
        with _without_warnings():
            with disable_progress_bars():
                directory = _description(name, revision, target)
            _download_weights(name, directory, target)
            return directory
    except UnsupportedCheckpoint:
        raise
    except Exception as error:  # the hub's client raises many unrelated types
        raise UnsupportedCheckpoint(_problem(error, name, target)) from None


def _description(name: str, revision: str | None, target: str) -> Path:
    """Return the directory of a snapshot with what describes the model: the cache's if the hub is silent."""
    problem = None
    try:
        if not constants.is_offline_mode() and not _COMMIT.fullmatch(revision or ""):
            HfApi().model_info(name, revision=revision, timeout=ANSWER_SECONDS)
    except RevisionNotFoundError:
        raise
    except Exception as error:  # of many unrelated types
        problem = error
    try:
        directory = Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=DESCRIPTION,
                local_files_only=problem is not None,
            )
        )
    except (OSError, ValueError):
        if problem is not None:
            raise problem from None
        raise
    if problem is not None:
        _say(f"{_problem(problem, name, target)}; using commit {directory.name} from the cache")
    return directory


def _download_weights(name: str, directory: Path, target: str) -> None:
    """Download the weights that a snapshot lacks. directory: has what describes the model."""
    try:
        tree = get_cached_repo_tree(name, revision=directory.name)
        sizes = {file.path: file.size for file in tree}
    except CachedRepoTreeNotFoundError:  # another program has filled the cache
        present = (path for path in directory.rglob("*") if path.is_file())
        sizes = {path.relative_to(directory).as_posix(): 0 for path in present}
    if "config.json" not in sizes:
        raise UnsupportedCheckpoint(f"{target} has no config.json, so it is not a model of transformers")
    read_config(directory)
    weights = weight_files(directory, list(sizes))
    if not weights:
        raise UnsupportedCheckpoint(
            f"{target} has neither model.safetensors nor pytorch_model.bin; weights of other kinds (ONNX, "
            "OpenVINO, TensorFlow, GGUF) cannot be loaded"
        )
    missing = [file for file in weights if not (directory / file).exists()]
    if missing:
        megabytes = sum(sizes.get(file, 0) for file in missing) / 1e6
        commit = directory.name[:12]
        _say(f"downloading {target} (commit {commit}, {megabytes:,.1f} MB) from {_host()}")
        with nullcontext() if sys.stderr.isatty() else disable_progress_bars():
            snapshot_download(name, revision=directory.name, allow_patterns=missing)


def _problem(error: BaseException, name: str, target: str) -> str:
    """Return one sentence about an error of the hub's client: what is wrong, and what to do.

    It shows no token, nor an address, which may hold a password.
    """
    while isinstance(error, LocalEntryNotFoundError | FileMetadataError) and error.__cause__ is not None:
        error = error.__cause__  # the client wraps what happened in a page of advice
    page = f"{urlsplit(constants.ENDPOINT).scheme or 'https'}://{_host()}/{name}"
    match error:
        case GatedRepoError():
            return f"{target} is gated; ask for access at {page}, and set HF_TOKEN to a token that has it"
        case RevisionNotFoundError():
            revision = target.removeprefix(f"{name}@")
            return f"{name} has no branch, tag or commit {revision!r}; see {page}/tree/main"
        case RepositoryNotFoundError():
            return (
                f"there is no directory {target}, and {_host()} has no model of this name that you may read; "
                "check the name, and for a private model HF_TOKEN"
            )
        case HfHubHTTPError() if error.response.status_code in (401, 403):
            return f"{_host()} does not accept your token for {target}; set HF_TOKEN to a valid one"
        case HfHubHTTPError():
            status = error.response.status_code
            return f"{_host()} answers with status {status} to a request for {target}; try again later"
        case OfflineModeIsEnabled() | LocalEntryNotFoundError():
            return (
                f"{target} is not whole in the cache ({constants.HF_HUB_CACHE}), and the hub is not asked; "
                "unset HF_HUB_OFFLINE for the download, or set HF_HUB_CACHE to a cache that holds the model"
            )
        case HFValidationError():
            return f"{target} is neither a directory nor a name of the hub (organization/model[@revision])"
        case httpx2.UnsupportedProtocol() | httpx2.InvalidURL():
            return "HF_ENDPOINT is not the address of a hub; it must begin with https:// or http://"
        case httpx2.HTTPError():
            return (
                f"there is no directory {target}, and {_host()} cannot be reached ({_first_line(error)}); "
                "check the network, HF_ENDPOINT and HTTPS_PROXY"
            )
        case OSError() if error.errno in _NO_ROOM:
            return (
                f"the disk of {constants.HF_HUB_CACHE} is full; free some space for {target}, or set "
                "HF_HUB_CACHE to a directory on another disk"
            )
        case OSError() if error.errno is not None:
            return (
                f"{target} cannot be written to the cache {constants.HF_HUB_CACHE}: {error.strerror}; set "
                "HF_HUB_CACHE to a directory that you may write"
            )
        case FileMetadataError() | ValueError() | KeyError() | TypeError() | AssertionError():
            return f"{_host()} does not answer as a hub does; check HF_ENDPOINT and the proxy"
    return f"{target} cannot be downloaded from {_host()}: {_first_line(error)}; try again"


def _say(line: str) -> None:
    print(f"headroom: {line}", file=sys.stderr, flush=True)


def _host() -> str:
    """Return the host of the hub, as a person would name it."""
    address = urlsplit(constants.ENDPOINT)
    return address.netloc.rpartition("@")[2] or constants.ENDPOINT


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's text, without addresses and the token."""
    text = str(error).strip()
    line = _ADDRESS.sub("an address", text.splitlines()[0]) if text else type(error).__name__
    token = get_token()
    return line if token is None else line.replace(token, "…")


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep the hub's client from logging warnings, some of which name addresses."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(max(level, logging.ERROR))
    try:
        yield
    finally:
        logger.setLevel(level)
