"""Every form of a published ModernBERT config.json is read; what the network does not compute is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headroom import Classifier, UnsupportedCheckpoint
from headroom.models.checkpoint.config import ModelConfig, parse_config
from tests.modernberts import write_modernbert

BASE: dict[str, Any] = {
    "model_type": "modernbert",
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "num_labels": 1,
}
OLD = {
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "position_embedding_type": "sans_pos",
}
KINDS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
NEW = {
    "layer_types": KINDS,
    "local_attention": 128,
    "rope_parameters": {
        "full_attention": {"rope_theta": 160000.0, "rope_type": "default"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
}


def parsed(**changes: Any) -> ModelConfig:
    return parse_config(BASE | changes)


@pytest.mark.parametrize(
    "form",
    [
        {},
        OLD,
        NEW,
        {"layer_types": KINDS, "sliding_window": 64},
        {"local_attention": 16, "sliding_window": 64},  # the window of transformers
        {"rope_parameters": {"sliding_attention": None, "full_attention": {"partial_rotary_factor": 0.5}}},
    ],
)
def test_every_form_says_the_same(form: dict[str, Any]) -> None:
    config = parsed(**form)

    assert config.windows == (None, 64, 64, None)
    assert [rope.theta for rope in config.ropes] == [160000.0, 10000.0, 10000.0, 160000.0]
    assert (config.max_positions, config.layer_norm_eps, config.pools_mean) == (8192, 1e-5, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling is"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, r"rope_parameters\.full_attention"),
        ({"rope_parameters": ["full_attention"]}, "config.json cannot be read"),
        ({"layer_types": ["full_attention"]}, "each of 4 layers"),
        ({"classifier_pooling": "max"}, "classifier_pooling is 'max'; supported: 'cls', 'mean'"),
        ({"local_attention": 0}, "local_attention is 0"),
    ],
)
def test_what_the_network_does_not_compute_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=message):
        parsed(**changes)


@pytest.mark.parametrize("name", ["model.layers.0.attn_norm.weight", "model.layers.2.mlp.Wo.bias"])
def test_a_tensor_that_config_json_does_not_tell_of_is_refused(tmp_path: Path, name: str) -> None:
    file = write_modernbert(tmp_path) / "model.safetensors"
    save_file(load_file(file) | {name: torch.ones(32)}, file)
    with pytest.raises(UnsupportedCheckpoint, match=f"{re.escape(name)} does not belong"):
        Classifier.load(tmp_path, "cpu", "float32")
