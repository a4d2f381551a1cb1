"""A smaller network of the shipped model is taught the model's own answers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertModel

from default_model.layer_states import StatesObjective
from default_model.smaller import taught
from headroom import Classifier
from headroom.models.checkpoint.tensors import read_tensors
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.learner import Learner
from headroom.models.networks import build
from headroom.models.training.distil.lessons import Objective, Targets, lessons_of
from headroom.models.training.distil.pairs import Pair
from headroom.models.training.loop import Schedule
from tests.checkpoints import load, random_pairs, write_checkpoint

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


def test_what_leaves_the_layers_is_taught_and_less_and_less_in_the_last_third(tmp_path: Path) -> None:
    """The errors are those of transformers' hidden states."""
    directories = [write_checkpoint(tmp_path / str(seed), seed) for seed in (0, 1)]
    teacher = load(directories[0])
    pairs = [Pair(*pair) for pair in random_pairs(6, 1)]
    encoded = teacher.tokenizer.encode([(pair.query, pair.title) for pair in pairs])
    last = np.random.default_rng(0).normal(size=(6, teacher.config.hidden_size))
    targets = Targets(np.arange(6.0), states=last)
    (lesson,) = lessons_of(pairs, [[0, 1, 2, 3, 4, 5]], targets, teacher.tokenizer)
    whole, other = (Learner(teacher.config, read_tensors(path, teacher.config)) for path in directories)
    theirs, ours = (hidden_states(path, encoded) for path in directories)
    expected = np.mean([((a - b) ** 2).mean() / b.var() for a, b in zip(ours, theirs, strict=True)])

    objective = StatesObjective(teacher.config, 1.0, whole.network(), steps=30)
    plain = Objective(teacher.config, 1.0)

    def of_states(model: Learner) -> float:
        return float((objective.loss(model, lesson) - plain.loss(model, lesson)).detach())

    found = []
    for step in (0, 20, 25, 30):
        objective.done = step
        found.append(of_states(other))
    assert found == pytest.approx([expected, expected, expected / 2, 0], rel=1e-3, abs=1e-5)
    objective.done = 0
    assert of_states(whole) == pytest.approx(0, abs=1e-5)


def hidden_states(directory: Path, pairs: Sequence[EncodedPair]) -> list[np.ndarray]:
    """What leaves each layer of transformers' network for the tokens of all pairs."""
    network = BertModel.from_pretrained(directory).eval()
    found = []
    for pair in pairs:
        ids = torch.from_numpy(pair.ids.astype(np.int64))[None]
        types = (torch.arange(len(pair)) >= pair.title_start).long()[None]
        with torch.no_grad():
            layers = network(ids, token_type_ids=types, output_hidden_states=True).hidden_states[1:]
        found.append([layer[0].double().numpy() for layer in layers])
    return [np.concatenate(of_layer) for of_layer in zip(*found, strict=True)]
