"""The heads of a query generator's encoder–decoder attention, each off alone: which copy, which translate?

A piece of the generated query is copied if the question has it, else it is written. What the whole generator
writes (greedily) is the yardstick, so no phrase of a person is needed: without a head, how likely are its
copied and its written pieces, each after the pieces before it, and how much of the query is still written
(ROUGE-L)? These pieces were chosen because they were likely, so any change makes them less so: a head copies
if copied pieces lose, and lose more than the written ones of the same query; it translates if it is the other
way round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headroom.models.arrays import Floats
from headroom.models.errors import ModelError
from headroom.models.files import Json
from headroom.models.generate.generator import Generator
from headroom.models.generate.memory import memory_of, states_of
from headroom.models.generate.network import GeneratorMasks, GeneratorNetwork, Memory
from headroom.models.generate.search import search
from headroom.models.quality.bootstrap import MIN_QUERIES, Interval
from headroom.models.quality.lexical import rouge_l
from headroom.models.study import plots
from headroom.models.study.page import Figure, Result, Section, Table
from headroom.models.study.statistics import (
    LEVEL,
    holm,
    mean_intervals,
    means_under_random_signs,
    permutation_p,
)
from headroom.models.study.study import Head, Study
from headroom.models.study.wording import listed, method

BATCH = 32
"""Questions that are computed at once."""

SIGNS = 9_999
"""Draws of the permutation tests over questions."""

EFFECTS = ("copied", "written", "difference", "rouge_l")

TESTS = ("copied", "written", "copied_more", "written_more")
"""What is tested of each head: that pieces of a kind lose, and that they lose more than the others."""

SHOWN = 12
"""How many heads the table shows."""


@dataclass(frozen=True)
class QuestionBatch:
    """Some questions and what the whole generator writes for them.

    writable: which pieces their queries may have, (B, V) bool. targets: (B, n) int64, the queries' pieces, −1
    for padding. texts: of the queries.
    """

    memory: Memory
    writable: Tensor
    targets: Tensor
    texts: Sequence[str]

    @property
    def copied(self) -> Tensor:
        """Return which pieces their question has, (B, n) bool."""
        is_piece = self.targets[:, :, None] == self.memory.pieces[:, None]
        return is_piece.any(2) & (self.targets >= 0)

    @property
    def written(self) -> Tensor:
        """Return which pieces their question does not have, (B, n) bool."""
        return ~self.copied & (self.targets >= 0)


def run(study: Study) -> Result:
    """Switch off each head of the encoder–decoder attention alone.

    Raises ModelError if the checkpoint has no query generator, or too few of the queries can be read.
    """
    generator = study.classifier.checked_generator()
    layers, heads = generator.shape
    names = [(layer, head) for layer in range(layers) for head in range(heads)]
    with torch.inference_mode():
        batches = _batches(study, generator)
        whole = np.concatenate([_values(generator, batch, None) for batch in batches])
        changes = np.stack(
            [
                np.concatenate([_values(generator, batch, head) for batch in batches]) - whole
                for head in study.stage("heads of the encoder–decoder attention", names)
            ]
        )  # (heads, questions, effects)
    rows = _rows(study, names, changes)
    pieces = {effect: sum(int(getattr(batch, effect).sum()) for batch in batches) for effect in EFFECTS[:2]}
    made = (
        f"{len(whole)} questions; the generated queries have {pieces['copied']:,} copied and "
        f"{pieces['written']:,} written pieces."
    )
    section = Section(
        "Each head of the encoder–decoder attention off alone",
        (method("cross", study.measures), made),
        (_table(rows),),
    )
    picture = Figure(
        "cross-heads",
        "Change of the likelihood of copied and of written pieces with one head off, in nats per piece. "
        "Framed: heads that are shown to copy, or to translate.",
        partial(_draw, (layers, heads), rows),
    )
    content = {"part": "cross", "questions": len(whole), "pieces": pieces, "heads": rows}
    return Result("single", content, _verdict(rows, pieces), (section,), picture)


def _rows(study: Study, names: Sequence[Head], changes: Floats) -> list[Json]:
    """Return `heads` of report.json. changes: (heads, questions, effects)."""
    deltas = [_intervals(changes[:, :, column].T, study) for column in range(len(EFFECTS))]
    losses = -changes[:, :, :3].transpose(2, 1, 0)  # (effects, questions, heads)
    tested = (losses[0], losses[1], losses[2], -losses[2])
    p_values = [_p_values(one, study.seed) for one in tested]
    rows: list[Json] = []
    for index, (layer, head) in enumerate(names):
        delta = {effect: of_effect[index] for effect, of_effect in zip(EFFECTS, deltas, strict=True)}
        p = {test: of_test[index] for test, of_test in zip(TESTS, p_values, strict=True)}
        rows.append(
            {
                "layer": layer,
                "head": head,
                "delta": {effect: one.value for effect, one in delta.items()},
                "interval": {effect: one.ends for effect, one in delta.items()},
                "p_adjusted": p,
                "does": _does(p),
            }
        )
    return rows


def _does(p: Mapping[str, float]) -> str | None:
    """Return what a head is shown to do: "copies" or "translates"."""
    if max(p["copied"], p["copied_more"]) <= LEVEL:
        return "copies"
    if max(p["written"], p["written_more"]) <= LEVEL:
        return "translates"
    return None


def _batches(study: Study, generator: Generator) -> list[QuestionBatch]:
    """Return the questions that the generator can read, with what it writes."""
    encoded = []
    for question in study.data.queries:
        try:
            encoded.append(generator.encode(question))
        except ModelError:  # longer than the window, or nothing in it can be read
            continue
    if len(encoded) < MIN_QUERIES:
        raise ModelError(
            f"{study.data.source}: the query generator can read {len(encoded)} of the queries; a study needs "
            f"at least {MIN_QUERIES}"
        )
    batches = []
    for start in study.stage("queries of the whole generator", range(0, len(encoded), BATCH)):
        questions = encoded[start : start + BATCH]
        states = states_of(generator.encoder, questions)
        memory = memory_of(questions, states, generator.tokenizer.unknown)
        writable = generator.writable.of(questions)
        found = search(generator.network, memory, [1] * len(questions), generator.readable, writable)
        best = [queries[0] for queries in found]
        pieces = [torch.tensor(query.pieces) for query in best]
        targets = pad_sequence(pieces, batch_first=True, padding_value=-1).to(memory.pieces.device)
        batches.append(QuestionBatch(memory, writable, targets, [generator.text(query) for query in best]))
    return batches


def _values(generator: Generator, batch: QuestionBatch, off: tuple[int, int] | None) -> Floats:
    """Return of each question the mean log-likelihood of the copied pieces, that of the written ones, the
    difference, and ROUGE-L, (B, 4); nan if there are no such pieces.

    off: (layer, head) of the head that is off; None: none.
    """
    size = len(batch.targets)
    layers, heads = generator.shape
    weights = torch.ones(size, layers, heads, device=batch.targets.device)
    masks = None
    texts = batch.texts
    if off is not None:
        cross = weights.clone()
        cross[:, off[0], off[1]] = 0
        masks = GeneratorMasks(weights, cross)
        best = search(generator.network, batch.memory, [1] * size, generator.readable, batch.writable, masks)
        texts = [generator.text(queries[0]) for queries in best]
    likelihood = log_likelihood(generator.network, batch.memory, batch.targets, masks).numpy(force=True)
    columns = []
    for wanted in (batch.copied, batch.written):
        is_wanted = wanted.numpy(force=True)
        count = is_wanted.sum(1)
        total = np.where(is_wanted, likelihood, 0).sum(1, dtype=np.float64)
        columns.append(np.where(count > 0, total / np.maximum(count, 1), np.nan))
    columns.append(columns[0] - columns[1])
    columns.append(np.array([rouge_l(ours, whole) for ours, whole in zip(texts, batch.texts, strict=True)]))
    return np.stack(columns, 1)


def log_likelihood(
    network: GeneratorNetwork, memory: Memory, targets: Tensor, masks: GeneratorMasks | None = None
) -> Tensor:
    """Return the log-probability of each piece after those before it, (B, n) float32, copied or written.

    targets: (B, n) int64, −1 for padding, whose result means nothing.
    """
    start = targets.new_full((len(targets), 1), network.config.start)
    ids = torch.cat([start, targets[:, :-1].clamp(min=0)], 1)
    x, _ = network(ids, network.begin(memory), masks)
    joint = network.log_probabilities(ids, x, memory)  # (B, n, V + m)
    pieces = torch.cat([network.pieces.expand(len(targets), -1), memory.pieces], 1)
    is_other = pieces[:, None] != targets[:, :, None]
    return joint.masked_fill(is_other, float("-inf")).logsumexp(2)


def _intervals(changes: Floats, study: Study) -> list[Interval]:
    """Return each head's mean change over the questions that have it. changes: (questions, heads)."""
    rows = changes[np.isfinite(changes).all(1)]
    if not len(rows):
        return [Interval(np.nan, np.nan, np.nan)] * changes.shape[1]
    return mean_intervals(rows, study.effort.resamples, study.seed)


