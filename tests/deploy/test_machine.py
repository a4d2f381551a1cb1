"""The image, the compose file and the systemd unit: what their own tools and schemas say; no daemon."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from deploy.image import DOCKERFILE
from headroom.service.config.keys import parse_api_keys
from headroom.service.config.settings import Settings
from tests.clients import environments
from tests.referees import need

pytestmark = pytest.mark.more

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "systemd" / "headroom.service"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    hadolint = environments.python("deploy").with_name("hadolint")
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_build_gets_every_file_that_the_dockerfile_copies() -> None:
    admitted = set((DEPLOY.parent / ".dockerignore").read_text("utf-8").split())
    copies = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE.read_text("utf-8"), re.MULTILINE)
    sources = " ".join(copies).split()
    assert {"models", "src", "data/sample"} <= set(sources)
    for source in sources:
        folders = (Path(source), *Path(source).parents)
        assert any(f"!{folder}" in admitted for folder in folders), source
        assert (DEPLOY.parent / source).exists(), source


def test_the_compose_file_is_one() -> None:
    schema = json.loads(Path(__file__).with_name("schemas.json").read_text("utf-8"))["compose"]
    jsonschema.Draft7Validator(schema).validate(COMPOSE)
    for volume in (entry for service in COMPOSE["services"].values() for entry in service["volumes"]):
        source = volume.partition(":")[0]
        assert source in COMPOSE["volumes"] if source[0] != "." else (DEPLOY / source).exists(), volume


def test_compose_holds_no_secret_and_opens_two_ports_to_this_machine_only() -> None:
    text = (DEPLOY / "compose.yaml").read_text("utf-8")
    for name in ("API_KEY", "METRICS_KEY", "ADMIN_KEY", "POSTGRES_PASSWORD", "GRAFANA_PASSWORD"):
        assert f"${{{name}:?" in text  # without it, nothing starts
    assert all(secret.keys() == {"environment"} for secret in COMPOSE["secrets"].values())
    ports = {name: service["ports"] for name, service in COMPOSE["services"].items() if "ports" in service}
    assert ports == {
        "headroom": ["${BIND:-127.0.0.1}:8000:8000"],
        "grafana": ["${BIND:-127.0.0.1}:3000:3000"],
    }


def test_compose_lets_the_service_drain_and_write_only_where_it_must() -> None:
    service = COMPOSE["services"]["headroom"]
    assert int(service["stop_grace_period"].removesuffix("s")) >= Settings().drain_timeout_s + 15
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    for name, other in COMPOSE["services"].items():
        assert not (other.get("read_only") and "secrets" in other), name  # Compose refuses that at the start
    assert service["tmpfs"] == ["/tmp:exec,mode=1777"]
    assert "state:/var/lib/headroom" in service["volumes"]


def test_prometheus_takes_its_configuration() -> None:
    file = DEPLOY / "prometheus" / "prometheus.yml"
    done = subprocess.run(
        [need("promtool"), "check", "config", "--syntax-only", file], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    config = yaml.safe_load(file.read_text("utf-8"))
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "headroom"
    (mounted,) = COMPOSE["services"]["prometheus"]["secrets"]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{mounted}"
    (alertmanager,) = config["alerting"]["alertmanagers"]
    assert alertmanager == {"static_configs": [{"targets": ["alertmanager:9093"]}]}
    assert "inside" in COMPOSE["services"]["alertmanager"]["networks"]


def given_keys() -> dict[str, str]:
    """HEADROOM_API_KEYS of each way to deploy, with the names of variables in place of their values."""
    readme = (DEPLOY / "README.md").read_text("utf-8")
    kuberay = (DEPLOY / "kuberay" / "README.md").read_text("utf-8")
    secret = re.compile(r'--from-literal=api-keys="(.*?)"')
    written = {
        "systemd": re.findall(r'echo "HEADROOM_API_KEYS=(.*?)"', readme),
        "compose": [COMPOSE["services"]["headroom"]["environment"]["HEADROOM_API_KEYS"]],
        "helm": secret.findall(readme),
        "kuberay": secret.findall(kuberay),
    }
    return {place: re.sub(r"\$\{?(\w+)(:[^}]*\})?", r"\1", text) for place, (text,) in written.items()}


@pytest.mark.parametrize("place", ["systemd", "compose", "helm", "kuberay"])
def test_there_are_keys_for_callers_for_prometheus_and_for_an_admin(place: str) -> None:
    keys = parse_api_keys(given_keys()[place])
    assert [key.role for key in keys] == ["user", "user", "admin"]


def test_systemd_takes_the_unit_and_it_drains(tmp_path: Path) -> None:
    text = UNIT.read_text("utf-8")
    program = tmp_path / "headroom"
    program.touch(mode=0o755)
    unit = tmp_path / UNIT.name
    unit.write_text(text.replace("/opt/headroom/.venv/bin/headroom", str(program)))
    done = subprocess.run([need("systemd-analyze"), "verify", unit], capture_output=True, text=True)
    assert (done.returncode, [line for line in done.stderr.splitlines() if UNIT.name in line]) == (0, [])
    settings = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and line[0] != "#")
    assert settings["KillMode"] == "mixed"
    assert settings["ExecStart"].endswith(" --host 127.0.0.1")  # plain HTTP shows keys to the network
    assert int(settings["TimeoutStopSec"]) >= Settings().drain_timeout_s + 15
    # Both hide the GPUs from the service; ProtectClock does so before systemd 252.
    assert not settings.keys() & {"PrivateDevices", "ProtectClock", "DeviceAllow", "DevicePolicy"}


def test_systemd_rates_the_unit_as_well_confined() -> None:
    command = [need("systemd-analyze"), "security", "--offline=true", "--threshold=25", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True)  # the threshold is ten times the score
    assert done.returncode == 0, done.stdout + done.stderr
