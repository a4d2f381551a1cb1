"""Prometheus' own tool reads the rules and tries the alerts; they ask for metrics that the service has."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from service.metrics import Metrics
from tests.referees import need

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
CASES = [RULES.with_name("rules_test.yml"), RULES.with_name("rules_test_days.yml")]


def alerts() -> dict[str, dict[str, str]]:
    """The annotations of each alert, by its name."""
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return {
        rule["alert"]: rule["annotations"] for group in groups for rule in group["rules"] if "alert" in rule
    }


def test_every_alert_fires_where_it_must_and_nowhere_else() -> None:
    tried = subprocess.run([need("promtool"), "test", "rules", *CASES], capture_output=True, text=True)
    assert (tried.returncode, tried.stderr) == (0, ""), tried.stdout + tried.stderr
    fired = {
        case["alertname"]
        for cases in CASES
        for test in yaml.safe_load(cases.read_text("utf-8"))["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert fired == set(alerts())


def test_the_rules_ask_for_metrics_that_the_service_has() -> None:
    scrape = Metrics().render().decode()
    known = {family.name for family in text_string_to_metric_families(scrape)}
    known |= {f"{name}_{suffix}" for name in known for suffix in ("total", "bucket", "count", "sum")}
    asked = set(re.findall(r"(?<![:\w])headroom_\w+", RULES.read_text("utf-8")))
    assert asked
    assert asked <= known


def test_every_alert_has_its_entry_in_the_runbook() -> None:
    headings = re.findall(r"^### (\w+)$", (ROOT / "docs" / "alerts.md").read_text("utf-8"), re.MULTILINE)
    assert headings == list(alerts())
    for name, notes in alerts().items():
        assert notes["runbook"] == f"docs/alerts.md#{name.lower()}"


def test_every_entry_says_what_to_see_what_to_do_and_when_to_ignore_it() -> None:
    text = (ROOT / "docs" / "alerts.md").read_text("utf-8")
    for entry in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        marks = re.findall(r"^\*\*(See:|Do:|Ignore it)", entry, re.MULTILINE)
        assert marks == ["See:", "Do:", "Ignore it"], entry.partition("\n")[0]
