"""A real `headroom serve` on the shipped config file: edits of it are survived."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from headroom.service.cli.serve import DEFAULT_CONFIG
from headroom.service.config import file as config_file
from headroom.service.ray import preflight
from tests.service.client import Answer, request, send_raw
from tests.service.running import DEPLOY, Server, restarting, still_there

pytestmark = pytest.mark.more

USER = "us3r-s3cr3t"


@pytest.fixture(scope="module")
def proven(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that has a mask of the name that deploy/serve.yaml uses, as the shipped model has."""
    model = Path(shutil.copytree(tiny_checkpoint, tmp_path_factory.mktemp("model") / "proven"))
    (model / "masks").mkdir()
    (model / "masks" / "pruned20.json").write_text(json.dumps({"mask": "2.*"}))
    return model


@pytest.fixture(scope="module")
def ready_server(proven: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Server]]:
    """Returns `guarded`."""
    live = yaml.safe_load(DEPLOY.read_text())["applications"][0]["deployments"][0]["user_config"]
    directory = tmp_path_factory.mktemp("guarded")
    with restarting(lambda: Server(directory, proven, live=live, api_keys=[USER])) as ready_server:
        yield ready_server


@pytest.fixture
def guarded(ready_server: Callable[[], Server]) -> Server:
    """A service with keys. A test may end it."""
    return ready_server()


def with_the_sample() -> str:
    """deploy/serve.yaml with its commented experiment uncommented as it stands."""
    before, mark, sample = DEPLOY.read_text().partition("          # experiments:")
    return before + "".join(line.replace("# ", "", 1) for line in (mark + sample).splitlines(keepends=True))


async def call(server: Server, path: str, key: str | None) -> Answer:
    headers = "" if key is None else f"authorization: Bearer {key}\r\n"
    return await send_raw(server.port, request("GET", path, headers=headers))


async def running(server: Server, after_s: float = 0.0) -> list[str]:
    """The experiments in force; one that is out of the config is still listed, as "paused"."""
    await asyncio.sleep(after_s)
    answer = await call(server, "/v1/experiments", USER)
    listed = answer.json["experiments"]
    return [experiment["name"] for experiment in listed if experiment["status"] == "running"]


def test_the_file_that_the_docs_have_users_edit_is_the_one_that_is_watched() -> None:
    """A copy of it beside the command would look the same, and no edit of deploy/serve.yaml would apply."""
    assert DEPLOY.resolve() == DEFAULT_CONFIG


@pytest.mark.slow
async def test_no_edit_ends_the_service_and_the_sample_experiment_applies(guarded: Server) -> None:
    good = DEPLOY.read_text()
    masks = "masks: {}"
    wrong = {
        "not a Ray Serve config": "",
        "maximum recursion depth": good.replace(masks, f"masks: {'[' * 5000}"),
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
    while not await running(guarded):  # until Serve has handed it to the replica
        pass
    assert await running(guarded) == ["prune20"]


@pytest.mark.slow
def test_the_second_ctrl_c_stops_everything_at_once(guarded: Server) -> None:
    """The signal reaches the terminal's whole process group. A first one alone would let requests finish."""
    processes = guarded.family()
    os.killpg(guarded.process.pid, signal.SIGINT)
    guarded.wait_for_line("stopping")
    os.killpg(guarded.process.pid, signal.SIGINT)
    assert guarded.process.wait(30) == 130
    assert still_there(processes) == []


def test_the_sample_experiment_is_served_with_the_shipped_model_and_refused_with_another(
    tmp_path: Path, tiny_checkpoint: Path
) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(with_the_sample())
    said: list[str] = []
    config = config_file.load(path, config_file.Overrides())
    preflight.check(path, config, said.append)
    assert ([experiment.name for experiment in config.live.experiments], said) == (["prune20"], [])
    another = config_file.load(path, config_file.Overrides(model=str(tiny_checkpoint)))
    with pytest.raises(
        config_file.ConfigFileError, match=r"experiments\[0\]\.arms\[1\]\.variant is pruned20"
    ):
        preflight.check(path, another, said.append)
