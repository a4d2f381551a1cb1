"""Interleaving at a prompt: the plan and the report, also as the docs show them."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from headroom.service.experiments import report_page
from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.preference import deciding
from headroom.service.experiments.store import Store
from tests.prompt import Run, with_config
from tests.service.experiments.making import logged
from tests.service.experiments.test_preference_report import BEGAN, config_of, fill, units

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


@pytest.fixture
def answer(tmp_path: Path) -> dict[str, Any]:
    """What the service answers about an experiment of 420 units."""
    config = config_of()
    store = Store(f"sqlite:///{tmp_path / 'x.db'}")
    try:
        fill(store, config, units(200, 190, 20, 10))
        found = logged(config, time=BEGAN - 1)
        report = analyse(store, found, 1e6, {})
        history = [asdict(action) for action in found.history]
    finally:
        store.close()
    decided = deciding(report)
    assert decided is not None
    return {
        "name": "prune20",
        "kind": "interleave",
        "arms": [
            {"name": arm.name, "variant": arm.variant, "weight": 1, "control": i == 0, "exposures": 420}
            for i, arm in enumerate(config.arms)
        ],
        "status": "running",
        "traffic": 1.0,
        "rolled_back": [],
        "shipped": None,
        "history": history,
        "report": asdict(report),
        "preference": asdict(decided),
    }


def test_the_report_says_whose_titles_were_clicked_and_how_many_lists_differ(answer: dict[str, Any]) -> None:
    shown = report_page.text(answer)
    assert "SHIP: pruned on click is good enough" in shown
    assert "410 of 300 planned units have clicked a title of one arm" in shown
    assert "Each unit sees both arms" in shown
    (row,) = [" ".join(line.split()) for line in shown.splitlines() if line.startswith("click ")]
    assert row.startswith("click pruned +0.0")
    assert row.endswith("200 : 190 : 20 420 of 420 (100 %) good enough")
    page = report_page.html(answer)
    for part in ("410 of 300 planned units have clicked a title of one arm", "200 : 190 : 20", "420 of 420"):
        assert part in page


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
