"""A tokenizer that does not encode pairs as BERT does is refused, with the file and the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, processors
from transformers import AutoTokenizer

from models.errors import UnsupportedCheckpoint
from tests.checkpoints import VOCABULARY, write_checkpoint, write_vocabulary
from tests.models.checkpoint.library import SIZE, library_tokenizer, load, write


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def refusal(directory: Path, **options: int) -> str:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        load(directory, **options)
    return str(caught.value)


def test_a_checkpoint_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    assert "neither tokenizer.json nor vocab.txt" in refusal(tmp_path)


def test_a_tokenizer_larger_than_the_model_is_refused(checkpoint: Path) -> None:
    assert f"embeddings end at {SIZE - 2}" in refusal(checkpoint, vocab_size=SIZE - 1)


def test_a_window_without_room_is_refused(checkpoint: Path) -> None:
    assert "3 tokens" in refusal(checkpoint, max_tokens=3)


@pytest.mark.parametrize("missing", ["[CLS]", "[SEP]", "[UNK]"])
def test_a_vocabulary_without_a_special_token_is_refused(tmp_path: Path, missing: str) -> None:
    write_vocabulary(tmp_path)
    kept = [token for token in VOCABULARY if token != missing]
    (tmp_path / "vocab.txt").write_text("\n".join(kept), encoding="utf-8")

    assert f"has no {missing}" in refusal(tmp_path)


def test_special_tokens_may_have_other_names(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("<cls>\n<sep>\n<unk>\nlamp\n", encoding="utf-8")
    config = {"cls_token": "<cls>", "sep_token": {"content": "<sep>"}, "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = load(tmp_path)
    pair = tokenizer.encode([("lamp", "desk")])[0]

    assert tokenizer.tokens(pair) == ["<cls>", "lamp", "<sep>", "<unk>", "<sep>"]
    assert pair.unknown_tokens == 1


def roberta(tokenizer: Tokenizer) -> None:
    tokenizer.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))


def one_type(tokenizer: Tokenizer) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )


def bare(tokenizer: Tokenizer) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])


@pytest.mark.parametrize("change", [roberta, one_type])
def test_pairs_have_the_special_tokens_and_types_of_the_tokenizers_own_template(
    tmp_path: Path, change: Callable[[Tokenizer], None]
) -> None:
    source = library_tokenizer()
    change(source)
    library = source.encode("angle", "steel lamp")

    pair = load(write(tmp_path, source)).encode([("angle", "steel lamp")])[0]

    assert pair.ids.tolist() == library.ids
    assert [0] * pair.first_segment + [1] * (len(pair) - pair.first_segment) == library.type_ids
    assert pair.special == [i for i, special in enumerate(library.special_tokens_mask) if special]
    assert pair.title_start == library.sequence_ids.index(1)


def types_change_inside(tokenizer: Tokenizer) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A:1 [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )


@pytest.mark.parametrize("change", [bare, types_change_inside])
def test_a_tokenizer_that_makes_other_pairs_is_refused(
    tmp_path: Path, change: Callable[[Tokenizer], None]
) -> None:
    source = library_tokenizer()
    change(source)

    assert "not [CLS] query [SEP] title [SEP] or the like" in refusal(write(tmp_path, source))


def test_a_tokenizer_that_is_not_wordpiece_is_refused(tmp_path: Path) -> None:
    source = Tokenizer(models.WordLevel({w: i for i, w in enumerate(VOCABULARY)}, unk_token="[UNK]"))

    assert "WordLevel, not BERT's WordPiece" in refusal(write(tmp_path, source))


def test_a_tokenizer_class_that_a_vocabulary_cannot_give_is_refused(tmp_path: Path) -> None:
    write_vocabulary(tmp_path)
    config = {"tokenizer_class": "BertJapaneseTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")

    assert "BertJapaneseTokenizer" in refusal(tmp_path)


def test_a_tokenizer_that_keeps_the_ends_of_texts_is_refused(tmp_path: Path) -> None:
    write(tmp_path, library_tokenizer(), {"truncation_side": "left"})

    assert "truncation_side is 'left'" in refusal(tmp_path)


def test_the_side_of_tokenizer_json_counts_where_its_config_names_none(tmp_path: Path) -> None:
    source = library_tokenizer()
    source.enable_truncation(40, direction="left")
    write(tmp_path, source, {})
    assert AutoTokenizer.from_pretrained(tmp_path).truncation_side == "left"
    assert "tokenizer.json: truncation.direction is 'left'" in refusal(tmp_path)

    write(tmp_path, source, {"truncation_side": "right"})
    assert AutoTokenizer.from_pretrained(tmp_path).truncation_side == "right"
    load(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "vocab.txt"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe\x00"])
def test_a_broken_file_is_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    write_vocabulary(tmp_path)
    (tmp_path / name).write_bytes(content)

    assert name in refusal(tmp_path)
