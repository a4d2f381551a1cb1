"""Prometheus scrapes the service, and answers every query of the Grafana dashboard."""

from __future__ import annotations

import contextlib
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

from loadtest.beside import free_port
from tests.referees import need
from tests.service.running import PATIENCE_S, Server

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "headroom.json"
MAY_BE_EMPTY = {"Exposures", "Sample ratio", "Error budget"}
"""Panels that show nothing while no experiment runs, and one whose rule is evaluated every 30 s."""


def queries() -> dict[str, list[str]]:
    """The queries of each panel, with Grafana's variables filled in."""
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    return {
        panel["title"]: [
            target["expr"]
            .replace("$__rate_interval", "5s")
            .replace("$instance", ".*")
            .replace("$namespace", ".*")
            for target in panel["targets"]
        ]
        for panel in panels
        if panel["type"] != "row"
    }


@contextlib.contextmanager
def prometheus(directory: Path, target: str) -> Iterator[httpx.Client]:
    """Prometheus with our rules, which scrapes one target every second."""
    port = free_port()
    config = directory / "prometheus.yml"
    config.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(DEPLOY / "prometheus" / "rules.yml")],
                "scrape_configs": [{"job_name": "headroom", "static_configs": [{"targets": [target]}]}],
            }
        )
    )
    command = [need("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}"]
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
    return answer["data"]["result"]


@pytest.mark.slow
def test_every_panel_of_the_dashboard_shows_something(server: Server, tmp_path: Path) -> None:
    with prometheus(tmp_path, server.url.removeprefix("http://")) as client:
        end = time.monotonic() + PATIENCE_S
        empty = set(queries())
        while not empty <= MAY_BE_EMPTY and time.monotonic() < end:
            body = {"query": "angle bracket", "titles": ["Simpson", "screws"], "head_mask": "1.0"}
            httpx.post(f"{server.url}/v1/score", json=body).raise_for_status()
            time.sleep(0.5)
            with contextlib.suppress(httpx.TransportError):  # it starts
                answers = {title: [ask(client, q) for q in asked] for title, asked in queries().items()}
                empty -= {title for title, found in answers.items() if any(found)}
        assert empty <= MAY_BE_EMPTY
        rules = client.get("/api/v1/rules").json()["data"]["groups"]
        assert not [rule for group in rules for rule in group["rules"] if rule.get("lastError")]


def test_the_dashboard_asks_the_provisioned_data_source() -> None:
    provisioned = yaml.safe_load(
        (DEPLOY / "grafana" / "provisioning" / "datasources" / "headroom.yml").read_text("utf-8")
    )
    uids = set(re.findall(r'"uid": "([\w-]+prometheus)"', DASHBOARD.read_text("utf-8")))
    assert uids == {source["uid"] for source in provisioned["datasources"]}
