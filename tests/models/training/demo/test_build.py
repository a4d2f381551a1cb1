"""The whole pipeline on a handful of products: `make model` must not fail in its last minute."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from models.checkpoint.figures import read_quality
from models.errors import ModelError
from models.training.batches import tokenized
from models.training.data import read_text
from models.training.demo.build import RECIPE, averaged, build, main, read_sources, vectors_stage
from models.training.demo.export import main as export
from models.training.demo.finetune import finetune
from models.training.demo.mixture import Sources
from models.training.demo.recipe import Recipe, read_recipe
from models.training.demo.reliability import plot
from models.training.demo.report import as_markdown, predict, report
from models.training.demo.work import MARK, claim
from models.training.loop import Progress

THINGS = ("Sofa", "Bracket", "Drill", "Towel", "Lamp", "Kettle")
MAKERS = ("Acme", "Nordhem", "Volta", "Ironside")
TITLES = [f"{maker} Red {thing}, {size} inch" for maker in MAKERS for thing in THINGS for size in (4, 8)]


def _write_lines(path: Path, rows: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layout of the data directory, with 48 products."""
    root = tmp_path_factory.mktemp("data")
    esci = [
        {
            "title": title,
            "brand": title.split()[0],
            "bullet_points": f"{title} made to last",
            "description": "",
        }
        for title in TITLES
    ]
    _write_lines(root / "esci_us_150q" / "products.json.gz", esci)
    icecat = [{"title": title.lower(), "supplier": "Volta", "short": None} for title in TITLES[:9]]
    _write_lines(root / "chorus_icecat" / "products_titles.jsonl.gz", icecat)
    for source in ("esci_us_150q", "chorus_icecat"):
        _write_lines(root / source / "text.txt.gz", TITLES)
    meanings = [f"{thing.lower()}, old {thing.lower()} (thing): a thing for a house" for thing in THINGS]
    _write_lines(root / "oewn_text" / "text.txt.gz", [*meanings, "thing: something that is there"])
    film = {
        "id": "1",
        "title": "Heat",
        "overview": "A thief.",
        "genres": ["Drama"],
        "actors": ["A B"],
        "year": 1995,
    }
    _write_lines(root / "msrd_movies" / "movies-corpus.jsonl.gz", [film])
    judgments = ["query_id\tquery\tdoc_id\tgrade", "q\theat\t1\t1", "q\tkettle\t1\t0"]
    _write_lines(root / "msrd_movies" / "movies-judgments.tsv.gz", judgments)
    sources = ("esci_us_150q", "chorus_icecat", "dbpedia_entity_v2", "socrata_arcs")
    judged = [
        {
            "query": f"{thing} {fold}",
            "title": title,
            "grade": (place + fold) % 5,
            "source": source,
            "fold": fold,
        }
        for source in sources
        for fold in range(10)
        for thing in THINGS[:2]
        for place, title in enumerate(TITLES[:5])
    ]
    _write_lines(root / "graded.jsonl.gz", judged)
    return root


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    shares = {
        "product": 0.3,
        "thing": 0.1,
        "pseudo": 0.2,
        "described": 0.1,
        "dictionary": 0.1,
        "movies": 0.1,
        "judged": 0.1,
        **dict.fromkeys(("things", "numbers", "series", "strangers", "prose", "ranked"), 0.1),
    }
    stage = {"steps": 2, "rate": 1e-3, "pairs_per_round": 60, "max_tokens": 32, "batch_tokens": 512}
    return Recipe.model_validate(
        {
            "network": {
                "first_layers": 1, "layers": 2, "heads": 2, "hidden": 16, "feed_forward": 32,
                "max_tokens": 48, "vocabulary": 700,
            },
            "pretrain": stage,
            "graded": [
                {**stage, "name": "few", "layers": 1, "shares": {"pseudo": 1.0}},
                {**stage, "name": "all", "layers": 2, "shares": shares, "learnt": 0.7},
                {
                    **stage, "name": "more", "layers": 2, "shares": shares, "hands_on": "last",
                    "begins_with": {"all": 1.0}, "judged_shares": {"esci": 1.0},
                },
            ],
            "average": {"all": 0.5, "more": 0.5},
            "judged_shares": {"esci": 0.5, "chorus": 0.2, "dbpedia": 0.2, "socrata": 0.1},
        }
    )  # fmt: skip


