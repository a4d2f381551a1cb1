"""`headroom.study`: the command's answers, from a frame."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from headroom import Classifier, ModelError, StudyResult, prune, study
from tests.checkpoints import load, write_checkpoint
from tests.prompt import Run
from tests.prompt import run as run

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.more]

WORDS = "lamp usb cable red blue steel kitchen towel screw deck laptop case".split()


def judged(prefix: str) -> pd.DataFrame:
    """480 pairs of 120 queries with grades at random: nothing is shown, and everything is computed."""
    rng = np.random.default_rng(0)
    rows = [
        (f"{prefix} {WORDS[number % 12]} {number}", " ".join(rng.choice(WORDS, 4)), grade)
        for number in range(120)
        for grade in rng.permutation(5)[:4].tolist()
    ]
    return pd.DataFrame(rows, columns=["query", "title", "grade"])


def ranked_by(clf: Classifier, prefix: str) -> pd.DataFrame:
    """The same pairs, with the grades in the order of a model's own scores: it ranks better than chance."""
    frame = judged(prefix)
    scores = clf.score(list(zip(frame["query"], frame["title"], strict=True))).raw_score
    frame["grade"] = np.argsort(np.argsort(scores.reshape(-1, 4), axis=1), axis=1).ravel()
    return frame


def asked(kind: str, clf: Classifier, directory: Path) -> list[str]:
    """The command line that asks a model quickly about judged.csv, with its report in `command`."""
    files = ["--data", str(directory / "judged.csv"), "--out", str(directory / "command")]
    model = ["--model", str(clf.directory), "--device", "cpu", "--dtype", "float32"]
    return ["study", kind, "--quick", *files, *model]


