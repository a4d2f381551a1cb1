"""The chart and the KubeRay manifests: Helm's own engine, Kubernetes' and the operators' schemas."""

import copy
import json
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from headroom.service.config import file as config_file
from headroom.service.config.settings import LiveConfig, Settings
from headroom.service.config.variants import VariantConfig
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.observe.metrics import Metrics
from headroom.service.ray.autoscaling import BUSY_SHARE
from tests.clients import environments
from tests.deploy.manifests import (
    DEPLOY,
    OURS,
    file_of_keys,
    hardened,
    manifests,
    monitoring,
    pods,
    store,
)
from tests.prompt import Run
from tests.prompt import run as run
from tests.service.page.seeding import served

pytestmark = pytest.mark.more

CHART = DEPLOY / "helm" / "headroom"
SCHEMAS = json.loads(Path(__file__).with_name("schemas.json").read_text("utf-8"))

VARIANTS = {"masks": {"low": "0.0"}, "variants": [{"name": "full"}, {"name": "low", "head_mask": "@low"}]}
EXPERIMENT = {
    "experiments": [
        {
            "name": "e",
            "salt": "s",
            "arms": [{"name": "a", "variant": "full"}, {"name": "b", "variant": "pruned20"}],
        }
    ]
}
PRUNED = {"variants": [{"name": "full"}, {"name": "pruned20", "head_mask": "@pruned20"}]}


ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "full": {
        "monitoring": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "runbookUrl": "https://docs.example/alerts/",
        },
        "database": {"secret": "headroom-database"},
        "model": "/models/mine",
        "args": {"max_pairs": 10},
        "userConfig": VARIANTS,
        "drainSeconds": 90,
        "startupSeconds": 1801,
        "autoscaling": {"enabled": False},
        "service": {"type": "LoadBalancer"},
        "extraVolumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
        "extraVolumeMounts": [{"name": "models", "mountPath": "/models"}],
        "extraEnv": [{"name": "HEADROOM_LOG", "value": "x"}],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    },
    "edited": {"userConfig": VARIANTS, "monitoring": {"enabled": True}},
    "gpu": {
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "modelCache": {"claim": "models"},
        "database": {"secret": "headroom-database"},
        "userConfig": PRUNED | EXPERIMENT,
    },
    "keda": {"autoscaling": {"enabled": False}, "replicas": None},
    "placed": {
        "image": {"tag": "cpu-1a2b3c4", "digest": f"sha256:{'1' * 64}"},
        "imagePullSecrets": [{"name": "registry"}],
        "apiKeys": {"secret": "keys", "key": "entries", "metricsKey": "scraper"},
        "serviceAccount": {"create": True},
        "tolerations": [{"key": "search", "operator": "Exists"}],
    },
    "mig": {
        "resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}},
        "serve": {"replicasPerGpu": 4},
        "serviceAccount": {"name": "search"},
    },
    "experiments alone": {"userConfig": PRUNED | EXPERIMENT},
    "keys in the values": {"args": {"api_keys": "k7Qm2vXw9"}},
    "misspelt setting": {"args": {"max_pair": 10}},
    "no brownout": {"userConfig": VARIANTS | {"degrade": {"above_queue_tokens": 9, "variant": "lower"}}},
    "no commit": {"image": {"tag": ""}},
}


IMAGE = {"image": {"tag": "cpu-1a2b3c4"}}
"""What everybody must say: without a tag of its own, a cluster does not see a new image."""


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("helm-sdkpy holds Helm for Linux on x86-64 only")
    ingress = yaml.safe_load((DEPLOY / "helm" / "ingress.yaml").read_text("utf-8"))
    objects = [*manifests().values(), *store().values(), *monitoring().values(), *pods()]
    objects += [pod_of_kserve(), ingress]
    return environments.run(
        "deploy",
        Path(__file__).parent / "ask_kubernetes.py",
        chart=str(CHART),
        values=[IMAGE | values for values in ASKED.values()],
        objects=objects,
    )


