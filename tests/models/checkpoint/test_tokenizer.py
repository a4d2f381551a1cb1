"""Pairs reach the model as the ids it was trained on, as transformers and tokenizers give them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer

from headroom import Classifier
from headroom.models.checkpoint import texts as texts_module
from headroom.models.checkpoint.tokenizer import PairTokenizer
from headroom.models.errors import ModelError, TokenizerFailed, UnsupportedCheckpoint
from tests.checkpoints import write_checkpoint
from tests.families import SPECIAL, byte_level_tokenizer, unigram_tokenizer
from tests.models.checkpoint.library import SIZE, library_tokenizer, load, write, write_vocab_txt

TEXTS = [
    "",
    "Angle Bracket",
    "Simpson Strong-Tie 12-Gauge Angle",
    "steel " * 40,
    "résumé ÀÉ",
    "中文 lamp",
    "q" * 101,
    "한국",
]


PIECES = [*"bracket don't q - é ß の 中文 、 😀".split(), "angle ", "12-gauge, ", "한국 ", " ", "\n"]


def byte_level() -> Tokenizer:
    return Tokenizer.from_str(byte_level_tokenizer())


def unigram() -> Tokenizer:
    return Tokenizer.from_str(unigram_tokenizer())


READERS = [
    (PairTokenizer(make(), max_tokens=64, vocab_size=400), make)
    for make in (library_tokenizer, byte_level, unigram)
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> PairTokenizer:
    return PairTokenizer.load(checkpoint, max_tokens=64, vocab_size=SIZE)


def assert_like_transformers(directory: Path, max_tokens: int) -> None:
    reference = AutoTokenizer.from_pretrained(directory)
    pairs = [(query, title) for query in TEXTS for title in TEXTS]
    for (query, title), ours in zip(pairs, load(directory, max_tokens).encode(pairs), strict=True):
        # In lists, for of a lone pair transformers drops an empty title.
        whole = reference([query], [title])["input_ids"][0]
        batch = reference([query], [title], truncation="longest_first", max_length=max_tokens)
        theirs = {name: rows[0] for name, rows in batch.items()}
        assert ours.ids.tolist() == theirs["input_ids"]
        assert [0] * ours.first_segment + [1] * (len(ours) - ours.first_segment) == theirs["token_type_ids"]
        assert ours.truncated == (len(whole) > max_tokens)
        assert ours.unknown_tokens == theirs["input_ids"].count(reference.unk_token_id)


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"do_lower_case": False},
        {"strip_accents": False},
        {"tokenize_chinese_chars": False},
        {"do_lower_case": True, "tokenizer_class": "BertTokenizerFast"},
    ],
)
@pytest.mark.parametrize("source", ["vocab.txt", "tokenizer.json", "cased tokenizer.json"])
def test_the_vocabulary_is_read_with_the_case_rules_of_its_config(
    tmp_path: Path, config: dict[str, Any] | None, source: str
) -> None:
    write(tmp_path, library_tokenizer(lowercase=not source.startswith("cased")), config)
    if source == "vocab.txt":
        write_vocab_txt(tmp_path)

    assert_like_transformers(tmp_path, 32)


ONE_TYPE, TWO_TYPES = (
    {"model_input_names": ["input_ids", name]} for name in ("attention_mask", "token_type_ids")
)


def assert_types(tokenizer: PairTokenizer, directory: Path) -> None:
    """A pair has the ids and token types of transformers; types that it does not pass are 0."""
    theirs = AutoTokenizer.from_pretrained(directory)("angle bracket", "steel lamp")
    pair = tokenizer.encode([("angle bracket", "steel lamp")])[0]
    types = [0] * pair.first_segment + [1] * (len(pair) - pair.first_segment)
    assert pair.ids.tolist() == theirs["input_ids"]
    assert types == theirs.get("token_type_ids", [0] * len(pair))


def test_a_tokenizer_of_distilbert_passes_no_token_types(tmp_path: Path) -> None:
    write(tmp_path, library_tokenizer(), {"tokenizer_class": "DistilBertTokenizer"})
    assert_types(load(tmp_path), tmp_path)


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "TokenizersBackend"])
def test_token_types_that_transformers_4_and_5_pass_differently_must_be_written_down(
    tmp_path: Path, name: str
) -> None:
    write(tmp_path, library_tokenizer(), {"tokenizer_class": name})
    with pytest.raises(UnsupportedCheckpoint, match="its class is a general one"):
        Classifier.load(tmp_path, "cpu", "float32")

    for names in (ONE_TYPE, TWO_TYPES):
        write(tmp_path, library_tokenizer(), {"tokenizer_class": name} | names)
        assert_types(Classifier.load(tmp_path, "cpu", "float32").tokenizer, tmp_path)


@pytest.mark.parametrize("piece", ["angle ", "q-", "中a"])
@pytest.mark.parametrize("make", [library_tokenizer, byte_level, unigram])
def test_text_beyond_the_window_is_not_read(make: Callable[[], Tokenizer], piece: str) -> None:
    reader = PairTokenizer(make(), max_tokens=64, vocab_size=400)
    text = piece * (1_000_000 // len(piece))
    tokens = furthest = 0
    for portion in reader.portions(text):
        tokens += len(portion.ids)
        furthest = max([furthest, *portion.starts])
        if tokens > reader.budget:
            break

    assert furthest < 5_000
    assert sum(1 for _ in reader.reading([text], 8192)) < 30  # each may be the last before others' turn


@given(st.lists(st.tuples(st.sampled_from(PIECES), st.integers(1, 100)), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_a_text_read_in_parts_has_the_tokens_of_the_whole(parts: list[tuple[str, int]]) -> None:
    text = "".join(f"{piece * count} lamp tool " for piece, count in parts)
    for reader, make in READERS:
        library = make()
        library.encode_special_tokens = True
        whole = library.encode(text, add_special_tokens=False)
        portions = list(reader.portions(text))
        assert [id_ for portion in portions for id_ in portion.ids] == whole.ids
        (pair,) = reader.encode([("", text)])
        title = pair.ids[pair.title_start : len(pair) - len(reader.template.after)].tolist()
        assert title == whole.ids[: reader.budget]
        assert (pair.truncated, pair.unknown_tokens) == (
            len(whole.ids) > reader.budget,
            title.count(reader.unknown),
        )


def test_threads_share_the_cache_without_mixing_texts(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts_module, "_REMEMBERED", 7)
    tokenizer = PairTokenizer.load(checkpoint, max_tokens=32, vocab_size=SIZE)
    pairs = [(f"lamp {i}", f"red {i} blue") for i in range(40)]
    expected = [pair.ids.tolist() for pair in tokenizer.encode(pairs)]

    def ids(_: int) -> list[list[int]]:
        return [pair.ids.tolist() for pair in tokenizer.encode(pairs)]

    with ThreadPoolExecutor(4) as threads:
        assert all(found == expected for found in threads.map(ids, range(80)))


def test_a_text_and_a_word_in_use_are_read_once_and_the_others_are_forgotten(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts_module, "_REMEMBERED", 7)
    tokenizer = PairTokenizer.load(checkpoint, max_tokens=32, vocab_size=SIZE)
    read: list[str] = []
    for reader in (tokenizer, tokenizer._words):

        def encode_noting(texts: list[str], encode: Any = reader._encode) -> Any:
            read.extend(texts)
            return encode(texts)

        monkeypatch.setattr(reader, "_encode", encode_noting)

    def encode(title: str) -> None:
        tokenizer.encode([("lamp", title)])
        for known in (tokenizer._known, tokenizer._words._known):
            assert len(known.younger) + len(known.older) < 3 * 8

    for number in range(100):
        encode(f"red {number}")
    assert (read.count("lamp"), read.count("red")) == (2, 1), "as a text and as a word"
    encode("red 3")
    assert (read.count("red 3"), read.count("3")) == (2, 2), "long ago"
    encode(" ".join(map(str, range(1000, 1100))))


@pytest.mark.parametrize("text", ["a\ud800b", "\udc00", "lamp " * 1000 + "\udfff"])
def test_a_lone_surrogate_is_named_not_a_crash(tokenizer: PairTokenizer, text: str) -> None:
    with pytest.raises(ModelError, match=r"lone surrogate U\+D[8-F]"):
        tokenizer.encode([("lamp", text)])


def test_a_panic_of_the_tokenizers_library_is_an_error_like_others(tmp_path: Path) -> None:
    """A panic is no Exception: it would end threads, and leave the service as plain text."""
    tokenizer = load(write(tmp_path, library_tokenizer(), {}))
    tokenizer._tokenizer.pre_tokenizer = pre_tokenizers.FixedLength(0)
    for text in ("é", "é lamp " * 1000):
        with pytest.raises(TokenizerFailed, match="chunk size must be non-zero"):
            tokenizer.encode([("é", text)])

    broken = library_tokenizer()
    broken.pre_tokenizer = pre_tokenizers.FixedLength(0)
    write(tmp_path, broken, {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False})
    with pytest.raises(UnsupportedCheckpoint, match="chunk size must be non-zero"):
        load(tmp_path)


def test_byte_level_pieces_are_spelled_as_people_read_them() -> None:
    """The vocabulary writes 무 as ë ¬ ´."""
    (pair,) = READERS[1][0].encode([KOREAN])
    texts = READERS[1][0].texts(pair)
    assert "".join(texts) == "<s>무선 mouse</s></s>무선 마우스</s>"
    assert texts[1:7] == ["무", "", "", "선", "", ""]
    assert [texts[position] for position in pair.special] == ["<s>", "</s>", "</s>", "</s>"]


KOREAN = ("무선 mouse", "무선 마우스")


def test_pieces_of_other_vocabularies_are_spelled_with_the_space_that_begins_a_word(
    tokenizer: PairTokenizer,
) -> None:
    (pair,) = tokenizer.encode([("angle brackets", "12-gauge")])
    assert "".join(tokenizer.texts(pair)) == " [CLS] angle brackets [SEP] 12 - gauge [SEP]"
    (pair,) = READERS[2][0].encode([("steel angle", "lamp")])
    assert "".join(READERS[2][0].texts(pair)) == "<s> steel angle</s></s> lamp</s>"
    vocabulary = [*((name, 0.0) for name in SPECIAL), *((f"<0x{n:02X}>", -9.0) for n in range(256))]
    library = unigram()
    library.model = models.Unigram(
        [*vocabulary, ("▁", -2.0), ("a", -2.0)], unk_id=SPECIAL.index("<unk>"), byte_fallback=True
    )
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    fallback = PairTokenizer(library, max_tokens=64, vocab_size=400)
    (pair,) = fallback.encode([("a무", "선")])
    assert fallback.texts(pair) == ["<s>", " ", "a", "무", "", "", "</s>", " ", "선", "", "", "</s>"]
