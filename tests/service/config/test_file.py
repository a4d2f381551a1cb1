"""headroom.service.config.file: a wrong config is refused in one line before anything starts."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from headroom.service.config.file import ConfigFile, ConfigFileError, Overrides, load
from headroom.service.config.keys import parse_api_keys
from headroom.service.config.settings import Settings
from tests.service.running import DEPLOY


@pytest.fixture
def document() -> Any:
    return yaml.safe_load(DEPLOY.read_text())


def read(path: Path, text: str, overrides: Overrides = Overrides()) -> ConfigFile:  # noqa: B008 - frozen
    """Load a file of this text."""
    path.write_text(text)
    return load(path, overrides)


def refusal(path: Path, text: str) -> str:
    with pytest.raises(ConfigFileError) as caught:
        read(path, text)
    reason = str(caught.value)
    assert "\n" not in reason
    return reason.removeprefix(str(path)).removeprefix(": ")


def test_the_shipped_file_is_right() -> None:
    config = load(DEPLOY, Overrides())
    assert (config.host, config.port, config.replicas) == ("127.0.0.1", 8000, None)
    names = [variant.name for variant in config.live.variants]
    assert names == ["full", "pruned20", "fast", "rough", "cascade"]
    assert config.settings.request_timeout_s == config.document["http_options"]["request_timeout_s"]


def test_the_command_line_wins() -> None:
    config = load(DEPLOY, Overrides("0.0.0.0", 9, "m", "cpu", "float32", 3))
    assert (config.host, config.port, config.replicas) == ("0.0.0.0", 9, 3)
    assert (config.settings.model, config.settings.device, config.settings.dtype) == ("m", "cpu", "float32")


@pytest.mark.parametrize(("said", "replicas"), [("3", 3), ("auto", None)])
def test_a_file_says_how_many_replicas_or_leaves_it_to_serve(
    said: str, replicas: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "serve.yaml"
    deployment = f"{{name: Relevance, num_replicas: {said}}}"
    path.write_text(f"applications: [{{import_path: x:y, deployments: [{deployment}]}}]")
    config = load(path, Overrides())
    assert config.replicas == replicas
    assert (config.host, config.port, config.live.default_variant) == ("127.0.0.1", 8000, "full")
    assert load(path, Overrides(replicas=2)).replicas == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a Ray Serve config (a mapping with `applications`)"),
        ("applications: [{}, {}]", "applications must hold exactly one application"),
        ("a: [", ", line 1: "),
        ("a: 1\nb: 2\na: 3", ", line 3: the key 'a' stands twice"),
        ("a: @pruned20", "put the value in quotes"),
        ("salt: 2026-11-30", "a value that JSON does not have (put text in quotes)"),
        ("masks: &a {b: *a}", "Recursion limit reached"),
    ],
)
def test_what_is_not_a_serve_config_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    assert reason in refusal(tmp_path / "serve.yaml", text)


@pytest.mark.parametrize("number", ["0", "-12", "0x1F", "-0.5", "2.", "1e-05", "-2E+6"])
def test_a_number_that_every_yaml_reads_alike_is_taken(number: str, tmp_path: Path) -> None:
    text = f"applications: [{{runtime_env: {{a: {number}, b: '017'}}, deployments: [{{name: Relevance}}]}}]"
    (application,) = read(tmp_path / "serve.yaml", text).document["applications"]
    value = float(number) if "0x" not in number else int(number, 16)
    assert application["runtime_env"] == {"a": value, "b": "017"}


@pytest.mark.parametrize("text", ["=", "<<"])
def test_signs_that_yaml_1_1_alone_gives_a_meaning_are_text(text: str, tmp_path: Path) -> None:
    """Helm writes `salt: =`, and a chart's first pods did not start."""
    whole = f"applications: [{{runtime_env: {{a: {text}, b: [{text}]}}, deployments: [{{name: Relevance}}]}}]"
    (application,) = read(tmp_path / "serve.yaml", whole).document["applications"]
    assert application["runtime_env"] == {"a": text, "b": [text]}


