"""Masks of heads, layers and units: the worked cases, what is refused, and properties of every mask."""

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headroom.models.errors import InvalidMask
from headroom.models.masks.head_mask import HeadMask

FILES = [Path(__file__).parents[2] / "cases" / f"{name}.json" for name in ("masks", "structured_masks")]
PLAIN, STRUCTURED = (json.loads(file.read_text(encoding="utf-8")) for file in FILES)
UNITS = 5

LOOSE_SPECS = [
    *("random:.5@1", "random:5.@1", "random:1e-1@1", "random:0_1@1", "random:+1@1", "random:٠@1"),
    *("random:1.0001@1", "random:0.5@+1", "random:0.5@1_0", "random:0.5@٣", "random:0.5@", "random:@1"),
    *("random:0.5@1e3", "random:0.5@1/none", "random:0.5@1/@x", "random:0.5@1/keep:2.3", "keep:@x"),
    *("keep:keep:1.1", "2.3,@x", "None", "KEEP:2.3", "٣.1", "*", "0-*.1", "random:0.5 @1", "2 .3"),
    *("2.3\x0b", "weights:171215292f29", "\ud800"),
]
WRONG_WEIGHTS = [True, None, "1", 1.1, -0.1, math.nan, math.inf, 10**5000, 1 + 1e-12, [1]]
HUGE: list[Any] = [
    *("2.3," * 1_000_000, "1" * 4_000_000 + ".0", "random:0.2@" + "7" * 4_000_000),
    *("0-999999999.*", "9" * 30_000 + ".0", "random:" + "9" * 30_000 + "@1", "@" + "x" * 30_000),
    *("*.*," * 8_000 + "x", {"off": [[2, 3]] * 1_000_000}, {"weights": [[1] * 100_000] * 12}),
]

shapes = st.tuples(st.integers(1, 13), st.integers(1, 13))
binary_masks = shapes.flatmap(lambda shape: hnp.arrays(np.bool_, shape)).map(HeadMask)


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


def parse(value: Any, layers: int = 12, heads: int = 12, **options: Any) -> HeadMask:
    return HeadMask.parse(value, layers=layers, heads=heads, **options)


def refusal(value: Any, layers: int = 12, heads: int = 12, units: int | None = None) -> str:
    with pytest.raises(InvalidMask) as caught:
        parse(value, layers, heads, units=units)
    return str(caught.value)


@pytest.mark.parametrize(
    "case", PLAIN["valid"] + STRUCTURED["valid"], ids=lambda case: str(case.get("spec", case.get("json")))
)
def test_every_implementation_reads_the_worked_cases_alike(case: dict[str, Any]) -> None:
    value, units = case.get("spec", case.get("json")), case.get("units")
    mask = parse(value, case["layers"], case["heads"], units=units)

    assert (mask.spec, mask.id) == (case["canonical"], case["id"])
    if units is None:
        assert mask.off == tuple(tuple(head) for head in case["off"])
        return
    counts = (mask.heads_on, mask.units_on(units), len(mask.layers_kept))
    assert counts == (case["heads_on"], case["units_on"], case["layers_on"])
    assert list(mask.skipped) == case["skipped"]
    units_off = [] if mask.units_off is None else np.argwhere(mask.units_off).tolist()
    assert units_off == case["units_off"]


WRONG = [
    (value, cases["wrong"]["layers"], cases["wrong"]["heads"], cases["wrong"].get("units"))
    for cases in (PLAIN, STRUCTURED)
    for value in cases["wrong"]["specs"] + cases["wrong"].get("json", [])
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: str(wrong[0]))
def test_wrong_masks_are_refused_in_one_sentence(wrong: Any) -> None:
    message = refusal(*wrong)

    assert "\n" not in message
    assert 20 < len(message) < 200


@pytest.mark.parametrize("spec", LOOSE_SPECS)
def test_no_implementation_has_to_guess_at_a_loose_spelling(spec: str) -> None:
    assert refusal(spec)


@pytest.mark.parametrize("weight", WRONG_WEIGHTS, ids=lambda weight: str(type(weight).__name__))
def test_a_wrong_weight_is_refused_by_its_place(weight: Any) -> None:
    assert refusal({"weights": [[1, 1], [1, weight]]}, 2, 2).startswith("weights[1][1] is ")


def test_half_a_head_is_rounded_in_decimal_not_in_binary() -> None:
    # 0.145 * 100 is 14.499999999999998 in binary floating point; the contract's 14.5 goes up.
    assert len(parse("random:0.145@1", 10, 10).off) == 15
    assert len(parse("random:0.14499999999999999999999999999999999999@1", 10, 10).off) == 14
    assert len(parse("random:0.49999999999999999999999999999999999999@1", 1, 1).off) == 0
    assert len(parse("random:1.000@1", 10, 10).off) == 100


@pytest.mark.parametrize("value", HUGE, ids=lambda value: str(type(value).__name__))
def test_a_huge_mask_is_refused_before_it_costs_anything(value: Any) -> None:
    start = time.thread_time()
    message = refusal(value)

    assert time.thread_time() - start < 0.5
    assert len(message) < 200


def test_a_request_cannot_bring_units_along() -> None:
    assert refusal({"units": "0.3"}) == "'units' is allowed in stored masks only; name one as @name"
    assert "stored mask (@name)" in refusal("skip:3,units:171215292f29")
    assert "the limit is 32,768" in refusal({"units": "0.3," * 10_000 + "0.3"})
    assert refusal({"mask": "0.3"}) == (
        "an object has at most one of the keys off, keep and weights, and skip beside it, not 'mask'"
    )


