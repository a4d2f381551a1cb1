"""Interleaving at a prompt: the plan and the report, also as the docs show them."""

import json
import re
from pathlib import Path

import pytest
import yaml

from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.plan import PreferenceQuestion, make_plan
from tests.prompt import Run, with_config

PLAN = ("experiment", "plan", "--interleave", "--margin", "0.05", "--clicked", "0.3")
DOCS = Path(__file__).parents[3] / "docs"


def test_lists_that_differ_are_measured_on_the_shops_own_queries(
    run: Run, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    titles = ("angle", "wood deck screws", "steel bracket", "black angle", "deck")
    data = tmp_path / "queries.csv"
    rows = [f"{query},{title}" for query in ("angle bracket", "deck screws") for title in titles]
    data.write_text("\n".join(["query,title", *rows, "alone,angle"]), "utf-8")
    live = "variants: [{name: full}, {name: same}, {name: cut, head_mask: 0-1.*}]"
    options = [*PLAN, "--data", str(data), "--model", str(tiny_checkpoint), "--json"]
    options += with_config(tmp_path, live)
    plan = json.loads(run(*options, "--variant", "cut").out)
    assert 0 < plan["deciding"] <= plan["differing"] <= 1
    assert plan["measured_on"] == f"cut on 2 queries of {data}"
    masked = json.loads(run(*options, "--mask", "0-1.*").out)
    assert masked["deciding"] == plan["deciding"]
    assert "the arms rank alike" in run(*options, "--variant", "same", status=2).err


JUDGED = "query,title,grade,position\n" + "\n".join(
    f"q{query} angle,{title},{(query + 2 * place) % 3},{6 - place}"
    for query in range(12)
    for place, title in enumerate(("angle", "wood deck", "steel bracket", "black angle", "deck screws"), 1)
)


def test_a_test_against_the_order_is_sized_from_judged_pairs(
    run: Run, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    data = tmp_path / "judged.csv"
    data.write_text(JUDGED, "utf-8")
    options = ["experiment", "plan", "--against", "original", "--data", str(data), "--clicked", "0.3"]
    options += ["--model", str(tiny_checkpoint), "--position", "position"]
    found = json.loads(run(*options, "--json").out)
    first = found["against"]
    assert first["variant"] == "original"
    assert first["queries"] == 12
    assert first["verdict"] in ("better", "worse", "not_shown")
    preference = first["preference"]
    assert found["effect"] == preference["value"]
    assert preference["low"] < preference["value"] < preference["high"]
    question = PreferenceQuestion(0.3, found["deciding"], None, found["effect"])
    needed = make_plan(question, power=0.8)
    assert found["interleave_units"] == needed.any_time.units
    not_worse = json.loads(run(*options, "--margin", "0.9", "--effect", "0", "--json").out)
    assert (not_worse["effect"], not_worse["margin"]) == (0, 0.9)
    cautious = make_plan(PreferenceQuestion(0.3, found["deciding"], 0.9, preference["low"]), power=0.8)
    assert not_worse["against"]["cautious"]["units"] == cautious.any_time.units
    text = run(*options).out
    first_line = text.splitlines()[0]
    assert first_line.startswith("full ")
    assert "the order of the column position: NDCG@10" in first_line
    assert "Users who click as people judged prefer the model by" in text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--against", "original", "--clicked", "0.3"), "--against needs judged pairs: query,title,grade"),
        (("--interleave", "--clicked", "0.3", "--margin", "0.1", "--position", "p"), "it needs --against"),
        (("--against", "full", "--clicked", "0.3"), "'full' is not one of 'original'"),
    ],
)
def test_what_a_plan_against_the_order_needs(run: Run, options: tuple[str, ...], reason: str) -> None:
    assert reason in run("experiment", "plan", *options, status=2).err


def test_rows_in_the_order_of_their_grades_are_no_order(
    run: Run, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    data = tmp_path / "judged.csv"
    rows = [f"q{query},title {3 - grade},{grade}" for query in range(12) for grade in (2, 1, 0)]
    data.write_text("\n".join(["query,title,grade", *rows]), "utf-8")
    options = (
        "--against",
        "original",
        "--data",
        str(data),
        "--clicked",
        "0.3",
        "--model",
        str(tiny_checkpoint),
    )
    assert "stand in the order of their grades" in run("experiment", "plan", *options, status=2).err


@pytest.mark.parametrize(("page", "plans"), [("experiments.md", 2), ("tutorial.md", 1)])
def test_the_plans_of_the_pages_are_what_the_command_prints(run: Run, page: str, plans: int) -> None:
    blocks = re.findall(r"```console\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    shown = [block for block in blocks if "headroom experiment plan" in block]
    assert len(shown) == plans
    for block in shown:
        command, _, output = block.partition("headroom experiment plan ")[2].partition("\n")
        printed = run("experiment", "plan", *command.split()).out.strip()
        parts = output.strip().split("…\n")
        assert all(part.strip() in printed for part in parts)
        assert (printed.startswith(parts[0]), printed.endswith(parts[-1])) == (True, True)


def test_the_tutorials_experiment_is_the_one_that_it_planned() -> None:
    text = (DOCS / "tutorial.md").read_text("utf-8")
    (entry,) = re.findall(r"```yaml\n( +experiments:.*?)```", text, re.DOTALL)
    (experiment,) = yaml.safe_load(entry)["experiments"]
    config = ExperimentConfig.model_validate(experiment)
    assert config.is_interleaved
    assert f"For the config: planned_units: {config.planned_units} " in text
    assert config.metrics[0].margin == 0.2
    assert "plan --interleave --margin 0.2 " in text
