"""Prometheus scrapes the service, and every query of the Grafana dashboard shows something."""

import contextlib
import itertools
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from headroom.loadtest.server import free_port
from tests.referees import need
from tests.service.experimenting import config, write_broken_checkpoint
from tests.service.running import LIVE, PATIENCE_S, Server

pytestmark = pytest.mark.more

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD: dict[str, Any] = json.loads(
    (DEPLOY / "grafana" / "dashboards" / "headroom.json").read_text("utf-8")
)


def queries() -> dict[str, str]:
    """Each query of the panels, with Grafana's variables filled in, and its panel's title."""
    return {
        target["expr"]
        .replace("$__rate_interval", "5s")
        .replace("$instance", ".*")
        .replace("$namespace", ".*"): panel["title"]
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", [])
    }


def variables() -> dict[str, str]:
    """The query of each variable that Prometheus is asked for, and its name."""
    source, *asked = DASHBOARD["templating"]["list"]
    assert source["type"] == "datasource"
    return {
        variable["query"]["query"].replace("$namespace", "search"): variable["name"] for variable in asked
    }


@contextlib.contextmanager
def prometheus(directory: Path, target: str) -> Iterator[httpx.Client]:
    """Prometheus, which scrapes one target and evaluates our rules every second."""
    port = free_port()
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text("utf-8"))
    for group in rules["groups"]:
        group["interval"] = "1s"
    (directory / "rules.yml").write_text(yaml.safe_dump(rules))
    labels = {"namespace": "search"}  # as in Kubernetes
    file = directory / "prometheus.yml"
    file.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "1s"},
                "rule_files": ["rules.yml"],
                "scrape_configs": [
                    {"job_name": "headroom", "static_configs": [{"targets": [target], "labels": labels}]}
                ],
            }
        )
    )
    command = [need("prometheus"), f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}"]
    process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"])
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
            yield client
    finally:
        process.terminate()
        process.wait()


def ask(client: httpx.Client, query: str) -> list[Any]:
    """The query's result. Fails if Prometheus cannot read it."""
    answer = client.get("/api/v1/query", params={"query": query}).json()
    assert answer["status"] == "success", (query, answer)
    found: list[Any] = answer["data"]["result"]
    return found


def shows(client: httpx.Client, query: str) -> bool:
    """Whether Grafana would draw something: a NaN is no point."""
    return any(found["value"][1] != "NaN" for found in ask(client, query))


def offers(client: httpx.Client, query: str) -> bool:
    """Whether a variable has values to choose from."""
    found = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
    assert found, query
    answer = client.get(f"/api/v1/label/{found[2]}/values", params={"match[]": found[1]}).json()
    assert answer["status"] == "success", (query, answer)
    return bool(answer["data"])


@pytest.fixture
def experimenting(two: Server, tmp_path: Path) -> Iterator[Server]:
    """The server has two experiments, and an arm of the second one fails."""
    broken = write_broken_checkpoint(tmp_path / "broken")
    live = config([{"name": "full"}, {"name": "cut", "head_mask": "0.*"}], name="drawn", slots=[0, 5000])
    live["variants"].append({"name": "broken", "checkpoint": str(broken)})
    live["experiments"].append(
        {
            "name": "failing",
            "salt": "another",
            "slots": [5000, 10000],
            "arms": [{"name": "control", "variant": "full"}, {"name": "broken", "variant": "broken"}],
            "guardrails": {"min_requests": 10},
        }
    )
    two.edit(live)
    yield two
    two.edit(LIVE)


def send_some(url: str, turn: int) -> None:
    """Requests of all kinds that the panels draw: of units and of nobody, long and hopeless ones."""
    kinds: list[dict[str, Any]] = [{"unit": f"user-{turn}-{number}"} for number in range(30)]
    kinds += {"variant": "cut"}, {}, {"head_mask": "1.0", "deadline_ms": 1}
    body = {"query": "angle bracket", "titles": ["Simpson", "screws", "a very long title " * 50]}
    for kind in kinds:
        answer = httpx.post(f"{url}/v1/score", json={**body, **kind}, timeout=PATIENCE_S)
        assert answer.status_code in (200, 504), answer.text


@pytest.mark.slow
def test_every_query_and_variable_of_the_dashboard_shows_something(
    experimenting: Server, tmp_path: Path
) -> None:
    with prometheus(tmp_path, experimenting.url.removeprefix("http://")) as client:
        end = time.monotonic() + PATIENCE_S
        empty, unset = queries(), variables()
        for turn in itertools.count():
            send_some(experimenting.url, turn)
            with contextlib.suppress(httpx.TransportError):  # it starts
                empty = {query: title for query, title in empty.items() if not shows(client, query)}
                unset = {query: name for query, name in unset.items() if not offers(client, query)}
            if not (empty or unset) or time.monotonic() > end:
                break
            time.sleep(0.5)
        assert (empty, unset) == ({}, {})
        rules = client.get("/api/v1/rules").json()["data"]["groups"]
        assert not [rule for group in rules for rule in group["rules"] if rule.get("lastError")]


def test_the_dashboard_asks_the_data_source_that_is_chosen() -> None:
    """By default that is the default one, which the provisioned data source is."""
    text = json.dumps(DASHBOARD)
    assert set(re.findall(r'"type": "prometheus", "uid": "([^"]*)"', text)) == {"${datasource}"}
    assert DASHBOARD["templating"]["list"][0]["current"]["value"] == "default"
    provisioned = yaml.safe_load(
        (DEPLOY / "grafana" / "provisioning" / "datasources" / "headroom.yml").read_text("utf-8")
    )
    assert [source["type"] for source in provisioned["datasources"] if source["isDefault"]] == ["prometheus"]
