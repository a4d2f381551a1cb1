"""Settings and the live config: a wrong one is refused before it can do harm."""

import os
import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from headroom.models.checkpoint.config import ModelConfig
from headroom.models.masks.head_mask import HeadMask
from headroom.service.api.body import MAX_DEPTH
from headroom.service.config.masks import left_out, resolve_masks
from headroom.service.config.settings import InvalidConfig, LiveConfig, Settings
from headroom.service.schemas.requests import MAX_COLUMNS


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("HEADROOM_"):
            monkeypatch.delenv(name)


def test_the_defaults_are_the_contracts() -> None:
    settings = Settings()
    assert settings.max_pairs == 1000
    assert (MAX_COLUMNS, settings.max_compare_rows, MAX_DEPTH) == (64, 4096, 32)
    assert settings.max_body_bytes == 4_000_000
    assert settings.request_timeout_s == 60
    assert settings.api_keys == ()


@pytest.mark.parametrize("end", ["\n", "\r\n", " "])
def test_a_line_end_after_a_value_is_not_part_of_it(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`echo postgresql://… | base64` makes a Secret that ends in one: another database, an unknown key."""
    values = {
        "database_url": "sqlite:////data/x.db",
        "model": "/models/own",
        "max_pairs": "10",
        "max_queue_s": "0.5",
        "deterministic": "true",
        "device": "cpu",
        "api_keys": "alpha,beta;role=admin",
        "cors_origins": "https://shop.example",
        "score_cache": "redis://cache:6379/0",
    }
    right = Settings(**values)  # type: ignore[arg-type]
    for name, value in values.items():
        monkeypatch.setenv(f"HEADROOM_{name.upper()}", value + end)
    assert Settings() == right
    for name in values:
        monkeypatch.delenv(f"HEADROOM_{name.upper()}")
    assert Settings(**{name: value + end for name, value in values.items()}) == right  # type: ignore[arg-type]


def test_keys_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADROOM_API_KEYS", "s3cr3t-one,s3cr3t-two;role=root")
    with pytest.raises(ValidationError, match="entry 2") as caught:
        Settings()
    assert "s3cr3t" not in str(caught.value)
    monkeypatch.setenv("HEADROOM_API_KEYS", "s3cr3t-one")
    settings = Settings()
    assert "s3cr3t" not in f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    assert b"s3cr3t" not in pickle.dumps(settings)
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(("device", "tokens"), [("cpu", 1024), ("cuda", 16_384), ("mps", 1024)])
def test_the_token_budget_follows_the_device(device: str, tokens: int) -> None:
    assert Settings().batch_tokens(device) == tokens
    assert Settings().queue_tokens(device) == 64 * tokens
    assert Settings(max_batch_tokens=7, max_queue_tokens=9).batch_tokens(device) == 7
    assert Settings(max_batch_tokens=7, max_queue_tokens=9).queue_tokens(device) == 9


CONFIG: dict[str, Any] = {
    "masks": {"lower": "0-5.*", "both": {"off": [[6, 1]]}},
    "variants": [
        {"name": "full"},
        {"name": "masked", "head_mask": "@lower"},
        {"name": "pruned", "head_mask": "random:0.2@7", "sliced": True},
        {"name": "other", "checkpoint": "/models/other"},
    ],
}


def experiment(*variants: str) -> dict[str, Any]:
    arms = [{"name": f"arm{i}", "variant": variant} for i, variant in enumerate(variants)]
    return {"name": "e", "salt": "s", "arms": arms}


def test_the_version_follows_the_content_and_nothing_else() -> None:
    version = LiveConfig.model_validate(CONFIG).version
    assert len(version) == 12
    assert int(version, 16) < 2**53
    assert LiveConfig.model_validate(dict(reversed(CONFIG.items()))).version == version
    assert LiveConfig.model_validate({**CONFIG, "default": "pruned"}).version != version
    assert LiveConfig.model_validate({**CONFIG, "masks": {"lower": "0-4.*"}}).version != version


def model(layers: int = 12, heads: int = 12) -> ModelConfig:
    """The config of a model of this shape."""
    return ModelConfig(
        vocab_size=10,
        hidden_size=4 * heads,
        embedding_size=4 * heads,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=8,
        max_positions=16,
        layer_norm_eps=1e-12,
        activation="gelu",
        type_vocab_size=2,
    )


TUNED = {"tuned": HeadMask.parse("1.1", layers=12, heads=12)}
OPTIONAL: Any = {"name": "x", "head_mask": "@tuned", "optional": True}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"default": "x"}, "default is x"),
        ({"variants": [OPTIONAL]}, "default is x"),
        ({"experiments": [experiment("full", "x")]}, r"experiments\[0\]\.arms\[1\]\.variant is x"),
    ],
)
def test_a_model_without_the_mask_is_refused_where_an_optional_variant_is_needed(
    change: dict[str, object], place: str
) -> None:
    config = LiveConfig.model_validate({"variants": [{"name": "full"}, OPTIONAL], **change})
    assert left_out(config, resolve_masks(config, model(), TUNED)[1]) == {}
    with pytest.raises(InvalidConfig, match=f"{place}, but the model has no mask @tuned"):
        left_out(config, resolve_masks(config, model(), {})[1])


@pytest.mark.parametrize("own", [{}, {"checkpoint": "/m/small"}])
@pytest.mark.parametrize("spec", ["0.0," * 10_000, "@" + "a" * 40_000])
def test_a_spec_that_is_too_long_is_refused_with_its_place(spec: str, own: dict[str, str]) -> None:
    variants = [{"name": "full"}, {"name": "x", "head_mask": spec, **own}]
    config = LiveConfig.model_validate({"variants": variants})
    with pytest.raises(InvalidConfig, match=r"^variants\[1\]\.head_mask: the spec has 40,00. characters"):
        resolve_masks(config, model(2, 2), {}, own.get("checkpoint"))
