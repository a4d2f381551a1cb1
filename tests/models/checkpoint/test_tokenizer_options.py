"""A checkpoint's window is the one that transformers and sentence-transformers read in its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from models import Classifier, HeadMask
from models.compress.prune import prune
from models.errors import UnsupportedCheckpoint
from tests.checkpoints import write_checkpoint

MODULE = "sentence_bert_config.json"
OPTIONS = "tokenizer_config.json"
POSITIONS = 64


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint")


def window(directory: Path) -> int:
    return Classifier.load(directory, "cpu", "float32").max_tokens


def write(directory: Path, **files: dict[str, Any]) -> Path:
    names = {"options": OPTIONS, "module": MODULE, "roberta_module": "sentence_roberta_config.json"}
    for name, content in files.items():
        (directory / names[name]).write_text(json.dumps(content), encoding="utf-8")
    return directory


@pytest.mark.parametrize(
    "options",
    [
        {"max_len": 16},
        {"model_max_length": 16},
        {"model_max_length": 32, "max_len": 16},
        {"model_max_length": None, "max_len": 16},
        {},
    ],
)
def test_the_old_key_max_len_is_read_as_transformers_reads_it(
    checkpoint: Path, options: dict[str, Any]
) -> None:
    write(checkpoint, options=options)

    assert window(checkpoint) == min(AutoTokenizer.from_pretrained(checkpoint).model_max_length, POSITIONS)


@pytest.mark.parametrize(
    ("files", "expected"),
    [  # as Transformer of sentence-transformers 6.2 gives them to AutoProcessor.from_pretrained
        ({"module": {"max_seq_length": 16, "do_lower_case": False}}, 16),
        ({"module": {"max_seq_length": 16}, "options": {"model_max_length": 32}}, 16),
        ({"module": {"max_seq_length": 32}, "options": {"model_max_length": 16}}, 32),
        ({"module": {"max_seq_length": None}, "options": {"model_max_length": 16}}, 16),
        ({"module": {"max_seq_length": 32, "processor_kwargs": {"model_max_length": 16}}}, 16),
        ({"module": {"max_seq_length": 32, "tokenizer_args": {"model_max_length": 16}}}, 16),
        ({"module": {"max_seq_length": 512}}, POSITIONS),
        ({"roberta_module": {"max_seq_length": 16}}, 16),
        ({"module": {}, "roberta_module": {"max_seq_length": 16}}, 16),
        ({"module": {"transformer_task": "sequence-classification"}}, POSITIONS),
    ],
)
def test_the_window_of_sentence_transformers_counts(
    checkpoint: Path, files: dict[str, dict[str, Any]], expected: int
) -> None:
    assert window(write(checkpoint, **files)) == expected


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"module": {"max_seq_length": "16"}}, f"{MODULE}: max_seq_length is '16'; it must be a number"),
        ({"options": {"max_len": 0}}, f"{OPTIONS}: max_len is 0; it must be a number"),
        ({"module": {"do_lower_case": True}}, f"{MODULE}: do_lower_case is set"),
        (
            {"module": {"processor_kwargs": {"truncation_side": "left"}}},
            "processor_kwargs has truncation_side; only model_max_length is supported",
        ),
        ({"module": {"tokenizer_args": ["model_max_length"]}}, "tokenizer_args is .*, not an object"),
        ({"module": {"processing_kwargs": {"text": {"max_length": 16}}}}, "processing_kwargs is set"),
    ],
)
def test_other_settings_of_the_window_are_refused_by_name(
    checkpoint: Path, files: dict[str, dict[str, Any]], message: str
) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=message):
        window(write(checkpoint, **files))


def test_a_pruned_checkpoint_keeps_the_window(checkpoint: Path, tmp_path: Path) -> None:
    write(checkpoint, module={"max_seq_length": 16})
    prune(checkpoint, tmp_path / "pruned", HeadMask.parse("1.*", layers=3, heads=4))

    assert window(tmp_path / "pruned") == 16
