"""Makes the inputs of every engine and server: two checkpoints, and texts of known lengths."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import torch
from transformers import BertForSequenceClassification

from benchmarks import environments
from benchmarks.peers.ours import INT8
from benchmarks.workload import SHAPES, network, query_title_lengths
from models.checkpoint.config import read_config
from models.checkpoint.hub import DEFAULT
from models.checkpoint.tokenizer import PairTokenizer
from models.compress.quantize import quantize
from models.quality.labelled import read_pairs

SAMPLE = environments.ROOT / "data" / "sample"
MODELS = environments.RUNS / "bench-models"
BATCH = 64
WORKLOADS = {
    "titles": "query–title pairs, 25 tokens in the mean",
    "documents": "documents of 128 tokens",
}
_SPECIAL_TOKENS = 3
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")


def checkpoint(shape: str) -> Path:
    """Return a transformers checkpoint: the shipped model, or random weights of SHAPES[shape].

    Random weights have a larger variance than BERT's initialisation, so that different texts give different
    logits and a wrong engine shows.
    """
    if shape == "shipped":
        return DEFAULT
    directory = MODELS / shape / "checkpoint"
    if not (directory / "vocab.txt").exists():
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
    source, out = checkpoint(shape), MODELS / shape / "exported"
    mark = out / "exported"
    if not _is_of(mark, source):
        environments.run("engines", ["-m", "benchmarks.peers.export", str(source), str(out)])
    return out


def quantized(shape: str) -> Path:
    """Return the checkpoint in int8, as `headroom quantize` makes it; made again if the checkpoint is newer.

    Random weights are calibrated with few pairs, because only their speed counts and calibration is slow.
    """
    source, out = exported(shape), MODELS / shape / INT8
    if not _is_of(out / "model.safetensors", source):
        shutil.rmtree(out, ignore_errors=True)
        config = read_config(source)
        tokenizer = PairTokenizer.load(source, max_tokens=config.max_positions, vocab_size=config.vocab_size)
        pairs = read_pairs(SAMPLE / "calibration.jsonl.gz")
        order = np.random.default_rng(0).permutation(len(pairs))
        few = order if shape == "shipped" else order[:8]
        quantize(source, out, tokenizer.encode([pairs[place] for place in few]))
    return out


def one_label(shape: str) -> Path:
    """Return the encoder with the classifier's last output alone, for servers that rank by one label."""
    source, out = exported(shape), MODELS / shape / "one-label"
    if not _is_of(out / "model.safetensors", source):
        model = BertForSequenceClassification.from_pretrained(source)
        last = torch.nn.Linear(model.config.hidden_size, 1)
        last.weight.data, last.bias.data = model.classifier.weight.data[-1:], model.classifier.bias.data[-1:]
        model.classifier, model.num_labels = last, 1
        model.config.id2label = {0: "relevant"}
        model.config.label2id = {"relevant": 0}
        model.save_pretrained(out)
        for file in _TOKENIZER:
            shutil.copy(source / file, out)
    return out


def texts(lengths: np.ndarray, seed: int = 0) -> list[tuple[str, str]]:
    """Return queries and titles of whole words from the shipped vocabulary, with these lengths in tokens."""
    tokenizer = PairTokenizer.load(DEFAULT, max_tokens=128, vocab_size=16_000)
    known = (DEFAULT / "vocab.txt").read_text(encoding="utf-8").splitlines()
    candidates = [word for word in known if re.fullmatch("[a-z]{3,}", word)]
    one_token = [
        word
        for word, pair in zip(candidates, tokenizer.encode([(word, "") for word in candidates]), strict=True)
        if pair.query_tokens == 1
    ]
    rng = np.random.default_rng(seed)
    result = []
    for length in lengths:
        words = rng.choice(one_token, int(length) - _SPECIAL_TOKENS).tolist()
        query = min(1 + int(rng.poisson(2.5)), len(words) - 1)
        result.append((" ".join(words[:query]), " ".join(words[query:])))
    return result


def workload(kind: str, rows: int = 4 * BATCH) -> Path:
    """Return the file with batches of WORKLOADS[kind] for `benchmarks.peers.pipe`; both shapes use it."""
    lengths = np.sort(query_title_lengths(rows)) if kind == "titles" else np.full(BATCH, 128)
    pairs = texts(lengths)
    encoded = PairTokenizer.load(DEFAULT, max_tokens=128, vocab_size=16_000).encode(pairs)
    assert [len(pair) for pair in encoded] == lengths.tolist()
    batches = [
        {
            "ids": [pair.ids.tolist() for pair in encoded[start : start + BATCH]],
            "first_segment": [pair.first_segment for pair in encoded[start : start + BATCH]],
            "texts": pairs[start : start + BATCH],
        }
        for start in range(0, len(pairs), BATCH)
    ]
    file = MODELS / f"{kind}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(batches), encoding="utf-8")
    return file


def _is_of(made: Path, source: Path) -> bool:
    """Return whether a file that is made from a checkpoint exists and is newer than the weights."""
    return made.exists() and made.stat().st_mtime >= (source / "model.safetensors").stat().st_mtime
