"""Masks that skip layers or switch units off: worked cases, what is refused, and properties of every mask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from models.errors import InvalidMask
from models.masks.head_mask import HeadMask

CASES = json.loads((Path(__file__).parents[1] / "cases" / "structured_masks.json").read_text("utf-8"))
WRONG = CASES["wrong"]
UNITS = 5


@st.composite
def masks(draw: st.DrawFn, *, units: bool = True, fractions: bool = True) -> HeadMask:
    layers, heads = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    return draw(masks_of(layers, heads, units=units, fractions=fractions))


@st.composite
def masks_of(
    draw: st.DrawFn, layers: int, heads: int, *, units: bool = True, fractions: bool = True
) -> HeadMask:
    weights = st.floats(0, 1, width=32) if fractions else st.sampled_from([0.0, 1.0])
    matrix = draw(hnp.arrays(np.float32, (layers, heads), elements=weights))
    skipped = draw(st.lists(st.integers(0, layers - 1)))
    off = draw(hnp.arrays(np.bool_, (layers, UNITS))) if units else None
    return HeadMask(matrix, tuple(skipped), off)


def parse(value: Any, layers: int = 12, heads: int = 12, units: int | None = None) -> HeadMask:
    return HeadMask.parse(value, layers=layers, heads=heads, units=units)


def refusal(value: Any, **options: Any) -> str:
    with pytest.raises(InvalidMask) as caught:
        parse(value, **options)
    return str(caught.value)


@pytest.mark.parametrize("case", CASES["valid"], ids=lambda case: str(case.get("spec", case.get("json"))))
def test_every_implementation_reads_the_worked_cases_alike(case: dict[str, Any]) -> None:
    mask = parse(case.get("spec", case.get("json")), case["layers"], case["heads"], case["units"])

    assert (mask.spec, mask.id) == (case["canonical"], case["id"])
    counts = (mask.heads_on, mask.units_on(case["units"]), mask.layers_on)
    assert counts == (case["heads_on"], case["units_on"], case["layers_on"])
    assert list(mask.skipped) == case["skipped"]
    units_off = [] if mask.units_off is None else np.argwhere(mask.units_off).tolist()
    assert units_off == case["units_off"]


@pytest.mark.parametrize("value", WRONG["specs"] + WRONG["json"], ids=str)
def test_wrong_masks_are_refused_in_one_sentence(value: Any) -> None:
    message = refusal(value, layers=WRONG["layers"], heads=WRONG["heads"], units=WRONG["units"])

    assert "\n" not in message
    assert 20 < len(message) < 200


def test_an_error_says_what_where_and_the_valid_range() -> None:
    assert refusal("skip:12") == "layer 12 does not exist; this model has layers 0 to 11"
    assert refusal("2.3,skip:0-12") == (
        "layer 12 does not exist; this model has layers 0 to 11 (item 2, 'skip:0-12')"
    )
    assert (
        refusal("skip:1, 12.0") == "layer 12 does not exist; this model has layers 0 to 11 (item 2, '12.0')"
    )
    assert refusal("skip:a") == (
        "'skip:a' is not skip:layers (such as skip:3 or skip:6-11); this model has layers 0 to 11"
    )
    assert refusal({"skip": [3, 12]}) == "layer 12 does not exist; this model has layers 0 to 11 (skip[1])"
    assert refusal({"units": "0.3,1.8"}, units=8) == (
        "units: unit 8 does not exist; this model has units 0 to 7 (item 2, '1.8')"
    )
    assert "layers 0 to 11 and units 0 to 7" in refusal({"units": "a.b"}, units=8)


def test_a_request_cannot_bring_units_along() -> None:
    assert refusal({"units": "0.3"}) == "'units' is allowed in stored masks only; name one as @name"
    assert "stored mask (@name)" in refusal("skip:3,units:171215292f29")


def test_a_mask_cannot_change_under_its_id() -> None:
    source = np.ones((2, UNITS), dtype=np.bool_)
    mask = HeadMask(np.ones((2, 3), np.float32), (), source)
    source[:] = False

    assert mask.units_off is not None
    assert mask.units_off.all()
    with pytest.raises(ValueError, match="read-only"):
        mask.units_off[0, 0] = False


@pytest.mark.parametrize(
    ("skipped", "units_off"), [((2,), None), ((-1,), None), ((), [[1, 0]] * 2), ((), [[True]]), ((), [True])]
)
def test_what_does_not_fit_the_layers_is_refused(skipped: Any, units_off: Any) -> None:
    with pytest.raises(InvalidMask):
        HeadMask(np.ones((2, 3), np.float32), skipped, units_off)


def test_masks_of_other_widths_never_mix() -> None:
    narrow, wide = (HeadMask(np.ones((2, 3), np.float32), (), np.ones((2, n), np.bool_)) for n in (4, 5))
    with pytest.raises(InvalidMask, match="4 units"):
        wide * narrow


@given(masks(units=False, fractions=False))
def test_the_canonical_spec_parses_back_to_the_same_mask(mask: HeadMask) -> None:
    again = parse(mask.spec, mask.layers, mask.heads)

    assert (again, again.id, again.spec) == (mask, mask.id, mask.spec)


@given(masks())
def test_the_json_form_survives_a_round_trip_through_a_file(mask: HeadMask) -> None:
    again = parse(json.loads(json.dumps(mask.to_json())), mask.layers, mask.heads, UNITS)

    assert (again, again.id, hash(again)) == (mask, mask.id, hash(mask))


@given(masks_of(3, 4), masks_of(3, 4))
def test_masks_are_equal_if_and_only_if_their_ids_are(one: HeadMask, other: HeadMask) -> None:
    assert (one == other) == (one.id == other.id)


@given(masks_of(3, 4), masks_of(3, 4))
def test_two_masks_combined_switch_off_what_either_does(one: HeadMask, other: HeadMask) -> None:
    both = one * other

    assert both == other * one
    assert both * one.none(3, 4) == both
    assert set(both.skipped) == {*one.skipped, *other.skipped}
    assert set(both.off) >= {*one.off, *other.off}
    off = [np.zeros((3, UNITS), np.bool_) if m.units_off is None else m.units_off for m in (one, other, both)]
    kept = [layer for layer in range(3) if layer not in both.skipped]
    assert np.array_equal((off[0] | off[1])[kept], off[2][kept])
    assert both.units_on(UNITS) <= min(one.units_on(UNITS), other.units_on(UNITS))


@given(st.text(alphabet="0123456789.-*,:@/ skipeandom", max_size=30))
def test_any_text_gives_a_mask_or_a_refusal(spec: str) -> None:
    try:
        mask = parse(spec, 3, 4)
    except InvalidMask:
        return
    assert parse(mask.spec, 3, 4) == mask
