"""Recovery: some minutes of distillation from the intact model on pairs without grades.

The pairs are the study's queries with titles of any query, half of them with their own; nobody's grade is
read. The smaller network learns the intact one's calibrated probabilities (Hinton et al. 2015,
https://arxiv.org/abs/1503.02531).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from models.batch import pack
from models.checkpoint.config import ModelConfig
from models.checkpoint.hub import locate
from models.classifier import Classifier
from models.compress.cutting import cut
from models.compress.prune import write_checkpoint
from models.compress.structure import Structure
from models.network import build
from models.ops.torch import TorchOps
from models.quality.evaluation import Evaluation
from models.study.search.networks import Networks
from models.study.search.noninferiority import Verdict
from models.study.study import Study

RATE = 1e-4
PAIRS = 64
WARM_UP = 0.05
"""The share of the time in which the rate rises; afterwards it falls to 0 in a straight line."""


@dataclass(frozen=True)
class Recovered:
    """The network after training. directory: where its checkpoint is. steps, minutes: how long it trained.
    before, after: the mean loss of the first and of the last tenth of the steps."""

    structure: Structure
    directory: Path
    steps: int
    minutes: float
    before: float
    after: float
    quality: Evaluation
    held_out: Evaluation | None
    verdict: Verdict | None = None


def recover(networks: Networks, structure: Structure, minutes: float) -> Recovered:
    """Train the network of a structure for some minutes and write its checkpoint into `recovered`."""
    study = networks.study
    clf = study.classifier
    start, config = cut(clf.network.in_plain_torch().tensors(), replace(clf.config, int8=False), structure)
    device = clf.network.device
    weights = {name: tensor.detach().clone().requires_grad_() for name, tensor in start.items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=RATE, weight_decay=0.01)
    pairs, losses = _pairs(study), list[float]()
    began, limit = time.monotonic(), minutes * 60
    study.progress.start("seconds of training", round(limit))
    told = 0
    while (spent := time.monotonic() - began) < limit:
        share = spent / limit
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(share / WARM_UP, (1 - share) / (1 - WARM_UP))
        encoded = clf.tokenizer.encode(next(pairs))
        batch = pack(encoded, device=device, fill=False)
        wanted = torch.from_numpy(clf.scores(clf.forward(encoded)).probabilities)[batch.order].to(device)
        network = build(
            config, weights, device=device, dtype=torch.float32, deterministic=True,
            ops=TorchOps(device, torch.float32),
        )  # fmt: skip
        logits = network.logits(batch, network.selector.select(None))[:, list(config.label_order)]
        loss = F.kl_div(F.log_softmax(logits / config.temperature, -1), wanted, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        study.progress.advance(round(spent) - told)
        told = round(spent)
    return _written(networks, structure, weights, losses, minutes, config)


def _pairs(study: Study) -> Iterator[list[tuple[str, str]]]:
    """Yield batches of pairs without end."""
    data, rng = study.data, np.random.default_rng([study.seed, 13])
    while True:
        rows, others = (rng.integers(0, len(data), PAIRS) for _ in range(2))
        own = rng.random(PAIRS) < 0.5
        yield [
            data.pairs[i] if same else (data.pairs[i][0], data.pairs[j][1])
            for i, j, same in zip(rows.tolist(), others.tolist(), own.tolist(), strict=True)
        ]


def _written(
    networks: Networks,
    structure: Structure,
    weights: dict[str, torch.Tensor],
    losses: list[float],
    minutes: float,
    config: ModelConfig,
) -> Recovered:
    """Write the checkpoint in the source's number format, load it, and evaluate it."""
    study = networks.study
    stored = networks.tensors["classifier.weight"].dtype
    tensors = {name: tensor.detach().to("cpu", stored) for name, tensor in weights.items()}
    directory = study.out / "recovered"
    shutil.rmtree(directory, ignore_errors=True)
    write_checkpoint(locate(study.model), directory, tensors, config)
    network = study.classifier.network
    dtype = "bfloat16" if network.dtype.itemsize == 2 else "float32"
    student = Classifier.load(directory, str(network.device), dtype, deterministic=network.deterministic)
    tenth = max(1, len(losses) // 10)
    name = f"recovered {time.time_ns()}"
    return Recovered(
        structure,
        directory,
        len(losses),
        minutes,
        float(np.mean(losses[:tenth] or np.nan)),
        float(np.mean(losses[-tenth:] or np.nan)),
        networks.evaluate_one(student, study.data, name),
        networks.evaluate_one(student, study.holdout, name) if study.holdout is not None else None,
    )
