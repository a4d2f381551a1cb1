"""The other ways of reading, against the tokenizers library's own."""

import struct
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from sentencepiece import SentencePieceNormalizer, sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.processors import BertProcessing

from headroom.models.batch import pack
from headroom.models.checkpoint.hub import DEFAULT
from headroom.models.checkpoint.texts import Generations
from headroom.models.checkpoint.tokenizer import PairTokenizer
from tests.decoders import qwen_tokenizer
from tests.families import byte_level_tokenizer, unigram_tokenizer
from tests.models.checkpoint.library import library_tokenizer

WINDOW = 12
WORDS = ["angle", "bracket", "steel", "lamp", "screws", "国"]
texts = st.lists(st.sampled_from(WORDS), max_size=20).map(" ".join)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PairTokenizer:
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    library_tokenizer().save(str(directory / "tokenizer.json"))
    return PairTokenizer.load(directory, max_tokens=WINDOW, vocab_size=10_000)


def library(direction: str) -> Tokenizer:
    """As text-embeddings-inference sets it up."""
    tokenizer = library_tokenizer()
    tokenizer.post_processor = BertProcessing(
        ("[SEP]", tokenizer.token_to_id("[SEP]")), ("[CLS]", tokenizer.token_to_id("[CLS]"))
    )
    tokenizer.enable_truncation(WINDOW, strategy="longest_first", direction=direction)
    return tokenizer


@pytest.fixture(scope="module")
def libraries() -> dict[bool, Tokenizer]:
    """The library's tokenizers, by whether they keep the end."""
    return {False: library("right"), True: library("left")}


@given(query=texts, title=texts, keep_end=st.booleans())
def test_pairs_are_cut_as_the_library_cuts_them(
    tokenizer: PairTokenizer, libraries: dict[bool, Tokenizer], query: str, title: str, keep_end: bool
) -> None:
    theirs = libraries[keep_end].encode(query, title)

    (ours,) = tokenizer.reading_as(keep_end=keep_end).encode([(query, title)])

    assert ours.ids.tolist() == theirs.ids
    assert [0] * ours.first_segment + [1] * (len(ours) - ours.first_segment) == theirs.type_ids
    assert ours.truncated == bool(theirs.overflowing)
    assert ours.unknown_tokens == theirs.tokens.count("[UNK]")


@given(text=texts, keep_end=st.booleans())
def test_a_text_alone_is_read_as_the_library_reads_it(
    tokenizer: PairTokenizer, libraries: dict[bool, Tokenizer], text: str, keep_end: bool
) -> None:
    theirs = libraries[keep_end].encode(text)

    pair, alone = tokenizer.reading_as(keep_end=keep_end, alone={1}).encode([(text, ""), (text, "")])

    assert alone.ids.tolist() == theirs.ids
    assert (alone.first_segment, alone.truncated) == (len(theirs.ids), bool(theirs.overflowing))
    assert pair.ids.tolist() == libraries[keep_end].encode(text, "").ids


@given(pairs=st.lists(st.tuples(texts, texts), min_size=1, max_size=9))
def test_a_pack_holds_the_tokens_of_the_library(
    tokenizer: PairTokenizer, libraries: dict[bool, Tokenizer], pairs: list[tuple[str, str]]
) -> None:
    theirs = sorted(libraries[False].encode_batch(pairs), key=len)  # as a pack has them, shortest first

    batch = pack(tokenizer.encode(pairs), device=torch.device("cpu"), fill=False)

    assert batch.ids.tolist() == [id_ for pair in theirs for id_ in pair.ids]
    assert batch.segments.tolist() == [type_ for pair in theirs for type_ in pair.type_ids]
    assert batch.lengths.tolist() == [len(pair) for pair in theirs]


def charsmap() -> normalizers.Normalizer:
    """SentencePiece's own normalizer, which the published tokenizers of XLM-RoBERTa's kind have."""
    spec = sentencepiece_model_pb2.NormalizerSpec()
    spec.ParseFromString(SentencePieceNormalizer(rule_name="nmt_nfkc").serialized_normalizer_spec())
    return normalizers.Precompiled(spec.precompiled_charsmap)


def sentence_piece(*steps: normalizers.Normalizer, scheme: str) -> Tokenizer:
    """As transformers converts SentencePiece's own files."""
    tokenizer = xlm_roberta(normalizers.Sequence(list(steps)))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    return tokenizer


