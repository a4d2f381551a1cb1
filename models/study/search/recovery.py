"""Distillation: a smaller network learns the intact model's answers on pairs without grades (Hinton et al.
2015, https://arxiv.org/abs/1503.02531)."""

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from headroom.models.batch import PackedBatch, pack
from headroom.models.checkpoint.config import ModelConfig
from headroom.models.checkpoint.hub import locate
from headroom.models.checkpoint.tensors import TensorDict
from headroom.models.classifier import Classifier
from headroom.models.compress.prune import cut, write_checkpoint
from headroom.models.device import autocast, give_back_memory
from headroom.models.learner import Learner
from headroom.models.masks.head_mask import HeadMask
from headroom.models.network import Network
from headroom.models.study.search.networks import Networks
from headroom.models.study.study import Study

RATE = 1e-4
PAIRS = 64
TRIM_STEPS = 20
WARM_UP = 0.05
"""The share of the time in which the rate rises; afterwards it falls to 0 in a straight line."""


@dataclass(frozen=True)
class Student:
    """A smaller network after its training. tensors: by name, float32. losses: one per step."""

    tensors: TensorDict
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
    limit = minutes * 60
    study.progress.start("seconds of training", round(limit))
    started = time.monotonic()
    seconds_shown = 0

    def share_done(_: int) -> float:
        nonlocal seconds_shown
        seconds = time.monotonic() - started
        study.progress.advance(round(seconds) - seconds_shown)
        seconds_shown = round(seconds)
        return seconds / limit

    student = distilled(study.classifier, mask, _pairs(study), share_done)
    directory = study.out / "recovered"
    shutil.rmtree(directory, ignore_errors=True)
    dtype = networks.tensors["classifier.weight"].dtype
    tensors = {name: tensor.to("cpu", dtype) for name, tensor in student.tensors.items()}
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
        loss = _loss(teacher.network, model.network(), batch, config)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        losses.append(loss.item())
        if len(losses) % TRIM_STEPS == 0:
            give_back_memory()
    return Student({name: tensor.detach() for name, tensor in model.tensors().items()}, config, losses)


def _loss(teacher: Network, student: Network, batch: PackedBatch, config: ModelConfig) -> torch.Tensor:
    """Return the distance of the student's last state and probabilities from the teacher's. config: has the
    calibration of both."""

    def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
        in_order = logits[:, list(config.label_order)]
        return F.log_softmax(in_order / config.temperature + in_order.new_tensor(config.bias), -1)

    with torch.no_grad():
        wanted_state = _state(teacher, batch)
        wanted = teacher.classify(wanted_state)
    with autocast(teacher.device):
        state = _state(student, batch)
    logits = student.classify(state)  # as it is served, in float32
    return F.mse_loss(state, wanted_state) + F.kl_div(
        log_probabilities(logits),
        log_probabilities(wanted),
        reduction="batchmean",
        log_target=True,
    )


def _state(network: Network, batch: PackedBatch) -> torch.Tensor:
    """Return what a network's classifier reads, (B, D) float32."""
    return network.pooled(batch, network.selector.select(None))[: batch.rows].float()


def _pairs(study: Study) -> Iterator[list[tuple[str, str]]]:
    """Yield batches without end: the study's queries, half of them with titles of other queries."""
    data = study.data
    rng = np.random.default_rng([study.seed, 13])
    while True:
        query_rows = rng.integers(0, len(data), PAIRS)
        other_rows = rng.integers(0, len(data), PAIRS)
        title_rows = np.where(rng.random(PAIRS) < 0.5, query_rows, other_rows)
        yield [
            (data.pairs[query_row][0], data.pairs[title_row][1])
            for query_row, title_row in zip(query_rows.tolist(), title_rows.tolist(), strict=True)
        ]
