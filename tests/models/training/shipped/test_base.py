"""A base whose weights are read wrongly would still train, and read no better than one from nothing."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from models.errors import ModelError
from models.training.shipped.base import read_base
from models.training.shipped.make_base import converted, covered, write
from models.training.shipped.vocabulary import SPECIAL, tokenizer_of

HIDDEN, LAYERS, HEADS, FEED_FORWARD, POSITIONS = 32, 2, 4, 64, 16
PIECES = [
    *((piece, 0.0) for piece in SPECIAL),
    ("\u2581", -4.0),
    ("\u2581red", -5.0),
    ("red", -6.0),
    ("e", -3.0),
]
MATRICES = ("q", "k", "v", "ao", "fi", "fo")


def four_bits(halves: np.ndarray, scales: np.ndarray) -> bytes:
    """Pack numbers of 0 to 15, (blocks, 32), as the layout describes: byte j holds weights j and j + 16."""
    rows = []
    for block, scale in zip(halves, scales, strict=True):
        rows.append(
            np.float16(scale).tobytes() + bytes(int(block[j]) | int(block[j + 16]) << 4 for j in range(16))
        )
    return b"".join(rows)


@pytest.fixture
def packed(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A tiny base in the package's layout, and what its tensors are."""
    rng = np.random.default_rng(0)
    rows = len(PIECES) + 3  # the real file has rows without a piece, too
    shapes: dict[str, tuple[int, ...]] = {
        "emb.word": (rows, HIDDEN),
        "emb.pos": (POSITIONS, HIDDEN),
        "emb.type": (2, HIDDEN),
        "emb.ln.w": (HIDDEN,),
        "emb.ln.b": (HIDDEN,),
    }
    for layer in range(LAYERS):
        for part in MATRICES:
            wide = {"fi": (FEED_FORWARD, HIDDEN), "fo": (HIDDEN, FEED_FORWARD)}.get(part, (HIDDEN, HIDDEN))
            shapes |= {f"l{layer}.{part}.w": wide, f"l{layer}.{part}.b": (wide[0],)}
        shapes |= {f"l{layer}.{norm}.{kind}": (HIDDEN,) for norm in ("aln", "oln") for kind in "wb"}
    wanted, data, entries = {}, b"", []
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        if len(shape) == 2:
            halves, scales = rng.integers(0, 16, (count // 32, 32)), np.float16(rng.random(count // 32))
            body, kind = four_bits(halves, scales), 1
            wanted[name] = ((halves - 8) * scales[:, None].astype(np.float32)).reshape(shape)
        else:
            wanted[name] = rng.standard_normal(shape).astype("<f4")
            body, kind = wanted[name].tobytes(), 0
        entries.append((name.encode(), kind, count, len(data), len(body)))
        data += body
    text = [piece.encode() for piece, _ in PIECES]
    ends = np.cumsum([0, *map(len, text)]).astype("<u4")
    head = b"E5S1" + struct.pack(
        "<I7ifi", 1, HIDDEN, LAYERS, HEADS, FEED_FORWARD, rows, POSITIONS, 2, 1e-12, 32
    )
    head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, int(ends[-1])) + ends.tobytes()
    head += np.array([score for _, score in PIECES], "<f4").tobytes() + b"".join(text)
    head += struct.pack("<iI", 1, 9) + struct.pack("<IBI", ord("Ａ"), 1, ord("A"))
    start = len(head) + 4 + sum(2 + len(name) + 21 for name, *_ in entries)
    head += struct.pack("<i", len(entries))
    for name, kind, count, offset, size in entries:
        head += struct.pack("<H", len(name)) + name + struct.pack("<BIQQ", kind, count, start + offset, size)
    file = tmp_path / "base.bin"
    file.write_bytes(head + data)
    return file, wanted


def test_every_weight_is_what_the_file_says(packed: tuple[Path, dict[str, np.ndarray]]) -> None:
    file, wanted = packed
    base = read_base(file)
    assert base.pieces == PIECES
    assert base.normalisation == {"Ａ": "A"}
    assert (base.layers, base.heads, base.positions) == (LAYERS, HEADS, POSITIONS)
    names = {
        "emb.word": "embeddings.word_embeddings.weight",
        "l1.fo.w": "encoder.layer.1.output.dense.weight",
        "l0.k.b": "encoder.layer.0.attention.self.key.bias",
        "l1.aln.w": "encoder.layer.1.attention.output.LayerNorm.weight",
    }
    for packed_name, name in names.items():
        np.testing.assert_array_equal(base.tensors[name], wanted[packed_name])
    assert len(base.tensors) == len(wanted)


def test_the_converted_base_loads_in_transformers_with_the_rows_of_its_pieces(
    packed: tuple[Path, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    from transformers import AutoModel, AutoTokenizer

    base = read_base(packed[0])
    kept = [0, 1, 2, 3, 4, 6, 7]
    model, tokenizer = converted(base, kept)
    write(model, tokenizer, tmp_path / "checkpoint")
    read = AutoModel.from_pretrained(tmp_path / "checkpoint")
    assert torch.equal(read.embeddings.word_embeddings.weight, torch.from_numpy(packed[1]["emb.word"][kept]))
    ids = AutoTokenizer.from_pretrained(tmp_path / "checkpoint")("red", "e")["input_ids"]
    assert ids == [0, 4, 5, 2, 2, 4, 6, 2]  # <s> ▁ red </s> </s> ▁ e </s>: the piece "▁red" was cut
    assert covered(["red", "e"], tokenizer_of(base.pieces), tokenizer) == ["e"]


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.bin").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelError, match="does not begin with E5S1"):
        read_base(tmp_path / "other.bin")
