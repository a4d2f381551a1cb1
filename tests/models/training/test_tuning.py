"""`headroom train`'s work: somebody's own labels in, a checkpoint that serves out."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import spearmanr
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification

from headroom import Classifier, ModelError, UnsupportedCheckpoint
from headroom.models import device
from headroom.models.checkpoint.tokenizer import PairTokenizer
from headroom.models.compress.quantize import quantize
from headroom.models.quality.labelled import LabelledPair, read_labelled
from headroom.models.scores import Scores
from headroom.models.training import loop, tuning
from headroom.models.training.job import TrainingOptions, prepare, read_split
from headroom.models.training.loop import logits_of, targets
from headroom.models.training.tuning import chosen_by_other_half, report, start
from tests.checkpoints import write_checkpoint
from tests.families import edit_config
from tests.models.reference import reference
from tests.prompt import write_labelled

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = ["angle", "bracket", "wood", "screws", "lamp", "usb", "red", "towel", "steel", "cable"]


def tune(options: TrainingOptions) -> dict[str, Any]:
    """Check the options, and train."""
    return tuning.tune(prepare(options))


def write_pairs(file: Path, queries: int = 60) -> Path:
    """Titles with a lamp are grade 2, others 0: what even a tiny network learns in seconds."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(queries):
        query = rng.choice(WORDS)
        for _ in range(6):
            title = rng.choice(WORDS, 3)
            rows.append((f"{query} {number}", " ".join(title), 2 if "lamp" in title else 0))
    return write_labelled(file, rows)


def short_run(data: Path, base: Path, out: Path, *, epochs: int) -> TrainingOptions:
    """Options of a training that takes seconds."""
    return TrainingOptions(
        data=data,
        out=out,
        base=str(base),
        labels=("no", "maybe", "yes"),
        epochs=epochs,
        rate=3e-3,
        device="cpu",
    )


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("pairs") / "pairs.csv")


@pytest.fixture
def options(pairs: Path, tiny_checkpoint: Path, tmp_path: Path) -> TrainingOptions:
    return short_run(pairs, tiny_checkpoint, tmp_path / "mine", epochs=16)


