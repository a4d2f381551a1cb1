"""Writes small random BERT checkpoints in the Hugging Face layout, with a real WordPiece vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification

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


def write_vocabulary(directory: Path) -> None:
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": True, "tokenizer_class": "BertTokenizer"}), encoding="utf-8"
    )


def random_model(seed: int = 0, **overrides: Any) -> BertForSequenceClassification:
    """A transformers classifier whose weights are large enough for heads to matter."""
    options: dict[str, Any] = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "num_labels": len(GRADES),
        "initializer_range": 0.2,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    options.update(overrides)
    torch.manual_seed(seed)
    config = BertConfig(**options)
    if options["num_labels"] == len(GRADES):
        config.id2label = dict(enumerate(GRADES))
        config.label2id = {name: i for i, name in enumerate(GRADES)}
    return BertForSequenceClassification(config).eval()


def write_checkpoint(directory: Path, seed: int = 0, **overrides: Any) -> Path:
    random_model(seed, **overrides).save_pretrained(directory)
    write_vocabulary(directory)
    return directory
