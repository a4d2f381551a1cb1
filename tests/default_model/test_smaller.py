"""Smaller siblings of the shipped model: the pairs that teach them, and one that goes on from another."""

from pathlib import Path

import pytest
import torch

from default_model.smaller import share_words, starting_network
from headroom import HeadMask
from headroom.models.checkpoint.config import read_config
from headroom.models.checkpoint.tensors import read_tensors, write_tensors
from headroom.models.compress.prune import prune
from headroom.models.training.distil.teaching import WORDS
from tests.checkpoints import write_checkpoint

pytestmark = pytest.mark.more


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with a smaller network beside its weights, which shares its word embeddings."""
    model = write_checkpoint(tmp_path / "model", num_labels=5)
    config = read_config(model)
    mask = HeadMask.parse("0.0", layers=config.num_layers, heads=config.num_heads)
    prune(model, model / "networks" / "fast", mask)
    share_words(model / "networks" / "fast")
    return model


def test_a_network_goes_on_with_its_own_layers_and_the_models_words(model: Path) -> None:
    network = model / "networks" / "fast"
    before = read_tensors(network, read_config(network))
    config = read_config(model)
    tensors = read_tensors(model, config)
    tensors[WORDS] = tensors[WORDS] + 1
    write_tensors(model / "model.safetensors", tensors, config)

    started, of_network = starting_network(model, network)
    assert of_network.kept_heads[0] == tuple(range(1, config.num_heads))
    for name, tensor in before.items():
        torch.testing.assert_close(started[name], tensor + 1 if name == WORDS else tensor)