@pytest.mark.more
def test_two_runs_never_share_their_state(options: TrainingOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(options, epochs=1)
    refused = []

    def train_beside_another(*args: Any, **kwargs: Any) -> Any:
        with pytest.raises(ModelError, match=r"another run is at work in .*mine.training; wait") as error:
            tune(options)
        refused.append(error)
        return loop.train(*args, **kwargs)

    monkeypatch.setattr(tuning, "train", train_beside_another)
    tune(options)
    assert len(refused) == 1
    assert Classifier.load(options.out, "cpu", "float32").grades == ("no", "maybe", "yes")


def test_a_directory_that_no_run_has_made_is_neither_used_nor_removed(options: TrainingOptions) -> None:
    options.work.mkdir()
    (options.work / "mine.txt").write_text("precious")
    with pytest.raises(ModelError, match=r"mine.training is in the way: .* move it away"):
        prepare(options)


def test_an_unfinished_run_is_not_continued_with_other_options_or_changed_files(
    options: TrainingOptions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The pairs would be split otherwise, and what was trained on before might judge the model now."""
    base = shutil.copytree(str(options.base), tmp_path / "base")
    data = Path(shutil.copy(options.data, tmp_path / "pairs.csv"))
    validation = tmp_path / "validation.csv"
    validation.write_text("query,title,grade\nlamp,red lamp,2\nlamp,wood,0\n")
    options = replace(options, data=data, validation=validation, base=str(base), epochs=1)
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "train", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            tune(options)
    prepare(options)
    for other, reason in (
        (replace(options, epochs=3), "another --epochs; repeat that run, or remove .*training"),
        (replace(options, rate=None), "another --rate;"),
        (replace(options, labels=("0", "1", "2")), "another --labels;"),
    ):
        with pytest.raises(ModelError, match=reason):
            prepare(other)
    for file, name, more in (
        (Path(base) / "config.json", "base", " \n"),
        (validation, "validation.csv", "towel,red towel,0\n"),
        (data, "pairs.csv", "towel,red towel,0\n"),
    ):
        before = file.read_text()
        file.write_text(before + more)
        with pytest.raises(ModelError, match=f"unfinished run with another content of .*{name}; repeat"):
            tune(options)
        file.write_text(before)
    assert not options.out.exists()


def test_training_starts_from_the_probabilities_that_the_checkpoint_serves(
    options: TrainingOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint's labels are in another order than their grades, and it has a calibration."""
    base = write_checkpoint(tmp_path / "base", num_labels=3)
    names = {"maybe": 0, "yes": 1, "no": 2}
    own = {"label_order": ["no", "maybe", "yes"], "temperature": 2.0, "bias": [0, 1, -2]}
    id2label = {number: name for name, number in names.items()}
    edit_config(base, label2id=names, id2label=id2label, headroom=own)
    monkeypatch.setattr(device, "cpu_flags", frozenset)  # no bfloat16

    job = prepare(replace(options, base=str(base)))
    model = start(job.base, job.options.labels, 0)
    tokenizer = PairTokenizer.load(base, max_tokens=64, vocab_size=model.config.vocab_size)
    logits = torch.from_numpy(logits_of(model, tokenizer, job.validation))
    served = Classifier.load(base, "cpu", "float32").score([(p.query, p.title) for p in job.validation])
    np.testing.assert_allclose(logits.softmax(-1).numpy(), served.probabilities, atol=1e-5)


def test_no_query_is_both_trained_on_and_validated_on_however_it_is_written(
    options: TrainingOptions, tmp_path: Path
) -> None:
    """The tokenizer makes the same tokens of other capitals and spaces."""
    data, own = tmp_path / "pairs.csv", tmp_path / "validation.csv"
    queries = [f"red shoes {number}" for number in range(20)]
    rows = [f"{query},x,0\n{query.upper().replace(' ', '  ')} ,y,2\n" for query in queries]
    data.write_text("query,title,grade\n" + "".join(rows))
    options = replace(options, data=data)
    training, validation = read_split(options)
    assert len(training) + len(validation) == 40
    one, other = ({" ".join(p.query.lower().split()) for p in part} for part in (training, validation))
    assert not one & other

    own.write_text("query,title,grade\nRed shoes  3,x,0\n")
    training, validation = read_split(replace(options, validation=own))
    assert (len(training), len(validation)) == (38, 1)


def test_rare_grades_weigh_more_and_the_mean_stays_one() -> None:
    pairs = [LabelledPair("a", "b", grade) for grade in [0] * 90 + [2] * 10]
    weights = targets(pairs, 3)[1].tolist()
    assert weights[-1] == pytest.approx(3 * weights[0])
    assert np.mean(weights) == pytest.approx(1)


def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    options: TrainingOptions, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    quantize(
        tiny_checkpoint, tmp_path / "int8", Classifier.load(tiny_checkpoint).tokenizer.encode([("a", "b")])
    )
    few = tmp_path / "few.csv"
    few.write_text("query,title,grade\na,b,1\n")
    for wrong, kind, message in (
        (replace(options, base=str(tmp_path / "int8")), UnsupportedCheckpoint, "int8 is int8, and 8-bit"),
        (replace(options, labels=("a", "a")), ModelError, "different names"),
        (replace(options, labels=("a", "b")), ModelError, "grade '2'"),
        (replace(options, data=few), ModelError, "more queries"),
    ):
        with pytest.raises(kind, match=message):
            tune(wrong)
        assert not options.out.exists()
        assert not options.out.with_name("mine.training").exists()  # nothing in the way of the right options
    assert read_labelled(options.data, grades=3)


def test_a_plain_encoder_gets_a_classifier_and_the_config_of_one(
    options: TrainingOptions, tmp_path: Path
) -> None:
    """A masked language model, whose own head is not read; transformers loads the result and scores alike."""
    base = write_checkpoint(tmp_path / "base", hidden_dropout_prob=0.1)
    weights = load_file(base / "model.safetensors")
    encoder = {name: tensor.bfloat16() for name, tensor in weights.items() if "embeddings" in name}
    encoder |= {name: tensor.bfloat16() for name, tensor in weights.items() if ".layer." in name}
    save_file(
        encoder | {"cls.predictions.bias": torch.zeros(9)}, base / "model.safetensors", {"format": "pt"}
    )
    edit_config(base, architectures=["BertForMaskedLM"], id2label=None, label2id=None, dtype="bfloat16")
    metrics = tune(replace(options, base=str(base), epochs=4))

    assert metrics["loss"]["training"]["after"] < metrics["loss"]["training"]["before"]
    theirs = AutoModelForSequenceClassification.from_pretrained(options.out)
    assert (type(theirs), theirs.dtype) == (BertForSequenceClassification, torch.float32)
    assert theirs.config.id2label == {0: "no", 1: "maybe", 2: "yes"}
    clf = Classifier.load(options.out, "cpu", "float32")
    logits = reference(theirs.eval(), clf.tokenizer.encode([("lamp 1", "red lamp")]), torch.float32)
    np.testing.assert_allclose(clf.score([("lamp 1", "red lamp")]).logits, logits, atol=2e-5)


def test_two_hundred_pairs_change_the_model_for_the_better(
    pairs: Path, options: TrainingOptions, tmp_path: Path
) -> None:
    few = tmp_path / "few.csv"
    few.write_text("".join(pairs.read_text().splitlines(keepends=True)[:201]))
    metrics = tune(replace(options, data=few, epochs=None, rate=None))
    assert metrics["steps"] >= 150
    loss = metrics["loss"]
    assert loss["training"]["after"] < 0.8 * loss["training"]["before"]
    assert loss["validation"]["after"] < loss["validation"]["before"]


def test_the_figures_are_of_queries_that_chose_neither_epoch_nor_temperature() -> None:
    """Of 200 epochs that only guess, the best one ranks the queries that chose it well, and no others."""
    rng = np.random.default_rng(0)
    pairs = [LabelledPair(f"query {i // 4}", "title", i % 3) for i in range(160)]
    truth = [pair.grade for pair in pairs]
    guesses = [rng.normal(size=(160, 3)) for _ in range(200)]
    best = max(spearmanr(truth, Scores.from_logits(guess).raw_score).statistic for guess in guesses)
    assert best > 0.15
    logits = chosen_by_other_half(guesses, pairs)
    assert abs(spearmanr(truth, Scores.from_logits(logits).raw_score).statistic) < best / 2

    right = 3.0 * np.eye(3)[truth]
    assert chosen_by_other_half([guesses[0], right], pairs).argmax(1).tolist() == truth
    one_query = [LabelledPair("one", "title", 1)]
    assert chosen_by_other_half([right[:1], right[1:2]], one_query).tolist() == [right[1].tolist()]


def test_an_improvement_is_claimed_only_if_the_interval_shows_it(options: TrainingOptions) -> None:
    guess = np.random.default_rng(0).normal(size=(160, 3))
    pairs = [LabelledPair(f"query {i // 4}", "title", i % 3) for i in range(160)]
    right = 3.0 * np.eye(3)[[pair.grade for pair in pairs]]
    a_little = report(guess, guess + 0.02 * right, pairs, seed=0)
    assert a_little["validation"]["ndcg10"] > a_little["validation_before"]["ndcg10"]
    assert not a_little["better"]
    assert report(guess, guess + right, pairs, seed=0)["better"]
    assert tune(replace(options, epochs=1))["validation_change"]["ndcg10"]["low"] is None  # 6 queries
