"""Writes small random checkpoints in the Hugging Face layout; BERT's with a real WordPiece vocabulary."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers.implementations import BertWordPieceTokenizer
from transformers import CONFIG_MAPPING, MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, PreTrainedModel

from headroom import Classifier
from headroom.models.compress.quantize import quantize

GRADES = ("irrelevant", "related", "partial", "substitute", "exact")
WORDS = """
the a of for with and in set pack black white red blue steel wood angle bracket screw screws deck strong tie
simpson gauge tool kitchen towel laptop case phone wireless mouse keyboard cable usb charger lamp light table
""".split()
VOCABULARY = (
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    + [chr(c) for c in range(33, 127) if not chr(c).isupper()]
    + ["##" + chr(c) for c in range(33, 127) if not chr(c).isupper()]
    + [w for w in WORDS if len(w) > 1]
    + ["##s", "##ing", "##er"]
)
VOCABULARY = list(dict.fromkeys(VOCABULARY))
SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "num_labels": len(GRADES),
    "initializer_range": 0.2,  # large enough for heads to matter
}
"""The shape of the small checkpoints, in BERT's names."""
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def write_vocabulary(directory: Path, vocabulary: Sequence[str] = VOCABULARY) -> None:
    """Write BERT's tokenizer with these words."""
    ids = {word: number for number, word in enumerate(vocabulary)}
    BertWordPieceTokenizer(ids).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": True, "tokenizer_class": "BertTokenizer"}), encoding="utf-8"
    )


def random_classifier(family: str, seed: int, **options: Any) -> PreTrainedModel:
    """Return a transformers classifier with random weights; five labels are the grades.

    options: of the family's config.
    """
    torch.manual_seed(seed)
    config = CONFIG_MAPPING[family](**options)
    if options["num_labels"] == len(GRADES):
        config.id2label = dict(enumerate(GRADES))
        config.label2id = {name: i for i, name in enumerate(GRADES)}
    model: PreTrainedModel = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)](config)
    return model.eval()


def random_model(seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Return a BERT of transformers with random weights. overrides: of `SHAPE` and the rest of its config."""
    options = {"vocab_size": len(VOCABULARY), **SHAPE, **WITHOUT_DROPOUT, **overrides}
    return random_classifier("bert", seed, **options)


def write_checkpoint(directory: Path, seed: int = 0, **overrides: Any) -> Path:
    random_model(seed, **overrides).save_pretrained(directory)
    write_vocabulary(directory)
    return directory


def load(directory: Path, dtype: str = "float32", **options: Any) -> Classifier:
    """Load a checkpoint on the CPU. options: of `Classifier.load`."""
    return Classifier.load(directory, "cpu", dtype, **options)


def random_pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Queries of one to three words and titles of two to thirteen."""
    rng = np.random.default_rng(seed)

    def text(shortest: int, limit: int) -> str:
        return " ".join(
            WORDS[index] for index in rng.integers(len(WORDS), size=rng.integers(shortest, limit))
        )

    return [(text(1, 4), text(2, 14)) for _ in range(count)]


def write_int8(source: Path, directory: Path, pairs: int = 150) -> Path:
    """Quantize a checkpoint, calibrated with random pairs."""
    quantize(source, directory, load(source).tokenizer.encode(random_pairs(pairs)))
    return directory


def unusual_modes(directory: Path) -> dict[str, str]:
    """Return the files that others may not use as they may any new file of this user, with their modes."""
    (directory / "new").touch()
    usual = (directory / "new").stat().st_mode
    (directory / "new").unlink()
    files = [file for file in directory.rglob("*") if file.is_file()]
    return {file.name: oct(mode) for file in files if (mode := file.stat().st_mode) != usual}


def write_overflowing(directory: Path, word: str) -> Path:
    """Write a checkpoint with random weights whose logits are not finite for texts with this word."""
    model = random_model()
    with torch.no_grad():
        signs = torch.tensor([1.0, -1.0]).repeat(16)
        model.get_input_embeddings().weight[VOCABULARY.index(word)] = 3e38 * signs  # overflows in the norm
    model.save_pretrained(directory)
    write_vocabulary(directory)
    return directory
