"""Finds a checkpoint: a directory, the one that ships with the project, or a repository of the hub."""

from __future__ import annotations

from pathlib import Path

from models.errors import UnsupportedCheckpoint

DEFAULT = Path(__file__).parents[1] / "default"
"""The checkpoint that ships with the project."""

HUB_FILES = ["*.json", "*.safetensors", "pytorch_model.bin", "vocab.txt"]


def locate(path: str | Path | None) -> Path:
    """Return a checkpoint's directory: a local one, the shipped one (None), or a download from the hub.

    Raises UnsupportedCheckpoint if there is neither such a directory nor a reachable hub repository.
    """
    if path is None:
        return DEFAULT
    directory = Path(path).expanduser()
    if directory.is_dir():
        return directory
    if directory.exists():
        raise UnsupportedCheckpoint(f"{path} is a file; name the checkpoint's directory")
    name = str(path)
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise UnsupportedCheckpoint(f"{path} does not exist")
    from huggingface_hub import snapshot_download  # slow to import, and only hub ids need it

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # the hub's client raises many unrelated types
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnsupportedCheckpoint(
            f"{name!r} is neither a directory nor a hub checkpoint that can be reached: {reason}"
        ) from None
