"""The files of a checkpoint: which are loaded, and whether they may be; their digest; what lies beside them,
the figures of quality and a study's findings about each head; a new directory.

`python -m headroom.models.checkpoint.files DIRECTORY` prints the digest, as `digests` in a config file takes
it.
"""

import contextlib
import hashlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from safetensors import safe_open

from headroom.models import files
from headroom.models.checkpoint.fields import MAX_BYTES, check, read_json, reading
from headroom.models.checkpoint.modules import FILE as MODULE_FILE
from headroom.models.checkpoint.modules import classifier_folders
from headroom.models.errors import ModelError, UnsupportedCheckpoint
from headroom.models.files import Json

logger = logging.getLogger("headroom.models")

_SETTINGS = "tokenizer_config.json chat_template.jinja special_tokens_map.json added_tokens.json"
PIECES = "tokenizer.json vocab.txt vocab.json merges.txt sentencepiece.bpe.model spiece.model spm.model"
TOKENIZER_FILES = (*_SETTINGS.split(), *PIECES.split(), MODULE_FILE)
"""The files of a checkpoint's tokenizer and of its window, as far as it has them."""

INDEX = "model.safetensors.index.json"
OF_PARENT = "../../model.safetensors"
"""The shard of a smaller network, `networks/NAME` beside a model's weights, that is the model's file."""

ADAPTER = "adapter_config.json"
"""PEFT writes it; transformers adds the adapter's weights to the model."""

HEAD_STUDY = "head_study.json"
"""`headroom study` writes it; it is copied to the weights."""

GENERATOR = "generator.safetensors"
"""The weights of a query generator that reads this checkpoint's encoder (`headroom.models.generate`)."""

_SHAPES = ("modules.json", "config_sentence_transformers.json")
_FILES = ("config.json", *TOKENIZER_FILES, INDEX, *_SHAPES, GENERATOR)
DESCRIPTION = [*_FILES, ADAPTER, "[0-9]*_*/config.json", "metrics.json", "masks/*.json"]
"""Patterns of the small files: shape, tokenizer, sentence-transformers modules, what `headroom` writes."""


def check_files(directory: Path) -> None:
    """Raise UnsupportedCheckpoint if a file that a checkpoint is loaded from is a FIFO, a device or the like,
    if one that describes the weights is larger than any such file is, or if it is an adapter."""
    adapter = directory / ADAPTER
    advice = "merge it into its base (`merge_and_unload` of PEFT) and save the whole model"
    check(not adapter.exists(), f"{adapter}: the checkpoint is an adapter, such as LoRA's; {advice}")
    weights = weights_of(directory)
    for file in loaded_files(directory):
        with reading(file):
            files.check_regular(file)
            files.check_no_pointer(file)
        is_right = file in weights or file.stat().st_size <= MAX_BYTES
        check(is_right, f"{file} is larger than {MAX_BYTES >> 20} MiB")


def loaded_files(directory: Path, *, masks: bool = True) -> list[Path]:
    """Return the files that a checkpoint is loaded from, in order; with `masks`, the stored masks too. Other
    files of the directory are left out."""
    names = [*_FILES, *(f"{folder.name}/config.json" for folder in classifier_folders(directory))]
    stored = (directory / "masks").glob("*.json") if masks else ()
    there = {*(directory / name for name in names), *stored, *weights_of(directory)}
    return sorted(file for file in there if file.exists())


def weight_files(directory: Path, names: Collection[str]) -> list[str]:
    """Return the names of the weights to load; safetensors are preferred. directory: holds the files of
    DESCRIPTION. names: all files of the repository."""
    chosen: list[str] = []
    for folder in ("", *(f"{folder.name}/" for folder in classifier_folders(directory))):
        whole = f"{folder}model.safetensors"
        pickled = f"{folder}pytorch_model.bin"
        if whole in names:
            chosen.append(whole)
        elif not folder and INDEX in names:
            chosen += sorted(set(weight_map(directory).values()))
        elif pickled in names:
            chosen.append(pickled)
    return chosen


def weight_map(directory: Path) -> dict[str, str]:
    """Return the file of each tensor, as the index says it; none is above the directory but OF_PARENT."""
    with reading(directory / INDEX):
        shards = read_json(directory / INDEX)["weight_map"].items()
        return {name: shard if shard == OF_PARENT else Path(shard).name for name, shard in shards}


def weights_of(directory: Path) -> list[Path]:
    """Return the files that a checkpoint's weights are loaded from."""
    there = (*directory.glob("*"), *directory.glob("[0-9]*_*/*"))
    names = {file.relative_to(directory).as_posix() for file in there}
    return [file for name in weight_files(directory, names) if (file := directory / name).exists()]


def check_weights(directory: Path) -> list[Path]:
    """Return the files that a checkpoint's weights are loaded from. Raises UnsupportedCheckpoint if there are
    none."""
    weights = weights_of(directory)
    check(weights, f"{directory} holds neither model.safetensors nor pytorch_model.bin")
    return weights


