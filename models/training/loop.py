"""Training in batches of about equal cost: targets, bf16 where it is native, checkpoints, exact resume."""

from __future__ import annotations

import logging
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headroom.models.checkpoint.tokenizer import EncodedPair, PairTokenizer
from headroom.models.device import autocast, release_memory
from headroom.models.errors import ModelError
from headroom.models.files import Json
from headroom.models.learner import Learner
from headroom.models.quality.labelled import LabelledPair

log = logging.getLogger(__name__)

FIRST_REPORTS = (2, 10)
"""The steps after which loss, pace and time left are logged early."""

REPORT_SECONDS = 15.0
"""Time between two lines of progress after those."""

WEIGHT_DECAY = 0.01

DISTANCE_WEIGHT = 0.3
"""The weight of the expected grade's squared error in the loss, where the cross-entropy has 1."""

CHECKPOINT_SECONDS = 60.0
"""Time between two checkpoints: what a user who stops a run loses at most. Writing one takes seconds."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Encoded pairs and their targets.

    labels: target distributions, (B, grades) float32. weights: (B,) float32.
    """

    pairs: Sequence[EncodedPair]
    labels: Tensor
    weights: Tensor


class HasPairs(Protocol):
    """A batch of any kind of training."""

    @property
    def pairs(self) -> Sequence[Sized]:
        """Return what the network reads, each as long as its tokens."""


B = TypeVar("B", bound=HasPairs)


def grouped(lengths: Sequence[int], *, batch_tokens: int) -> list[list[int]]:
    """Group sequences of similar length, so that a group's padded size is at most `batch_tokens`.

    Returns the indices of each group. A sequence longer than `batch_tokens` is a group of its own.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    groups: list[list[int]] = []
    for index in order:  # ascending, so the newest is the longest of its group
        if groups and lengths[index] * (len(groups[-1]) + 1) <= batch_tokens:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def logits_of(model: Learner, tokenizer: PairTokenizer, pairs: Sequence[LabelledPair]) -> np.ndarray:
    """Return the logits of the pairs without dropout, (n, labels) float64, in their order."""
    encoded = tokenizer.encode([(pair.query, pair.title) for pair in pairs])
    logits = np.zeros((len(pairs), len(model.config.labels)))
    model.eval()
    logged_at = time.monotonic()
    done = 0
    with torch.no_grad(), autocast(model.device):
        for rows in grouped([len(pair) for pair in encoded], batch_tokens=8192):
            logits[rows] = model([encoded[i] for i in rows]).double().numpy()
            done += len(rows)
            if time.monotonic() - logged_at >= REPORT_SECONDS:
                logged_at = time.monotonic()
                log.info("measuring: %d/%d pairs", done, len(pairs))
    model.train()
    return logits


def graded_target(grade: float, *, smoothing: float = 0.06, grades: int = 5) -> tuple[float, ...]:
    """Return a grade between 0 and grades - 1 as a distribution over the grades.

    A whole grade gets all the mass and 2.25 gets three quarters on 2 and one on 3; then `smoothing` of the
    mass moves to the neighbours, so that a near miss costs less than a far one.
    """
    exact = [max(0.0, 1.0 - abs(grade - whole)) for whole in range(grades)]
    mass = [(1.0 - smoothing) * share for share in exact]
    for whole, share in enumerate(exact):
        mass[max(whole - 1, 0)] += smoothing / 2 * share
        mass[min(whole + 1, grades - 1)] += smoothing / 2 * share
    return tuple(mass)


def targets(pairs: Sequence[LabelledPair], count: int) -> tuple[Tensor, Tensor]:
    """Return the target distribution of each pair, (n, count) float32, and its weight, (n,) float32.

    The weight is the inverse square root of the grade's frequency, mean 1: without weights the common grades
    would decide; with the inverse itself, the noise of the rare ones would. count: the number of grades.
    """
    grades = [pair.grade for pair in pairs]
    by_grade = torch.tensor([graded_target(grade, grades=count) for grade in range(count)])
    common = Counter(grades)
    mean = sum(common[grade] ** -0.5 * common[grade] for grade in sorted(common)) / len(grades)
    return by_grade[grades], torch.tensor([common[grade] ** -0.5 / mean for grade in grades])


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps and learning rate: linear warm-up, constant, then linear decay to 0 over a last share."""

    steps: int
    rate: float
    warmup: int = 50
    decay: float = 0.8

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        decayed = (self.steps - step) / max(1.0, self.steps * self.decay)
        return self.rate * min(1.0, (step + 1) / self.warmup, decayed)

    def rate_after(self, progress: Progress) -> float:
        """Return the learning rate of the next step."""
        return self.rate_at(progress.step)

    def share(self, progress: Progress) -> float:
        """Return the share of the training that is done; it is over at 1."""
        return progress.step / self.steps


