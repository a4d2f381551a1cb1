"""Whom a student learns from, and what it begins with."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from headroom import Classifier, ModelError
from headroom.models.training.distil.pairs import Pair
from headroom.models.training.distil.teacher import Teacher
from headroom.models.training.distil.teaching import remaining_network

LAST = "bert.encoder.layer.2.output.LayerNorm.weight"
"""What scales the states that the classifier of the small checkpoint reads."""


def test_a_student_begins_with_the_checkpoints_own_weights(tiny_checkpoint: Path) -> None:
    """Of a model served in bfloat16, it began with the served ones: 84 % of the values were rounded."""
    served = Classifier.load(tiny_checkpoint, "cpu", "bfloat16")
    tensors, config = remaining_network(served, served.mask("1.*"))
    source = load_file(tiny_checkpoint / "model.safetensors")
    assert config.num_layers == 3
    for name, tensor in tensors.items():
        assert tensor.dtype == torch.float32
        if "layer.1.attention" not in name:
            assert torch.equal(tensor, source[name]), name
    rounded = source["bert.embeddings.word_embeddings.weight"].bfloat16().float()
    assert not torch.equal(tensors["bert.embeddings.word_embeddings.weight"], rounded)


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_states_that_16_bits_cannot_hold_are_refused(
    tiny_checkpoint: Path, tmp_path: Path, scale: float
) -> None:
    """They were stored as infinities, and the student learnt nothing. The logits are finite: a tanh is
    between."""
    directory = Path(shutil.copytree(tiny_checkpoint, tmp_path / "large"))
    tensors = load_file(directory / "model.safetensors")
    tensors[LAST] *= scale
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    teacher = Teacher(clf := Classifier.load(directory, "cpu", "float32"), clf.tokenizer, states=True)
    pairs = [Pair("red lamp", "usb lamp"), Pair("wood", "tool case")]
    if scale == 1:
        assert len(teacher.answers(pairs)) == 2
        return
    with pytest.raises(ModelError, match="teacher's last hidden state of the title 'usb lamp' holds numbers"):
        teacher.answers(pairs)
