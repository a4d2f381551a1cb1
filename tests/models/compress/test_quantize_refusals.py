"""int8 checkpoints load whole or not at all: damaged ones are refused by name."""

import io
import json
from collections.abc import Callable
from logging import StreamHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertForSequenceClassification
from transformers.utils import logging

from models import ModelError, UnsupportedCheckpoint
from models.compress.quantize import quantize
from tests.models.compress.quantized import PAIRS, load

PREFIX = "bert.encoder.layer.1."


def test_existing_files_are_never_overwritten_and_int8_is_never_quantized_again(
    tiny_checkpoint: Path, int8_checkpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("keep me")
    pairs = load(tiny_checkpoint).tokenizer.encode(PAIRS)
    with pytest.raises(ModelError, match="not empty"):
        quantize(tiny_checkpoint, tmp_path, pairs)
    with pytest.raises(ModelError, match="quantized already"):
        quantize(int8_checkpoint, tmp_path / "twice", pairs)
    with pytest.raises(ModelError, match="at least one pair"):
        quantize(tiny_checkpoint, tmp_path / "none", [])
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


Tensors = dict[str, torch.Tensor]


def zero_scale(tensors: Tensors) -> None:
    tensors[f"{PREFIX}output.dense.weight_scale"][3] = 0


def nan_offset(tensors: Tensors) -> None:
    tensors[f"{PREFIX}attention.self.input_offset"][0] = torch.nan


def changed(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({PREFIX + name: change(tensors[PREFIX + name])})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (zero_scale, r"layer\.1\.output\.dense\.weight_scale holds a scale that is not above 0"),
        (
            lambda tensors: tensors.pop(f"{PREFIX}intermediate.dense.input_scale"),
            r"layer\.1\.intermediate\.dense\.input_scale is missing",
        ),
        (
            changed("output.dense.weight", torch.Tensor.float),
            r"layer\.1\.output\.dense\.weight is torch\.float32, not torch\.int8",
        ),
        (
            changed("attention.self.value.weight_scale", lambda scale: scale[:-1].clone()),
            r"value\.weight_scale has shape \(31,\), config\.json wants \(32,\)",
        ),
        (nan_offset, r"input_offset holds NaN"),
    ],
)
def test_damaged_checkpoints_are_refused_by_name(
    copied: Path, change: Callable[[Tensors], object], message: str
) -> None:
    tensors = load_file(copied / "model.safetensors")
    change(tensors)
    save_file(tensors, copied / "model.safetensors")

    with pytest.raises(UnsupportedCheckpoint, match=message):
        load(copied)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"headroom": {"quantization": {"format": "w4a4"}}}, "format is 'w8a8-1'"),
        ({"headroom": {"quantization": "w8a8-1"}}, "format is 'w8a8-1'"),
        ({"headroom": {}}, "unquantized checkpoint"),
        ({"headroom": {}, "quantization_config": None}, "int8, not floating point"),
        ({"quantization_config": {"quant_method": "gptq"}}, "unquantized checkpoint"),
    ],
)
def test_other_formats_are_refused_by_name(copied: Path, changes: dict[str, Any], message: str) -> None:
    file = copied / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    with pytest.raises(UnsupportedCheckpoint, match=message):
        load(copied)


def test_transformers_says_that_it_cannot_read_it(int8_checkpoint: Path) -> None:
    said = io.StringIO()
    handler = StreamHandler(said)
    level = logging.get_verbosity()
    logging.set_verbosity_warning()  # another test may have called a command, which makes transformers quiet
    logging.add_handler(handler)
    try:
        BertForSequenceClassification.from_pretrained(int8_checkpoint)
    finally:
        logging.remove_handler(handler)
        logging.set_verbosity(level)

    assert "Unknown quantization type, got headroom-w8a8" in said.getvalue()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_that_overflows_gives_no_score(copied: Path, dtype: str) -> None:
    """Weights so large that scores overflow, as a broken export leaves them: the file itself is finite."""
    tensors = load_file(copied / "model.safetensors")
    for part in ("query", "key"):
        tensors[f"{PREFIX}attention.self.{part}.weight_scale"] *= 1e30
    save_file(tensors, copied / "model.safetensors", {"format": "pt"})
    assert not np.isfinite(load(copied, dtype).score(PAIRS).logits).any()
