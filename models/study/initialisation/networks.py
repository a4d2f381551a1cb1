"""Trains a checkpoint's network from several starts, and records what its heads do then.

Starts of one kind differ in nothing but the weights that are drawn: the recipe, the pairs, their order and
the dropout are the same. `body`: every layer is drawn anew and only the embeddings stay; `pretrained`: only
the classifier on top is drawn. Matrices are drawn as Glorot and Bengio (2010) do.
"""

import contextlib
import hashlib
import io
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from headroom.models.arrays import Bools, Floats32, Ints
from headroom.models.batch import pack
from headroom.models.checkpoint.tensor_names import LAYERS
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.classifier import Classifier
from headroom.models.condense.words import chinese_splitter, has_jieba
from headroom.models.files import write_whole
from headroom.models.learner import Learner
from headroom.models.network import Network
from headroom.models.ops.torch import normed
from headroom.models.quality.labelled import LabelledPair
from headroom.models.study.roles.scores import ROLES, role_scores
from headroom.models.study.study import Study
from headroom.models.study.words import Words
from headroom.models.training.loop import (
    Batch,
    Progress,
    Schedule,
    grouped,
    logits_of,
    ordinal_loss,
    targets,
    train,
)
from headroom.models.training.tuning import RATE, WIDTH, judged
from headroom.models.training.tuning import start as learner_of

Start = Literal["body", "pretrained"]

STARTS: dict[Start, str] = {
    "body": "layers drawn anew",
    "pretrained": "only the classifier drawn anew",
}
"""What is drawn anew before a training, as reports say it."""

RATES = {"body": 5 * RATE, "pretrained": RATE}
"""The peak learning rate of a network as wide as BERT-base; a network that begins at random takes more."""

BATCH_TOKENS = 1024
TOKENS = 10
"""How many tokens of each pair the heads' outputs are recorded at."""

JUDGED = 8

TRAINED_SHARE = 2 / 3
"""The share of the queries that is trained on; the heads are compared on the others."""


@dataclass(frozen=True)
class Recipe:
    """The pairs that every start is trained and compared on, and the steps of its training.

    training: with the grades numbered from 0 without gaps; labels: their names. compared: held-out rows of
    the study's data. held_out: JUDGED times as many pairs of the same queries, which judge the networks.
    """

    training: Sequence[LabelledPair]
    held_out: Sequence[LabelledPair]
    compared: Sequence[int]
    labels: tuple[str, ...]
    steps: int

    @classmethod
    def of(cls, study: Study) -> "Recipe":
        """Split the study's queries by its seed."""
        data = study.data
        order = np.random.default_rng([study.seed, 19]).permutation(len(data.queries))
        trained = np.isin(data.query_of, order[: round(TRAINED_SHARE * len(order))])
        grades, ranks = np.unique(data.grade, return_inverse=True)
        pairs = [replace(one, grade=int(rank)) for one, rank in zip(data.labelled, ranks, strict=True)]
        others = np.flatnonzero(~trained)
        rest = data.take(others.tolist())
        chosen = rest.spread(study.effort.start_pairs, study.seed)
        judged = rest.spread(JUDGED * study.effort.start_pairs, study.seed)
        return cls(
            training=[pairs[row] for row in np.flatnonzero(trained)],
            held_out=[pairs[row] for row in others[judged]],
            compared=others[chosen].tolist(),
            labels=tuple(str(grade) for grade in grades),
            steps=study.steps or study.effort.start_steps,
        )


@dataclass(frozen=True)
class Recorded:
    """The attention and the outputs of one network's heads on the compared pairs, lowest layer first.

    maps: the attention of each pair from word to word, (heads, words, words). outputs: (tokens, heads,
    d_head), what heads write at some tokens. holds: (roles, heads) bool, which heads hold which of ROLES.
    ndcg10: on the held-out queries.
    """

    maps: Sequence[Floats32]
    outputs: Floats32
    holds: Bools
    ndcg10: float


