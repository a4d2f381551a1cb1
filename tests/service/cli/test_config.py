"""`headroom config check`: every fault of a config file, one line each, without a server."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from headroom.models.checkpoint.files import digest_of
from headroom.service.config.settings import REMOVED, LiveConfig, variable_of
from headroom.service.experiments.store import Store
from tests.checkpoints import write_checkpoint
from tests.prompt import Run
from tests.service.experiments.making import declares
from tests.service.running import DEPLOY

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, when it is imported


def write(directory: Path, live: dict[str, Any], **arguments: Any) -> Path:
    """Write deploy/serve.yaml with this `user_config` and these `args`."""
    document = yaml.safe_load(DEPLOY.read_text())
    application = document["applications"][0]
    application["args"] = arguments
    application["deployments"][0]["user_config"] = live
    file = directory / "serve.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def faults(run: Run, file: Path) -> list[str]:
    """Return what is said about a wrong file, without the program's name and the file's."""
    lines = run("config", "check", str(file), status=1).err.splitlines()
    return [line.removeprefix("headroom: ").removeprefix(f"{file}: ") for line in lines]


def experiment(name: str, salt: str, *variants: str) -> dict[str, Any]:
    arms = [{"name": f"arm{index}", "variant": variant} for index, variant in enumerate(variants)]
    return {"name": name, "salt": salt, "arms": arms}


def test_a_file_as_it_should_be(run: Run) -> None:
    variants = "full, pruned20, fast, rough, cascade"
    assert run("config", "check", str(DEPLOY)).out == f"{DEPLOY}: right; variants: {variants}\n"


def test_a_name_that_serve_does_not_know_is_refused_with_its_place(tmp_path: Path, run: Run) -> None:
    """Serve ignores it: one CPU in place of four, without a word."""
    text = DEPLOY.read_text()
    for old, new in {
        "proxy_location:": "proxy_locatoin:",
        "num_cpus: 1": "num_cpuz: 4",
        "keep_alive_timeout_s:": "keep_alive_s:",
        "            env_vars:": "            env_var:",
        "user_config:": "autoscaling_config: {max_replica: 4, policy: {policy_function: "
        "headroom.service.ray.autoscaling:ByTokens}}\n        user_config:",
    }.items():
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / "serve.yaml"
    file.write_text(text)
    deployment = "applications[0].deployments[0]"
    assert faults(run, file) == [
        "proxy_locatoin: there is no such field; did you mean proxy_location?",
        "http_options.keep_alive_s: there is no such field; did you mean keep_alive_timeout_s?",
        f"{deployment}.ray_actor_options.num_cpuz: there is no such field; did you mean num_cpus?",
        f"{deployment}.ray_actor_options.runtime_env.env_var: there is no such field; did you mean env_vars?",
        f"{deployment}.autoscaling_config.max_replica: there is no such field; did you mean max_replicas?",
        f"{deployment}: autoscaling_config.policy.policy_function: there is no policy ByTokens; write "
        "headroom.service.ray.autoscaling:ByLoad",
    ]


def test_an_experiment_that_began_with_another_salt_is_a_fault_and_a_database_that_is_away_a_warning(
    tmp_path: Path, tiny_checkpoint: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = {"variants": [{"name": "full"}, {"name": "low", "head_mask": "0.0"}]}
    begun = live | {"experiments": [experiment("prune", "2026-11", "full", "low")]}
    changed = live | {"experiments": [experiment("prune", "2026-12", "full", "low")]}
    monkeypatch.setenv("HEADROOM_DATABASE_URL", f"sqlite:///{tmp_path}/experiments.db")
    file = write(tmp_path, changed, model=str(tiny_checkpoint))
    assert "right" in run("config", "check", str(file)).out, "there is no database yet"
    store = Store(f"sqlite:///{tmp_path}/experiments.db")
    store.append(declares(*LiveConfig.model_validate(begun).experiments, time=1.0))
    store.close()
    (fault,) = faults(run, file)
    assert fault.startswith(
        "user_config.experiments: 'prune' has begun, so its kind, salt and arms must stay"
    )
    assert "(salt 2026-11; arms arm0=full:" in fault
    assert "right" in run("config", "check", str(write(tmp_path, begun, model=str(tiny_checkpoint)))).out
    monkeypatch.setenv("HEADROOM_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    monkeypatch.setenv("HEADROOM_SERVICE_NAME", "production")
    away = run("config", "check", str(file))
    assert "right" in away.out
    assert "warning: the experiments were not compared with those that run" in away.err


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two layers of four heads, and one score."""
    return write_checkpoint(tmp_path / "model", num_labels=1)


def test_masks_and_paths_are_checked_against_each_checkpoint(
    tmp_path: Path, model: Path, tiny_checkpoint: Path, run: Run
) -> None:
    """A mask that refers to a wrong one has no fault of its own."""
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_bytes((model / "config.json").read_bytes())
    own = {"name": "own", "checkpoint": str(model)}
    live = {
        "masks": {"deep": "5.*", "deeper": "@deep"},
        "variants": [
            {"name": "full"},
            {"name": "a", "head_mask": "@deep"},
            {"name": "b", "head_mask": "0.99"},
            own | {"head_mask": "7.0"},
            {"name": "gone", "checkpoint": str(tmp_path / "gone")},
            {"name": "empty", "checkpoint": str(empty)},
        ],
        "digests": {"": "0" * 64, str(model): digest_of(model, masks=True)},
    }
    file = write(tmp_path, live, model=str(tiny_checkpoint))
    found = faults(run, file)
    assert [line.split(";")[0] for line in found] == [
        f"user_config.variants.gone.checkpoint: {tmp_path}/gone does not exist",
        "user_config.masks.deep: layer 5 does not exist",
        "user_config.variants[2].head_mask: head 99 does not exist",
        "user_config.variants[3].head_mask: layer 7 does not exist",
        f"user_config.variants.empty.checkpoint: {empty} holds neither model.safetensors nor "
        "pytorch_model.bin",
        f"user_config.digests['']: the files in {tiny_checkpoint} have another digest, "
        f"{digest_of(tiny_checkpoint, masks=True)}",
    ]
    assert "this model has layers 0 to" in found[1]


@pytest.mark.parametrize("setting", REMOVED)
def test_a_setting_that_is_gone_is_refused_with_what_replaces_it(
    setting: str, tmp_path: Path, tiny_checkpoint: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, {"variants": [{"name": "full"}]}, model=str(tiny_checkpoint), **{setting: 1})
    err = run("config", "check", str(file), status=1).err
    assert f"args.{setting}: this setting is gone: {REMOVED[setting]}" in err
    file = write(tmp_path, {"variants": [{"name": "full"}]}, model=str(tiny_checkpoint))
    monkeypatch.setenv(variable_of(setting), "1")
    err = run("config", "check", str(file), status=1).err
    assert f"{variable_of(setting)}: this setting is gone: {REMOVED[setting]}" in err
    assert "args." not in err


def test_it_loads_neither_torch_nor_transformers_and_says_what_serve_would_refuse(tmp_path: Path) -> None:
    document = yaml.safe_load(DEPLOY.read_text())
    document["applications"][0]["deployments"][0]["max_ongoing_requests"] = "many"
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(document))
    code = """
import json, sys
from headroom.service.cli import main
try:
    main()
except SystemExit as end:
    print(json.dumps([end.code, [name for name in ("torch", "transformers") if name in sys.modules]]))
"""
    command = [sys.executable, "-W", "ignore", "-c", code, "config", "check", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [1, []]
    assert "deployments[0].max_ongoing_requests: Input should be a valid integer" in done.stderr
