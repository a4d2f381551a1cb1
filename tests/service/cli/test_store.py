"""`headroom score --input F --store PATH` and `headroom store`, as typed at a prompt."""

import csv
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import orjson
import pytest
import yaml

from headroom import Classifier, HeadMask
from headroom.models.quality.labelled import Columns
from headroom.service.config.settings import LiveConfig
from headroom.service.files import filling
from headroom.service.files.options import ColumnSet, ScoreOptions
from headroom.service.files.scoring import WindowScorer
from headroom.service.scoring.store import ScoreStore
from tests.prompt import Run, with_config
from tests.service.in_process import check_scores, serve

PAIRS = [("angle bracket", f"steel angle {number}") for number in range(40)]


def head_queries(path: Path) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("query", "title"), *PAIRS, ("", "a title without a query")])
    return path


async def test_a_server_need_not_score_what_the_command_has_scored(
    run: Run, options: list[str], tiny_checkpoint: Path, clf: Classifier, tmp_path: Path
) -> None:
    store = tmp_path / "scores.db"
    source = head_queries(tmp_path / "head.csv")
    fill = [
        "score",
        "--input",
        str(source),
        "--store",
        str(store),
        *options,
        "--mask",
        "none",
        "--mask",
        "1.0-2",
    ]
    first = run(*fill)
    assert "40 pairs are kept; 80 rows were computed" in first.out
    assert "1 rows cannot be scored; the first: line 42: " in first.err
    again = orjson.loads(run(*fill, "--json").out)
    assert (again["pairs"], again["computed"], again["known"]) == (40, 0, 80)
    titles = [title for _, title in PAIRS]
    mask = HeadMask.parse("1.0-2", layers=3, heads=4)
    async with serve(tiny_checkpoint, score_store=store) as service:
        for spec, right in (("none", clf.score(PAIRS)), ("1.0-2", clf.score(PAIRS, mask))):
            body = {"query": "angle bracket", "titles": titles, "head_mask": spec}
            answer = await service.http.post("/v1/score", json=body)
            assert answer.headers["x-cache"] == "hit"
            check_scores(answer.json()["results"], right.score)


@pytest.mark.more
def test_the_command_keeps_the_limit_of_the_service_s_store(
    run: Run, tiny_checkpoint: Path, clf: Classifier, tmp_path: Path
) -> None:
    path = tmp_path / "scores.db"
    random = np.random.default_rng(0)
    with closing(ScoreStore(path)) as store:
        model = store.register(clf)
        while store.bytes_used < 11_000_000:
            store.keep(model, {random.bytes(16): random.bytes(20) for _ in range(10_000)})
    source = head_queries(tmp_path / "head.csv")
    settings = {"model": str(tiny_checkpoint), "device": "cpu", "dtype": "float32", "score_store_mb": 10}
    fill = ["score", "--input", str(source), "--store", str(path)]
    of_another = with_config(tmp_path, "variants: [{name: full}]", **settings)
    assert "full (" not in run(*fill, *of_another).err
    of_it = with_config(tmp_path, "variants: [{name: full}]", **settings, score_store=str(path))
    assert f"{path} is full (score_store_mb)" in run(*fill, *of_it).err
    with closing(ScoreStore(path)) as store:
        assert 9_000_000 < store.bytes_used <= 10_000_000


async def test_the_night_s_scores_are_those_of_the_config_s_default(
    run: Run, tiny_checkpoint: Path, clf: Classifier, tmp_path: Path
) -> None:
    path = tmp_path / "scores.db"
    source = head_queries(tmp_path / "head.csv")
    live = "{default: slim, variants: [{name: full}, {name: slim, head_mask: '1.0-2'}]}"
    config = with_config(tmp_path, live, model=str(tiny_checkpoint), device="cpu", dtype="float32")
    run("score", "--input", str(source), "--store", str(path), *config)
    titles = [title for _, title in PAIRS]
    right = clf.score(PAIRS, HeadMask.parse("1.0-2", layers=3, heads=4))
    async with serve(tiny_checkpoint, yaml.safe_load(live), score_store=path) as service:
        answer = await service.http.post("/v1/score", json={"query": "angle bracket", "titles": titles})
        assert answer.headers["x-cache"] == "hit"
        check_scores(answer.json()["results"], right.score)


def test_stats_and_prune(run: Run, options: list[str], tmp_path: Path) -> None:
    store = tmp_path / "scores.db"
    source = head_queries(tmp_path / "head.csv")
    run("score", "--input", str(source), "--store", str(store), *options)
    (model,) = orjson.loads(run("store", "stats", str(store), "--json").out)["models"]
    assert (model["scores"], model["number_format"]) == (40, "float32 on cpu")
    assert abs(model["used"] - time.time()) < 100
    assert f"{store}: 40 scores of 1 models" in run("store", "stats", str(store)).out
    assert "40 scores are left" in run("store", "prune", str(store)).out
    assert "0 scores are left" in run("store", "prune", str(store), "--unused-days", "0").out
    assert orjson.loads(run("store", "stats", str(store), "--json").out)["models"] == []


def test_what_is_no_store_or_goes_together_with_nothing_is_named(
    run: Run, options: list[str], tmp_path: Path
) -> None:
    source = head_queries(tmp_path / "head.csv")
    missing = tmp_path / "missing.db"
    assert f"score store {missing}: " in run("store", "stats", str(missing), status=1).err
    assert not missing.exists()
    assert f"score store {source}: " in run("store", "prune", str(source), status=1).err
    assert source.read_text().startswith("query,title")
    both = ["--store", str(tmp_path / "s.db"), "--output", str(tmp_path / "out.csv")]
    refused = run("score", "--input", str(source), *both, *options, status=2)
    assert "it goes with one of --output and --store" in refused.err
    empty = tmp_path / "empty.csv"
    empty.write_text("query,title\n,nothing\n")
    line = run("score", "--input", str(empty), "--store", str(tmp_path / "s.db"), *options, status=1).err
    assert "no row can be scored; line 2" in line


def test_a_million_pairs_take_less_than_150_megabytes(tmp_path: Path, clf: Classifier) -> None:
    """Measured on 50,000: the share of what a file has beside its rows falls with their number."""
    store = ScoreStore(tmp_path / "scores.db")
    model = store.register(clf)
    random = np.random.default_rng(0)
    for _ in range(25):
        store.keep(model, {random.bytes(16): random.bytes(20) for _ in range(2000)})
    assert store.bytes_used / 50_000 < 150


def test_what_is_scored_after_a_prune_is_kept(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is forgotten when 10 of 40 pairs are kept, while 10 others are under way."""
    monkeypatch.setattr(filling, "WINDOW_ROWS", 10)
    path = tmp_path / "scores.db"
    live = LiveConfig.model_validate({"variants": [{"name": "full"}]})
    options = ScoreOptions(
        str(tiny_checkpoint), live, (ColumnSet(),), Columns(), graded=True, device="cpu", dtype="float32"
    )
    store = ScoreStore(path)
    scorer = WindowScorer(options)

    def prune_once(share: float, rows: int, earlier: int) -> None:  # noqa: ARG001
        if rows == 10:
            assert ScoreStore(path).forget_models(lambda _: False) == 10

    filling.fill(str(head_queries(tmp_path / "head.csv")), options, scorer, store, prune_once)
    scorer.close()
    assert [model.scores for model in store.models()] == [30]
    store.close()
