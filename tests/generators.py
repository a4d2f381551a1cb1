"""Writes small random query generators beside small checkpoints."""

import shutil
from pathlib import Path

import torch

from headroom import Classifier
from headroom.models.generate.files import write_generator
from headroom.models.generate.network import GeneratorConfig, GeneratorNetwork
from tests.checkpoints import load

LAYERS = 2
HEADS = 4


def random_generator(clf: Classifier, seed: int = 0) -> GeneratorNetwork:
    """Return a generator with random weights for a checkpoint with BERT's tokens."""
    torch.manual_seed(seed)
    words = clf.network.word_embeddings.float()
    template = clf.tokenizer.template
    end = template.after[-1]
    pieces = torch.unique(torch.cat([torch.tensor([end]), torch.arange(60, len(words), 2)]))
    config = GeneratorConfig(
        layers=LAYERS,
        heads=HEADS,
        width=words.shape[1],
        units=48,
        max_pieces=9,
        output_pieces=len(pieces),
        start=template.before[0],
        end=end,
    )
    network = GeneratorNetwork(config, pieces, words)
    for weight in network.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.3)  # large enough for heads to matter
    return network.eval()


def with_generator(checkpoint: Path, directory: Path, seed: int = 0) -> Classifier:
    """Return a checkpoint with a random generator, copied to a directory."""
    shutil.copytree(checkpoint, directory, dirs_exist_ok=True)
    write_generator(directory, random_generator(load(checkpoint), seed))
    return load(directory)