@pytest.mark.parametrize(
    ("options", "variables", "args", "place"),
    [
        ({"device": "cpu", "dtype": "float16"}, {}, {}, "--dtype"),
        ({"device": "cpu"}, {"HEADROOM_DTYPE": "float16"}, {"dtype": "float32"}, None),
        ({"device": "cpu"}, {"HEADROOM_DTYPE": "float16"}, {}, "HEADROOM_DTYPE"),
        ({"device": "cpu"}, {}, {"dtype": "float16"}, "FILE: args.dtype"),
        ({}, {"HEADROOM_SCORE_STORE": "/s"}, {}, "HEADROOM_SCORE_STORE: this setting is gone"),
        ({}, {"HEADROOM_MAX_PAIRS": "many"}, {}, "HEADROOM_MAX_PAIRS: Input should be a valid integer"),
        ({}, {}, {"cors_origins": ["*"]}, "FILE: args.cors_origins[0]: "),
        ({"model": ""}, {}, {"model": "tiny"}, "--model"),
    ],
)
def test_a_wrong_value_is_blamed_on_where_it_was_written(
    options: dict[str, str],
    variables: dict[str, str],
    args: dict[str, str],
    place: str | None,
    document: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    document["applications"][0]["args"] = args
    path = tmp_path / "serve.yaml"
    text = yaml.safe_dump(document)
    overrides = Overrides(**options)  # type: ignore[arg-type]
    if place is None:
        read(path, text, overrides)
        return
    with pytest.raises(ConfigFileError) as caught:
        read(path, text, overrides)
    assert str(caught.value).startswith(place.replace("FILE", str(path)))


def test_an_off_without_quotes_which_yaml_reads_as_false_is_off(tmp_path: Path) -> None:
    text = DEPLOY.read_text().replace("args: {}", "args: {access_log: off}")
    assert read(tmp_path / "serve.yaml", text).settings.access_log == "off"


FULL, FAST, OTHER = {"name": "full"}, {"name": "fast", "head_mask": "0.0"}, {"name": "other"}
OWN, ORDER = {"name": "original"}, "user_config: degrade.variant: 'original' is the default already; name"
PLACE, KEEP = "user_config.variants[2]", "cascade[0].keep"
STAGE = "user_config: variants[2].cascade[0].variant"
RANGE = "should be a whole number of titles from 1, or a share between 0 and 1 (both excluded)"


def stage(variant: str, keep: Any = None) -> dict[str, Any]:
    return {"variant": variant} if keep is None else {"variant": variant, "keep": keep}


def cascade(*stages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"user_config": {"variants": [FULL, FAST, {"name": "c", "cascade": [*stages], **more}, OTHER]}}


def degrade(**limits: Any) -> dict[str, Any]:
    whole = {"above_queue_tokens": 9, "variant": "fast"} | limits
    return {"user_config": {"variants": [FULL, FAST], "degrade": whole}}


def variants(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"user_config": {"variants": [*entries], **more}}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"args": {"deterministic": "perhaps"}}, "args.deterministic: should be true or false"),
        ({"args": {"access_log": True}}, "args.access_log: Input should be 'off' or 'json'"),
        ({"args": [1]}, "args must be a mapping (name: value), not a list"),
        ({"http_options": {"port": "many"}}, "http_options.port must be a whole number from 1 to 65535"),
        ({"user_config": {"masks": {"a": 2.3}}}, "user_config.masks.a: Input should be a valid string; put"),
        (degrade(variant="no"), "user_config: degrade.variant: there is no variant 'no'; there are full, f"),
        (degrade(variant="full"), "user_config: degrade.variant: 'full' is the default already"),
        (cascade(stage("fast", 1.0), stage("full")), f"{PLACE}: {KEEP}: {RANGE}"),
        (cascade(stage("fast"), stage("full")), f"{PLACE}: {KEEP}: {RANGE}"),
        (cascade(stage("fast", 3), stage("full", 3)), f"{PLACE}: cascade[1].keep: the last stage keeps all"),
        (cascade(stage("gone", 3), stage("full")), f"{STAGE}: there is no variant 'gone'; there are full, f"),
        (cascade(stage("c", 3), stage("full")), f"{STAGE}: 'c' is a cascade itself; name its stages in its"),
        (
            cascade(stage("fast", 3), stage("other", 3), stage("full")),
            f"{PLACE}: cascade[1].keep: 3 is not fewer than the 3 that an earlier stage keeps",
        ),
        (cascade(stage("full", 3), stage("full")), f"{PLACE}: cascade[1].variant: 'full' is already an"),
        (
            cascade(stage("fast", 3), stage("full"), checkpoint="/x"),
            f"{PLACE}: checkpoint: a cascade has none",
        ),
        (
            cascade(stage("original", 5), stage("full")),
            f"{STAGE}: 'original' gives no scores, so it is no st",
        ),
        (variants(FULL, default="original", degrade={"above_queue_tokens": 9, "variant": "original"}), ORDER),
        (variants(FULL, FULL), "user_config: variants: two are called 'full'"),
        (
            variants(FULL, OWN),
            "user_config.variants[1]: the name 'original' is taken: it stands for the titles",
        ),
        (variants({"name": "a", "sliced": True}), "user_config.variants[0]: sliced needs a head_mask that"),
        (variants(FAST | {"optional": True}), "user_config.variants[0]: optional needs a head_mask or a"),
        (
            variants(FULL, default="nobody"),
            "user_config: default: there is no variant 'nobody'; there are full, o",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    change: dict[str, Any], reason: str, document: Any, tmp_path: Path
) -> None:
    application = document["applications"][0]
    for name, value in change.items():
        parent = {"args": application, "http_options": document}.get(name, application["deployments"][0])
        parent[name] = value
    assert refusal(tmp_path / "serve.yaml", yaml.safe_dump(document)).startswith(reason)


