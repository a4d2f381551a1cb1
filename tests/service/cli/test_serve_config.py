"""A real `headroom serve` on the shipped config file: keys in it are asked for, edits of it are survived."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.deployment import config_file, last_good, preflight
from tests.service.client import Answer, request, score, send_raw
from tests.service.running import DEPLOY, Server, running

USER, BOSS = "us3r-s3cr3t", "b0ss-s3cr3t"


@pytest.fixture(scope="module")
def proven(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that has masks of the names that deploy/serve.yaml uses, as the shipped model has."""
    model = Path(shutil.copytree(tiny_checkpoint, tmp_path_factory.mktemp("model") / "proven"))
    (model / "masks").mkdir()
    for name, spec in (("pruned20", "2.*"), ("pruned60", "0.0-1,2.*")):
        (model / "masks" / f"{name}.json").write_text(json.dumps({"mask": spec}))
    return model


@pytest.fixture(scope="module")
def guarded(proven: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    live = yaml.safe_load(DEPLOY.read_text())["applications"][0]["deployments"][0]["user_config"]
    keys = [USER, f"{BOSS};role=admin"]
    with running(tmp_path_factory.mktemp("guarded"), proven, live=live, api_keys=keys) as server:
        yield server


def with_the_sample() -> str:
    """deploy/serve.yaml with its commented experiment uncommented as it stands."""
    before, mark, sample = DEPLOY.read_text().partition("          # experiments:")
    return before + "".join(line.replace("# ", "", 1) for line in (mark + sample).splitlines(keepends=True))


async def call(server: Server, path: str, key: str | None) -> Answer:
    headers = "" if key is None else f"authorization: Bearer {key}\r\n"
    return await send_raw(server.port, request("GET", path, headers=headers))


@pytest.mark.slow
async def test_keys_in_the_config_file_are_asked_for(guarded: Server) -> None:
    assert (await send_raw(guarded.port, score(1))).status == 401
    assert (await call(guarded, "/v1/models", None)).status == 401
    assert (await call(guarded, "/v1/models", "another")).status == 401
    assert (await call(guarded, "/v1/models", USER)).status == 200
    assert (await call(guarded, "/v1/models", BOSS)).status == 200
    assert (await call(guarded, "/health/ready", None)).status == 200


@pytest.mark.slow
def test_keys_in_the_config_file_are_in_no_log(guarded: Server) -> None:
    (run,) = guarded.run_directories()
    logs = [file for file in run.rglob("*") if file.is_file()]
    assert any(b"Importing application" in file.read_bytes() for file in logs), "Serve logs arguments there"
    for file in logs:
        for key in (USER, BOSS):
            assert key.encode() not in file.read_bytes(), file
    for key in (USER, BOSS):
        assert key not in guarded.stderr
        for process in guarded.family():
            assert key not in " ".join(process.cmdline())


@pytest.mark.slow
async def test_no_edit_ends_the_service_and_the_sample_experiment_applies(guarded: Server) -> None:
    good = DEPLOY.read_text()
    masks = "masks: {}"
    wrong = {
        "user_config is missing": good[: good.index("        user_config:")],
        "not a Ray Serve config": "",
        "2026-11-31 is read as a date": good.replace(masks, "masks: {a: 2026-11-31}"),
        "not a valid whole number": good.replace(masks, f"masks: {{a: {'7' * 5000}}}"),
        "stands inside what it names": good.replace(masks, "masks: &a {b: *a}"),
        "nested more than": good.replace(masks, f"masks: {'[' * 5000}"),
        "stands twice": good.replace(masks, "masks: {}\n          masks: {}"),
        "http_options must be a mapping": good.replace("http_options:", "http_options: [1]\nthese:"),
        "args must be a mapping": good.replace("args:", "args: [1]\n    these:"),
        "layer 77 does not exist": good.replace(masks, 'masks: {a: "77.0"}'),
    }
    variants = (await call(guarded, "/v1/variants", USER)).json
    for reason, text in wrong.items():
        assert text != good
        guarded.config.write_text(text)
        assert "config refused, the last good one stays" in guarded.wait_for_line(reason)
    assert (await call(guarded, "/v1/variants", USER)).json == variants
    assert "Traceback" not in guarded.stderr
    guarded.config.write_text(with_the_sample())
    guarded.wait_for_line("config applied")
    listed: list[dict[str, Any]] = []
    while not listed:  # Serve hands it to the replica in a moment; pytest's timeout is the limit
        listed = (await call(guarded, "/v1/experiments", USER)).json["experiments"]
    assert [experiment["name"] for experiment in listed] == ["prune20"]
    stored = last_good.copy_of(guarded.config).name
    assert (guarded.config.parent / "state" / "headroom" / "configs" / stored).stat().st_mode & 0o77 == 0


def test_the_sample_experiment_is_served_with_the_shipped_model_and_refused_with_another(
    tmp_path: Path, tiny_checkpoint: Path
) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(with_the_sample())
    said: list[str] = []
    config = config_file.load(path, config_file.Overrides())
    preflight.check(path, config, said.append)
    assert ([experiment.name for experiment in config.live.experiments], said) == (["prune20"], [])
    assert config.live.holdout is not None
    another = config_file.load(path, config_file.Overrides(model=str(tiny_checkpoint)))
    with pytest.raises(
        config_file.ConfigFileError, match=r"experiments\[0\]\.arms\[1\]\.variant is pruned20"
    ):
        preflight.check(path, another, said.append)