@pytest.fixture(scope="module")
def one_label(tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    return load(write_checkpoint(tmp_path_factory.mktemp("one"), seed=1, num_labels=1))


@pytest.fixture(scope="module")
def single(one_label: Classifier) -> StudyResult:
    return study.single(one_label, judged("a"), quick=True)


def test_a_table_has_a_row_per_head_with_its_change_and_interval(single: StudyResult) -> None:
    table = single.to_frame()
    heads = [(layer, head) for layer in range(3) for head in range(4)]
    assert list(zip(table["layer"], table["head"], strict=True)) == heads
    assert (table["interval_ndcg10_low"] <= table["delta_ndcg10"]).all()
    assert (table["delta_ndcg10"] <= table["interval_ndcg10_high"]).all()
    assert "delta_qwk" not in table  # a model with one score has no grades
    assert single.kind == "single"
    assert single.mask is None


def test_the_table_the_picture_and_the_report_agree(single: StudyResult, tmp_path: Path) -> None:
    page = single.report(tmp_path / "single")
    report = json.loads((page.parent / "report.json").read_text())
    assert report["verdict"] == single.verdict
    assert [head["delta"]["ndcg10"] for head in report["heads"]] == single.to_frame()["delta_ndcg10"].tolist()
    assert (page.parent / "plots" / "single-heads.png").is_file()
    cells = single.plot().axes[0].images[0].get_array()
    np.testing.assert_allclose(cells.ravel(), 100 * single.to_frame()["delta_ndcg10"], rtol=1e-6)
    assert single.verdict[:40] in repr(single).replace("\n", " ")
    assert single._repr_html_().startswith("<p><strong>")


def test_the_report_is_the_commands(
    single: StudyResult, one_label: Classifier, run: Run, tmp_path: Path
) -> None:
    judged("a").to_csv(tmp_path / "judged.csv", index=False)
    run(*asked("single", one_label, tmp_path))
    single.report(tmp_path / "python")
    ours, theirs = (json.loads((tmp_path / d / "report.json").read_text()) for d in ("python", "command"))
    assert ours["data"].pop("source") == "data"
    assert theirs["data"].pop("source") == str(tmp_path / "judged.csv")
    assert ours["heads"] == theirs["heads"]
    assert ours["baseline_interval"] == theirs["baseline_interval"]


@pytest.mark.slow
def test_search_gives_a_mask_that_prune_takes(one_label: Classifier, tmp_path: Path) -> None:
    holdout = ranked_by(one_label, "b")
    found = study.search(one_label, ranked_by(one_label, "a"), holdout=holdout, margin=0.5, quick=True)
    assert found.mask is not None, found.verdict
    chosen = found.content["chosen"]
    assert chosen["spec"] == found.mask.spec
    table = found.to_frame()
    assert chosen["heads_on"] in table["heads_on"].tolist()
    assert prune(one_label, found.mask, tmp_path / "smaller").sizes["heads"] == (12, chosen["heads_on"])
    found.report(tmp_path / "search")
    assert json.loads((tmp_path / "search" / "mask.json").read_text())["spec"] == found.mask.spec
    with pytest.raises(ModelError, match="the report of `headroom study search`"):
        study.layers(one_label, judged("a"), quick=True, out=tmp_path / "search")


def test_wrong_input_is_refused_in_a_sentence(one_label: Classifier) -> None:
    pairs = judged("a")
    with pytest.raises(ModelError, match="data has no column 'grade'"):
        study.single(one_label, pairs.drop(columns="grade"))
    with pytest.raises(ModelError, match=r"margin: 0.9 is outside the valid range, 0.001 to 0.5"):
        study.single(one_label, pairs, margin=0.9)
    with pytest.raises(ModelError, match="what: 'tails' is none of heads, units, layers"):
        study.search(one_label, pairs, what=("tails",))
    with pytest.raises(
        ModelError, match=r"held-out queries must take no part .* holdout shares 120 with data"
    ):
        study.search(one_label, pairs, holdout=pairs)
    with pytest.raises(ModelError, match="recover_minutes: it needs out"):
        study.search(one_label, pairs, recover_minutes=1)
    with pytest.raises(ModelError, match="data: a study needs at least"):
        study.single(one_label, pairs[:20])


def test_starts_of_a_one_label_model_are_rows_whose_shares_add_up(one_label: Classifier) -> None:
    with pytest.raises(ModelError, match="seeds: 2 is outside the valid whole numbers, 3 to 20"):
        study.initialisation(one_label, judged("a"), seeds=2)
    table = study.initialisation(one_label, judged("a"), quick=True, seeds=3, steps=1).to_frame()
    assert table["start"].tolist() == ["body", "pretrained"]
    shares = table[[f"variance_{share}_value" for share in ("layer", "position", "seed")]]
    assert shares.sum(axis=1).tolist() == pytest.approx([1, 1])


def test_heads_that_copy_need_a_query_generator(one_label: Classifier) -> None:
    with pytest.raises(ModelError, match="has no query generator"):
        study.single(one_label, judged("a"), part="cross")
    with pytest.raises(ModelError, match="part: 'decoder' is none of encoder, cross"):
        study.single(one_label, judged("a"), part="decoder")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "options", "valid"),
    [
        ("single", {"margn": 0.05}, "query, title, grade, seed, quick, out, margin, part$"),
        ("layers", {"holdout": []}, "out, margin$"),
        ("similarity", {"margin": 0.05}, "quick, out$"),
        ("initialisation", {"margin": 0.05}, "quick, out, seeds, steps$"),
        ("all", {"what": ("units",)}, "margin, holdout$"),
        ("search", {"recover": 5}, "margin, holdout, what, speedup, recover_minutes$"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused_with_the_valid_ones(
    one_label: Classifier, kind: str, options: dict[str, Any], valid: str
) -> None:
    name = next(iter(options))
    with pytest.raises(TypeError, match=rf"study.{kind}\(\) takes no option '{name}'; it takes .*{valid}"):
        getattr(study, kind)(one_label, judged("a"), **options)
