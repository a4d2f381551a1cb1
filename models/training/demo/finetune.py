"""Trains on graded pairs, first made-up ones, then mixed with human labels; validation chooses."""

import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from models.training.batches import Batch, fitted, grouped, padded, tokenized
from models.training.data import Example, Judged, Target, graded_target, source_family
from models.training.demo.catalogue import Catalogue
from models.training.demo.catalogue_pairs import thing_pair
from models.training.demo.noise import typed
from models.training.demo.pseudo import dictionary_pair, pseudo_pair
from models.training.demo.shelf import Shelf
from models.training.demo.synthetic import described_pair, product_pair
from models.training.evaluate import by_family, logits_of, probabilities_of
from models.training.loop import Progress, Schedule, ordinal_loss, train
from models.training.network import Model

log = logging.getLogger(__name__)

MOVIE_TARGETS: Mapping[bool, Target] = {
    True: (0.02, 0.03, 0.1, 0.25, 0.6),
    False: (0.5, 0.3, 0.15, 0.05, 0.0),
}


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that pairs are drawn from. judged: by source family, then by query."""

    shelf: Shelf
    catalogue: Catalogue
    lexicon: Sequence[str]
    movies: Sequence[tuple[str, str, bool]]
    judged: Mapping[str, Sequence[Sequence[Judged]]]
    judged_shares: Mapping[str, float]


def group_judged(rows: Sequence[Judged]) -> dict[str, list[list[Judged]]]:
    """Group rows by source family, and within it by query."""
    groups: defaultdict[str, defaultdict[str, list[Judged]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[source_family(row.source)][row.query].append(row)
    return {family: list(queries.values()) for family, queries in groups.items()}


def mixed_examples(
    sources: Sources, shares: Mapping[str, float], *, count: int, seed: int, index: int
) -> list[Example]:
    """Draw a round of examples by the shares of the kinds. It depends on `seed` and `index` alone."""
    rng = random.Random(f"{seed}/{index}")
    make: dict[str, Callable[[], Example]] = {
        "product": lambda: product_pair(sources.shelf, rng),
        "described": lambda: described_pair(sources.shelf, rng),
        "thing": lambda: thing_pair(sources.catalogue, rng),
        "pseudo": lambda: pseudo_pair(sources.lexicon, rng),
        "dictionary": lambda: dictionary_pair(sources.shelf.dictionary, rng),
        "movies": lambda: _movie_pair(sources, rng),
        "judged": lambda: _judged_pair(sources, rng),
    }
    if unknown := set(shares) - set(make):
        raise ValueError(f"no such kind of pair: {', '.join(sorted(unknown))}; there are {', '.join(make)}")
    kinds = rng.choices(list(shares), weights=list(shares.values()), k=count)
    return [make[kind]() for kind in kinds]


def _movie_pair(sources: Sources, rng: random.Random) -> Example:
    query, document, relevant = rng.choice(sources.movies)
    while not relevant and rng.random() < 0.6:  # one in seven is relevant; show one in three
        query, document, relevant = rng.choice(sources.movies)
    return Example(query, document, MOVIE_TARGETS[relevant])


def _judged_pair(sources: Sources, rng: random.Random) -> Example:
    """Draw a source, then one of its queries, then a grade, so that none of them dominates."""
    families = list(sources.judged_shares)
    family = rng.choices(families, weights=[sources.judged_shares[name] for name in families])[0]
    rows = rng.choice(sources.judged[family])
    if rng.random() < 0.5:
        grade = rng.choice(sorted({row.grade for row in rows}))
        rows = [row for row in rows if row.grade == grade]
    row = rng.choice(rows)
    query = (
        row.query if rng.random() < 0.5 else typed(row.query.split(), rng)
    )  # there are few queries, so vary them
    return Example(query, row.title, graded_target(row.grade, smoothing=0.15))


def batches_of(
    examples: Sequence[Example], tokenizer: Tokenizer, *, max_tokens: int, batch_tokens: int, seed: int
) -> list[Batch]:
    """Return the examples as padded batches of similar length, in a shuffled order."""
    queries = tokenized(tokenizer, [example.query for example in examples])
    titles = tokenized(tokenizer, [example.title for example in examples])
    sequences = [fitted(query, title, max_tokens) for query, title in zip(queries, titles, strict=True)]
    targets = torch.tensor([example.target for example in examples])
    weights = torch.tensor([example.weight for example in examples])
    batches = []
    for places in grouped(
        [len(query) + len(title) + 3 for query, title in sequences], batch_tokens=batch_tokens
    ):
        ids, segments, mask = padded([sequences[place] for place in places])
        batches.append(Batch(ids, segments, mask, targets[places], weights[places]))
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
    checkpoint_seconds: float = 120.0,
    after_step: Callable[[Progress], None] | None = None,
) -> Progress:
    """Train `model` in place on a mixture (see `mixed_examples`); resumes exactly from `checkpoint`."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout

    def loss_of(batch: Batch) -> Tensor:
        output = model(input_ids=batch.ids, token_type_ids=batch.segments, attention_mask=batch.mask)
        return ordinal_loss(output.logits, batch.labels, batch.weights, distance_weight=distance_weight)

    def make_round(index: int) -> list[Batch]:
        examples = mixed_examples(sources, shares, count=pairs_per_round, seed=seed, index=index)
        return batches_of(examples, tokenizer, max_tokens=max_tokens, batch_tokens=batch_tokens, seed=index)

    return train(
        model,
        loss_of,
        make_round,
        schedule,
        checkpoint,
        seed=seed,
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
    best: float = 0.0
    last: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Read the best figure so far, if the stage is resumed."""
        if self.best_path.exists():
            self.best = torch.load(self.best_path, weights_only=True)["score"]

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
            "validation at step %d: %.4f  (%s)",
            progress.step,
            score,
            "  ".join(
                f"{name} {values['spearman']:.3f}/{values['ndcg10']:.3f}" for name, values in families.items()
            ),
        )
        if score > self.best:
            self.best = score
            torch.save(
                {"model": self.model.state_dict(), "score": score, "step": progress.step}, self.best_path
            )
        self.last = time.monotonic()


def validation_score(families: Mapping[str, Mapping[str, float]]) -> float:
    """Return the number to choose by: mostly product ranking (ESCI, Chorus), a little transfer."""
    weights = {"esci": 1.0, "chorus": 1.0, "socrata": 0.3, "dbpedia": 0.2}
    present = {name: weight for name, weight in weights.items() if name in families}
    total = sum(present.values())
    return (
        sum(
            weight * (families[name]["spearman"] + families[name]["ndcg10"]) / 2
            for name, weight in present.items()
        )
        / total
    )
