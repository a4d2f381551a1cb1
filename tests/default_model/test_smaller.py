"""A smaller network of the shipped model is taught the model's own answers."""

from pathlib import Path

import numpy as np
import pytest
import torch

from default_model.smaller import taught
from headroom import Classifier
from headroom.models.checkpoint.tensors import read_tensors
from headroom.models.networks import build
from headroom.models.training.loop import Schedule
from tests.checkpoints import load, random_pairs

pytestmark = pytest.mark.more


def divergence(teacher: Classifier, tensors: dict[str, torch.Tensor], pairs: list[tuple[str, str]]) -> float:
    """The mean KL divergence of the answers that these weights give from the teacher's."""
    network = build(teacher.config, tensors, device=torch.device("cpu"), dtype=torch.float32)
    student = Classifier("student", teacher.config, teacher.tokenizer, network, {})
    wanted, got = (one.score(pairs).probabilities.astype(np.float64) for one in (teacher, student))
    return float((wanted * np.log(wanted / got)).sum(1).mean())


def test_a_network_with_noise_on_its_weights_comes_nearer_to_the_models_answers(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    teacher = load(tiny_checkpoint)
    random = torch.Generator().manual_seed(0)
    noisy = {
        name: tensor + 0.01 * torch.randn(tensor.shape, generator=random)
        for name, tensor in read_tensors(tiny_checkpoint, teacher.config).items()
    }
    pairs = random_pairs(64, 1)
    student = taught(
        teacher, noisy, teacher.config, lambda _: pairs, Schedule(60, 1e-3), tmp_path / "progress.pt"
    )
    before = divergence(teacher, noisy, pairs)
    after = divergence(teacher, student.tensors, pairs)
    assert 0 < after < before / 3
