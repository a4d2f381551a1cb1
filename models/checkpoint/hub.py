"""Finds a checkpoint: a directory, the one that ships with the project, or a repository of the hub.

Of a repository only what is loaded is downloaded, and a model that cannot be loaded is refused by its
config.json, before its weights come. If the hub cannot be asked, what the cache holds of the revision is
taken. All settings are huggingface_hub's own: HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, HF_HUB_CACHE.
"""

import json
import logging
import os
import re
import sys
from collections.abc import Collection
from contextlib import nullcontext, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from headroom.models.checkpoint.config import read_config
from headroom.models.checkpoint.fields import MAX_BYTES, check
from headroom.models.checkpoint.files import DESCRIPTION, check_files, weight_files
from headroom.models.errors import UnsupportedCheckpoint, first_line
from headroom.models.files import write_whole

DEFAULT = Path(__file__).resolve().parents[1] / "default"
"""The checkpoint that ships with the project."""

LOCATED = "HEADROOM_LOCATED"
"""Environment variable that names a JSON file: the directory of each checkpoint that the program which
started this process has located (`share`). This process asks no hub for them, and loads the same commits."""

MAX_DESCRIPTION_BYTES = 4 * MAX_BYTES
"""Limit on all files of a repository beside its weights, so that they cannot fill the disk."""

_located: dict[str, Path] = {}
_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?(@.*)?")
_SNAPSHOT = re.compile(r"/models--([^/]+)/snapshots/([0-9a-f]{40})/?$")


class Origin(NamedTuple):
    """The hub's repository and commit that a checkpoint was downloaded from."""

    repository: str
    commit: str


def locate(path: str | Path | None, model: str | Path | None = None, *, weights: bool = True) -> Path:
    """Return a checkpoint's directory: a local one, the shipped one (None), or a download from the hub.

    path: a directory, or `organization/name` or `organization/name@revision` of the hub; the revision is a
        branch, a tag or a commit. A process asks the hub once for each name. Or `@NAME`, the smaller network
        `networks/NAME` beside the weights of `model`.
    weights: False downloads only the files that describe them.
    Raises UnsupportedCheckpoint if there is neither such a directory nor a hub repository that can be had.
    """
    if path is None:
        return DEFAULT
    name = str(path)
    directory = Path(path).expanduser()
    shared = Path(os.environ.get(LOCATED, ""))
    known = json.loads(shared.read_text()).get(name, "") if shared.is_file() else ""
    if known and Path(known).is_dir():  # else somebody has emptied the cache
        return Path(known)
    if name.startswith("@"):
        home = locate(model, weights=weights)
        check(has_network(home, name), f"the model has no network {name}")
        directory = home / "networks" / name[1:]
    if directory.is_dir():
        _located[name] = directory.resolve()
        return directory
    check(not directory.exists(), f"{path} is a file; name the checkpoint's directory")
    check(_NAME.fullmatch(name), f"{path} does not exist")
    check(not name.endswith("@"), f"{name}: name a branch, a tag or a commit after the @")
    if name in _located:
        return _located[name]
    directory = _download(name, weights)
    if weights:
        _located[name] = directory
    return directory


def has_network(model: Path, name: str) -> bool:
    """Return whether the smaller network `@NAME` lies beside the weights in a model's directory."""
    return bool(re.fullmatch(r"@\w[\w.-]*", name)) and (model / "networks" / name[1:]).is_dir()


def share(file: Path) -> None:
    """Write where this process has located checkpoints, for processes whose LOCATED names the file."""
    write_whole(file, json.dumps(_located, default=str).encode())


def origin_of(directory: Path) -> Origin | None:
    """Return where a checkpoint was downloaded from, if its directory is one of the hub's cache."""
    snapshot = _SNAPSHOT.search(directory.as_posix())
    return None if snapshot is None else Origin(snapshot[1].replace("--", "/"), snapshot[2])


def name_of(path: str | Path | None, directory: Path) -> str:
    """Return the name that answers give a checkpoint: the last part of its path or of its name on the hub."""
    if directory == DEFAULT:
        return "headroom-default"
    origin = origin_of(directory)
    name = str(path) if origin is None else origin.repository
    return name.rstrip("/").rsplit("/", 1)[-1]


