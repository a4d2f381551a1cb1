"""Pairs of every family reach the model as transformers would encode them, whatever the texts hold."""

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from headroom import UnsupportedCheckpoint
from headroom.models.checkpoint.tokenizer import PairTokenizer
from tests import families
from tests.families import (
    word_piece_tokenizer,
    write_tokenizer,
)

STRINGS = 10_000
VOCABULARY = 400
NASTY = [
    *"angle bracket Screws 12-gauge naïve RÉSUMÉ e\u0301 中文 한국 日本語 ñ ß İ".split(" "),
    *"😀 👩‍👩‍👧 \u200b \u200d \ufeff \u00ad \x00 \x7f \x85 \u2028 \ufffd \U0010fffe".split(" "),
    *"... -- !? (x) it's don't 'll ½ Ⅻ ﬁ ① ٣ ▁ ▁angle Ġ Ċ ##s".split(" "),
    *"[SEP] [CLS] <s </ s> < > &amp; http://a.b/c?d=e \\n %20 \u0301 \ud7ff".split(" "),
    "a" * 40,
]
GAPS = ("", "", " ", " ", "  ", "\t", "\n", "\r\n", "\xa0", "\u3000", "\u2009", "-", ",", " - ")


def nasty_strings(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    parts, gaps = rng.integers(len(NASTY), size=(count, 8)), rng.integers(len(GAPS), size=(count, 8))
    return [
        "".join(GAPS[gap] + NASTY[part] for gap, part in zip(gaps[i], parts[i], strict=True))[: 1 + i % 60]
        for i in range(count)
    ]


@pytest.fixture(scope="module", params=[*families.FAMILIES, "modernbert", "klue"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of each family; KLUE's is a RoBERTa with BERT's."""
    where: Path = tmp_path_factory.mktemp(request.param)
    family = "roberta" if request.param == "klue" else request.param
    (where / "config.json").write_text(json.dumps({"model_type": family}))
    if request.param == "klue":
        (where / "tokenizer.json").write_text(word_piece_tokenizer(), encoding="utf-8")
        (where / "tokenizer_config.json").write_text(
            json.dumps(
                {"tokenizer_class": "BertTokenizer"}
                | {f"{name.lower()}_token": f"[{name}]" for name in ("CLS", "SEP", "UNK", "PAD", "MASK")}
            )
        )
    else:
        write_tokenizer(where, family)
    return where


def load(directory: Path, max_tokens: int = 64) -> PairTokenizer:
    return PairTokenizer.load(directory, max_tokens=max_tokens, vocab_size=VOCABULARY)


def test_pairs_of_ten_thousand_nasty_strings_are_those_of_transformers(directory: Path) -> None:
    theirs, ours = AutoTokenizer.from_pretrained(directory), load(directory)
    texts = [
        text
        for text in nasty_strings(STRINGS, seed=0)
        if not any(t in text for t in theirs.all_special_tokens)
    ]
    queries, titles = texts[0::2], texts[1::2]
    pairs = list(zip(queries, titles, strict=False))
    assert len(pairs) > 0.4 * STRINGS

    encoded = ours.encode(pairs)
    expected = theirs(queries[: len(pairs)], titles[: len(pairs)], truncation="longest_first", max_length=64)[
        "input_ids"
    ]
    wrong = [
        (pair, one.ids.tolist(), other)
        for pair, one, other in zip(pairs, encoded, expected, strict=True)
        if one.ids.tolist() != other
    ]
    assert wrong == []


def test_a_sentencepiece_model_that_cannot_be_converted_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "xlm-roberta"}')
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"not a model")

    with pytest.raises(
        UnsupportedCheckpoint, match=r"no complete tokenizer\.json, and transformers cannot make one"
    ):
        load(tmp_path)
