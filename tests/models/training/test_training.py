"""The pipeline in small: folds never leak, a kill costs nothing, the checkpoint is a plain one."""

import gzip
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from models.training.batches import Batch, fitted, grouped, padded
from models.training.data import (
    GRADES,
    TEST_FOLDS,
    TRAINING_FOLDS,
    VALIDATION_FOLDS,
    Judged,
    Product,
    graded_target,
    read_judged,
)
from models.training.demo.catalogue import new_catalogue
from models.training.demo.dictionary import read_dictionary
from models.training.demo.export import PROBES, export
from models.training.demo.finetune import Validation, finetune
from models.training.demo.mixture import Sources, group_judged
from models.training.demo.pretrain import MaskedLanguageModel, masked_round
from models.training.demo.prose import new_prose
from models.training.demo.report import predict
from models.training.demo.shelf import new_shelf
from models.training.demo.titles import title_statistics
from models.training.evaluate import logits_of, probabilities_of
from models.training.loop import Progress, Schedule
from models.training.network import Model, new_model, stacked
from models.training.rounds import rounds
from models.training.saved import read_saved
from models.training.vocabulary import train_tokenizer

_TEXT = "angle bracket deck screw sofa couch phone case drill red green steel wood inch dish towel napkin"
WORDS = _TEXT.split()
LINES = [" ".join(WORDS[place:] + WORDS[:place]) for place in range(len(WORDS))]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(LINES, size=1000)


def small_model(seed: int = 0) -> Model:
    vectors = torch.nn.functional.normalize(
        torch.randn(1000, 24, generator=torch.Generator().manual_seed(3)), dim=1
    )
    return new_model(
        vocab_size=1000,
        layers=2,
        heads=4,
        hidden=24,
        feed_forward=48,
        max_tokens=32,
        vectors=vectors,
        seed=seed,
    )


def judged_sources() -> Sources:
    rows = [
        Judged(query, title, (a + b) % 5, "esci_us_150q", 4)
        for a, query in enumerate(WORDS)
        for b, title in enumerate(LINES)
    ]
    products = [Product("angle bracket", "", "")]
    shelf = new_shelf(products, read_dictionary([]), title_statistics(products, []))
    judged = group_judged(rows)
    return Sources(shelf, new_catalogue({}, []), WORDS, [], judged, {"esci": 1.0}, new_prose([]), [], [])


def test_no_query_is_in_two_folds_and_test_folds_never_reach_training(tmp_path: Path) -> None:
    rows = [
        {"query": f"q{n}", "title": "t", "grade": n % 5, "source": "esci_us_150q", "fold": n % 10}
        for n in range(50)
    ]
    with gzip.open(tmp_path / "graded.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    parts = [
        {row.query for row in read_judged(tmp_path, folds)}
        for folds in (TRAINING_FOLDS, VALIDATION_FOLDS, TEST_FOLDS)
    ]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 50
    assert set(TRAINING_FOLDS) | set(VALIDATION_FOLDS) | set(TEST_FOLDS) == set(range(10))


def test_a_target_keeps_its_mean_and_its_mass() -> None:
    for grade in (1.0, 2.25, 3.0):
        target = graded_target(grade)
        assert sum(target) == pytest.approx(1)
        assert sum(at * share for at, share in enumerate(target)) == pytest.approx(grade)


def test_a_pair_too_long_loses_its_longest_part_first() -> None:
    query, title = fitted(list(range(10)), list(range(100)), 40)
    assert (len(query), len(title)) == (10, 27)
    query, title = fitted(list(range(100)), list(range(100)), 41)
    assert (len(query), len(title)) == (19, 19)


def test_every_sequence_is_in_one_batch_and_batches_keep_their_budget() -> None:
    lengths = [7, 31, 8, 8, 30, 5, 64, 6]
    groups = grouped(lengths, batch_tokens=32)
    assert sorted(place for group in groups for place in group) == list(range(8))
    assert all(
        max(lengths[place] for place in group) * len(group) <= 32 or len(group) == 1 for group in groups
    )


def test_padding_is_masked_and_the_title_is_the_second_segment() -> None:
    ids, segments, mask = padded([([7, 8], [9]), ([7], [])])
    assert ids.tolist() == [[2, 7, 8, 3, 9, 3], [2, 7, 3, 3, 0, 0]]
    assert segments.tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 0, 0]]
    assert mask.tolist() == [[1] * 6, [1, 1, 1, 1, 0, 0]]


def test_the_vocabulary_spells_any_word_of_its_alphabet(tokenizer: Tokenizer) -> None:
    for text in ("zyxw", '12"', "café", "한국어", "5½ µm"):
        assert "[UNK]" not in tokenizer.encode(text).tokens


def test_an_untrained_model_already_attends_to_the_same_piece_across_the_separator() -> None:
    model = small_model().eval()
    ids, segments, mask = padded([([10, 11], [12, 13, 10])])
    with torch.no_grad():
        attention = model.bert(
            input_ids=ids, token_type_ids=segments, attention_mask=mask, output_attentions=True
        ).attentions[0]
    from_query = attention[0, 0::2, 1].mean(0)  # even heads, from piece 10 in the query
    assert int(from_query.argmax()) == 6  # piece 10 in the title