def test_the_pipeline_ends_in_a_checkpoint_with_its_figures(
    data: Path, recipe: Recipe, tmp_path: Path
) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    metrics = build(recipe, data=data, out=out, work=work)
    assert json.loads((out / "metrics.json").read_text()) == metrics
    assert metrics["test_by_source"]["esci"]["pairs"] == 20
    assert metrics["test"]["pairs"] == 40  # ESCI and Chorus
    assert metrics["compute"]["all"]["step"] == 2
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == 2
    assert predict(out, [("sofa", "Acme Red Sofa")]).shape == (1, 5)
    figures, curves = report(out, data, "test")
    assert len(as_markdown(figures).splitlines()) == 2 + 6
    assert curves["products"].pairs.sum() == 40
    plot(curves, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    again = build(
        recipe, data=data, out=out, work=work
    )  # everything is done: only the figures are made again
    assert again["test"] == metrics["test"]


def test_a_stage_may_weigh_the_sources_of_human_labels_itself(
    data: Path, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def noted(model: Any, tokenizer: Any, sources: Sources, *rest: Any, **more: Any) -> Progress:
        seen.append(sources.judged_shares)
        return finetune(model, tokenizer, sources, *rest, **more)

    monkeypatch.setattr("models.training.demo.build.finetune", noted)
    build(recipe, data=data, out=tmp_path / "out", work=tmp_path / "work")
    assert seen == [recipe.judged_shares, recipe.judged_shares, {"esci": 1.0}]


def test_an_unknown_source_of_human_labels_is_named(data: Path, recipe: Recipe) -> None:
    wrong = recipe.model_copy(update={"judged_shares": {"esci": 0.5, "esc": 0.5}})
    with pytest.raises(ValueError, match=r"judged_shares: no such source: esc; there are .*esci"):
        read_sources(wrong, data)


def test_a_recipe_goes_on_from_a_checkpoint(data: Path, recipe: Recipe, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    build(recipe, data=data, out=first, work=tmp_path / "work")
    stage = {**recipe.graded[1].model_dump(), "ranking_weight": 0.5, "learnt": 0.0}
    again = {**recipe.model_dump(), "begins_from": first, "pretrain": None, "graded": [stage], "average": {}}

    metrics = build(Recipe.model_validate(again), data=data, out=second, work=tmp_path / "again")

    assert list(metrics["compute"]) == ["all"]
    before, after = (load_file(path / "model.safetensors") for path in (first, second))
    assert all(torch.equal(before[name], after[name]) for name in before)  # nothing of what it learnt is kept
    assert (first / "tokenizer.json").read_bytes() == (second / "tokenizer.json").read_bytes()
    export(["--weights", str(tmp_path / "again" / "all.pt"), "--like", str(first), "--data", str(data),
            "--out", str(tmp_path / "third")])  # fmt: skip
    learnt = load_file(tmp_path / "third" / "model.safetensors")
    assert any(not torch.equal(before[name], learnt[name]) for name in before)
    quality = read_quality(tmp_path / "third")  # as whoever loads it reads it
    assert quality is not None
    assert quality["pairs"] == 40


def test_a_recipe_begins_somewhere(recipe: Recipe) -> None:
    with pytest.raises(ValueError, match="either begins_from or pretrain"):
        Recipe.model_validate({**recipe.model_dump(), "pretrain": None})


def test_the_committed_recipe_is_sound() -> None:
    recipe = read_recipe(RECIPE)
    assert recipe.network.layers == recipe.graded[-1].layers == 12
    for stage in recipe.graded:
        made_up = sum(share for kind, share in stage.shares.items() if kind not in ("judged", "ranked"))
        assert made_up / sum(stage.shares.values()) >= 0.5


def test_the_finished_model_is_the_average_that_the_recipe_names() -> None:
    weights = {"a": {"w": torch.tensor([1.0, 0.0])}, "b": {"w": torch.tensor([0.0, 4.0])}}
    assert averaged(weights, {"a": 0.25, "b": 0.75})["w"].tolist() == [0.25, 3.0]


@pytest.mark.parametrize(
    ("average", "reason"),
    [
        ({"all": 0.5, "some": 0.5}, "names stages of 2 layers"),
        ({"all": 0.5, "few": 0.5}, "names stages of 2 layers"),
        ({"all": 0.5}, "add up to 1"),
    ],
)
def test_an_average_of_other_stages_is_refused(
    recipe: Recipe, average: dict[str, float], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Recipe.model_validate({**recipe.model_dump(), "average": average})


@pytest.mark.parametrize(
    ("begins_with", "reason"),
    [
        ({"later": 1.0}, "that came before"),
        ({"some": 0.5, "all": 0.5}, "names stages of 2 layers"),
        ({"all": 0.5}, "add up to 1"),
    ],
)
def test_a_stage_begins_with_what_earlier_stages_of_its_size_handed_on(
    recipe: Recipe, begins_with: dict[str, float], reason: str
) -> None:
    graded = [stage.model_dump() for stage in recipe.graded]
    later = {**graded[-1], "name": "later"}
    assert Recipe.model_validate(
        {**recipe.model_dump(), "graded": [*graded, {**later, "begins_with": {"all": 1.0}}]}
    ).averaged_stages() >= {"all"}
    with pytest.raises(ValueError, match=reason):
        Recipe.model_validate(
            {**recipe.model_dump(), "graded": [*graded, {**later, "begins_with": begins_with}]}
        )


@pytest.mark.parametrize("hands_on", ["best", "last"])
def test_a_stage_hands_on_the_weights_that_the_recipe_says(
    data: Path, recipe: Recipe, tmp_path: Path, hands_on: str
) -> None:
    stage = {**recipe.graded[1].model_dump(), "learnt": 1.0, "hands_on": hands_on}
    recipe = Recipe.model_validate({**recipe.model_dump(), "graded": [stage], "average": {}})
    build(recipe, data=data, out=tmp_path / "out", work=tmp_path)
    best = torch.load(tmp_path / "all.best.pt", weights_only=True)
    last = torch.load(tmp_path / "all.pt", weights_only=True)["model"]
    best["model"] = {name: weight + 1 for name, weight in best["model"].items()}
    torch.save({**best, "score": 1.0}, tmp_path / "all.best.pt")

    build(recipe, data=data, out=tmp_path / "out", work=tmp_path)  # the stage is done: it hands on again

    written = load_file(tmp_path / "out" / "model.safetensors")
    expected = (best["model"] if hands_on == "best" else last)["classifier.weight"]
    torch.testing.assert_close(written["classifier.weight"], expected.half())


def test_a_work_directory_of_another_recipe_is_refused(data: Path, recipe: Recipe, tmp_path: Path) -> None:
    """Its finished stages would be shipped as this recipe's."""
    work = tmp_path / "work"
    claim(work, recipe, data)
    claim(work, recipe, data)  # the same run goes on
    with pytest.raises(ModelError, match="work holds the state of another recipe"):
        build(recipe.model_copy(update={"seed": 7}), data=data, out=tmp_path / "out", work=work)
    assert not (tmp_path / "out").exists()
    (work / MARK).unlink()  # as a directory from before there was a mark
    (work / "few.pt").touch()
    with pytest.raises(ModelError, match="another recipe"):
        build(recipe, data=data, out=tmp_path / "out", work=work)


def test_a_work_directory_of_other_data_is_refused(data: Path, recipe: Recipe, tmp_path: Path) -> None:
    other, work = tmp_path / "data", tmp_path / "work"
    shutil.copytree(data, other)
    claim(work, recipe, data)
    claim(work, recipe, other)  # the same data somewhere else
    _write_lines(other / "graded.jsonl.gz", [])
    with pytest.raises(ModelError, match=r"graded\.jsonl\.gz changed since .*work was begun"):
        claim(work, recipe, other)


def test_each_recipe_has_its_own_work_directory(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr("models.training.demo.build.build", lambda _, **given: seen.update(given))
    main(["--recipe", str(RECIPE.with_name("transfer.yaml")), "--data", str(data), "--out", str(tmp_path)])
    assert seen["work"] == Path("runs/transfer")


def test_a_refused_work_directory_is_one_line_at_the_prompt(
    data: Path, recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim(tmp_path / "work", recipe, data)
    with pytest.raises(SystemExit):
        main(["--data", str(data), "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")])
    assert "give another --work, or remove it" in capsys.readouterr().err


def test_a_kill_while_vectors_are_written_costs_no_more_than_the_vectors(
    data: Path, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = torch.save

    def killed(state: object, path: Path) -> None:
        whole(state, path)
        path.write_bytes(path.read_bytes()[:100])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            build(recipe, data=data, out=tmp_path / "out", work=tmp_path / "work")
    assert not (tmp_path / "work" / "vectors.pt").exists()
    text = read_text(data)
    tokenizer = Tokenizer.from_file(str(tmp_path / "work" / "tokenizer" / "tokenizer.json"))
    tokens = [tokenized(tokenizer, lines) for lines in text.values()]
    shape = (recipe.network.vocabulary, recipe.network.hidden)
    assert vectors_stage(recipe, tokens, tmp_path / "work").shape == shape


def test_a_missing_data_directory_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--data", str(tmp_path)])
    assert "graded.jsonl.gz" in capsys.readouterr().err