def has_tensors(directory: Path, *prefixes: str) -> bool:
    """Return whether the safetensors of a checkpoint hold a tensor whose name begins with a prefix."""
    for file in weights_of(directory):
        if file.suffix == ".safetensors":
            with safe_open(file, "numpy") as tensors:
                if any(name.startswith(prefixes) for name in tensors.keys()):  # noqa: SIM118
                    return True
    return False


def bytes_of_weights(directory: Path) -> int:
    """Return the bytes of the files that a checkpoint's weights are loaded from."""
    return sum(file.stat().st_size for file in weights_of(directory))


def digest_of(directory: Path, *, masks: bool = False) -> str:
    """Return the SHA-256 of the files that a checkpoint is loaded from, in hexadecimal: weights, config,
    tokenizer and modules. masks: the stored masks count too."""
    digest = hashlib.sha256()
    for file in loaded_files(directory, masks=masks):
        digest.update(file.relative_to(directory).as_posix().encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def read_quality(directory: Path) -> dict[str, float] | None:
    """Return a checkpoint's figures: "test", else "validation", of its metrics.json; None without a file. One
    that another program wrote is left out with a warning."""
    file = directory / "metrics.json"
    if not file.exists():
        return None
    try:
        metrics = read_json(file)
        with reading(file):
            figures = metrics["test"] if "test" in metrics else metrics["validation"]
            return {
                str(name): float(value) for name, value in figures.items() if isinstance(value, int | float)
            }
    except UnsupportedCheckpoint as error:
        logger.warning("%s is not used: %s", file, error)
        return None


def read_head_study(directory: Path) -> Json | None:
    """Return the study of a checkpoint's heads, or None without one.

    A file that was made for other weights, or that cannot be read, is left out with a warning: it only
    explains heads, and scores do not depend on it.
    """
    file = directory / HEAD_STUDY
    if not file.exists():
        return None
    try:
        study = read_json(file)
        is_right = study.get("weights") == weights_id(directory)
        check(is_right, "it is for other weights; make it again after a training")
    except UnsupportedCheckpoint as error:
        logger.warning("%s is not used: %s", file, error)
        return None
    return study


def weights_id(directory: Path) -> str:
    """Return the first 16 hex digits of the SHA-256 of a checkpoint's weights; of several files, of their
    digests one after the other."""
    digests = []
    for file in weights_of(directory):
        with file.open("rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256"))
    if len(digests) == 1:
        return digests[0].hexdigest()[:16]
    return hashlib.sha256(b"".join(digest.digest() for digest in digests)).hexdigest()[:16]


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the files of a checkpoint's tokenizer, and of its window, to another directory."""
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)


def check_empty(target: Path) -> None:
    """Raise ModelError if the directory to write is not empty, or is a file. Drafts of killed runs do not
    count."""
    files.check_no_file(target)
    if not target.exists():
        return
    drafts = _drafts_in(target)
    others = [file for file in target.iterdir() if file not in drafts]
    if others and drafts and target / "config.json" not in others:
        raise ModelError(f"{target} holds half a checkpoint of a run that was killed; empty it, and repeat")
    if others:
        raise ModelError(f"{target} is not empty; name a new directory")


@contextlib.contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Yield the path of a draft that becomes `target` when the block ends, and is removed if it fails.

    If `target` is an empty directory, which may be a mounted volume, the draft is in it and its files move
    up: config.json last, so what a killed run leaves is never taken for a checkpoint.
    """
    parent = target if target.is_dir() else target.parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=_draft_prefix(target), dir=parent) as directory:
        draft = Path(directory) / "checkpoint"
        yield draft
        check_empty(target)  # it was, before the draft was written
        if not target.exists():
            draft.rename(target)
            return
        for file in sorted(draft.iterdir(), key=lambda file: file.name == "config.json"):
            shutil.move(file, target / file.name)
    for left in _drafts_in(target):
        shutil.rmtree(left, ignore_errors=True)


def put_in_place(draft: Path, target: Path) -> None:
    """Give a finished directory its name. If an empty directory has it, that one gets the content."""
    if not target.exists():
        draft.rename(target)
        return
    with new_directory(target) as inside:
        shutil.move(draft, inside)


def _draft_prefix(target: Path) -> str:
    return f"{target.name}.unfinished-"


def _drafts_in(target: Path) -> set[Path]:
    """Return the drafts that are in the directory to write; if it was there, they are of killed runs."""
    return {file for file in target.iterdir() if file.name.startswith(_draft_prefix(target))}


def readable_as_usual(file: Path) -> None:
    """Give a file the mode that the umask asks for; safetensors writes 0600."""
    umask = os.umask(0o077)  # it can only be read by setting it
    os.umask(umask)
    file.chmod(0o666 & ~umask)


if __name__ == "__main__":
    checkpoint = Path(" ".join(sys.argv[1:]))
    if not (checkpoint / "config.json").is_file():
        sys.exit(f"name a checkpoint's directory: there is no {checkpoint / 'config.json'}")
    print(digest_of(checkpoint, masks=True))