def record(study: Study, recipe: Recipe, start: Start, seed: int) -> Recorded:
    """Train from a start with weights drawn by a seed, and return what the heads do.

    What is done is kept in the study's cache: a run that was stopped in a training goes on from its last
    checkpoint, which is written every minute.
    """
    with _directory(study) as directory:
        key = _key(study, recipe, start, seed)
        file = directory / f"start-{key}.npz"
        with contextlib.suppress(OSError, ValueError, KeyError, EOFError):  # it is not there, or damaged
            return _read(file.read_bytes())
        work = directory / f"training-{key}"
        recorded = _trained(study, recipe, start, seed, work / "progress.pt")
        write_whole(file, _written(recorded))
        shutil.rmtree(work, ignore_errors=True)
        return recorded


@contextlib.contextmanager
def _directory(study: Study) -> Iterator[Path]:
    cache = study.runner.cache
    if cache is not None:
        yield cache
        return
    with TemporaryDirectory(prefix="headroom-starts-") as directory:
        yield Path(directory)


def _key(study: Study, recipe: Recipe, start: Start, seed: int) -> str:
    """Return a name for all that a training's numbers depend on."""
    settings = (study.runner.identity, study.seed, start, seed, recipe.steps, recipe.compared)
    pairs = [(one.query, one.title, one.grade) for one in (*recipe.training, *recipe.held_out)]
    return hashlib.sha256(repr((settings, pairs)).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _trained(study: Study, recipe: Recipe, start: Start, seed: int, checkpoint: Path) -> Recorded:
    """Return what the heads of a start do after its training. checkpoint: the file of a stopped training."""
    directory = study.classifier.directory
    assert directory is not None  # `ask` has refused others
    model = learner_of(directory, recipe.labels, study.seed).to(study.classifier.network.device)
    redraw(model, ("classifier", "bert.pooler", *([LAYERS] if start == "body" else ())), seed)
    compared = study.encode(recipe.compared)
    study.progress.start(f"training {seed + 1} of {study.seeds}, {start}", recipe.steps)
    _train(model, study, recipe, RATES[start] * WIDTH / model.config.hidden_size, checkpoint)
    logits = logits_of(model, study.classifier.tokenizer, recipe.held_out)
    trained = _classifier(study.classifier, model)
    return Recorded(
        maps=_maps(trained, study, compared),
        outputs=_outputs(trained.network, study, compared),
        holds=_roles(trained, study, recipe, compared),
        ndcg10=judged(logits, recipe.held_out).metrics()["ndcg10"],
    )


def _train(model: Learner, study: Study, recipe: Recipe, rate: float, checkpoint: Path) -> None:
    """Train a model in place. rate: the highest learning rate. checkpoint: the file of a stopped training."""
    pairs = study.classifier.tokenizer.encode([(one.query, one.title) for one in recipe.training])
    labels, weights = targets(recipe.training, len(recipe.labels))

    def make_round(number: int) -> list[Batch]:
        shuffled = np.random.default_rng([study.seed, 20, number]).permutation(len(pairs))
        groups = grouped([len(pairs[row]) for row in shuffled], batch_tokens=BATCH_TOKENS)
        order = np.random.default_rng([study.seed, 21, number]).permutation(len(groups))
        rows_of = (shuffled[groups[index]].tolist() for index in order)
        return [Batch([pairs[row] for row in rows], labels[rows], weights[rows]) for rows in rows_of]

    done = 0

    def after_step(progress: Progress) -> None:
        nonlocal done
        study.progress.advance(progress.step - done)
        done = progress.step

    train(
        model,
        lambda batch: ordinal_loss(model(batch.pairs), batch.labels, batch.weights),
        make_round,
        Schedule(recipe.steps, rate, warmup=max(1, recipe.steps // 10), decay=0.9),
        checkpoint,
        seed=study.seed,
        after_step=after_step,
    )


def _roles(classifier: Classifier, study: Study, recipe: Recipe, compared: Sequence[EncodedPair]) -> Bools:
    """Return which heads hold which of ROLES, (roles, heads)."""
    query_of = study.data.query_of[list(recipe.compared)].tolist()
    split = chinese_splitter() if study.data.is_chinese and has_jieba() else None
    study.progress.start("roles", len(compared))
    scores = role_scores(replace(study, classifier=classifier), compared, query_of, split)
    return np.stack([scores[role].holds for role in ROLES])


def redraw(model: Learner, prefixes: tuple[str, ...], seed: int) -> None:
    """Draw the weights whose names begin with a prefix: matrices uniformly within ±√(6 / (in + out)), the
    weights of norms 1 and biases 0. The embeddings are no longer trained."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            ours = name.replace("/", ".")
            if ours.startswith("bert.embeddings."):
                weight.requires_grad = False
            if not ours.startswith(prefixes):
                continue
            if weight.ndim > 1:
                drawn = torch.empty(weight.shape)
                nn.init.xavier_uniform_(drawn, generator=generator)
                weight.copy_(drawn)
            else:
                weight.fill_(float(ours.endswith("weight")))


def _classifier(classifier: Classifier, model: Learner) -> Classifier:
    """Return the classifier that the weights make now, without dropout."""
    model.eval()
    network = model.network()
    return replace(classifier, config=model.config, network=network, generator=None, stored_masks={})


def _maps(classifier: Classifier, study: Study, pairs: Sequence[EncodedPair]) -> list[Floats32]:
    """Return the attention from word to word in each pair, special tokens included."""
    return [
        Words.of(classifier.tokenizer, pair).attention(
            classifier.attention_maps(pair, study.heads), special=True
        )
        for pair in pairs
    ]


def _outputs(network: Network, study: Study, pairs: Sequence[EncodedPair]) -> Floats32:
    """Return what each head writes at up to TOKENS tokens of each pair, (tokens, heads, d_head)."""
    rng = np.random.default_rng([study.seed, 22])
    of_pairs = []
    with torch.inference_mode():
        for pair in pairs:
            batch = pack([pair], device=network.device, fill=False)
            tokens = np.sort(rng.permutation(len(pair))[:TOKENS])
            states = network.hidden_states(batch, network.selector.select(None), every_token=True)
            of_layers = list[Tensor]()
            for layer, x in zip(network.layers, states, strict=False):
                if layer.heads is None:
                    continue
                entering = normed(x.clone(), layer.attention_input_norm)
                heads = network.attend(layer.heads, entering, batch, None)
                of_layers.append(heads[tokens].float().view(len(tokens), layer.heads.count, -1))
            of_pairs.append(torch.cat(of_layers, 1).numpy(force=True))
    return np.concatenate(of_pairs)


def _written(recorded: Recorded) -> bytes:
    """Return a file's content: the maps of all pairs as one row of numbers, and how many words each has."""
    buffer = io.BytesIO()
    np.savez(
        buffer,
        maps=np.concatenate([one.ravel() for one in recorded.maps]),
        words=[one.shape[-1] for one in recorded.maps],
        outputs=recorded.outputs,
        holds=recorded.holds,
        ndcg10=recorded.ndcg10,
    )
    return buffer.getvalue()


def _read(content: bytes) -> Recorded:
    with np.load(io.BytesIO(content)) as file:
        words: Ints = file["words"]
        heads = file["holds"].shape[1]
        return Recorded(
            _maps_of(file["maps"], words, heads),
            file["outputs"],
            file["holds"],
            float(file["ndcg10"]),
        )


def _maps_of(numbers: Floats32, words: Ints, heads: int) -> list[Floats32]:
    parts = np.split(numbers, np.cumsum(heads * words**2)[:-1])
    return [part.reshape(heads, size, size) for part, size in zip(parts, words.tolist(), strict=True)]
