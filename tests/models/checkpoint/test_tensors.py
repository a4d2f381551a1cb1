"""What a checkpoint directory may hold, and how everything else is refused by name."""

import json
import os
import shutil
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from headroom import UnsupportedCheckpoint
from headroom.models.checkpoint.config import read_config
from headroom.models.checkpoint.files import bytes_of_weights, digest_of
from tests.checkpoints import load
from tests.families import edit_config, write_family
from tests.modernberts import write_ettin

PAIRS = [("angle bracket", "Simpson Strong-Tie 12-Gauge Angle"), ("usb lamp", "wood deck screws")]


@pytest.fixture
def checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint"))


def test_a_pickled_checkpoint_with_old_names_scores_the_same(checkpoint: Path) -> None:
    expected = load(checkpoint).score(PAIRS).logits
    tensors = load_file(checkpoint / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in tensors.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(64)[None]
    old["cls.predictions.bias"] = torch.zeros(3)
    (checkpoint / "model.safetensors").unlink()
    torch.save(old, checkpoint / "pytorch_model.bin")

    np.testing.assert_array_equal(load(checkpoint).score(PAIRS).logits, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "roberta"}, r"roberta\.embeddings\.word_embeddings\.weight is missing"),
        ({"is_decoder": True}, "is_decoder"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"problem_type": "multi_label_classification"}, "multi_label"),
        ({"num_attention_heads": 5}, "layer.0.attention.self.query.weight has shape"),
        ({"num_hidden_layers": 4}, "layer.3"),
        ({"type_vocab_size": 1}, "two segments"),
        ({"pruned_heads": {"0": [1]}}, "layer.0.attention.self.query.weight has shape"),
        (
            {"pruned_heads": {"0": [9]}},
            "pruned_heads is .*; its layers must be 0 to 2, and their heads 0 to 3",
        ),
        ({"id2label": list("abcde")}, "id2label is .*; it must be an object with a label for each id"),
        ({"id2label": {"0": "a", "2": "b"}}, "classifier.weight has shape"),
        ({"headroom": {"temperature": 0}}, "headroom.temperature is 0"),
        ({"headroom": {"bias": [1.0]}}, "headroom.bias is .* list of 5 finite numbers, one per label"),
        ({"headroom": {"label_order": ["exact"]}}, "label order"),
    ],
)
def test_what_the_encoder_would_not_compute_exactly_is_refused_by_name(
    checkpoint: Path, changes: dict[str, Any], message: str
) -> None:
    edit_config(checkpoint, **changes)
    with pytest.raises(UnsupportedCheckpoint, match=message):
        load(checkpoint)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**18}, "num_hidden_layers is 1000000000000000000; .* from 1 to 1,000"),
        (
            {"num_hidden_layers": 1000},
            "the weights cannot be read: model.safetensors has .* bytes, and .* parameters",
        ),
        ({"num_attention_heads": 10**7, "hidden_size": 10**7}, "num_attention_heads is 10000000; it must be"),
        (
            {"max_position_embeddings": 10**9},
            "max_position_embeddings is 1000000000; .* from 1 to 131,072",
        ),
    ],
)
def test_sizes_that_the_weights_do_not_have_cost_no_memory(
    checkpoint: Path, changes: dict[str, Any], message: str
) -> None:
    edit_config(checkpoint, **changes)
    tracemalloc.start()
    try:
        with pytest.raises(UnsupportedCheckpoint, match=message):
            read_config(checkpoint)
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


def test_a_small_deberta_cannot_fill_the_memory_with_distances(tmp_path: Path) -> None:
    """Each layer makes 2 · 24,000 · 4 numbers of a table in a file of half a megabyte: 38 million in all."""
    sizes = {"hidden_size": 4, "intermediate_size": 4, "num_attention_heads": 1, "position_buckets": 12_000}
    checkpoint = write_family(tmp_path / "large", "deberta-v2", num_hidden_layers=200, **sizes)
    assert bytes_of_weights(checkpoint) < 1e6
    with pytest.raises(UnsupportedCheckpoint, match="would hold 38,400,000 numbers of distances"):
        load(checkpoint)

    load(write_family(tmp_path / "small", "deberta-v2", num_hidden_layers=3, **sizes))


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "vocab.txt", "tokenizer.json", "masks/a.json"]
)
def test_a_file_that_is_no_file_is_refused_and_not_waited_for(checkpoint: Path, name: str) -> None:
    (checkpoint / name).parent.mkdir(exist_ok=True)
    (checkpoint / name).unlink(missing_ok=True)
    os.mkfifo(checkpoint / name)
    with pytest.raises(UnsupportedCheckpoint, match=f"{name} cannot be read: it is not a regular file"):
        load(checkpoint)
    (checkpoint / name).unlink()
    (checkpoint / name).symlink_to("/dev/zero")
    with pytest.raises(UnsupportedCheckpoint, match=f"{name} cannot be read: it is not a regular file"):
        load(checkpoint)