def modern_bert() -> Tokenizer:
    tokenizer = Tokenizer.from_str(byte_level_tokenizer())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken(content, special=False) for content in ("|||IP|||", "  ", "   ", "é")])
    return tokenizer


def qwen() -> Tokenizer:
    """Qwen's, with which pairs are read as BERT's."""
    tokenizer = Tokenizer.from_str(qwen_tokenizer())
    ends = [(token, tokenizer.token_to_id(token)) for token in ("<|im_end|>", "<|im_start|>")]
    tokenizer.post_processor = BertProcessing(*ends)
    return tokenizer


def xlm_roberta(normalizer: normalizers.Normalizer | None = None) -> Tokenizer:
    tokenizer = Tokenizer.from_str(unigram_tokenizer())
    tokenizer.normalizer = normalizer
    return tokenizer


def reader(tokenizer: Tokenizer) -> PairTokenizer:
    return PairTokenizer(tokenizer, max_tokens=500, vocab_size=50_000)


def assert_like(library: Tokenizer, reader: PairTokenizer, text: str) -> None:
    library.encode_special_tokens = True
    found = library.encode(text, add_special_tokens=False).ids
    reader._known = Generations()  # the text is read again
    (encoded,) = reader.encode_texts([text]).values()
    assert encoded.ids == struct.pack(f"{len(found)}i", *found)[:2000]


WORD_BY_WORD = {
    "BERT": partial(library_tokenizer, strip_accents=False),
    "BERT without accents": partial(library_tokenizer, strip_accents=True),
    "XLM-RoBERTa": xlm_roberta,
    "with a charsmap": lambda: xlm_roberta(charsmap()),
    "of SentencePiece": lambda: sentence_piece(
        charsmap(),
        normalizers.Strip(left=False, right=True),
        normalizers.Replace(Regex(" {2,}"), "▁"),
        scheme="always",
    ),
    "with a charsmap alone": lambda: sentence_piece(charsmap(), scheme="first"),
    "RoBERTa": lambda: Tokenizer.from_str(byte_level_tokenizer()),
    "ModernBERT": modern_bert,
    "Qwen": qwen,
    "shipped": lambda: Tokenizer.from_file(str(DEFAULT / "tokenizer.json")),
}
CHARACTERS = (
    "aeLS9 -![].\t\n\0\x1f\x7f\x85\xa0éÀ\u0301\u200b\u3000\u3099▁ﾞｶ½中の한😀´¨ﬁ™\u0600\u0d4e\u200d\U0001f3fb"
)
words = st.sampled_from(
    ["lamp", "Red", "don't", "<think>", "|||IP|||", "q" * 101, "é", "e\u0301", "\0", "[SEP]", "#", "12-gauge"]
)


@pytest.fixture(scope="module", params=WORD_BY_WORD)
def splitter(request: pytest.FixtureRequest) -> tuple[Tokenizer, PairTokenizer]:
    """The library's tokenizer, and ours of the same."""
    make = WORD_BY_WORD[request.param]
    return make(), reader(make())


@given(parts=st.lists(words | st.text(CHARACTERS, max_size=12)))
@example(parts=["\u0301", "-\u0301", "=\u0338", "ﾞ\u0301"])
def test_a_text_read_word_by_word_has_the_ids_of_the_whole(
    splitter: tuple[Tokenizer, PairTokenizer], parts: list[str]
) -> None:
    for text in (" ".join(parts), "".join(parts), "-".join(parts)):
        assert_like(*splitter, text)


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.Replace(" ", "_"),
        normalizers.Replace(Regex("p r"), "x"),
        normalizers.Replace(Regex("[ p]+"), ""),
        normalizers.Replace(Regex("[ ]"), "x"),
        normalizers.Replace(Regex("[^ ]* "), ""),
        normalizers.Replace(Regex("^lamp"), "red"),
        normalizers.Prepend("x"),
        normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex("[q]|[p] "), "")]),
    ],
    ids=str,
)
def test_a_normalizer_that_reads_across_spaces_gets_the_whole_text(
    normalizer: normalizers.Normalizer,
) -> None:
    assert_like(xlm_roberta(normalizer), reader(xlm_roberta(normalizer)), "lamp red lamp  a lamp")
