"""Makes the inputs of every engine and server: checkpoints, and texts of known lengths."""

import json
import re
import shutil
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from benchmarks import environments
from benchmarks.peers.ours import INT8
from benchmarks.workload import SAMPLE, SHAPES, network, query_title_lengths
from headroom.models.checkpoint.config import read_config
from headroom.models.checkpoint.hub import DEFAULT
from headroom.models.checkpoint.tokenizer import PairTokenizer
from headroom.models.compress.quantize import quantize
from headroom.models.quality.labelled import read_pairs

MODELS = environments.RUNS / "bench-models"
BATCH = 64
TEXTS = {"titles": "query–title pairs, 25 tokens in the mean", "documents": "documents of 128 tokens"}
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def checkpoint(shape: str) -> Path:
    """Return a transformers checkpoint: the shipped model, or random weights of SHAPES[shape].

    Random weights have a larger variance than BERT's initialisation, so that different texts give different
    logits and a wrong engine shows.
    """
    if shape == "shipped":
        return DEFAULT
    directory = MODELS / shape / "checkpoint"
    if not (directory / _TOKENIZER[-1]).exists():
        directory.mkdir(parents=True, exist_ok=True)
        model = network(SHAPES[shape])
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "LayerNorm" not in name:
                parameter.data.mul_(2)
        model.save_pretrained(directory)
        for file in _TOKENIZER:
            shutil.copy(DEFAULT / file, directory)
    return directory


def exported(shape: str) -> Path:
    """Return the checkpoint in the formats of all engines; made again if the checkpoint is newer."""
    source = checkpoint(shape)
    out = MODELS / shape / "exported"
    if not _is_of(out / "exported", source):
        python = environments.python("engines")
        environments.run(python, "-m", "benchmarks.peers.export", str(source), str(out))
    return out


def quantized(shape: str) -> Path:
    """Return the checkpoint in int8; made again if the checkpoint is newer."""
    source = exported(shape)
    out = MODELS / shape / INT8
    if not _is_of(out / "model.safetensors", source):
        shutil.rmtree(out, ignore_errors=True)
        quantize_into(source, out, None if shape == "shipped" else 8)
    return out


def quantize_into(source: Path, out: Path, pairs: int | None = None) -> None:
    """Write a checkpoint in int8, as `headroom quantize` does.

    pairs: number of pairs for calibration; None: all. Random weights need few: only their speed counts.
    """
    known = read_pairs(SAMPLE / "calibration.jsonl.gz")
    order = np.random.default_rng(0).permutation(len(known))[:pairs]
    tokenizer = _tokenizer(source, read_config(source).max_positions)
    quantize(source, out, tokenizer.encode([known[index] for index in order]))


def texts(lengths: np.ndarray) -> list[tuple[str, str]]:
    """Return queries and titles of words that are one token each for the shipped model, of these lengths."""
    known = Tokenizer.from_file(str(DEFAULT / "tokenizer.json")).get_vocab()
    candidates = sorted(piece[1:] for piece in known if re.fullmatch("▁[a-z]{3,}", piece))
    pairs = _tokenizer(DEFAULT).encode([(word, "") for word in candidates])
    one_token = [word for word, pair in zip(candidates, pairs, strict=True) if pair.query_tokens == 1]
    special_tokens = len(pairs[0].special)
    rng = np.random.default_rng(0)
    result = []
    for length in lengths:
        chosen = rng.choice(one_token, int(length) - special_tokens).tolist()
        query = min(1 + int(rng.poisson(2.5)), len(chosen) - 1)
        result.append((" ".join(chosen[:query]), " ".join(chosen[query:])))
    return result


def workload(kind: str, shape: str) -> Path:
    """Return the file with batches of TEXTS[kind] for `benchmarks.peers.engines`, in the shape's tokens."""
    lengths = np.sort(query_title_lengths(4 * BATCH)) if kind == "titles" else np.full(BATCH, 128)
    return write_workload(MODELS / f"{shape}-{kind}.json", shape, lengths, [BATCH] * (len(lengths) // BATCH))


def write_workload(file: Path, shape: str, lengths: np.ndarray, sizes: Iterable[int]) -> Path:
    """Write batches of these sizes, of pairs of these lengths in their order; return the file."""
    encoded = _tokenizer(checkpoint(shape)).encode(texts(lengths))
    assert [len(pair) for pair in encoded] == lengths.tolist()
    tokens = iter([(pair.ids.tolist(), pair.first_segment) for pair in encoded])
    batches = [list(islice(tokens, size)) for size in sizes]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(batches), encoding="utf-8")
    return file


def _tokenizer(model: Path, max_tokens: int = 128) -> PairTokenizer:
    return PairTokenizer.load(model, max_tokens=max_tokens, vocab_size=read_config(model).vocab_size)


def _is_of(made: Path, source: Path) -> bool:
    """Return whether a file that is made from a checkpoint exists and is newer than the weights."""
    return made.exists() and made.stat().st_mtime >= (source / "model.safetensors").stat().st_mtime