def test_a_tokenizer_larger_than_any_is_refused(checkpoint: Path) -> None:
    with (checkpoint / "tokenizer.json").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(UnsupportedCheckpoint, match="is larger than 128 MiB"):
        load(checkpoint)


def test_pickled_weights_that_would_unpack_to_more_are_refused(checkpoint: Path) -> None:
    """A few kilobytes could become gigabytes of zeros."""
    tensors = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    torch.save({name: torch.zeros_like(tensor) for name, tensor in tensors.items()}, checkpoint / "plain")
    with (
        zipfile.ZipFile(checkpoint / "plain") as plain,
        zipfile.ZipFile(checkpoint / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for part in plain.infolist():
            small.writestr(part.filename, plain.read(part))
    edit_config(checkpoint, hidden_size=4, intermediate_size=4)  # fits into the few bytes
    with pytest.raises(UnsupportedCheckpoint, match="it unpacks to"):
        load(checkpoint)


INDEX, TOKENIZER, PROMPTS = (
    "model.safetensors.index.json",
    "tokenizer_config.json",
    "config_sentence_transformers.json",
)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (INDEX, [1], "is not a JSON object"),
        ("config.json", {"hidden_act": ["gelu"]}, r"hidden_act is \['gelu'\]"),
        ("config.json", {"headroom": {"label_order": 5}}, "label order 5"),
        (PROMPTS, {"prompts": ["a"], "default_prompt_name": "a"}, f"{PROMPTS} cannot be read"),
        (TOKENIZER, {"do_lower_case": None}, "tokenizer_config.json cannot be read"),
    ],
)
def test_a_malformed_file_is_refused_in_one_sentence(
    checkpoint: Path, name: str, content: Any, message: str
) -> None:
    if name == INDEX:
        (checkpoint / "model.safetensors").unlink()
    file = checkpoint / name
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | content if isinstance(content, dict) else content))

    with pytest.raises(UnsupportedCheckpoint, match=message):
        load(checkpoint)


def test_temperature_and_bias_calibrate_probabilities_and_leave_logits(checkpoint: Path) -> None:
    plain = load(checkpoint).score(PAIRS)
    edit_config(checkpoint, headroom={"temperature": 2.0, "bias": [0, 1, 2, -1, 0.5]})

    calibrated = load(checkpoint).score(PAIRS)

    np.testing.assert_array_equal(calibrated.logits, plain.logits)
    weights = np.exp(plain.logits / 2 + [0, 1, 2, -1, 0.5])
    expected = weights / weights.sum(1, keepdims=True)
    np.testing.assert_allclose(calibrated.probabilities, expected, rtol=1e-5)


def test_stored_masks_come_with_the_checkpoint(checkpoint: Path) -> None:
    (checkpoint / "masks").mkdir()
    (checkpoint / "masks" / "small.json").write_text(json.dumps({"mask": {"off": [[1, 2]]}}))
    assert load(checkpoint).stored_masks["small"].spec == "1.2"

    (checkpoint / "masks" / "broken.json").write_text(json.dumps({"mask": {"off": [[7, 2]]}}))
    with pytest.raises(UnsupportedCheckpoint, match=r"broken\.json"):
        load(checkpoint)


def test_a_file_that_is_not_loaded_changes_nothing(checkpoint: Path) -> None:
    """Who works in the model's directory (`--model .`) has input, output and reports in it, which grow."""
    before, size = digest_of(checkpoint), bytes_of_weights(checkpoint)
    for name in ("pairs.json", "notes.txt", "head_study.json", "metrics.json", "2026_runs/config.json"):
        (checkpoint / name).parent.mkdir(exist_ok=True)
        (checkpoint / name).write_text("{}")
    (checkpoint / "2026_runs" / "model.safetensors").write_bytes(b"of another model")
    assert (digest_of(checkpoint), bytes_of_weights(checkpoint)) == (before, size)


def test_the_files_of_modules_count(tmp_path: Path) -> None:
    checkpoint, _, _ = write_ettin(tmp_path)
    before, size = digest_of(checkpoint), bytes_of_weights(checkpoint)
    weights = sorted(checkpoint.glob("[0-9]*_*/model.safetensors"))
    assert weights
    for file in [*weights, *checkpoint.glob("[0-9]*_*/config.json")]:
        with file.open("ab") as stream:
            stream.write(b" ")
        assert digest_of(checkpoint) != before
        before = digest_of(checkpoint)
    assert bytes_of_weights(checkpoint) == size + len(weights)


def test_a_pointer_of_git_lfs_is_named_as_such(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    )
    with pytest.raises(UnsupportedCheckpoint, match=r"a pointer of Git LFS, .*; run git lfs pull"):
        load(checkpoint)
