"""Which mask a request gets, layers and units included: a remembered one is the same as one read again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from default_model.smaller import share_words
from headroom import Classifier, HeadMask
from headroom.models.compress.prune import prune
from headroom.models.errors import InvalidMask
from headroom.service.config.settings import InvalidConfig, LiveConfig
from headroom.service.scoring.catalog import BASE, CACHED_CHOICES, Catalog, build_catalog
from tests.checkpoints import load, write_checkpoint
from tests.service.in_process import QUERY, TITLES, pairs, serve


def catalog(base: Classifier, **document: Any) -> Catalog:
    live = document or {
        "masks": {"some": "1.0"},
        "variants": [{"name": "full"}, {"name": "cut", "head_mask": "0.1"}],
    }
    return build_catalog(LiveConfig.model_validate(live), {BASE: base}, load)


def parsed(spec: str, classifier: Classifier) -> HeadMask:
    return HeadMask.parse(spec, layers=classifier.num_layers, heads=classifier.num_heads)


def test_rows_of_requests_with_one_spec_share_one_mask(clf: Classifier) -> None:
    """The engine then multiplies by one mask for the batch, which costs less than one for each row."""
    config = catalog(clf)
    first, again = config.choose(None, "0.0"), config.choose(None, "0.0")
    assert first.mask is again.mask
    assert first.mask == parsed("0.0", clf)


def test_a_spec_is_remembered_for_its_variant_and_its_config_alone(clf: Classifier) -> None:
    config = catalog(clf)
    assert config.choose("full", "@some").mask == parsed("1.0", clf)
    assert config.choose("cut", "@some").mask == parsed("0.1,1.0", clf)
    other = catalog(clf, masks={"some": "1.1"})
    assert other.choose(None, "@some").mask == parsed("1.1", clf)


def test_callers_cannot_fill_the_memory_with_specs(clf: Classifier) -> None:
    config = catalog(clf)
    for seed in range(2 * CACHED_CHOICES):
        config.choose(None, f"random:0.5@{seed}")
        assert len(config._chosen) <= CACHED_CHOICES
    config.choose(None, "0.0," * 1000 + "0.0")
    assert all(len(spec) < 1000 for _, spec in config._chosen)


def test_a_smaller_network_beside_the_weights_is_a_variant_of_its_model(tmp_path: Path) -> None:
    home = write_checkpoint(tmp_path / "model")
    smaller = write_checkpoint(home / "networks" / "fast", seed=1, num_hidden_layers=1)
    share_words(smaller)
    variants = [
        {"name": "full"},
        {"name": "fast", "checkpoint": "@fast", "optional": True},
        {"name": "other", "checkpoint": "@other", "optional": True},
    ]
    found = catalog(load(home), variants=variants)
    assert list(found.variants) == ["full", "fast", "original"]
    fast = found.variants["fast"].classifier
    assert fast.num_layers == 1
    name = "bert.embeddings.word_embeddings.weight"
    torch.testing.assert_close(fast.network.tensors()[name], load(home).network.tensors()[name])
    variants[2]["optional"] = False
    with pytest.raises(InvalidConfig, match="the model has no network @other"):
        catalog(load(home), variants=variants)


def test_heads_that_a_checkpoint_lost_are_not_on(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The gauge said 144 of a network with 72 heads."""
    prune(tiny_checkpoint, tmp_path / "smaller", HeadMask.parse("0.0-2,2.1", layers=3, heads=4))
    found = catalog(load(tmp_path / "smaller"))
    assert [found.variants[name].heads_on for name in ("full", "cut")] == [8, 8]
    assert found.choose("full", "1.*,0.3").heads_on == 3


def test_an_optional_variant_of_another_checkpoint_stays_where_that_has_the_mask(
    clf: Classifier, tmp_path: Path
) -> None:
    other = write_checkpoint(tmp_path / "other", seed=3)
    (other / "masks").mkdir()
    (other / "masks" / "tuned.json").write_text('{"mask": "0.1"}')
    entry = {"name": "tuned", "checkpoint": str(other), "head_mask": "@tuned", "optional": True}
    variants = [{"name": "full"}, entry]
    assert catalog(clf, variants=variants).variants["tuned"].mask == parsed("0.1", clf)
    (other / "masks" / "tuned.json").unlink()
    assert list(catalog(clf, variants=variants).variants) == ["full", "original"]


