"""Distillation: a smaller network learns the intact model's answers on pairs without grades (Hinton et al.
2015, https://arxiv.org/abs/1503.02531)."""

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from models.batch import PackedBatch, pack
from models.checkpoint.config import ModelConfig
from models.checkpoint.hub import locate
from models.classifier import Classifier
from models.compress.prune import cut, write_checkpoint
from models.device import autocast, give_back_memory
from models.learner import Learner
from models.masks.head_mask import HeadMask
from models.network import Network
from models.study.search.networks import Networks
from models.study.study import Study

RATE = 1e-4
PAIRS = 64
TRIM_STEPS = 20
WARM_UP = 0.05
"""The share of the time in which the rate rises; afterwards it falls to 0 in a straight line."""


@dataclass(frozen=True)
class Student:
    """A smaller network after its training. tensors: by name, float32. losses: one per step."""

    tensors: dict[str, torch.Tensor]
    config: ModelConfig
    losses: list[float]

    @property
    def before_and_after(self) -> tuple[float, float]:
        """Return the mean loss of the first and of the last tenth of the steps."""
        tenth = max(1, len(self.losses) // 10)
        return float(np.mean(self.losses[:tenth] or np.nan)), float(np.mean(self.losses[-tenth:] or np.nan))


def recover(networks: Networks, mask: HeadMask, minutes: float) -> Student:
    """Train the network that a mask leaves for some minutes, and write its checkpoint into `recovered`, in
    the source's number format."""
    study = networks.study
    began, limit, told = time.monotonic(), minutes * 60, 0
    study.progress.start("seconds of training", round(limit))

    def spent(_: int) -> float:
        nonlocal told
        seconds = time.monotonic() - began
        study.progress.advance(round(seconds) - told)
        told = round(seconds)
        return seconds / limit

    student = distilled(study.classifier, mask, _pairs(study), spent)
    directory, stored = study.out / "recovered", networks.tensors["classifier.weight"].dtype
    shutil.rmtree(directory, ignore_errors=True)
    tensors = {name: tensor.to("cpu", stored) for name, tensor in student.tensors.items()}
    write_checkpoint(locate(study.model), directory, tensors, student.config)
    return student


def distilled(
    teacher: Classifier,
    mask: HeadMask,
    batches: Iterator[list[tuple[str, str]]],
    share_done: Callable[[int], float],
) -> Student:
    """Train what a mask leaves of a classifier's network on the classifier's own answers.

    The student learns the calibrated probabilities and what leaves the last layer at the first token, from
    which they are computed. Word embeddings stay as they are: most words occur in no batch.
    share_done: the share of the training that is over after so many steps; it ends at 1.
    """
    floats = replace(teacher.config, int8=False)
    start, config = cut(teacher.network.in_plain_torch().tensors(), floats, mask)
    device = teacher.network.device
    model = Learner(config, start).to(device)
    model.weight("bert.embeddings.word_embeddings.weight").requires_grad_(False)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.01, fused=True)
    losses = list[float]()
    while (share := share_done(len(losses))) < 1:
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(share / WARM_UP, (1 - share) / (1 - WARM_UP))
        batch = pack(teacher.tokenizer.encode(next(batches)), device=device, fill=False)
        with torch.no_grad():
            wanted_state = _state(teacher.network, batch)
            wanted = teacher.network.classify(wanted_state)
        student = model.network()
        with autocast(device):
            state = _state(student, batch)
        logits = student.classify(state)  # as it is served, in float32
        loss = F.mse_loss(state, wanted_state) + F.kl_div(
            F.log_softmax(logits / config.temperature, -1),
            F.softmax(wanted / config.temperature, -1),
            reduction="batchmean",
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        losses.append(loss.item())
        if len(losses) % TRIM_STEPS == 0:
            give_back_memory()
    return Student({name: tensor.detach() for name, tensor in model.tensors().items()}, config, losses)


def _state(network: Network, batch: PackedBatch) -> torch.Tensor:
    """Return what a network's classifier reads, (B, D) float32."""
    return network.pooled(batch, network.selector.select(None))[: batch.rows].float()


def _pairs(study: Study) -> Iterator[list[tuple[str, str]]]:
    """Yield batches without end: the study's queries, half of them with titles of other queries."""
    data, rng = study.data, np.random.default_rng([study.seed, 13])
    while True:
        rows, others = (rng.integers(0, len(data), PAIRS) for _ in range(2))
        own = rng.random(PAIRS) < 0.5
        yield [
            data.pairs[i] if same else (data.pairs[i][0], data.pairs[j][1])
            for i, j, same in zip(rows.tolist(), others.tolist(), own.tolist(), strict=True)
        ]