def _download(target: str, weights: bool) -> Path:
    """Return the directory of a repository's snapshot in the cache; download what it lacks.

    target: the repository, with @revision unless it is the main branch.
    weights: False downloads only the files that describe them.
    """
    # slow to import, and only names of the hub need it
    from huggingface_hub import constants, get_cached_repo_tree, snapshot_download
    from huggingface_hub.errors import CachedRepoTreeNotFoundError, RevisionNotFoundError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its warnings name addresses
    name, _, version = target.partition("@")
    revision = version or None
    problem = None
    try:
        if not constants.is_offline_mode() and not _is_cached(name, version):
            _check_description(target, name, revision)
    except UnsupportedCheckpoint:
        raise
    except Exception as error:  # of many unrelated types, as below
        problem = _problem(error, target)
        check(not isinstance(error, RevisionNotFoundError), problem)
    try:
        with disable_progress_bars():
            snapshot = snapshot_download(
                name, revision=revision, allow_patterns=DESCRIPTION, local_files_only=problem is not None
            )
        directory = Path(snapshot)
        if problem is not None:
            line = f"headroom: {problem}; using commit {directory.name} from the cache"
            print(line, file=sys.stderr, flush=True)
        sizes = {file.relative_to(directory).as_posix(): 0 for file in directory.rglob("*")}
        with suppress(CachedRepoTreeNotFoundError):  # another program has filled the cache
            sizes |= {file.path: file.size for file in get_cached_repo_tree(name, revision=directory.name)}
        missing = _missing_weights(target, directory, sizes)
        if missing and weights:
            megabytes = sum(sizes.get(file, 0) for file in missing) / 1e6
            size = f"commit {directory.name[:12]}, {megabytes:,.1f} MB"
            print(f"headroom: downloading {target} ({size}) from {_host()}", file=sys.stderr, flush=True)
            with nullcontext() if sys.stderr.isatty() else disable_progress_bars():
                snapshot_download(name, revision=directory.name, allow_patterns=missing)
    except UnsupportedCheckpoint:
        raise
    except Exception as error:
        raise UnsupportedCheckpoint(problem or _problem(error, target)) from None
    return directory


def _is_cached(name: str, version: str) -> bool:
    """Return whether a version of a repository is a commit that the cache knows, which the hub need not be
    asked for."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    if re.fullmatch("[0-9a-f]{40}", version):
        with suppress(CachedRepoTreeNotFoundError):
            get_cached_repo_tree(name, revision=version)
            return True
    return False


def _check_description(target: str, name: str, revision: str | None) -> None:
    """Raise UnsupportedCheckpoint if the small files of a repository are larger than those of any checkpoint,
    so that they are not downloaded. It raises the errors of the hub's client, too."""
    from huggingface_hub import HfApi

    repository = HfApi().model_info(name, revision=revision, timeout=10.0, files_metadata=True)
    total = 0
    for file in repository.siblings or ():
        if any(fnmatch(file.rfilename, pattern) for pattern in DESCRIPTION):  # as the client chooses them
            size = file.size or 0
            check(size <= MAX_BYTES, f"{target}: {file.rfilename} is larger than {MAX_BYTES >> 20} MiB")
            total += size
    problem = f"{target}: the files beside its weights have more than {MAX_DESCRIPTION_BYTES >> 20} MiB"
    check(total <= MAX_DESCRIPTION_BYTES, problem)


def _missing_weights(target: str, directory: Path, names: Collection[str]) -> list[str]:
    """Return the files of weights that a snapshot lacks, after its description is checked. names: all files
    of the repository."""
    check_files(directory)
    check("config.json" in names, f"{target} has no config.json, so it is not a model of transformers")
    read_config(directory)
    weights = weight_files(directory, names)
    kinds = "weights of other kinds (ONNX, OpenVINO, TensorFlow, GGUF) cannot be loaded"
    check(weights, f"{target} has neither model.safetensors nor pytorch_model.bin; {kinds}")
    return [file for file in weights if not (directory / file).exists()]


def _problem(error: BaseException, target: str) -> str:
    """Return one sentence about an error of the hub's client: what is wrong, and what to do. It shows no
    token, nor an address, which may hold a password."""
    from huggingface_hub import constants, errors, get_token

    while isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__  # the client wraps what happened in a page of advice
    host = _host()
    cache = constants.HF_HUB_CACHE
    name, _, version = target.partition("@")
    match error:
        case errors.GatedRepoError():
            page = f"{urlsplit(constants.ENDPOINT).scheme}://{host}/{name}"
            return f"{target} is gated; ask for access at {page}, and set HF_TOKEN to a token that has it"
        case errors.RevisionNotFoundError():
            return f"{name} has no branch, tag or commit {version!r}"
        case errors.RepositoryNotFoundError():
            return (
                f"there is no directory {target}, and {host} has no model of this name that you may read; "
                "check the name, and for a private model HF_TOKEN"
            )
        case errors.HfHubHTTPError():
            status = f"{host} answers with status {error.response.status_code} to a request for {target}"
            return f"{status}; check HF_TOKEN, or try again later"
        case errors.OfflineModeIsEnabled() | errors.LocalEntryNotFoundError():
            return (
                f"{target} is not whole in the cache ({cache}), and the hub is not asked; unset "
                "HF_HUB_OFFLINE for the download, or set HF_HUB_CACHE to a cache that holds the model"
            )
    text = re.sub(r"\b\w+://\S+", "an address", first_line(error)).replace(get_token() or "\0", "…")
    return (
        f"there is no directory {target}, and it cannot be downloaded from {host} to {cache}: {text}; check "
        "the network, HF_ENDPOINT, HTTPS_PROXY and the disk"
    )


def _host() -> str:
    """Return the host of the hub, as a person would name it."""
    from huggingface_hub import constants

    return urlsplit(constants.ENDPOINT).netloc.rpartition("@")[2] or constants.ENDPOINT