@pytest.mark.parametrize(("layers", "units"), [(12, 3072), (24, 4096)])  # BERT-base and -large
def test_a_stored_mask_of_scattered_units_is_read_back_however_many_they_are(layers: int, units: int) -> None:
    off = np.random.default_rng(0).random((layers, units)) < 0.5
    mask = HeadMask(np.ones((layers, 16)), (), off)
    form = json.loads(json.dumps(mask.to_json()))
    assert len(form["units"]) > 80_000

    read = parse(form, layers, 16, units=units)

    assert read.units_off is not None
    np.testing.assert_array_equal(read.units_off, off)


@pytest.mark.parametrize("other", [(4, 4, 8), (3, 5, 8), (3, 4, 9)])
def test_a_file_made_for_another_shape_is_refused(other: tuple[int, int, int]) -> None:
    """Its numbers exist in the model, too, but are other layers, heads or units there."""
    form = {"off": [[1, 2]], "units": "0.3,0.5"}
    made_for = parse(form, 3, 4, units=8)
    file = {"mask": form, "model": "small", "id": made_for.id}
    here = parse(form, *other[:2], units=other[2]).id

    assert parse(file, 3, 4, units=8) == made_for
    assert refusal(file, *other) == (
        f"the mask was made for another shape: its id is '{file['id']}', and for the {other[0]} layers of "
        f"{other[1]} heads and {other[2]} units of this model it would be {here}"
    )


def test_a_file_is_refused_if_it_says_two_masks_or_no_id() -> None:
    assert "not 'mask', 'skip'" in refusal({"mask": "0.1", "skip": [1]}, units=8)
    assert "not 'mask'" in refusal({"mask": {"mask": "0.1"}}, units=8)
    assert "its id is None" in refusal({"mask": "0.1", "id": None}, units=8)
    assert "not a list of 1" in refusal({"mask": ["0.1"]}, units=8)


def test_stored_masks_are_found_by_name_and_only_alone() -> None:
    pruned = parse("0-5.*")

    assert parse(" @pruned20 ", stored={"pruned20": pruned}) is pruned
    with pytest.raises(InvalidMask, match="stored masks: pruned20"):
        parse("@prune20", stored={"pruned20": pruned})


def test_a_mask_cannot_change_under_its_id() -> None:
    source = np.ones((2, 3), dtype=np.float32)
    mask = HeadMask(source)
    source[0, 0] = 0

    assert mask.is_none
    with pytest.raises(ValueError, match="read-only"):
        mask.matrix[0, 0] = 0

    units = np.ones((2, UNITS), dtype=np.bool_)
    structured = HeadMask(mask.matrix, (), units)
    units[:] = False
    assert structured.units_off is not None
    assert structured.units_off.all()
    with pytest.raises(ValueError, match="read-only"):
        structured.units_off[0, 0] = False


def test_masks_of_different_models_never_mix() -> None:
    narrow, wide = (HeadMask(np.ones((2, 3), np.float32), (), np.ones((2, n), np.bool_)) for n in (4, 5))
    with pytest.raises(InvalidMask, match="4 units"):
        wide * narrow
    assert HeadMask.none(2, 3) != HeadMask.none(3, 2)
    with pytest.raises(InvalidMask):
        HeadMask.none(1, 3) * HeadMask.none(2, 3)


@given(masks(units=False, fractions=False))
def test_the_canonical_spec_parses_back_to_the_same_mask(mask: HeadMask) -> None:
    again = parse(mask.spec, mask.layers, mask.heads)

    assert (again, again.id, again.spec) == (mask, mask.id, mask.spec)


@given(masks())
def test_the_json_form_survives_a_round_trip_through_a_file(mask: HeadMask) -> None:
    again = parse(json.loads(json.dumps(mask.to_json())), mask.layers, mask.heads, units=UNITS)

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


@given(binary_masks, st.data())
def test_spaces_around_items_and_repeats_change_nothing(mask: HeadMask, data: st.DataObject) -> None:
    spaces = st.text(alphabet=" \t\n", max_size=3)
    items = data.draw(st.permutations(mask.spec.split(",") * 2)) if not mask.is_none else ["none"]
    spaced = ",".join(data.draw(spaces) + item + data.draw(spaces) for item in items)

    assert parse(spaced, mask.layers, mask.heads) == mask


@given(shapes, st.integers(0, 1000), st.integers(0, 2**64), st.data())
def test_random_draws_the_share_it_says_and_more_keeps_what_was_drawn(
    shape: tuple[int, int], thousandths: int, seed: int, data: st.DataObject
) -> None:
    fewer = data.draw(st.integers(0, thousandths))
    mask, smaller = (parse(f"random:{n / 1000:.3f}@{seed}", *shape) for n in (thousandths, fewer))

    assert len(mask.off) == (thousandths * shape[0] * shape[1] + 500) // 1000
    assert set(smaller.off) <= set(mask.off)


@given(st.text(alphabet="0123456789.-*,:@/ keprandomwsi", max_size=30))
def test_any_text_gives_a_mask_or_a_refusal(spec: str) -> None:
    try:
        mask = parse(spec, 3, 4)
    except InvalidMask:
        return
    assert parse(mask.spec, 3, 4) == mask
