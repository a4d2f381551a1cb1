"""`headroom` without the packages of its server, as `pip install headroom` brings it."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from headroom.service.cli.messages import SERVER_PACKAGES
from headroom.version import ROOT
from tests.prompt import write_labelled

SCRIPT = """
import json, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from headroom.service.cli import main
for command in COMMANDS:
    sys.argv = ["headroom", *command]
    status = 0
    try:
        main()
    except SystemExit as exit:
        status = exit.code
    print(json.dumps({"status": status or 0}))
"""
"""Runs commands in one process, in which no package of the server's can be imported."""


def run(*commands: list[str]) -> tuple[list[int], subprocess.CompletedProcess[str]]:
    """Run commands one after the other. Returns their exit statuses, and all that they printed."""
    script = f"MISSING = {set(SERVER_PACKAGES)!r}; COMMANDS = {commands!r}\n{SCRIPT}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    statuses = [
        json.loads(line)["status"] for line in done.stdout.splitlines() if line.startswith('{"status"')
    ]
    return statuses, done


@pytest.mark.more
@pytest.mark.usefixtures("foreign")
def test_what_needs_no_server_works_where_other_packages_have_our_folders_names(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Scoring, measuring, training, studying and pruning. Python looks in the directory first."""
    rows = [(f"lamp {i}", title, grade) for i in range(40) for title, grade in (("a lamp", 4), ("wood", 0))]
    pairs = str(write_labelled(tmp_path / "pairs.csv", rows))
    device = ["--device", "cpu"]
    model = ["--model", str(tiny_checkpoint)]
    trained = str(tmp_path / "trained")
    study = str(tmp_path / "study")
    statuses, done = run(
        ["score", "lamp", "a lamp", "wood", "--mask", "1.*", *model, *device],
        ["evaluate", "--data", pairs, *model, *device],
        ["train", "--data", pairs, "--out", trained, "--epochs", "1", *model, *device],
        ["study", "layers", "--data", pairs, "--out", study, "--model", trained, *device],
        ["prune", "--mask", "1.0", "--out", str(tmp_path / "pruned"), *model],
        ["experiment", "--help"],
    )
    assert statuses == [0] * 6, done.stderr
    assert json.loads(Path(study, "report.json").read_text())["kind"] == "layers"
    assert (tmp_path / "pruned" / "model.safetensors").exists()


def test_a_command_that_needs_the_server_says_so_in_one_sentence() -> None:
    statuses, done = run(["serve", "--port", "1"], ["load", "run", "http://127.0.0.1:1"])
    assert statuses == [1, 1]
    first, second = done.stderr.splitlines()
    assert first.startswith("headroom: `headroom serve` needs the server's packages: ")
    assert second.startswith("headroom: `headroom load` needs the server's packages: ")
    assert first.endswith("[serve]'")


def test_every_package_of_the_extra_is_known_to_be_the_servers() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = {canonicalize_name(Requirement(line).name) for line in project["optional-dependencies"]["serve"]}
    known = {
        canonicalize_name(distribution)
        for module, distributions in packages_distributions().items()
        for distribution in distributions
        if module in SERVER_PACKAGES
    }
    assert len(names) == 8
    assert names <= known
