"""A text read in parts has the tokens of the whole text, and what the window cannot hold is not read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from models.checkpoint.tokenizer import PairTokenizer
from tests.families import byte_level_tokenizer, unigram_tokenizer, word_piece_tokenizer

WINDOW = 64


def newer_unigram() -> str:
    """As newer tools write XLM-RoBERTa's: the splitter is Metaspace alone."""
    tokenizer = json.loads(unigram_tokenizer())
    tokenizer["pre_tokenizer"] = json.loads(pre_tokenizers.Metaspace().__getstate__())
    normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])
    tokenizer["normalizer"] = json.loads(normalizer.__getstate__())
    return json.dumps(tokenizer)


def byte_level_after_nfc() -> str:
    """As ModernBERT's."""
    tokenizer = json.loads(byte_level_tokenizer())
    tokenizer["normalizer"] = {"type": "NFC"}
    return json.dumps(tokenizer)


KINDS = (word_piece_tokenizer, byte_level_tokenizer, unigram_tokenizer, newer_unigram, byte_level_after_nfc)

runs = st.tuples(
    st.sampled_from(
        [
            *(
                "angle ",
                "bracket",
                "12-gauge, ",
                "don't",
                "q",
                " ",
                "\n",
                "-",
                "\xa0",
                "é",
                "e\u0301",
                "İ",
                "ß",
            ),
            *("の", "中", "中文字", "한국", "ก็", "、", "\u3000", "٣", "😀", "\u0301", "\u200b", "\0"),
        ]
    ),
    st.integers(1, 2500),
)


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def kind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PairTokenizer, Tokenizer]:
    """A tokenizer, and the library's with the same file."""
    make: Callable[[], str] = request.param
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    (directory / "tokenizer.json").write_text(make(), encoding="utf-8")
    names = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    library = Tokenizer.from_str(make())
    library.encode_special_tokens = True
    return PairTokenizer.load(directory, max_tokens=WINDOW, vocab_size=10_000), library


@given(st.lists(runs, min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
@example([("q", 2500), ("lamp", 1)])
@example([("の", 2500), (" angle", 1)])
@example([("の", 2500), ("\u0301", 1), ("の", 99), (" angle", 9)])
@example([("q", 50), ("\u0301", 2500), ("q", 60), (" angle", 9)])
@example([("中", 2500), ("q", 99)])
@example([("\u200b", 2500), ("q", 60), ("\u200b", 2500), ("q", 60), ("-", 1)])
def test_a_text_read_in_parts_has_the_tokens_of_the_whole(
    kind: tuple[PairTokenizer, Tokenizer], parts: list[tuple[str, int]]
) -> None:
    tokenizer, library = kind
    text = "".join(piece * count for piece, count in parts)
    whole = library.encode(text, add_special_tokens=False)

    portions = list(tokenizer.portions(text))
    assert [id_ for portion in portions for id_ in portion.ids] == whole.ids
    starts = [start for portion in portions for start in portion.starts]
    for ours, (theirs, _) in zip(starts, whole.offsets, strict=True):
        assert (
            abs(ours - theirs) <= 1
        )  # byte-level BPE counts the space before a text's first word, or does not

    (pair,) = tokenizer.encode([("", text)])
    title = pair.ids[pair.title_start : len(pair) - len(tokenizer.template.after)].tolist()
    assert title == whole.ids[: tokenizer.budget]
    assert pair.truncated == (len(whole.ids) > tokenizer.budget)
    assert pair.unknown_tokens == title.count(tokenizer.unknown)


@pytest.mark.parametrize("piece", ["angle ", "q-", "中a", "q"])
def test_text_beyond_the_window_is_not_read(kind: tuple[PairTokenizer, Tokenizer], piece: str) -> None:
    tokenizer, _ = kind
    text = piece * (1_000_000 // len(piece))
    tokens = furthest = 0
    for portion in tokenizer.portions(text):
        tokens += len(portion.ids)
        furthest = max([furthest, *portion.starts])
        if tokens > tokenizer.budget:
            break

    assert furthest < 5_000
    assert sum(1 for _ in tokenizer.reading([text], 8192)) < 30  # each may be the last before others' turn
