"""Loads the network that `headroom train` starts from."""

from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from models.checkpoint.config import read_raw
from models.checkpoint.families import FAMILIES
from models.checkpoint.modules import read_head
from models.checkpoint.tensors import read_tensors
from models.training.batches import Model
from models.training.job import Job


def start(job: Job) -> tuple[Model, Path]:
    """Return the model before training, float32, and the directory of its tokenizer's files.

    The checkpoint's order of labels and its temperature are folded into its last layer, so that training goes
    on from the probabilities that the checkpoint serves.
    """
    options = job.options
    labels = dict(enumerate(options.labels))
    torch.manual_seed(options.seed)
    directory, config = job.base
    kind = CONFIG_MAPPING[config.family]
    model = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[kind].from_pretrained(
        directory,
        config=kind.from_dict(
            read_raw(directory)
            | {
                "id2label": labels,
                "label2id": {name: grade for grade, name in labels.items()},
                "problem_type": None,  # the base may have been a regression
            }
        ),
        ignore_mismatched_sizes=True,  # a new number of grades needs a new last layer
        dtype=torch.float32,
        attn_implementation="eager",  # trains twice as fast as sdpa on a CPU under bf16 autocast
    )
    if read_head(directory):  # transformers does not read the classifier of sentence-transformers' modules
        tensors = FAMILIES[config.family].theirs(read_tensors(directory, config), config)
        fitting = {name: t for name, t in model.state_dict().items() if t.shape == tensors[name].shape}
        model.load_state_dict({name: tensors[name] for name in fitting}, strict=False)
    if len(config.labels) == len(labels):
        with torch.no_grad():
            last = getattr(model.classifier, "out_proj", model.classifier)  # RoBERTa's has two layers
            for part in last.parameters():
                part.copy_(part[list(config.label_order)])
                part.div_(config.temperature)
    return model, directory
