"""The files of a checkpoint: which are loaded, and whether they may be; their digest; a new directory.

`python -m models.checkpoint.files DIRECTORY` prints the digest, as `digests` in a config file takes it.
"""

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from models import files
from models.checkpoint.fields import check, read_json
from models.checkpoint.modules import FILES as MODULE_FILES
from models.checkpoint.modules import classifier_folders
from models.errors import ModelError, UnsupportedCheckpoint, reading_problem

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "spiece.model",
    "spm.model",
)
"""The files of a checkpoint's tokenizer, as far as it has them."""

DESCRIPTION = [
    "config.json",
    *TOKENIZER_FILES,
    "model.safetensors.index.json",
    "modules.json",
    "config_sentence_transformers.json",
    *MODULE_FILES,
    "[0-9]*_*/config.json",
    "metrics.json",
    "masks/*.json",
]
"""Patterns of the small files: shape, tokenizer, sentence-transformers modules, what `headroom` writes."""

INDEX = "model.safetensors.index.json"
OF_PARENT = "../../model.safetensors"
"""The shard of a smaller network, `networks/NAME` beside a model's weights, that is the model's file."""
_OTHERS = ("*.safetensors", "[0-9]*_*/*.safetensors", "pytorch_model.bin", "head_study.json")
_MAX_BYTES = 128 << 20
"""The largest description that is read; the tokenizers of 250,000 pieces have 35 MB."""


def check_files(directory: Path) -> None:
    """Raise UnsupportedCheckpoint if a file that a checkpoint is loaded from is a FIFO, a device or the like,
    or if one that describes the weights is larger than any such file is."""
    for pattern in (*DESCRIPTION, *_OTHERS):
        for file in directory.glob(pattern):
            try:
                files.check_regular(file)
            except FileNotFoundError:  # a link to nothing
                continue
            except OSError as error:
                raise UnsupportedCheckpoint(reading_problem(file, error)) from None
            is_right = pattern not in DESCRIPTION or file.stat().st_size <= _MAX_BYTES
            check(is_right, f"{file} is larger than {_MAX_BYTES >> 20} MiB")


def weight_files(directory: Path, names: Collection[str]) -> list[str]:
    """Return the names of the weights to load, none if there are none; safetensors are preferred.

    directory: holds the files of DESCRIPTION. names: all files of the repository.
    """
    whole = _preferred("", names)
    if whole != ["model.safetensors"] and INDEX in names:
        whole = _shards(directory / INDEX)
    folders = (folder.relative_to(directory) for folder in classifier_folders(directory))
    return whole and [*whole, *(file for folder in folders for file in _preferred(f"{folder}/", names))]


def _preferred(folder: str, names: Collection[str]) -> list[str]:
    files = (f"{folder}{name}" for name in ("model.safetensors", "pytorch_model.bin"))
    return [file for file in files if file in names][:1]


def _shards(index: Path) -> list[str]:
    """Return the names of the files that an index names; none is above the directory but OF_PARENT."""
    weight_map: Any = read_json(index).get("weight_map")
    is_right = isinstance(weight_map, dict) and all(isinstance(shard, str) for shard in weight_map.values())
    check(is_right, f"{index}: weight_map must map tensors to names of files")
    return sorted({shard if shard == OF_PARENT else Path(shard).name for shard in weight_map.values()})


def shared_tensors(directory: Path) -> set[str]:
    """Return the names of a smaller network's tensors that are in its model's file (OF_PARENT)."""
    weight_map = read_json(directory / INDEX)["weight_map"]
    return {name for name, shard in weight_map.items() if shard == OF_PARENT}


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the files of a checkpoint's tokenizer, and of its window, to another directory."""
    for name in (*TOKENIZER_FILES, *MODULE_FILES):
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)


def digest_of(directory: Path, *, masks: bool = False) -> str:
    """Return the SHA-256 of the files that a checkpoint is loaded from, in hexadecimal: weights, config,
    tokenizer and modules.

    masks: the stored masks count too. Other files that lie in the directory never do.
    """
    digest = hashlib.sha256()
    described = {directory / name for name in DESCRIPTION if "/" not in name and name != "metrics.json"}
    of_modules = {folder / "config.json" for folder in classifier_folders(directory)}
    stored = set((directory / "masks").glob("*.json")) if masks else set()
    for file in sorted(described | of_modules | stored | set(weights_of(directory))):
        if file.is_file():
            digest.update(file.relative_to(directory).as_posix().encode())
            with file.open("rb") as stream:
                while block := stream.read(1 << 22):
                    digest.update(block)
    return digest.hexdigest()


def bytes_of_weights(directory: Path) -> int:
    """Return the bytes of the files that a checkpoint's weights are loaded from."""
    return sum(file.stat().st_size for file in weights_of(directory))


def weights_of(directory: Path) -> list[Path]:
    """Return the files that a checkpoint's weights are loaded from."""
    there = (*directory.glob("*"), *directory.glob("[0-9]*_*/*"))
    names = {file.relative_to(directory).as_posix() for file in there}
    return [file for name in weight_files(directory, names) if (file := directory / name).is_file()]


def check_empty(target: Path) -> None:
    """Raise ModelError if the directory to write is not empty, or is a file."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ModelError(f"{target} is not empty; name a new directory")


@contextlib.contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Yield the path of a draft that becomes `target` when the block ends, and is removed if it fails."""
    parent = target if target.is_dir() else target.parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.unfinished-", dir=parent) as directory:
        draft = Path(directory) / "checkpoint"
        yield draft
        put_in_place(draft, target)


def put_in_place(draft: Path, target: Path) -> None:
    """Give a finished directory its name. If an empty directory has it, that one gets the content."""
    if not target.exists():
        draft.rename(target)
        return
    for file in draft.iterdir():
        shutil.move(file, target / file.name)


def readable_as_usual(path: Path) -> None:
    """Give a file, or all in a directory, the mode that the umask asks for; safetensors writes 0600."""
    umask = os.umask(0o077)  # it can only be read by setting it
    os.umask(umask)
    for each in (path, *path.rglob("*")):
        each.chmod((0o777 if each.is_dir() else 0o666) & ~umask)


if __name__ == "__main__":
    checkpoint = Path(" ".join(sys.argv[1:]))
    if not (checkpoint / "config.json").is_file():
        sys.exit(f"name a checkpoint's directory: there is no {checkpoint / 'config.json'}")
    print(digest_of(checkpoint, masks=True))