def test_a_cascade_may_come_before_its_stages_and_be_the_default(document: Any, tmp_path: Path) -> None:
    first = {"name": "c", "cascade": [stage("fast", 0.2), stage("full")]}
    document["applications"][0]["deployments"][0]["user_config"] = {"variants": [first, FAST, FULL]}
    assert read(tmp_path / "serve.yaml", yaml.safe_dump(document)).live.default_variant == "c"


@pytest.mark.parametrize("keys", ["s3cr3t, b0ss;role=admin;rate=5", ["s3cr3t", "b0ss;role=admin;rate=5"]])
def test_keys_in_the_file_reach_serve_as_digests(keys: Any, document: Any, tmp_path: Path) -> None:
    """Serve logs the arguments of an application and shows them in its status."""
    document["applications"][0]["args"] = {"api_keys": keys}
    config = read(tmp_path / "serve.yaml", yaml.safe_dump(document))
    assert config.settings.api_keys == parse_api_keys("s3cr3t,b0ss;role=admin;rate=5")
    handed_on = config.document["applications"][0]["args"]
    assert Settings.model_validate(handed_on).api_keys == config.settings.api_keys
    for shown in (str(handed_on), repr(config)):
        assert "s3cr3t" not in shown
        assert "b0ss" not in shown


def test_a_database_password_in_the_file_is_refused_and_not_repeated(document: Any, tmp_path: Path) -> None:
    """Serve would write it into its log."""
    for url, is_refused in (
        ("postgresql://me:s3cr3t@host/name", True),
        ("postgresql://host/name", False),
        ("sqlite:////tmp/file.db", False),
    ):
        document["applications"][0]["args"] = {"database_url": url, "service_name": "production"}
        text = yaml.safe_dump(document)
        if is_refused:
            reason = refusal(tmp_path / "serve.yaml", text)
            assert reason.startswith("args.database_url: ")
            assert "HEADROOM_DATABASE_URL" in reason
            assert "s3cr3t" not in reason
        else:
            assert read(tmp_path / "serve.yaml", text).settings.database_url == url


def test_a_number_of_replicas_on_the_command_line_wins_over_autoscaling(
    document: Any, tmp_path: Path
) -> None:
    document["applications"][0]["deployments"][0]["autoscaling_config"] = {"max_replicas": 4}
    config = read(tmp_path / "serve.yaml", yaml.safe_dump(document), Overrides(replicas=2))
    assert config.replicas == 2
    deployment = config.document["applications"][0]["deployments"][0]
    assert "autoscaling_config" not in deployment, "Serve refuses both together"


@pytest.mark.parametrize(
    "keys", [None, 12345, [12345], {"s3cr3t": "admin"}, "s3cr3t;role=root", ["s3cr3t", "s3cr3t"], "sha256:ab"]
)
def test_wrong_keys_are_refused_and_never_mean_none(keys: Any, document: Any, tmp_path: Path) -> None:
    document["applications"][0]["args"] = {"api_keys": keys}
    reason = refusal(tmp_path / "serve.yaml", yaml.safe_dump(document))
    assert reason.startswith("args.api_keys: ")
    assert "s3cr3t" not in reason