def test_a_named_mask_need_not_fit_a_checkpoint_of_another_shape(clf: Classifier, tmp_path: Path) -> None:
    smaller = write_checkpoint(tmp_path / "smaller", num_hidden_layers=1)
    document: dict[str, Any] = {
        "masks": {"upper": "1.*", "lower": "0.1", "both": "@upper"},
        "variants": [{"name": "full"}, {"name": "new", "checkpoint": str(smaller)}],
    }
    found = catalog(clf, **document)
    assert set(found.masks[BASE]) >= {"upper", "lower", "both"}
    assert found.choose("new", "@lower").mask.heads_on == 3
    with pytest.raises(InvalidMask, match="both"):
        found.choose("new", "@both")
    named = {"name": "wrong", "checkpoint": str(smaller), "head_mask": "@upper"}
    document["variants"].append(named | {"optional": True})
    assert list(catalog(clf, **document).variants) == ["full", "new", "original"]
    document["variants"][2] = named
    with pytest.raises(InvalidConfig, match=r"^masks\.upper: layer 1 "):
        catalog(clf, **document)


SHAPE: Any = {"layers": 3, "heads": 4, "units": 64}


NARROW = {"off": [[0, 1]], "units": "0.0-31,1.*"}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint with a stored mask `thin`."""
    directory = write_checkpoint(tmp_path / "model")
    (directory / "masks").mkdir()
    (directory / "masks" / "thin.json").write_text(json.dumps({"mask": {"skip": [0], "units": "*.3-7"}}))
    return directory


async def test_layers_and_units_per_request_by_name_and_as_variants(checkpoint: Path) -> None:
    clf = load(checkpoint)
    thin = clf.stored_masks["thin"]
    narrow = HeadMask.parse(NARROW, **SHAPE)
    upper = HeadMask.parse("2.1,skip:1-2", layers=3, heads=4)
    config = {
        "masks": {"narrow": NARROW},
        "variants": [{"name": "full"}, {"name": "cut", "head_mask": "@narrow", "sliced": True}],
    }
    async with serve(checkpoint, config) as service:
        compared = await service.post(
            "/v1/compare",
            query=QUERY,
            titles=TITLES,
            masks=["skip:1-2,2.1", "@thin", "@narrow", {"skip": [2]}, "none"],
            variants=["cut"],
        )
        both = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cut", head_mask="skip:2")
        listed = (await service.http.get("/v1/masks")).json()["masks"]
        variants = (await service.http.get("/v1/variants")).json()["variants"]
        refused = [
            await service.refused("/v1/score", 422, query=QUERY, titles=TITLES, head_mask=mask)
            for mask in ("skip:3", {"skip": [0.5]}, {"units": "0.1"})
        ]
        wrong = await service.refused("/v1/attention", 422, query=QUERY, title=TITLES[0], heads="skip:1")

    last = HeadMask.parse("skip:2", layers=3, heads=4)
    masks = [upper, thin, narrow, last, clf.all_heads, narrow]
    answers = [*zip(compared["columns"], masks, strict=True), (both, narrow * last)]
    for answer, mask in answers:
        expected = clf.score(pairs(), mask).probabilities
        found = [row["probabilities"] for row in answer["results"]]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert answer["head_mask"]["id"] == mask.id
    shorter = compared["columns"][0]["head_mask"]
    assert [shorter[name] for name in ("spec", "heads_on", "units_on", "layers_on")] == ["skip:1-2", 4, 64, 1]
    counts = [
        (mask["name"], mask["head_mask"]["units_on"], mask["head_mask"]["layers_on"]) for mask in listed
    ]
    assert counts == [("narrow", 96, 3), ("thin", 118, 2)]
    assert variants[1]["head_mask"]["spec"] == f"0.1,units:{narrow.id}"
    assert variants[0]["parameters"] - variants[1]["parameters"] == 8 * (4 * 32 + 3) + 96 * (2 * 32 + 1)
    assert [error["param"] for error in refused] == ["head_mask"] * 3
    assert "layers 0 to 2" in refused[0]["message"]
    assert "stored masks only" in refused[2]["message"]
    assert wrong["param"] == "heads"


def test_masks_of_many_scattered_units_are_served_by_name_from_file_and_config(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", intermediate_size=8192)
    off = np.random.default_rng(0).random((3, 8192)) < 0.5
    mask = HeadMask(np.ones((3, 4)), (), off)
    form = mask.to_json()
    assert len(form["units"]) > 50_000
    (directory / "masks").mkdir()
    (directory / "masks" / "wide.json").write_text(json.dumps({"mask": form, "id": mask.id}))
    clf = load(directory)

    found = catalog(
        clf,
        masks={"by_form": form, "by_file": {"mask": form, "id": mask.id}},
        variants=[{"name": "full"}, {"name": "cut", "head_mask": "@by_form", "sliced": True}],
    )

    for chosen in (
        *(found.choose("full", name) for name in ("@wide", "@by_form", "@by_file")),
        found.choose("cut", None),
    ):
        assert chosen.mask.units_off is not None
        np.testing.assert_array_equal(chosen.mask.units_off, off)
    with pytest.raises(InvalidConfig, match=r"^masks\.other: the mask was made for another shape"):
        catalog(clf, masks={"other": {"mask": "0.1", "id": "171215292f29"}}, variants=[{"name": "full"}])


async def test_masks_of_one_structure_share_a_batch(checkpoint: Path) -> None:
    """Each had batches of its own, and 40 titles took four times as long."""
    clf = load(checkpoint)
    thin = clf.stored_masks["thin"]
    skipping = ["skip:2", "skip:2,0.1", "1.0-2,skip:2", "skip:2,random:0.5@3"]
    stored = ["@thin", "@same"]
    same = {"skip": [0], "units": "*.3-7", "off": [[1, 2]]}
    config = {"masks": {"same": same}, "variants": [{"name": "full"}]}
    async with serve(checkpoint, config, max_batch_tokens=100_000) as service:
        before = service.metric("headroom_batch_pairs_count")
        compared = await service.post(
            "/v1/compare", query=QUERY, titles=TITLES, masks=[*skipping, *stored, "0.1", "none"]
        )
        batches = service.metric("headroom_batch_pairs_count") - before
        found = service.replica.catalog
        lanes = [found.choose(None, form).lane for form in (*skipping, *stored, "skip:1", "0.1", "1.1")]

    assert batches == 3  # skip layer 2; skip layer 0, and units are off; nothing is skipped
    assert len(set(lanes[:4])) == len(set(lanes[4:6])) == len(set(lanes[7:])) == 1
    assert len(set(lanes)) == 4
    masks = [parsed(form, clf) for form in skipping]
    masks += [thin, HeadMask.parse(same, **SHAPE), parsed("0.1", clf), clf.all_heads]
    for column, mask in zip(compared["columns"], masks, strict=True):
        alone = [clf.score([pair], mask).probabilities[0] for pair in pairs()]
        found_here = [row["probabilities"] for row in column["results"]]
        np.testing.assert_allclose(found_here, alone, atol=1e-5)


def test_a_sliced_mask_has_batches_of_its_own_unless_its_rows_are_compared(clf: Classifier) -> None:
    sliced: dict[str, Any] = {"sliced": True, "head_mask": "0.1,skip:2"}
    variants = [
        {"name": "full"},
        {"name": "cut", **sliced},
        {"name": "other", **sliced, "head_mask": "skip:2"},
    ]
    found = catalog(clf, variants=variants)
    cut = found.variants["cut"]
    other = found.variants["other"]
    masked = found.choose("full", "skip:2,1.3")
    assert len({cut.lane, other.lane, masked.lane}) == 3
    assert cut.shared_lane == other.shared_lane == masked.lane


async def test_a_config_says_the_order_of_labels_for_each_checkpoint(tmp_path: Path) -> None:
    """`GET /v1/models` says which label counts as best where nothing says it."""
    own = write_checkpoint(tmp_path / "own", num_labels=2)
    other = write_checkpoint(tmp_path / "other", seed=1, num_labels=2)
    for directory in (own, other):
        config = json.loads((directory / "config.json").read_text())
        config["id2label"] = {"0": "shoes", "1": "hats"}
        (directory / "config.json").write_text(json.dumps(config))
    variants = [{"name": "full"}, {"name": "other", "checkpoint": str(other)}]
    async with serve(own, {"variants": variants}, label_order=["hats", "shoes"]) as service:
        models = (await service.http.get("/v1/models")).json()["models"]
    assert [model["grades"] for model in models] == [["hats", "shoes"], ["shoes", "hats"]]
    assert models[0]["label_order_note"] is None
    assert "'hats' counts as most relevant" in models[1]["label_order_note"]

    with pytest.raises(ValueError, match=r"label_order: variants have none any more: .* config\.json"):
        LiveConfig.model_validate({"variants": [{**variants[1], "label_order": ["hats", "shoes"]}]})
    config["headroom"] = {"label_order": ["hats", "shoes"]}
    (other / "config.json").write_text(json.dumps(config))
    assert catalog(load(own), variants=variants).variants["other"].classifier.grades == ("hats", "shoes")
