"""Writes the checkpoint that the notebook starts from: a small cross-encoder with one score, as on hubs.

It stands for the model that you have. Its body is the first layers of the shipped model; its one output is
fitted to judgments by ridge regression, so it takes seconds and no network.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers

from headroom.models.checkpoint.hub import locate

LAYERS = 3
PENALTY = 100.0
WINDOW = 64
"""Tokens of a pair."""


def write_shop_model(directory: Path, judged: Sequence[tuple[str, str, int]]) -> Path:
    """Write the checkpoint. judged: (query, title, grade) of pairs that its output is fitted to."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    shipped = locate(None)
    model = transformers.BertForSequenceClassification.from_pretrained(
        shipped,
        num_labels=1,
        num_hidden_layers=LAYERS,
        ignore_mismatched_sizes=True,
        dtype=torch.float32,
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(shipped)
    states = []
    with torch.inference_mode():
        for start in range(0, len(judged), 64):
            queries, titles, _ = zip(*judged[start : start + 64], strict=True)
            batch = tokenizer(
                queries, titles, padding=True, truncation=True, max_length=WINDOW, return_tensors="pt"
            )
            states.append(model.bert(**batch).pooler_output.numpy())
    inputs = np.concatenate(states).astype(np.float64)  # (n, width)
    mean = inputs.mean(0)
    centred = inputs - mean
    grades = np.array([grade for *_, grade in judged], np.float64)
    penalty = PENALTY * inputs.var(0).mean() * np.eye(len(mean))
    weights = np.linalg.solve(centred.T @ centred + penalty, centred.T @ (grades - grades.mean()))
    with torch.no_grad():
        model.classifier.weight.copy_(torch.from_numpy(weights)[None])
        model.classifier.bias.fill_(-float(mean @ weights))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
