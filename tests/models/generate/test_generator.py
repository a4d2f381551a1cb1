"""What a user meets: wrong input, a checkpoint without a generator, and files that do not fit."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from headroom import Classifier, HeadMask, InvalidMask, ModelError, UnsupportedCheckpoint
from headroom.models.checkpoint.files import GENERATOR
from headroom.models.files import Json
from headroom.models.masks.generation import GenerationMask, generation_mask
from tests.checkpoints import load, write_checkpoint

QUESTION = "where is a steel angle bracket"


@pytest.mark.parametrize(
    ("question", "beams", "reason"),
    [
        (QUESTION, 9, "beams: 9 is not a number from 1 to 8"),
        (QUESTION, 0, "beams: 0 is not a number from 1 to 8"),
        (" ", 4, "the question is empty"),
        ("lamp " * 1000, 4, "the question is longer than the model's window of 62 tokens: shorten it"),
        ("?!", 4, "the question holds no letter or digit that the model can read"),
    ],
)
def test_wrong_questions_get_one_sentence(writer: Classifier, question: str, beams: int, reason: str) -> None:
    with pytest.raises(ModelError) as error:
        writer.generate_query(question, beams)
    assert str(error.value) == reason


def test_a_stored_mask_is_for_the_encoder_alone(writer: Classifier) -> None:
    with pytest.raises(InvalidMask, match="decoder: '@pruned' is for the encoder alone"):
        writer.generate_query(QUESTION, 1, "decoder:@pruned")


@pytest.mark.parametrize("spec", ["cross:0.1", "1.2;decoder:0.1", "none; cross:*.*"])
def test_masks_of_generators_are_refused_where_pairs_are_scored(writer: Classifier, spec: str) -> None:
    with pytest.raises(InvalidMask, match="name heads of a query generator"):
        writer.score("lamp", ["usb lamp"], head_mask=spec)


CASES = json.loads((Path(__file__).parents[2] / "cases" / "generator_masks.json").read_text())


def parsed(spec: str) -> GenerationMask:
    """Return the mask of a spec for the model of the cases."""
    encoder = partial(HeadMask.parse, layers=CASES["layers"], heads=CASES["heads"])
    return generation_mask(spec, encoder, (CASES["generator_layers"], CASES["generator_heads"]))


@pytest.mark.parametrize("case", CASES["valid"], ids=lambda case: case["spec"])
def test_specs_switch_off_the_heads_of_each_part_that_other_implementations_do(case: Json) -> None:
    mask = parsed(case["spec"])
    for part in ("encoder", "decoder", "cross"):
        assert [list(head) for head in getattr(mask, part).off] == case[f"{part}_off"]
    assert mask.spec == case["canonical"]
    assert parsed(case["canonical"]) == mask


@pytest.mark.parametrize("spec", CASES["wrong"])
def test_specs_that_every_implementation_refuses(spec: str) -> None:
    with pytest.raises(InvalidMask):
        parsed(spec)


def test_files_that_do_not_fit_are_refused_by_name(writer: Classifier, tmp_path: Path) -> None:
    assert writer.directory is not None
    narrow = write_checkpoint(tmp_path / "narrow", hidden_size=16)
    shutil.copy(writer.directory / GENERATOR, narrow / GENERATOR)
    with pytest.raises(UnsupportedCheckpoint, match="is for an encoder of width 32; this one has 16"):
        load(narrow)

    lacking = shutil.copytree(writer.directory, tmp_path / "lacking")
    tensors = load_file(lacking / GENERATOR)
    del tensors["copy_map.bias"]
    shape = {"layers": 2, "heads": 4, "width": 32, "units": 48, "max_pieces": 9, "start": 2, "end": 3}
    metadata = {"generator": json.dumps({**shape, "output_pieces": len(tensors["pieces"])})}
    save_file(tensors, lacking / GENERATOR, metadata)
    with pytest.raises(UnsupportedCheckpoint, match=r"tensor copy_map\.bias is missing or misshapen"):
        load(lacking)

    (lacking / GENERATOR).write_bytes(b"not weights")
    with pytest.raises(UnsupportedCheckpoint, match=r"generator\.safetensors cannot be read"):
        load(lacking)