def _p_values(losses: Floats, seed: int) -> list[float]:
    """Return one-sided p-values of "the head loses nothing", adjusted over the heads (Holm 1979).

    losses: (questions, heads). Under the null hypothesis the sign of a question's loss is random.
    """
    rows = losses[np.isfinite(losses).all(1)]
    if len(rows) < MIN_QUERIES:
        return [1.0] * losses.shape[1]
    null = means_under_random_signs(rows, SIGNS, np.random.default_rng([seed, 23]))
    observed = rows.mean(0)
    p = [permutation_p(observed[head], null[:, head]) for head in range(len(observed))]
    adjusted: list[float] = holm(p).tolist()
    return adjusted


def _table(rows: Sequence[Json]) -> Table:
    worst = [np.nanmin([row["delta"]["copied"], row["delta"]["written"], 0.0]) for row in rows]
    cells = []
    for index in np.argsort(worst, kind="stable")[:SHOWN].tolist():
        row = rows[index]
        changes = [
            Interval(row["delta"][effect], *row["interval"][effect]).text(sign=True) for effect in EFFECTS
        ]
        cells.append((f"{row['layer']}.{row['head']}", *changes, row["does"] or "–"))
    header = ("head", "Δ copied", "Δ written", "copied − written", "Δ ROUGE-L", "what it is shown to do")
    caption = (
        f"The {len(cells)} heads that cost most. Δ of pieces: log-likelihood in nats per piece; of ROUGE-L: "
        "against the query of the whole generator. All heads: report.json."
    )
    return Table(header, tuple(cells), caption)


def _verdict(rows: Sequence[Json], pieces: Json) -> str:
    copying = [f"{row['layer']}.{row['head']}" for row in rows if row["does"] == "copies"]
    translating = [f"{row['layer']}.{row['head']}" for row in rows if row["does"] == "translates"]
    text = (
        f"Of {len(rows)} heads of the encoder–decoder attention, {len(copying)} are shown to copy "
        f"({listed(copying)}) and {len(translating)} to translate ({listed(translating)})."
    )
    if pieces["written"] < MIN_QUERIES:
        text += f" The queries have {pieces['written']} written pieces, too few to show who translates."
    return text


def _draw(shape: tuple[int, int], rows: Sequence[Json]) -> plots.Drawing:
    """Draw a heat map of each kind of piece."""
    drawing, panels = plots.figure(15, 3.6, 1, 2)
    heads = [(row["layer"], row["head"]) for row in rows]
    for axes, effect, what in zip(panels, EFFECTS, ("copies", "translates"), strict=False):
        values = [row["delta"][effect] for row in rows]
        framed = np.array([row["does"] == what for row in rows])
        plots.heat_map(axes, shape, heads, values, framed, f"One head off: {effect} pieces", "nats", digits=2)
    return drawing
