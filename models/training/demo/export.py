"""Writes a trained model as a Hugging Face checkpoint in 16 bits, and checks it by loading it again."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import BertForSequenceClassification

from models.training.evaluate import logits_of
from models.training.network import Model
from models.training.vocabulary import save_tokenizer

PROBES = (
    ("angle bracket", "Simpson Strong-Tie 12-Gauge Angle"),
    ("iphone 12 case", "Clear Case for Apple iPhone 12, Shockproof"),
    ("sofa", "Wood deck screws, 5 lb box"),
)


def export(
    model: Model,
    tokenizer: Tokenizer,
    directory: Path,
    *,
    temperature: float,
    metrics: Mapping[str, Any],
) -> float:
    """Write config.json, model.safetensors (float16), the tokenizer's files and metrics.json.

    temperature: kept in config.json under "headroom"; it divides the logits before the softmax.
    Returns the largest difference of a probe's logits between the float32 model and the file read back as
    float32. Raises ValueError if the file does not load whole.
    """
    written = copy.deepcopy(model).half()
    written.config.headroom = {"temperature": temperature}
    written.config.hidden_dropout_prob = 0.1  # the usual rate for further training
    written.config.attention_probs_dropout_prob = 0.1
    written.save_pretrained(directory)
    save_tokenizer(tokenizer, directory, max_tokens=model.config.max_position_embeddings)
    (directory / "model.safetensors").chmod(0o644)
    (directory / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")
    read, loading = BertForSequenceClassification.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True
    )
    if wrong := {kind: keys for kind, keys in loading.items() if keys}:
        raise ValueError(f"{directory} does not load whole: {wrong}")
    before = logits_of(model, tokenizer, PROBES, bf16=False)
    after = logits_of(read, tokenizer, PROBES, bf16=False)
    return float(np.abs(before - after).max())
