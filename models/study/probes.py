"""Measures what each layer's output can tell, by linear probes with control tasks: syntax low, meaning high?

A probe is a ridge regression from a token's hidden state to its label (one-hot); the largest output is its
answer. Queries are cut into FOLDS parts; probes of the other parts predict a part's labels. A probe can also
memorise: so each task has a control task, in which every distinct piece gets a random label with the
task's own frequencies, and what counts is selectivity, accuracy − control accuracy (Hewitt and Liang 2019,
https://arxiv.org/abs/1909.03368).

Labels need no tagger: `word_end` is whether a word ends after a piece; `word_class` whether an English word
is a function word, has a digit, or is neither; `position` the fifth of its text in which a piece stands;
`overlap` whether a title's word is also in the query; `grade` the pair's, told from the token that the
classifier reads. A grade belongs to a whole pair, so its control draws a label for each pair, which nothing
can predict: its selectivity is what the probe gains over the labels' frequencies alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headroom.models.arrays import Floats, Floats32, Ints
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.files import Json
from headroom.models.quality.bootstrap import Interval
from headroom.models.study.page import Finding, Section, Table
from headroom.models.study.states import token_states
from headroom.models.study.statistics import mean_intervals
from headroom.models.study.study import Study
from headroom.models.study.wording import listed, method
from headroom.models.study.words import Words

FORM = ("word_end", "word_class", "position")
MEANING = ("overlap", "grade")
TASKS = (*FORM, *MEANING)

NAMED = {
    "word_end": "word ends",
    "word_class": "class of word",
    "position": "position",
    "overlap": "term overlap",
    "grade": "grade",
}

FOLDS = 5
RIDGE = 0.01
"""The penalty, relative to the variance of a standardised state."""

PARTS = 5
"""Parts of a text that positions are told apart by."""

FUNCTION_WORDS = frozenset(
    "a an the this that these those my your his her its our their and or but nor so as if than because while "
    "of in on at by for with without from to into onto over under between through during before after about "
    "against among per via up down out off i you he she it we they me him them us who whom whose which what "
    "where when why how is are was were be been being am do does did have has had can could may might must "
    "shall should will would not no only both either neither each every all any some more most other such "
    "very too also just there here then".split()
)
"""English words of closed classes: determiners, conjunctions, prepositions, pronouns, auxiliaries, and common
particles and adverbs."""


@dataclass(frozen=True)
class ProbeTask:
    """A task's n labels.

    rows: (n,) of the states. labels, kinds: (n,) from 0; items of one kind have one control label. queries:
    (n,) the query of each.
    """

    rows: Ints
    labels: Ints
    kinds: Ints
    queries: Ints


@dataclass(frozen=True)
class Probed:
    """Selectivity, accuracy and control accuracy of a task's probe, by layer: 0 is what enters the first one.

    rise: selectivity in the upper half of the layers' outputs less that in the lower half, with its interval
    over queries.
    """

    selectivity: Sequence[Interval]
    accuracy: Sequence[float]
    control: Sequence[float]
    rise: Interval
    items: int
    frequent: float  # share of the commonest label


def probe(study: Study) -> dict[str, Probed]:
    """Return the probes of each task for which the data have at least two labels."""
    rows = study.data.spread(study.effort.probe_pairs, study.seed)
    encoded = study.encode(rows)
    tasks, wanted = _tasks(study, rows, encoded)
    study.progress.start("outputs of the layers", len(encoded))
    states = token_states(study, encoded, wanted)
    study.progress.start("probes", len(tasks) * len(states))
    probed = {}
    for name, task in tasks.items():
        fold_of = _folds(task.queries, study.seed)
        control = _control(task, study.seed)
        by_layer = []
        for of_layer in states:
            features = of_layer[task.rows]
            by_layer.append(_hits(features, (task.labels, control), fold_of))
            study.progress.advance()
        probed[name] = _probed(np.stack(by_layer), task, study)
    return probed


Item = tuple[int, int, int, int]
"""The number of a token over all pairs, its label, its kind, and its query."""


def _items(study: Study, rows: Sequence[int], encoded: Sequence[EncodedPair]) -> dict[str, list[Item]]:
    """Return the items of each task."""
    items: dict[str, list[Item]] = {name: [] for name in TASKS}
    reads_last = study.classifier.network.reads == "last"
    start = 0
    for row, pair in zip(rows, encoded, strict=True):
        query = int(study.data.query_of[row])
        words = Words.of(study.classifier.tokenizer, pair)
        ids = pair.ids.tolist()
        for name, token, label in _labels(words):
            items[name].append((start + token, label, ids[token], query))
        read = start + len(pair) - 1 if reads_last else start
        items["grade"].append((read, int(study.data.grade[row]), start, query))
        start += len(pair)
    return items


def _tasks(
    study: Study, rows: Sequence[int], encoded: Sequence[EncodedPair]
) -> tuple[dict[str, ProbeTask], Ints]:
    """Return the tasks, and which tokens of the pairs their rows are, (states,)."""
    by_task = _items(study, rows, encoded)
    chosen = {}
    rng = np.random.default_rng([study.seed, 24])
    for name, items in by_task.items():
        drawn = np.sort(rng.permutation(len(items))[: study.effort.probe_tokens]).tolist()
        task = _task([items[index] for index in drawn])
        if task is not None:
            chosen[name] = task
    wanted = np.unique(np.concatenate([np.empty(0, np.int64), *(task.rows for task in chosen.values())]))
    tasks = {name: replace(task, rows=np.searchsorted(wanted, task.rows)) for name, task in chosen.items()}
    return tasks, wanted


def _task(items: Sequence[tuple[int, int, int, int]]) -> ProbeTask | None:
    """Return the task of items (row, label, kind, query); None if all labels are equal or the queries are
    too few for the folds."""
    if not items:
        return None
    rows, labels, kinds, queries = np.array(items).T
    values, label_of = np.unique(labels, return_inverse=True)
    if len(values) < 2 or len(np.unique(queries)) < FOLDS:
        return None
    return ProbeTask(rows, label_of, np.unique(kinds, return_inverse=True)[1], queries)


def _labels(words: Words) -> list[tuple[str, int, int]]:
    """Return (task, token, label) of the tasks of tokens."""
    labels = []
    query, title = words.texts
    in_query = {words.spelled[word].casefold() for word in query}
    for text in (query, title):
        tokens = np.flatnonzero(np.isin(words.word_of, text))
        for index, token in enumerate(tokens.tolist()):
            is_last = index + 1 == len(tokens)
            if not is_last:
                ends = words.word_of[token] != words.word_of[tokens[index + 1]]
                labels.append(("word_end", token, int(ends)))
            labels.append(("position", token, PARTS * index // len(tokens)))
    for word in range(len(words.spelled)):
        token = int(np.argmax(words.word_of == word))
        spelled = words.spelled[word].casefold()
        if (word_class := _word_class(spelled)) is not None:
            labels.append(("word_class", token, word_class))
        if words.in_title[word]:
            labels.append(("overlap", token, int(spelled in in_query)))
    return labels


def _word_class(word: str) -> int | None:
    """Return 0 for a function word, 1 for one with a digit, 2 for other words of the Latin alphabet, None for
    what is none."""
    letters = word.strip(".,:;!?()[]\"'&/-+")
    if any(map(str.isdigit, letters)):
        return 1
    if not letters.isascii() or not letters.isalpha():
        return None
    return 0 if letters in FUNCTION_WORDS else 2


def _folds(queries: Ints, seed: int) -> Ints:
    """Return the fold of each item; a query is in one."""
    _, number_of = np.unique(queries, return_inverse=True)
    folds = np.random.default_rng([seed, 25]).permutation(number_of.max() + 1) % FOLDS
    return folds[number_of]


def _control(task: ProbeTask, seed: int) -> Ints:
    """Return a random label of each kind of item, with the frequencies of the labels."""
    drawn = np.random.default_rng([seed, 26]).choice(task.labels, task.kinds.max() + 1)
    return np.asarray(drawn[task.kinds])


def _hits(features: Floats32, labels: Sequence[Ints], fold_of: Ints) -> Floats:
    """Return whether probes of the other folds tell each label, (len(labels), n).

    features: (n, D). labels: (n,) of each of several tasks, which share their features.
    """
    truth = [np.eye(of_task.max() + 1, dtype=np.float32)[of_task] for of_task in labels]
    columns = np.cumsum([0, *(one.shape[1] for one in truth)])
    wanted = np.concatenate(truth, 1)
    hits = np.zeros((len(labels), len(features)))
    for fold in range(FOLDS):
        held_out = fold_of == fold
        known = features[~held_out]
        centre = known.mean(0)
        scale = known.std(0) + np.float32(1e-6)
        x = (known - centre) / scale
        share = wanted[~held_out].mean(0)
        gram = x.T @ x + RIDGE * len(x) * np.eye(x.shape[1])
        weights = np.linalg.solve(gram, x.T @ (wanted[~held_out] - share))
        answers = ((features[held_out] - centre) / scale) @ weights + share
        for number, of_task in enumerate(labels):
            told = answers[:, columns[number] : columns[number + 1]].argmax(1)
            hits[number, held_out] = told == of_task[held_out]
    return hits


def _probed(hits: Floats, task: ProbeTask, study: Study) -> Probed:
    """Return the figures of a task. hits: (layers, 2, n), of the task and of its control."""
    _, number_of = np.unique(task.queries, return_inverse=True)
    count = np.bincount(number_of)
    by_query = np.stack(
        [np.bincount(number_of, weights=of_layer[0] - of_layer[1]) / count for of_layer in hits], 1
    )  # (queries, layers)
    outputs = by_query[:, 1:]
    half = outputs.shape[1] // 2
    rise = outputs[:, half:].mean(1) - outputs[:, :half].mean(1) if half else np.full(len(outputs), np.nan)
    columns = np.concatenate([by_query, rise[:, None]], 1)
    *selectivity, of_rise = mean_intervals(columns, study.effort.resamples, study.seed)
    means = hits.mean(2)
    frequent = float(np.bincount(task.labels).max() / len(task.labels))
    return Probed(
        selectivity, means[:, 0].tolist(), means[:, 1].tolist(), of_rise, len(task.labels), frequent
    )


def claim(probed: Mapping[str, Probed]) -> str:
    """Say whether form is told better by lower layers, and meaning by upper ones."""
    sentences = []
    for tasks, place, falls in ((FORM, "lower", True), (MEANING, "upper", False)):
        there = [name for name in tasks if name in probed]
        rises = [probed[name].rise for name in there]
        as_claimed = [
            NAMED[name]
            for name, rise in zip(there, rises, strict=True)
            if (rise.is_below(0) if falls else rise.is_above(0))
        ]
        against = [
            NAMED[name]
            for name, rise in zip(there, rises, strict=True)
            if (rise.is_above(0) if falls else rise.is_below(0))
        ]
        what = "form" if falls else "meaning"
        better = f"of {what}, {place} layers tell better: {listed(as_claimed)}"
        sentences.append(f"{better}; the other way round: {listed(against)}")
    return "; ".join(sentences)


def as_json(probed: Mapping[str, Probed]) -> list[Json]:
    """Return `probes` of report.json: a row per task and layer."""
    return [
        {
            "task": name,
            "layer": layer,
            "accuracy": one.accuracy[layer],
            "control_accuracy": one.control[layer],
            "selectivity": selectivity.value,
            "interval": selectivity.ends,
        }
        for name, one in probed.items()
        for layer, selectivity in enumerate(one.selectivity)
    ]


def section(study: Study, probed: Mapping[str, Probed]) -> Section:
    """Return the tables of the probes and how they were made."""
    names = list(probed)
    layers = len(next(iter(probed.values())).selectivity) if probed else 0
    rows = tuple(
        (
            "embeddings" if layer == 0 else str(layer - 1),
            *(probed[name].selectivity[layer].text(2, sign=True) for name in names),
        )
        for layer in range(layers)
    )
    rises = tuple(
        (
            NAMED[name],
            "form" if name in FORM else "meaning",
            f"{one.items:,}",
            f"{100 * one.frequent:.0f} %",
            f"{max(one.accuracy):.2f}",
            one.rise.text(sign=True),
        )
        for name, one in probed.items()
    )
    header = ("task", "kind", "items", "commonest label", "best accuracy", "upper half − lower half")
    return Section(
        "What each layer's output can tell",
        (method("probes", study.measures),),
        (
            Table(header, rises, "Selectivity in the upper half of the layers less that in the lower half."),
            Table(("layer", *(NAMED[name] for name in names)), rows, "Selectivity by layer."),
        ),
    )


def finding(probed: Mapping[str, Probed]) -> Finding:
    """Return the published claim beside our numbers."""
    rises = [f"{NAMED[name]} {one.rise.text(sign=True)}" for name, one in probed.items()]
    return Finding(
        "Lower layers lean to syntax, upper ones to meaning",
        "yes",
        f"{claim(probed)}. Selectivity, upper half − lower half: {listed(rises)}",
    )
