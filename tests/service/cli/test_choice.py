"""Commands with `--config` answer as a service with this config file would, as typed at a prompt."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import orjson
import pytest

from tests.prompt import Run, with_config, write_labelled

QUERY = "steel angle bracket"
TITLES = ["Simpson Strong-Tie 12-Gauge Angle", "wood deck screws"]
LIVE = """{
    variants: [{name: full}, {name: small, head_mask: "0-1.*"},
               {name: both, cascade: [{variant: small, keep: 1}, {variant: full}]}],
    default: small, degrade: {above_queue_tokens: 2000, variant: full}}"""

Config = Callable[..., list[str]]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Return the option --config with a file of these settings."""
    return partial(with_config, tmp_path, LIVE)


@pytest.fixture
def plain(tiny_checkpoint: Path) -> dict[str, str]:
    return {"model": str(tiny_checkpoint), "device": "cpu", "dtype": "float32"}


def options(settings: dict[str, str]) -> list[str]:
    return [part for name, value in settings.items() for part in (f"--{name}", value)]


def test_score_takes_the_model_and_the_default_variant_of_the_config(
    run: Run, config: Config, plain: dict[str, str]
) -> None:
    file = config(**plain)
    small = run("score", QUERY, *TITLES, *options(plain), "--mask", "0-1.*")
    assert run("score", QUERY, *TITLES, *file, "--variant", "small") == small
    assert run("score", QUERY, *TITLES, *file).out == small.out
    full = run("score", QUERY, *TITLES, *options(plain))
    assert run("score", QUERY, *TITLES, *file, "--variant", "full") == full
    assert full != small
    both = run("score", QUERY, *TITLES, *options(plain), "--mask", "0-1.*,2.0")
    assert run("score", QUERY, *TITLES, *file, "--mask", "2.0").out == both.out


def test_a_mask_is_said_together_with_the_variant_that_it_is_laid_on(
    run: Run, config: Config, plain: dict[str, str]
) -> None:
    """`none` on a default variant that has heads off is not the intact model, and nobody is told so."""
    file = config(**plain)
    none = run("score", QUERY, *TITLES, *file, "--mask", "none", "--json")
    small, full = (
        run("score", QUERY, *TITLES, *file, "--variant", name, "--mask", "none", "--json")
        for name in ("small", "full")
    )
    assert none.err == (
        "headroom: the config's default, small, scores with the mask none laid on it (--variant names "
        "another); 4 of 12 heads are on\n"
    )
    assert small == (none.out, "")
    for output, variant, spec in ((none, "small", "0-1.*"), (full, "full", "none")):
        for row in map(orjson.loads, output.out.splitlines()):
            assert (row["variant"], row["head_mask"]) == (variant, spec)


def test_evaluate_measures_a_variant_of_the_config_on_its_model(
    run: Run, config: Config, plain: dict[str, str], tmp_path: Path
) -> None:
    rows = [(f"query {number // 4}", f"{TITLES[number % 2]} {number}", number % 5) for number in range(16)]
    pairs = write_labelled(tmp_path / "pairs.csv", rows)
    command = ["evaluate", "--data", str(pairs), "--json"]
    masked = orjson.loads(run(*command, *options(plain), "--mask", "0-1.*").out)
    named = orjson.loads(run(*command, *config(**plain), "--variant", "small").out)
    assert named["model"] == masked["model"]
    assert [side["metrics"] for side in named["sides"]] == [side["metrics"] for side in masked["sides"]]
    sides = [
        [(side["name"], side["variant"], side["head_mask"]) for side in one["sides"]]
        for one in (named, masked)
    ]
    assert sides[0] == [("full", "full", "none"), ("small", "small", "0-1.*")]
    assert sides[1] == [("full", "full", "none"), ("full 0-1.*", "full", "0-1.*")]
    itself = orjson.loads(run(*command, *config(**plain), "--variant", "full").out)
    assert [side["name"] for side in itself["sides"]] == ["intact", "full"]
    assert "it needs --variant" in run(*command, *config(**plain), status=2).err


def test_options_come_before_the_config(run: Run, config: Config, plain: dict[str, str]) -> None:
    elsewhere = config(model="/no/such", device="cpu", dtype="bfloat16")
    named = run("score", QUERY, *TITLES, *elsewhere, *options(plain), "--variant", "small")
    assert named == run("score", QUERY, *TITLES, *options(plain), "--mask", "0-1.*")
    wrong = run("score", QUERY, *TITLES, *elsewhere, "--variant", "small", status=1)
    assert "/no/such does not exist" in wrong.err
