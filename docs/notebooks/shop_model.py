"""Writes the checkpoint that the notebook starts from: a small cross-encoder with one score, as on hubs.

It stands for the model that you have. It is the shipped network `rough`, five layers, with one output in
place of five: the mean of the grades' logits, weighted by the grades, which ranks titles as they do.
"""

from dataclasses import replace
from pathlib import Path

import torch

from headroom.models.checkpoint.config import classifier_fields, read_config, read_raw
from headroom.models.checkpoint.hub import locate
from headroom.models.checkpoint.tensors import read_tensors
from headroom.models.compress.prune import write_checkpoint


def write_shop_model(directory: Path) -> Path:
    """Write the checkpoint."""
    source = locate(None) / "networks" / "rough"
    config = read_config(source)
    tensors = read_tensors(source, config)
    grades = torch.arange(len(config.labels)) - (len(config.labels) - 1) / 2
    for name in ("classifier.weight", "classifier.bias"):
        of_grades = tensors[name][list(config.label_order)].float()
        tensors[name] = (grades @ of_grades).reshape(1, *of_grades.shape[1:])
    one_label = replace(config, labels=("LABEL_0",), label_order=(0,), score_activation="sigmoid")
    fields = classifier_fields(read_raw(source), one_label.labels)
    directory.mkdir(parents=True, exist_ok=True)
    write_checkpoint(source, directory, tensors, one_label, **fields)
    return directory