@pytest.fixture(scope="module")
def charts(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What Helm creates for each of ASKED, by kind; the dashboard's ConfigMap is `dashboard`."""
    made = {
        name: found for name, found in zip(ASKED, answer["installs"], strict=True) if isinstance(found, list)
    }
    taken = ["plain", "full", "edited", "gpu", "keda", "placed", "mig"]
    assert list(made) == taken, answer["installs"]
    return {name: {kind_of(thing): thing for thing in objects} for name, objects in made.items()}


def kind_of(thing: dict[str, Any]) -> str:
    kind: str = thing["kind"]
    return "dashboard" if "grafana_dashboard" in thing["metadata"].get("labels", {}) else kind


def kserve() -> dict[str, dict[str, Any]]:
    """The manifests for KServe, by kind."""
    documents = yaml.safe_load_all((DEPLOY / "kserve" / "headroom.yaml").read_text("utf-8"))
    return {document["kind"]: document for document in documents}


def pod_of_kserve() -> dict[str, Any]:
    """The pod of the serving runtime, as Kubernetes' schemas can check it."""
    spec = kserve()["ServingRuntime"]["spec"]
    spec = {name: spec[name] for name in ("containers", "volumes")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kserve"}, "spec": spec}


def scaled_object() -> dict[str, Any]:
    """KEDA's way of scaling the chart's Deployment."""
    document: dict[str, Any] = yaml.safe_load((DEPLOY / "helm" / "scaledobject.yaml").read_text("utf-8"))
    return document


def pod_labels(chart: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = chart["Deployment"]["spec"]["template"]["metadata"]["labels"]
    return labels


def container(chart: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = chart["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    return found


def outlasts_a_load(serve: dict[str, Any]) -> bool:
    """Whether a pod whose replica loads its model anew lives as long as one that starts may take."""
    live, start = (
        serve[name]["periodSeconds"] * serve[name]["failureThreshold"]
        for name in ("livenessProbe", "startupProbe")
    )
    return bool(live >= start - 5)


def test_helm_finds_nothing_to_complain_about(answer: dict[str, Any]) -> None:
    said = [message for message in answer["lint"]["Messages"] if message["Severity"] > 1]  # 1: it has no icon
    assert (said, answer["lint"]["Errors"]) == ([], None)


def test_kubernetes_takes_every_object_with_no_unknown_field(answer: dict[str, Any]) -> None:
    assert answer["invalid"] == []


@pytest.mark.parametrize(
    "kind",
    [
        "ServiceMonitor",
        "PrometheusRule",
        "PodMonitor",
        "RayService",
        "ServingRuntime",
        "InferenceService",
        "ScaledObject",
    ],
)
def test_the_operators_take_their_objects(kind: str, charts: dict[str, dict[str, Any]]) -> None:
    schema = SCHEMAS[kind.lower()]
    scaled = {"ScaledObject": scaled_object()}
    for made in (manifests(), monitoring(), charts["full"], kserve(), scaled):
        if kind in made:
            thing = made[kind]
            jsonschema.Draft7Validator(schema).validate(thing)
    misspelt = copy.deepcopy(thing)
    misspelt["spec"]["serveconfig"] = ""
    with pytest.raises(jsonschema.ValidationError, match="serveconfig"):
        jsonschema.Draft7Validator(schema).validate(misspelt)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("experiments alone", "userConfig.experiments needs database.secret"),
        ("keys in the values", "at '/args/api_keys'"),
        ("misspelt setting", "'max_pair' not allowed"),
        ("no brownout", 'userConfig.degrade.variant: there is no variant "lower"; there are full, low'),
        ("no commit", "image.tag must name the image's commit, or image.digest"),
    ],
)
def test_wrong_values_are_refused_with_their_name(name: str, reason: str, answer: dict[str, Any]) -> None:
    refusal = answer["installs"][list(ASKED).index(name)]
    assert isinstance(refusal, str), "Helm took it"
    assert reason in refusal


def test_the_rules_in_the_cluster_are_those_that_promtool_tries(charts: dict[str, dict[str, Any]]) -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text("utf-8"))
    assert charts["edited"]["PrometheusRule"]["spec"] == rules
    assert monitoring()["PrometheusRule"]["spec"] == rules
    assert not charts["plain"].keys() & {"PrometheusRule", "ServiceMonitor", "dashboard"}
    monitor = charts["full"]["ServiceMonitor"]["spec"]
    service = charts["full"]["Service"]
    assert service["metadata"]["labels"][monitor["jobLabel"]] == "headroom"  # the job that the rules ask for
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["endpoints"]
    credentials = {"name": "headroom-keys", "key": "metrics-key"}
    assert (endpoint["port"], endpoint["path"]) == (service["spec"]["ports"][0]["name"], "/metrics")
    assert endpoint["authorization"] == {"credentials": credentials}

    monitor = monitoring()["PodMonitor"]["spec"]
    worker = manifests()["RayService"]["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]
    labels = worker["metadata"]["labels"] | {"ray.io/node-type": "worker"}  # the operator's own
    assert labels[monitor["jobLabel"]] == "headroom"
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    (ray,) = worker["spec"]["containers"]
    assert [endpoint["port"]] == [port["name"] for port in ray["ports"]]
    assert (endpoint["path"], endpoint["authorization"]) == ("/metrics", {"credentials": credentials})


def test_keda_scales_the_charts_pods_by_metrics_that_there_are(charts: dict[str, dict[str, Any]]) -> None:
    """With the values that the file names, the chart leaves the number of pods to KEDA."""
    spec = scaled_object()["spec"]
    target = spec["scaleTargetRef"]
    deployment = charts["keda"]["Deployment"]
    assert (target["kind"], target["name"]) == (deployment["kind"], deployment["metadata"]["name"])
    assert "replicas" not in deployment["spec"], "Kubernetes takes a null for 1"
    assert "HorizontalPodAutoscaler" not in charts["keda"]
    (trigger,) = spec["triggers"]
    assert re.findall(r"headroom_\w+", trigger["metadata"]["query"]) == ["headroom_load"]
    assert float(trigger["metadata"]["threshold"]) == BUSY_SHARE
    assert "# TYPE headroom_load gauge" in Metrics().render().decode()


def test_a_pod_serves_deploys_config_with_the_charts_values(
    charts: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    shipped = yaml.safe_load((DEPLOY / "serve.yaml").read_text("utf-8"))
    rendered = yaml.safe_load(charts["plain"]["ConfigMap"]["data"]["serve.yaml"])
    assert rendered["applications"][0].pop("args") == {"drain_timeout_s": 30}
    assert shipped["applications"][0].pop("args") == {}
    assert rendered == shipped
    path = tmp_path / "serve.yaml"
    path.write_text(charts["full"]["ConfigMap"]["data"]["serve.yaml"])
    config = config_file.load(path, config_file.Overrides())
    assert (config.settings.model, config.settings.max_pairs) == ("/models/mine", 10)
    assert config.settings.drain_timeout_s == 90
    assert config.deployment["graceful_shutdown_timeout_s"] > 90
    assert [variant.name for variant in config.live.variants] == ["full", "low"]


def test_an_edit_of_the_variants_restarts_no_pod(charts: dict[str, dict[str, Any]]) -> None:
    plain, edited, full = (
        charts[name]["Deployment"]["spec"]["template"] for name in ("plain", "edited", "full")
    )
    assert charts["edited"]["ConfigMap"] != charts["plain"]["ConfigMap"]
    assert edited == plain
    assert full["metadata"]["annotations"] != plain["metadata"]["annotations"]


@pytest.mark.parametrize("name", ["plain", "full"])
def test_a_pod_has_time_to_drain_and_rights_to_nothing(name: str, charts: dict[str, dict[str, Any]]) -> None:
    pod = charts[name]["Deployment"]["spec"]["template"]["spec"]
    serve = container(charts[name])
    pause = int(serve["lifecycle"]["preStop"]["exec"]["command"][1])
    drain = ASKED[name].get("drainSeconds", Settings().drain_timeout_s)
    assert pod["terminationGracePeriodSeconds"] >= pause + drain + 15
    assert hardened(pod, serve)
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False  # their HEADROOM_… would be taken for misspelled settings
    startup = serve["startupProbe"]
    longest = startup["periodSeconds"] * startup["failureThreshold"]
    assert longest == {"plain": 300, "full": 1805}[name]  # as asked, up to the next probe
    assert outlasts_a_load(serve)
    assert [
        serve[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    ] == [
        "/health/ready",
        "/health/ready",
        "/health/live",
    ]
    secrets = {
        entry["name"]: entry["valueFrom"]["secretKeyRef"]["name"]
        for entry in serve["env"]
        if "valueFrom" in entry
    }
    assert ("HEADROOM_DATABASE_URL" in secrets) == (name == "full")
    assert ("HorizontalPodAutoscaler" in charts[name]) != ("replicas" in charts[name]["Deployment"]["spec"])


def test_pods_read_their_keys_from_the_secret_and_follow_it(charts: dict[str, dict[str, Any]]) -> None:
    for name, secret in (
        ("plain", ("headroom-keys", "api-keys")),
        ("placed", ("keys", "entries")),
    ):
        pod = charts[name]["Deployment"]["spec"]["template"]["spec"]
        assert file_of_keys(pod, container(charts[name])) == secret
    for pod in pods():
        (ray,) = pod["spec"]["containers"]
        assert file_of_keys(pod["spec"], ray) == ("headroom-keys", "api-keys")
        database = {"name": "headroom-database", "key": "url"}
        assert {"name": "HEADROOM_DATABASE_URL", "valueFrom": {"secretKeyRef": database}} in ray["env"]


def test_helm_test_scores_two_titles_with_the_releases_key(
    answer: dict[str, Any], charts: dict[str, dict[str, Any]], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    (test,) = answer["hooks"][list(ASKED).index("placed")]["test"]
    serve = charts["placed"]["Deployment"]["spec"]["template"]
    assert not charts["placed"]["Service"]["spec"]["selector"].items() <= test["metadata"]["labels"].items()
    pod = test["spec"]
    (score,) = pod["containers"]
    assert score["image"] == serve["spec"]["containers"][0]["image"]
    for member in ("securityContext", "imagePullSecrets", "tolerations", "serviceAccountName"):
        assert pod[member] == serve["spec"][member]
    url, key = score["env"]
    service = charts["placed"]["Service"]
    assert url["value"] == f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert key["valueFrom"]["secretKeyRef"] == {"name": "keys", "key": "scraper"}

    def run(address: str, token: str) -> subprocess.CompletedProcess[str]:
        variables = {"HEADROOM_URL": address, "HEADROOM_API_KEY": token}
        command = [sys.executable, *score["command"][1:]]
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)

    assert score["command"][0] == "python"
    database = f"sqlite:///{tmp_path / 'experiments.db'}"
    with served(tiny_checkpoint, api_keys="alpha", database_url=database) as address:
        passed = run(address, "alpha")
        assert (passed.returncode, len(passed.stdout.splitlines())) == (0, 2), passed.stderr
        refused = run(address, "beta")
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"{address}/v1/score answers 401: ")
    silent = run(address, "alpha")
    assert silent.returncode == 1
    assert "does networkPolicy.from admit this one?" in silent.stderr


MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}


def test_the_network_policies_open_the_services_port_and_no_other(charts: dict[str, dict[str, Any]]) -> None:
    chart = charts["plain"]["NetworkPolicy"]["spec"]
    assert chart["podSelector"]["matchLabels"].items() <= pod_labels(charts["plain"]).items()
    assert chart["policyTypes"] == ["Ingress", "Egress"]
    assert chart["ingress"] == [
        {"ports": [{"port": "http", "protocol": "TCP"}], "from": [{"podSelector": {}}, MONITORING]}
    ]
    assert [port["port"] for rule in chart["egress"] for port in rule["ports"]] == [53, 53, 5432]

    kuberay = manifests()["NetworkPolicy"]["spec"]
    assert (kuberay["podSelector"], kuberay["policyTypes"]) == (OURS, ["Ingress"])
    operator = {"matchLabels": {"app.kubernetes.io/component": "kuberay-operator"}}
    assert kuberay["ingress"] == [
        {"from": [{"podSelector": OURS}]},
        {
            "from": [{"namespaceSelector": {}, "podSelector": operator}],
            "ports": [{"port": 8265}, {"port": 8000}],
        },
        {"from": [{"podSelector": {}}, MONITORING], "ports": [{"port": 8000}]},
    ]


@pytest.mark.filterwarnings("ignore")  # Ray's own, when it is imported
def test_an_upgrade_checks_the_new_config_first(
    answer: dict[str, Any], charts: dict[str, dict[str, Any]], tmp_path: Path, run: Run
) -> None:
    for name, faults in (("edited", []), ("full", ["args.model: /models/mine does not exist"])):
        made = answer["hooks"][list(ASKED).index(name)]["pre-upgrade"]
        hooks = {thing["kind"]: thing for thing in made}
        config, job = hooks["ConfigMap"], hooks["Job"]
        pod = job["spec"]["template"]
        (only,) = pod["spec"]["containers"]
        order = [thing["metadata"]["annotations"]["helm.sh/hook-weight"] for thing in (config, job)]
        assert (order, job["spec"]["backoffLimit"]) == (["-1", "0"], 0)
        assert hardened(pod["spec"], only)
        selector = charts[name]["Service"]["spec"]["selector"].items()
        assert not selector <= pod["metadata"]["labels"].items(), "the Service would send it requests"
        (folder,) = [mount["mountPath"] for mount in only["volumeMounts"] if mount["name"] == "config"]
        assert config["data"] == charts[name]["ConfigMap"]["data"]
        (tmp_path / "serve.yaml").write_text(config["data"]["serve.yaml"])
        command = [part.replace(folder, str(tmp_path)) for part in only["args"]]
        said = run(*command, status=1 if faults else 0).err
        assert said == "".join(f"headroom: {tmp_path}/serve.yaml: {fault}\n" for fault in faults)


def test_the_schema_knows_the_settings_and_the_keys_of_the_live_config() -> None:
    values = json.loads((CHART / "values.schema.json").read_text("utf-8"))["properties"]
    assert values["args"]["properties"].keys() == Settings.model_fields.keys()
    schema = values["userConfig"]
    assert schema["properties"].keys() == LiveConfig.model_fields.keys()
    for key, model in (("variants", VariantConfig), ("experiments", ExperimentConfig)):
        items = schema["properties"][key]["items"]
        assert items["properties"].keys() == model.model_fields.keys()
        assert set(items["required"]) == {
            name for name, field in model.model_fields.items() if field.is_required()
        }
