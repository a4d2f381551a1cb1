"""Prometheus' own tool reads the rules and tries the alerts; they ask for metrics that the service has."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from headroom.service.api import create_app, pages
from headroom.service.config.settings import Settings
from headroom.service.observe.access_log import PROBES
from headroom.service.observe.metrics import Metrics
from tests.referees import need
from tests.service.asgi import client

pytestmark = pytest.mark.more

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "headroom.json"
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


async def test_probes_scrapes_and_pages_are_no_requests_of_the_objectives() -> None:
    rules, dashboard = RULES.read_text("utf-8"), DASHBOARD.read_text("utf-8").replace('\\"', '"')
    (pattern,) = set(re.findall('route!~"([^"]*)"', rules + dashboard))  # the same everywhere
    metrics = Metrics()
    addresses = {*pages.PATHS, "/openapi.json", "/no/such/path", "/playground/no-such-file"}
    probes = PROBES | {"/v2/models/default/ready"}
    counted = {"/v1/models", "/v1/variants", "/v2/models/{model:path}"}
    async with client(create_app(Settings(), metrics)) as http:
        for path in addresses | probes | counted | {"/v2/models/default", "/metrics"}:
            await http.get(path)
    routes = set(re.findall(r'headroom_requests_total\{route="([^"]*)"', metrics.render().decode()))
    assert {route for route in routes if not re.fullmatch(pattern, route)} == counted


def assert_values(
    directory: Path, expression: str, series: dict[str, str], at: dict[str, dict[str, float]]
) -> None:
    """Let promtool evaluate an expression of the dashboard; fails unless it has these values at these times.

    series: values by name, one each 15 s. at: the expected values by their labels, by time.
    """
    for variable in ("$namespace", "$instance"):
        expression = expression.replace(variable, ".*")
    cases = [
        {
            "expr": expression,
            "eval_time": time,
            "exp_samples": [{"labels": labels, "value": value} for labels, value in values.items()],
        }
        for time, values in at.items()
    ]
    test = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": cases,
    }
    file = directory / "test.yml"
    file.write_text(yaml.safe_dump({"tests": [test]}))
    done = subprocess.run([need("promtool"), "test", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_keda_wants_pods_for_what_callers_ask_not_for_what_they_get(tmp_path: Path) -> None:
    """Two pods of two replicas are asked for 1.5 and 0.9 times what they do: 4 pods at a load of 0.6."""
    scaled = yaml.safe_load((ROOT / "deploy" / "helm" / "scaledobject.yaml").read_text("utf-8"))
    (trigger,) = scaled["spec"]["triggers"]
    series = {
        f'headroom_load{{job="headroom", namespace="search", pod="{pod}", pid="{pid}"}}': f"{load}x20"
        for pod, pid, load in (("a", 1, 1.4), ("a", 2, 1.6), ("b", 1, 0.8), ("b", 2, 1.0))
    }
    pods = f"{trigger['metadata']['query']} / {trigger['metadata']['threshold']}"
    assert_values(tmp_path, pods, series, {"2m": {"{}": 4.0}})


def test_the_dashboard_marks_each_rollback_also_an_experiments_first(tmp_path: Path) -> None:
    """A counter with labels appears with its first event, at 1, where changes() sees nothing."""
    (mark,) = json.loads(DASHBOARD.read_text("utf-8"))["annotations"]["list"]
    series = {
        f'headroom_experiment_rollbacks_total{{job="headroom", experiment="{name}", guardrail="p99"}}': values
        for name, values in (
            ("first", "_x20 1x60"),
            ("second", "1x19 2x60"),
            ("old", "1x80"),
            ("unscraped", "1x17 stale 1x60"),
            ("none", "_x20 0x60"),
        )
    }
    marked = {f'{{experiment="{name}", guardrail="p99"}}': 1.0 for name in ("first", "second")}
    assert_values(tmp_path, f"({mark['expr']}) > bool 0", series, {"4m": {}, "5m30s": marked, "10m": {}})


def test_every_alert_has_its_entry_in_the_runbook() -> None:
    headings = re.findall(r"^### (\w+)$", (ROOT / "docs" / "alerts.md").read_text("utf-8"), re.MULTILINE)
    assert headings == list(alerts())
    for name, notes in alerts().items():
        assert notes["runbook"] == f"docs/alerts.md#{name.lower()}"
