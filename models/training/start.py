"""The network that `headroom train` starts from: a checkpoint's, or a new one."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from models.checkpoint.config import read_raw
from models.checkpoint.families import FAMILIES
from models.checkpoint.modules import read_head
from models.checkpoint.tensors import read_tensors
from models.quality.labelled import LabelledPair
from models.training.batches import tokenized
from models.training.embeddings import cooccurrence_vectors
from models.training.job import Job, Options, Scratch
from models.training.network import Model, new_model
from models.training.vocabulary import alphabet, save_tokenizer, train_tokenizer


def start(job: Job) -> tuple[Model, Path]:
    """Return the model before training, float32, and the directory of its tokenizer's files.

    A checkpoint's order of labels and its temperature are folded into its last layer, so that training goes
    on from the probabilities that the checkpoint serves.
    """
    options = job.options
    labels = dict(enumerate(options.labels))
    torch.manual_seed(options.seed)
    if job.base is None:
        assert isinstance(options.base, Scratch)
        return _from_scratch(options, options.base, job.training, options.work / "tokenizer")
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


def _from_scratch(
    options: Options, shape: Scratch, training: Sequence[LabelledPair], directory: Path
) -> tuple[Model, Path]:
    lines = sorted({text for pair in training for text in (pair.query, pair.title)})
    tokenizer = train_tokenizer(lines, size=shape.vocabulary)
    save_tokenizer(tokenizer, directory, max_tokens=shape.max_tokens)
    vocabulary = tokenizer.get_vocab_size()  # little text gives fewer pieces than were asked for
    vectors = cooccurrence_vectors(
        tokenized(tokenizer, lines),
        vocab_size=vocabulary,
        dimensions=shape.hidden,
        first_context=len(alphabet()),
        seed=options.seed,
    )
    model = new_model(
        vocab_size=vocabulary,
        layers=shape.layers,
        heads=shape.heads,
        hidden=shape.hidden,
        feed_forward=4 * shape.hidden,
        max_tokens=shape.max_tokens,
        vectors=vectors,
        seed=options.seed,
        labels=options.labels,
    )
    return model, directory
