"""Makes the inputs of every engine and server: checkpoints, and texts of known lengths."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors, trainers
from tokenizers.models import BPE
from transformers import BertForSequenceClassification

from benchmarks import environments
from benchmarks.peers.ours import INT8
from benchmarks.workload import SHAPES, Shape, network, query_title_lengths
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
_TOKENIZER = ("tokenizer.json", "vocab.txt", "tokenizer_config.json")
_SPECIAL_TOKENS = {
    "roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    "modernbert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
}
"""Special tokens of the families with a byte-level BPE tokenizer, in the order of their ids."""


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
        if SHAPES[shape].family in _SPECIAL_TOKENS:
            write_byte_level_tokenizer(directory, SHAPES[shape])
        else:
            for file in _TOKENIZER:
                shutil.copy(DEFAULT / file, directory)
    return directory


def write_byte_level_tokenizer(directory: Path, shape: Shape) -> None:
    """Write a tokenizer of the shape's family and size, with a token for every word of `words`."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    special = _SPECIAL_TOKENS[shape.family]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=50_000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(words(), trainer)
    if shape.family == "roberta":
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
        options = {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}
    else:
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        options = {"tokenizer_class": "PreTrainedTokenizerFast"}
    raw = json.loads(tokenizer.to_str())
    vocabulary = raw["model"]["vocab"]
    # CTranslate2 wants as many tokens as the model has rows. No merge leads to these, so no text has them.
    vocabulary |= {f"unused {number}": number for number in range(len(vocabulary), shape.vocabulary)}
    (directory / "tokenizer.json").write_text(json.dumps(raw), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(options), encoding="utf-8")


def words() -> list[str]:
    """Return the whole words of the shipped vocabulary."""
    known = (DEFAULT / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return [word for word in known if re.fullmatch("[a-z]{3,}", word)]


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
        tokenizer = _tokenizer(source, config.max_positions)
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


def texts(lengths: np.ndarray, seed: int = 0, model: Path = DEFAULT) -> list[tuple[str, str]]:
    """Return queries and titles of words that are one token each in the model, of these lengths."""
    candidates = words()
    pairs = _tokenizer(model).encode([(word, "") for word in candidates])
    one_token = [word for word, pair in zip(candidates, pairs, strict=True) if pair.query_tokens == 1]
    special_tokens = len(pairs[0].special)
    rng = np.random.default_rng(seed)
    result = []
    for length in lengths:
        chosen = rng.choice(one_token, int(length) - special_tokens).tolist()
        query = min(1 + int(rng.poisson(2.5)), len(chosen) - 1)
        result.append((" ".join(chosen[:query]), " ".join(chosen[query:])))
    return result


def workload(kind: str, shape: str, rows: int = 4 * BATCH) -> Path:
    """Return the file with batches of WORKLOADS[kind] for `benchmarks.peers.pipe`, in the shape's tokens."""
    model = checkpoint(shape)
    lengths = np.sort(query_title_lengths(rows)) if kind == "titles" else np.full(BATCH, 128)
    pairs = texts(lengths, model=model)
    encoded = _tokenizer(model).encode(pairs)
    assert [len(pair) for pair in encoded] == lengths.tolist()
    batches = [
        {
            "ids": [pair.ids.tolist() for pair in encoded[start : start + BATCH]],
            "first_segment": [pair.first_segment for pair in encoded[start : start + BATCH]],
            "texts": pairs[start : start + BATCH],
        }
        for start in range(0, len(pairs), BATCH)
    ]
    file = MODELS / f"{shape}-{kind}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(batches), encoding="utf-8")
    return file


def _tokenizer(model: Path, max_tokens: int = 128) -> PairTokenizer:
    return PairTokenizer.load(model, max_tokens=max_tokens, vocab_size=read_config(model).vocab_size)


def _is_of(made: Path, source: Path) -> bool:
    """Return whether a file that is made from a checkpoint exists and is newer than the weights."""
    return made.exists() and made.stat().st_mtime >= (source / "model.safetensors").stat().st_mtime
