"""Trains on graded pairs, first made-up ones, then mixed with human labels; validation chooses."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from models.cores import cores
from models.training.batches import Batch, fitted, grouped, padded, tokenized
from models.training.data import Example, Judged
from models.training.demo.mixture import Sources, mixed_groups
from models.training.evaluate import by_family, logits_of, probabilities_of
from models.training.loop import Progress, Schedule, ordinal_loss, ranking_loss, train
from models.training.network import Model
from models.training.saved import read_saved, save

log = logging.getLogger(__name__)


def batches_of(
    groups: Sequence[Sequence[Example]],
    tokenizer: Tokenizer,
    *,
    max_tokens: int,
    batch_tokens: int,
    seed: int,
) -> list[Batch]:
    """Return the groups, each in one batch, as padded batches of similar length in a shuffled order."""
    examples = [example for group in groups for example in group]
    queries = tokenized(tokenizer, [example.query for example in examples])
    titles = tokenized(tokenizer, [example.title for example in examples])
    sequences = [fitted(query, title, max_tokens) for query, title in zip(queries, titles, strict=True)]
    targets = torch.tensor([example.target for example in examples])
    weights = torch.tensor([example.weight for example in examples])
    numbers = torch.tensor([number for number, group in enumerate(groups) for _ in group])
    ends = list(accumulate(map(len, groups)))
    spans = [range(end - len(group), end) for end, group in zip(ends, groups, strict=True)]
    lengths = [
        max(len(sequences[place][0]) + len(sequences[place][1]) + 3 for place in span) for span in spans
    ]
    batches = []
    for chosen in grouped(lengths, batch_tokens=batch_tokens, sizes=[len(span) for span in spans]):
        places = [place for number in chosen for place in spans[number]]
        ids, segments, mask = padded([sequences[place] for place in places])
        batches.append(Batch(ids, segments, mask, targets[places], weights[places], numbers[places]))
    return [batches[place] for place in np.random.default_rng(seed).permutation(len(batches))]


def finetune(
    model: Model,
    tokenizer: Tokenizer,
    sources: Sources,
    shares: Mapping[str, float],
    schedule: Schedule,
    checkpoint: Path,
    *,
    seed: int,
    max_tokens: int,
    batch_tokens: int,
    pairs_per_round: int,
    dropout: float = 0.0,
    distance_weight: float = 0.3,
    ranking_weight: float = 0.0,
    checkpoint_seconds: float = 120.0,
    after_step: Callable[[Progress], None] | None = None,
) -> Progress:
    """Train `model` in place on a mixture (see `mixed_groups`); resumes exactly from `checkpoint`.

    The loss is `ordinal_loss` plus `ranking_weight` × `ranking_loss`.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout

    def loss_of(batch: Batch) -> Tensor:
        output = model(input_ids=batch.ids, token_type_ids=batch.segments, attention_mask=batch.mask)
        loss = ordinal_loss(output.logits, batch.labels, batch.weights, distance_weight=distance_weight)
        if not ranking_weight or batch.groups is None:
            return loss
        return loss + ranking_weight * ranking_loss(output.logits, batch.labels, batch.groups)

    def make_round(index: int) -> list[Batch]:
        groups = mixed_groups(sources, shares, count=pairs_per_round, seed=seed, index=index)
        return batches_of(groups, tokenizer, max_tokens=max_tokens, batch_tokens=batch_tokens, seed=index)

    return train(
        model,
        loss_of,
        make_round,
        schedule,
        checkpoint,
        seed=seed,
        workers=0 if model.device.type == "cpu" else cores() - 1,
        checkpoint_seconds=checkpoint_seconds,
        after_step=after_step,
    )


@dataclass(slots=True)
class Validation:
    """Keeps the weights that rank the validation pairs best. Called after every step; measures at some."""

    model: Model
    tokenizer: Tokenizer
    judged: Sequence[Judged]
    best_path: Path
    every_seconds: float
    best: float = -math.inf
    last: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Read the best figure so far, if the stage is resumed."""
        if self.best_path.exists():
            self.best = read_saved(self.best_path)["score"]

    def __call__(self, progress: Progress) -> None:
        """Measure if a measurement is due."""
        if time.monotonic() - self.last >= self.every_seconds:
            self.measure(progress)

    def measure(self, progress: Progress) -> None:
        """Measure, report, and keep the weights if they are the best so far."""
        logits = logits_of(self.model, self.tokenizer, [(row.query, row.title) for row in self.judged])
        families = by_family(self.judged, probabilities_of(logits, 1.0))
        score = validation_score(families)
        log.info(
            "validation at step %d: %.4f  QWK of products %.3f  (Spearman/within queries/NDCG@10: %s)",
            progress.step,
            score,
            families.get("products", {}).get("qwk", float("nan")),
            "  ".join(
                f"{name} {values['spearman']:.3f}/{values['query_spearman']:.3f}/{values['ndcg10']:.3f}"
                for name, values in families.items()
            ),
        )
        if score > self.best:
            self.best = score
            save({"model": self.model.state_dict(), "score": score, "step": progress.step}, self.best_path)
        self.last = time.monotonic()


def validation_score(families: Mapping[str, Mapping[str, float]]) -> float:
    """Return the number to choose by: mostly product ranking (ESCI, Chorus), a little transfer."""
    weights = {"esci": 1.0, "chorus": 1.0, "socrata": 0.3, "dbpedia": 0.2}
    present = {name: weight for name, weight in weights.items() if name in families}
    total = sum(present.values())
    return (
        sum(
            weight * sum(families[name][metric] for metric in ("spearman", "query_spearman", "ndcg10")) / 3
            for name, weight in present.items()
        )
        / total
    )
