"""The chart and the KubeRay manifests: Helm's own engine, Kubernetes' and the operators' schemas."""

import copy
import importlib.util
import json
import os
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
from headroom.service.ray import environment
from headroom.service.ray.autoscaling import ByTokens
from tests.clients import environments

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
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
        "userConfig": EXPERIMENT,
    },
    "keda": {"autoscaling": {"enabled": False}, "replicas": None},
    "unknown value": {"replica": 3},
    "experiments alone": {"userConfig": EXPERIMENT},
    "misspelt variant": {"userConfig": {"variants": [{"name": "full", "headmask": "0.0"}]}},
    "misspelt config": {"userConfig": {"variant": []}},
    "keys in the values": {"args": {"api_keys": "k7Qm2vXw9"}},
    "no CPU limit": {"resources": {"limits": {"cpu": None}}},
    "drain": {"drainSeconds": "30s"},
    "rare scrapes": {"monitoring": {"interval": "60s"}},
    "runbook by path": {"monitoring": {"runbookUrl": "docs/alerts.md"}},
    "no commit": {"image": {"tag": ""}},
}
IMAGE = {"image": {"tag": "cpu-1a2b3c4"}}
"""What everybody must say: without a tag of its own, a cluster does not see a new image."""


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("helm-sdkpy holds Helm for Linux on x86-64 only")
    ingress = yaml.safe_load((DEPLOY / "helm" / "ingress.yaml").read_text("utf-8"))
    objects = [*manifests().values(), *monitoring().values(), *pods(), pod_of_kserve(), ingress]
    asked = {"chart": str(CHART), "values": [IMAGE | values for values in ASKED.values()], "objects": objects}
    return environments.run("deploy", Path(__file__).parent / "ask_kubernetes.py", **asked)


@pytest.fixture(scope="module")
def charts(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What Helm creates for each of ASKED, by kind; the dashboard's ConfigMap is `dashboard`."""
    made = {
        name: found for name, found in zip(ASKED, answer["installs"], strict=True) if isinstance(found, list)
    }
    assert list(made) == ["plain", "full", "edited", "gpu", "keda"], answer["installs"]
    return {name: {kind_of(thing): thing for thing in objects} for name, objects in made.items()}


def kind_of(thing: dict[str, Any]) -> str:
    kind: str = thing["kind"]
    return "dashboard" if "grafana_dashboard" in thing["metadata"].get("labels", {}) else kind


def manifests() -> dict[str, dict[str, Any]]:
    """The manifests for KubeRay, by kind."""
    documents = yaml.safe_load_all((DEPLOY / "kuberay" / "rayservice.yaml").read_text("utf-8"))
    return {document["kind"]: document for document in documents}


def monitoring() -> dict[str, dict[str, Any]]:
    """What the command of its README applies for the monitoring of KubeRay, by kind."""
    readme = (DEPLOY / "kuberay" / "README.md").read_text("utf-8")
    (command,) = re.findall(
        r"^\$ (\(cat deploy/kuberay/monitoring.yaml.*) \| kubectl apply", readme, re.MULTILINE
    )
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True)
    return {document["kind"]: document for document in yaml.safe_load_all(done.stdout)}


def pods() -> list[dict[str, Any]]:
    """The pods of the Ray cluster, as Kubernetes' schemas can check them."""
    cluster = manifests()["RayService"]["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, "spec": group["template"]["spec"]}
        for group in groups
    ]


OURS = {"matchLabels": {"app": "headroom"}}


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
        ("unknown value", "'replica' not allowed"),
        ("experiments alone", "userConfig.experiments needs database.secret"),
        ("misspelt variant", "'headmask' not allowed"),
        ("misspelt config", "'variant' not allowed"),
        ("keys in the values", "at '/args/api_keys'"),
        ("no CPU limit", "missing property 'cpu'"),
        ("drain", "at '/drainSeconds': got string, want integer"),
        ("rare scrapes", "at '/monitoring/interval'"),
        ("runbook by path", "at '/monitoring/runbookUrl'"),
        ("no commit", "image.tag must name the image's commit"),
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
    assert deployment["spec"].get("replicas") is None
    assert "HorizontalPodAutoscaler" not in charts["keda"]
    names = set(
        re.findall(r"headroom_\w+", " ".join(trigger["metadata"]["query"] for trigger in spec["triggers"]))
    )
    assert names == {"headroom_queue_tokens", "headroom_shed_total"}
    scraped = Metrics().render().decode()
    assert all(f"# TYPE {name.removesuffix('_total')}" in scraped for name in names)


