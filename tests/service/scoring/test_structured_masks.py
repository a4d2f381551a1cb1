"""Masks that skip layers and switch units off, asked for over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import Classifier, HeadMask
from models.checkpoint.config import read_config, read_stored_masks
from models.errors import UnsupportedCheckpoint
from service.config.masks import resolve_masks
from service.config.settings import InvalidConfig, LiveConfig
from tests.checkpoints import write_checkpoint
from tests.service.in_process import QUERY, TITLES, pairs, serve

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
    clf = Classifier.load(checkpoint, "cpu", "float32")
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
    assert compared["columns"][0]["head_mask"] == {
        "id": upper.id,
        "spec": "skip:1-2",
        "heads_on": 4,
        "heads": 12,
        "units_on": 64,
        "units": 192,
        "layers_on": 1,
        "layers": 3,
    }
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


def test_weights_that_a_mask_cuts_out_are_counted(checkpoint: Path) -> None:
    clf = Classifier.load(checkpoint, "cpu", "float32")
    whole = sum(tensor.numel() for name, tensor in clf.network.tensors().items() if ".layer." in name)

    assert clf.network.parameters_off(HeadMask.parse("skip:*", layers=3, heads=4)) == whole
    assert clf.network.parameters_off(HeadMask.parse("skip:1,1.2", layers=3, heads=4)) == whole / 3


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ({"units": "0.64"}, "units: unit 64 does not exist; this model has units 0 to 63"),
        ({"skip": [3]}, "layer 3 does not exist"),
    ],
)
def test_a_wrong_stored_mask_is_refused_by_its_place(checkpoint: Path, mask: Any, message: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"^masks\.m: {message}"):
        resolve_masks(LiveConfig.model_validate({"masks": {"m": mask}}), read_config(checkpoint), {})
    file = checkpoint / "masks" / "m.json"
    file.write_text(json.dumps({"mask": mask}))
    with pytest.raises(
        UnsupportedCheckpoint, match=rf"m\.json does not hold a mask of this model: {message}"
    ):
        read_stored_masks(checkpoint, read_config(checkpoint))