@dataclass(frozen=True, slots=True)
class TimedSchedule:
    """A time and a learning rate: it rises over a first share of the time, then falls to 0 in a line."""

    seconds: float
    rate: float
    warmup: float = 0.05

    def rate_after(self, progress: Progress) -> float:
        """Return the learning rate of the next step."""
        share = self.share(progress)
        return self.rate * min(1.0, (share + 1e-3) / self.warmup, (1 - share) / (1 - self.warmup))

    def share(self, progress: Progress) -> float:
        """Return the share of the training that is done; it is over at 1."""
        return min(1.0, progress.seconds / self.seconds)


@dataclass(slots=True)
class Progress:
    """The progress of a stage. With weights and optimiser states, it is enough to go on exactly.

    round, batch: the next round, and the next batch in it.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    round: int = 0
    batch: int = 0


def train(
    model: nn.Module,
    loss_of: Callable[[B], Tensor],
    make_round: Callable[[int], list[B]],
    schedule: Schedule | TimedSchedule,
    checkpoint: Path,
    *,
    seed: int,
    after_step: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Train `model` in place to the end of its schedule and return its progress.

    make_round(i) gives the i-th round of batches and must depend on i alone. With a file at `checkpoint`
    the run goes on from it and, if its schedule counts steps, ends with the same weights as an uninterrupted
    run. Parameters that need no gradient stay as they are.
    after_step: is called after each step.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = _adamw(parameters, schedule.rate)
    progress = Progress()
    if checkpoint.exists():
        progress = _restore(checkpoint, model, optimizer)
    progress_log = _ProgressLog(schedule)
    saved_at = time.monotonic()
    started = saved_at - progress.seconds
    model.train()
    batches = _batches(make_round, progress)
    while schedule.share(progress) < 1:
        batch = next(batches)
        torch.manual_seed(seed * 1_000_003 + progress.step)  # dropout depends on the step alone
        with autocast(parameters[0].device):
            loss = loss_of(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate_after(progress)
        optimizer.step()
        model.zero_grad()

        progress.step += 1
        progress.batch += 1
        progress.tokens += sum(map(len, batch.pairs))
        progress.seconds = time.monotonic() - started
        progress_log.add(progress, loss.item())
        after_step(progress)
        if time.monotonic() - saved_at > CHECKPOINT_SECONDS:
            _save_progress(checkpoint, model, optimizer, progress)
            saved_at = time.monotonic()
    _save_progress(checkpoint, model, optimizer, progress)
    return progress


def _batches(make_round: Callable[[int], list[B]], progress: Progress) -> Iterator[B]:
    """Yield batches without end from where `progress` is, and count its rounds."""
    while True:
        yield from make_round(progress.round)[progress.batch :]
        progress.round += 1
        progress.batch = 0


class _ProgressLog:
    """Logs loss, pace and time left after the first steps, and then every REPORT_SECONDS."""

    def __init__(self, schedule: Schedule | TimedSchedule) -> None:
        self.schedule = schedule
        self.loss: float | None = None  # a running mean
        self.logged_at = time.monotonic()

    def add(self, progress: Progress, loss: float) -> None:
        """Take note of a step, and log it if it is time to."""
        self.loss = loss if self.loss is None else 0.98 * self.loss + 0.02 * loss
        now = time.monotonic()
        if progress.step not in FIRST_REPORTS and now - self.logged_at < REPORT_SECONDS:
            return
        self.logged_at = now
        share = self.schedule.share(progress)
        log.info(
            "step %d%s  loss %.4f  %.0f tokens/s  %.1f min left",
            progress.step,
            f"/{self.schedule.steps}" if isinstance(self.schedule, Schedule) else "",
            self.loss,
            progress.tokens / progress.seconds,
            progress.seconds * (1 - share) / share / 60,
        )
        release_memory()


def _adamw(parameters: Sequence[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    """Return the optimiser that fine-tunes BERT: biases and norms have no weight decay."""
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, fused=True)


def _save_progress(
    checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress
) -> None:
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "progress": asdict(progress),
    }
    save(state, checkpoint)


def _restore(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Put a saved state back in place and return its progress."""
    state = read_saved(checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    progress = Progress(**state["progress"])
    log.info("resuming %s at step %d", checkpoint.name, progress.step)
    return progress


def save(state: Any, path: Path) -> None:
    """Write a state whole or not at all: if the process is killed, the previous file stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def read_saved(path: Path) -> Json:
    """Return a saved state. Raises ModelError if the file holds anything but tensors and plain values: such
    a file could run code."""
    try:
        state: Json = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError):
        raise ModelError(
            f"{path} is damaged, or holds Python objects that could run code; remove it to begin anew"
        ) from None
    return state


def ordinal_loss(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Return the cross-entropy with the target distribution plus the squared error of the expected grade.

    The first term fits the probabilities. By the second, an error of two grades costs four times one of one.
    """
    logits = logits.float()
    likelihood = -(targets * F.log_softmax(logits, dim=-1)).sum(-1)  # (B,)
    grades = torch.arange(logits.shape[-1], dtype=logits.dtype, device=logits.device)
    distance = (logits.softmax(-1) @ grades - targets @ grades) ** 2  # (B,)
    return ((likelihood + DISTANCE_WEIGHT * distance) * weights).sum() / weights.sum()