def test_kserve_runs_the_chart_s_container(charts: dict[str, dict[str, Any]]) -> None:
    runtime = kserve()["ServingRuntime"]
    service = kserve()["InferenceService"]
    (ours,) = runtime["spec"]["containers"]
    predictor = service["spec"]["predictor"]
    assert predictor["model"]["runtime"] == runtime["metadata"]["name"]
    assert predictor["model"]["modelFormat"]["name"] == runtime["spec"]["supportedModelFormats"][0]["name"]
    mounts = {mount["mountPath"] for mount in container(charts["plain"])["volumeMounts"]}
    assert {mount["mountPath"] for mount in ours["volumeMounts"]} == mounts - {"/etc/headroom"}
    port = ours["args"][ours["args"].index("--port") + 1]
    assert runtime["spec"]["annotations"]["prometheus.kserve.io/port"] == port
    assert {
        ours[probe]["httpGet"]["port"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    } == {int(port)}


def test_a_runbooks_address_leads_to_the_entry_of_its_alert(charts: dict[str, dict[str, Any]]) -> None:
    alerts = [
        rule
        for group in charts["full"]["PrometheusRule"]["spec"]["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    assert alerts
    for rule in alerts:
        assert rule["annotations"].keys() == {"summary", "runbook_url"}
        entry = f"https://docs.example/alerts/#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook_url"] == entry


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
    assert secrets["HEADROOM_API_KEYS"] == "headroom-keys"
    assert ("HEADROOM_DATABASE_URL" in secrets) == (name == "full")
    assert ("HorizontalPodAutoscaler" in charts[name]) != ("replicas" in charts[name]["Deployment"]["spec"])


def hardened(pod: dict[str, Any], only: dict[str, Any]) -> bool:
    """Whether it runs as the image's user, on a read-only root, with /tmp and its state writable."""
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text("utf-8")
    user, group = (pod["securityContext"][name] for name in ("runAsUser", "runAsGroup"))
    mounts = {mount["mountPath"] for mount in only["volumeMounts"]}
    return (
        f"USER {user}:{group}\n" in dockerfile
        and pod["securityContext"]["runAsNonRoot"]
        and only["securityContext"]
        == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        and mounts >= {"/tmp", "/var/lib/headroom"}
    )


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


def test_rays_ports_ask_for_a_token() -> None:
    """They execute code for anyone who may call them."""
    cluster = manifests()["RayService"]["spec"]["rayClusterConfig"]
    assert cluster["authOptions"] == {"mode": "token"}
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert group["template"]["metadata"]["labels"].items() >= OURS["matchLabels"].items()


def test_a_pod_may_use_as_much_memory_as_its_replicas_need(charts: dict[str, dict[str, Any]]) -> None:
    """1 GiB for each of the replicas, one per CPU, and 1 GiB for Ray (docs/operations.md, sizing)."""
    for only in (container(charts["plain"]), *(pod["spec"]["containers"][0] for pod in pods())):
        limits = only["resources"]["limits"]
        assert int(limits["memory"].removesuffix("Gi")) >= int(limits["cpu"]) + 1, only["name"]


def test_kuberay_serves_deploys_config() -> None:
    shipped = yaml.safe_load((DEPLOY / "serve.yaml").read_text("utf-8"))
    service = manifests()["RayService"]["spec"]
    given = yaml.safe_load(service["serveConfigV2"])
    scaling = given["applications"][0]["deployments"][0].pop("autoscaling_config")
    assert 1 <= scaling["min_replicas"] < scaling["max_replicas"]
    assert scaling["policy"]["policy_function"] == f"{ByTokens.__module__}:{ByTokens.__qualname__}"
    ByTokens(**scaling["policy"]["policy_kwargs"])
    assert given["http_options"].pop("host") == "0.0.0.0"
    del shipped["http_options"]["host"]
    assert given == shipped
    assert f"ray=={service['rayClusterConfig']['rayVersion']}\n" in (ROOT / "constraints.txt").read_text(
        "utf-8"
    )
    head, worker = pods()
    for pod in (head, worker):
        assert hardened(pod["spec"], pod["spec"]["containers"][0])
    assert worker["spec"]["automountServiceAccountToken"] is False
    assert "automountServiceAccountToken" not in head["spec"]  # the autoscaler beside it asks Kubernetes


def test_a_pod_of_kuberay_has_time_to_drain_and_none_of_its_containers_has_rights() -> None:
    """The autoscaler, which the operator puts into the head's pod, has the rights of autoscalerOptions."""
    service, given = manifests()["RayService"]["spec"], manifests()["ConfigMap"]["data"]
    (deployment,) = yaml.safe_load(service["serveConfigV2"])["applications"][0]["deployments"]
    drain = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
    ray = importlib.util.find_spec("ray")
    assert ray is not None
    assert ray.origin is not None
    constants = Path(ray.origin).parent / "_private" / "ray_constants.py"
    assert f'"{drain}"' in constants.read_text("utf-8"), "Ray has renamed it"
    for pod in pods():
        grace = pod["spec"]["terminationGracePeriodSeconds"]
        assert deployment["graceful_shutdown_timeout_s"] < int(given[drain]) < grace
        assert "restartPolicy" not in pod["spec"]  # the operator's: it refuses others with this autoscaler
    autoscaler = service["rayClusterConfig"]["autoscalerOptions"]
    assert autoscaler["version"] == "v2"
    assert autoscaler["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_on_a_gpu_the_hpa_follows_the_queue_and_hub_models_may_be_kept(
    charts: dict[str, dict[str, Any]],
) -> None:
    (metric,) = charts["gpu"]["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["pods"]["metric"] == {"name": "headroom_queue_tokens"}
    assert int(metric["pods"]["target"]["averageValue"]) == Settings().batch_tokens("cuda")
    readme = (DEPLOY / "README.md").read_text("utf-8")
    assert 'seriesQuery: headroom_queue_tokens{namespace!="",pod!=""}' in readme
    (mount,) = [mount for mount in container(charts["gpu"])["volumeMounts"] if mount["name"] == "model-cache"]
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text("utf-8")
    assert f"XDG_CACHE_HOME={mount['mountPath']}\n" in dockerfile


def test_the_schema_knows_the_keys_of_the_live_config() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))["properties"]["userConfig"]
    assert schema["properties"].keys() == LiveConfig.model_fields.keys()
    for key, model in (("variants", VariantConfig), ("experiments", ExperimentConfig)):
        items = schema["properties"][key]["items"]
        assert items["properties"].keys() == model.model_fields.keys()
        assert set(items["required"]) == {
            name for name, field in model.model_fields.items() if field.is_required()
        }


def test_kuberays_ray_gets_the_environment_that_headroom_serve_sets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", own)
    environment.prepare(tmp_path, request_timeout_s=60)
    ours = {name: value for name, value in own.items() if str(tmp_path) not in value}
    for name in (
        "RAY_AUTH_MODE",  # KubeRay's authOptions
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",  # keeps Ray's ports on the loopback interface
        "RAY_memory_monitor_refresh_ms",  # a pod's memory limit may be watched
        "RAY_SERVE_HAPROXY_NBTHREAD",  # the number of cores decides
        "RAY_SERVE_HAPROXY_MAXCONN",  # the limit of open files decides
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT",  # a pod has its ports for itself
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S",  # several fronts take longer than one
    ):
        ours.pop(name)
    ours |= environment.replica_variables()  # here Ray's own processes share the replicas' environment
    given = manifests()["ConfigMap"]["data"]
    assert ours.items() <= given.items()
    assert given["RAY_SERVE_HAPROXY_BINARY_PATH"] == "/app/haproxy/launch-haproxy"