def run(directory: Path, tokenizer: Tokenizer, stop: Callable[[Batch], None] | None = None) -> Model:
    model = small_model()
    if stop is not None:
        model.register_forward_pre_hook(lambda *_: stop(None))  # type: ignore[arg-type]
    finetune(
        model,
        tokenizer,
        judged_sources(),
        {"judged": 1.0},
        Schedule(12, 1e-3, warmup=2),
        directory / "stage.pt",
        seed=5,
        max_tokens=32,
        batch_tokens=256,
        pairs_per_round=60,
        dropout=0.1,
        checkpoint_seconds=0.0,
    )
    return model


def test_a_killed_run_ends_with_the_weights_of_one_that_was_not(tmp_path: Path, tokenizer: Tokenizer) -> None:
    steps = iter(range(100))

    def kill_at_seven(_: Batch) -> None:
        if next(steps) == 7:
            raise KeyboardInterrupt

    whole = run(tmp_path / "whole", tokenizer)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", tokenizer, kill_at_seven)
    resumed = run(tmp_path / "killed", tokenizer)
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name


def test_weights_that_rank_worse_than_chance_are_kept_until_better_ones_come(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    model = small_model()
    titles = LINES[: len(GRADES)]
    probabilities = probabilities_of(logits_of(model, tokenizer, [("sofa", title) for title in titles]), 1.0)
    best_first = np.argsort(-probabilities @ np.arange(len(GRADES)))
    contrary = [
        Judged("sofa", titles[place], grade, "esci_us_150q", 2) for grade, place in enumerate(best_first)
    ]
    watch = Validation(model, tokenizer, contrary, tmp_path / "best.pt", every_seconds=3600)
    watch.measure(Progress(step=1))
    kept = read_saved(tmp_path / "best.pt")
    assert kept["score"] < 0
    assert kept["step"] == 1


def test_a_kill_while_the_best_weights_are_written_leaves_those_before(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = [Judged("sofa", title, grade, "esci_us_150q", 2) for grade, title in enumerate(LINES[:5])]
    best = tmp_path / "all.best.pt"
    watch = Validation(small_model(), tokenizer, judged, best, every_seconds=3600)
    watch.measure(Progress(step=1))
    whole = torch.save

    def killed(state: object, path: Path) -> None:
        whole(state, path)
        path.write_bytes(path.read_bytes()[:100])
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", killed)
    watch.best = -1.0
    with pytest.raises(KeyboardInterrupt):
        watch.measure(Progress(step=2))
    assert read_saved(best)["step"] == 1
    assert Validation(small_model(), tokenizer, judged, best, every_seconds=3600).best > -1


def test_the_rate_rises_stays_and_falls_to_nothing() -> None:
    schedule = Schedule(1000, 3e-4, warmup=50, decay=0.3)
    rates = [schedule.rate_at(step) for step in range(1000)]
    assert rates[0] == pytest.approx(3e-4 / 50)
    assert rates[24] == pytest.approx(3e-4 / 2)
    assert rates[50] == rates[400] == rates[700] == 3e-4
    assert rates[850] == pytest.approx(3e-4 / 2)
    assert rates[999] < 0.05 * 3e-4
    assert all(after <= before for before, after in pairwise(rates[50:]))


def test_rounds_made_ahead_are_those_made_when_they_are_asked_for(tokenizer: Tokenizer) -> None:
    text = [[tokenizer.encode(line).ids for line in LINES]]

    def make_round(index: int) -> list[Batch]:
        return masked_round(text, index=index, pairs=20, max_tokens=16, batch_tokens=128, vocab_size=1000)

    def first(workers: int) -> list[Batch]:
        made = rounds(make_round, 3, workers=workers)
        return [batch for _ in range(4) for batch in next(made)]

    for one, other in zip(first(0), first(2), strict=True):
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.labels, other.labels)


def test_masked_pretraining_learns(tokenizer: Tokenizer) -> None:
    tokens = [[encoding.ids for encoding in tokenizer.encode_batch(LINES, add_special_tokens=False)]]
    model = MaskedLanguageModel(small_model())
    batches = masked_round(tokens, index=0, pairs=64, max_tokens=32, batch_tokens=512, vocab_size=1000)
    assert all((batch.labels >= 0).sum() < 0.35 * batch.mask.sum() for batch in batches)
    before = sum(float(model.loss(batch).detach()) for batch in batches)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for batch in batches * 3:
        model.loss(batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    assert sum(float(model.loss(batch).detach()) for batch in batches) < before


def test_the_checkpoint_is_a_plain_one_that_gives_the_same_answers(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    model = stacked(small_model(), 4)
    assert model.config.num_hidden_layers == 4
    difference = export(model, tokenizer, tmp_path, temperature=1.5, metrics={"test": {"all": {"qwk": 0.5}}})
    assert difference < 0.02
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert [config["id2label"][str(grade)] for grade in range(5)] == list(GRADES)
    assert config["headroom"]["temperature"] == 1.5
    assert {path.name for path in tmp_path.iterdir()} >= {
        "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "metrics.json",
    }  # fmt: skip
    ours = torch.tensor(logits_of(model, tokenizer, PROBES, bf16=False) / 1.5).softmax(-1)
    assert torch.allclose(ours, torch.tensor(predict(tmp_path, PROBES)), atol=0.01)
