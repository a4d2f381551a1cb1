"""Downloads a checkpoint from the hub into its cache.

Only what is loaded is downloaded, and a model that cannot be loaded is refused by its config.json, before its
weights come. If the hub cannot be asked, what the cache holds of the revision is taken. All settings are
huggingface_hub's own: HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, HF_HUB_CACHE.
"""

import logging
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import HfApi, constants, get_cached_repo_tree, get_token, snapshot_download
from huggingface_hub.errors import (
    CachedRepoTreeNotFoundError,
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
from models.checkpoint.fields import check
from models.checkpoint.files import DESCRIPTION, weight_files
from models.errors import UnsupportedCheckpoint

ANSWER_SECONDS = 10.0
"""How long the hub may take to answer the first question."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_ADDRESS = re.compile(r"\b\w+://\S+")


def download(name: str, revision: str | None) -> Path:
    """Return the directory of a repository's snapshot in the cache; download what it lacks.

    revision: a branch, tag or commit; None for the main branch.
    Raises UnsupportedCheckpoint with one sentence that says what to do.
    """
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its warnings name addresses
    target = name if revision is None else f"{name}@{revision}"
    try:
        return _downloaded(name, revision, target)
    except UnsupportedCheckpoint:
        raise
    except Exception as error:  # the hub's client raises many unrelated types
        raise UnsupportedCheckpoint(_problem(error, name, target)) from None


def _downloaded(name: str, revision: str | None, target: str) -> Path:
    problem: Exception | None = None
    try:
        if not constants.is_offline_mode() and not _COMMIT.fullmatch(revision or ""):
            HfApi().model_info(name, revision=revision, timeout=ANSWER_SECONDS)
    except RevisionNotFoundError:
        raise
    except Exception as error:  # of many unrelated types
        problem = error
    only_cache = problem is not None
    try:
        with disable_progress_bars():
            snapshot = snapshot_download(
                name, revision=revision, allow_patterns=DESCRIPTION, local_files_only=only_cache
            )
    except (OSError, ValueError) as error:
        raise problem or error from None
    directory = Path(snapshot)
    if problem is not None:
        _say(f"{_problem(problem, name, target)}; using commit {directory.name} from the cache")
    try:
        sizes = {file.path: file.size for file in get_cached_repo_tree(name, revision=directory.name)}
    except CachedRepoTreeNotFoundError:  # another program has filled the cache
        present = (path for path in directory.rglob("*") if path.is_file())
        sizes = {path.relative_to(directory).as_posix(): 0 for path in present}
    check("config.json" in sizes, f"{target} has no config.json, so it is not a model of transformers")
    read_config(directory)
    weights = weight_files(directory, list(sizes))
    check(
        bool(weights),
        f"{target} has neither model.safetensors nor pytorch_model.bin; weights of other kinds (ONNX, "
        "OpenVINO, TensorFlow, GGUF) cannot be loaded",
    )
    missing = [file for file in weights if not (directory / file).exists()]
    if missing:
        megabytes = sum(sizes.get(file, 0) for file in missing) / 1e6
        _say(f"downloading {target} (commit {directory.name[:12]}, {megabytes:,.1f} MB) from {_host()}")
        with nullcontext() if sys.stderr.isatty() else disable_progress_bars():
            snapshot_download(name, revision=directory.name, allow_patterns=missing)
    return directory


def _problem(error: BaseException, name: str, target: str) -> str:
    """Return one sentence about an error of the hub's client: what is wrong, and what to do.

    It shows no token, nor an address, which may hold a password.
    """
    while isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__  # the client wraps what happened in a page of advice
    host = _host()
    match error:
        case GatedRepoError():
            page = f"{urlsplit(constants.ENDPOINT).scheme}://{host}/{name}"
            return f"{target} is gated; ask for access at {page}, and set HF_TOKEN to a token that has it"
        case RevisionNotFoundError():
            return f"{name} has no branch, tag or commit {target.removeprefix(f'{name}@')!r}"
        case RepositoryNotFoundError():
            return (
                f"there is no directory {target}, and {host} has no model of this name that you may read; "
                "check the name, and for a private model HF_TOKEN"
            )
        case HfHubHTTPError():
            return (
                f"{host} answers with status {error.response.status_code} to a request for {target}; check "
                "HF_TOKEN, or try again later"
            )
        case OfflineModeIsEnabled() | LocalEntryNotFoundError():
            return (
                f"{target} is not whole in the cache ({constants.HF_HUB_CACHE}), and the hub is not asked; "
                "unset HF_HUB_OFFLINE for the download, or set HF_HUB_CACHE to a cache that holds the model"
            )
        case HFValidationError():
            return f"{target} is neither a directory nor a name of the hub (organization/model[@revision])"
    text = _ADDRESS.sub("an address", next(iter(str(error).strip().splitlines()), type(error).__name__))
    if token := get_token():
        text = text.replace(token, "…")
    return (
        f"there is no directory {target}, and it cannot be downloaded from {host} to "
        f"{constants.HF_HUB_CACHE}: {text}; check the network, HF_ENDPOINT, HTTPS_PROXY and the disk"
    )


def _say(line: str) -> None:
    print(f"headroom: {line}", file=sys.stderr, flush=True)


def _host() -> str:
    """Return the host of the hub, as a person would name it."""
    return urlsplit(constants.ENDPOINT).netloc.rpartition("@")[2] or constants.ENDPOINT
