"""Finds a checkpoint: a directory, the one that ships with the project, or a repository of the hub."""

import json
import os
import re
from pathlib import Path
from typing import NamedTuple

from models.checkpoint.fields import check

DEFAULT = Path(__file__).parents[1] / "default"
"""The checkpoint that ships with the project."""

LOCATED = "HEADROOM_LOCATED"
"""Environment variable that names a JSON file: the directory of each checkpoint that the program which
started this process has located (`share`). This process asks no hub for them, and loads the same commits."""

_located: dict[str, Path] = {}
_SNAPSHOT = re.compile(r"/models--([^/]+)/snapshots/([0-9a-f]{40})/?$")


class Origin(NamedTuple):
    """The hub's repository and commit that a checkpoint was downloaded from."""

    repository: str
    commit: str


def locate(path: str | Path | None, model: str | Path | None = None) -> Path:
    """Return a checkpoint's directory: a local one, the shipped one (None), or a download from the hub.

    path: a directory, or `organization/name` or `organization/name@revision` of the hub; the revision is a
        branch, a tag or a commit. A process asks the hub once for each name. Or `@NAME`, the smaller network
        `networks/NAME` beside the weights of `model`.
    Raises UnsupportedCheckpoint if there is neither such a directory nor a hub repository that can be had.
    """
    if path is None:
        return DEFAULT
    name = str(path)
    shared = Path(os.environ.get(LOCATED, ""))
    directories = json.loads(shared.read_text()) if shared.is_file() else {}
    if name in directories and Path(directories[name]).is_dir():  # else somebody has emptied the cache
        return Path(directories[name])
    if name.startswith("@"):
        home = locate(model)
        check(has_network(home, name), f"the model has no network {name}")
        _located[name] = (home / "networks" / name[1:]).resolve()
        return _located[name]
    directory = Path(path).expanduser()
    if directory.is_dir():
        _located[name] = directory.resolve()
        return directory
    repository, at, revision = name.partition("@")
    check(not directory.exists(), f"{path} is a file; name the checkpoint's directory")
    is_name = repository.count("/") <= 1 and not name.startswith((".", "/", "~"))
    check(is_name, f"{path} does not exist")
    check(bool(revision) or not at, f"{name}: name a branch, a tag or a commit after the @")
    if name not in _located:
        from models.checkpoint.download import download  # slow to import, and only names of the hub need it

        _located[name] = download(repository, revision or None)
    return _located[name]


def has_network(model: Path, name: str) -> bool:
    """Return whether the smaller network `@NAME` lies beside the weights in a model's directory."""
    return bool(re.fullmatch(r"@\w[\w.-]*", name)) and (model / "networks" / name[1:]).is_dir()


def share(file: Path) -> None:
    """Write where this process has located checkpoints, for processes whose LOCATED names the file."""
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps({name: str(directory) for name, directory in _located.items()}))
    fresh.replace(file)


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
