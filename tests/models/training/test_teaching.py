"""Whom a student learns from."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from headroom import Classifier, ModelError
from headroom.models.training.distil.pairs import Pair
from headroom.models.training.distil.teacher import Teacher

LAST = "bert.encoder.layer.2.output.LayerNorm.weight"
"""What scales the states that the classifier of the small checkpoint reads."""


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
