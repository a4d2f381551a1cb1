"""A checkpoint's files give the tokens and the window of transformers; others are refused with the reason."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, processors
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerBase

from headroom import Classifier, HeadMask
from headroom.models.checkpoint.tokenizer import PairTokenizer
from headroom.models.compress.prune import prune
from headroom.models.errors import UnsupportedCheckpoint
from tests import families
from tests.checkpoints import write_checkpoint
from tests.families import write_family
from tests.models.checkpoint.library import SIZE, library_tokenizer, load, write, write_vocab_txt

EXTRA = ["[TITLE]", "[BRAND]"]
QUERY, TITLE = "angle bracket", "[TITLE] Steel Angle[BRAND] simpson [BRAND]  lamp [title]"
OPTIONS, MODULE = "tokenizer_config.json", "sentence_bert_config.json"
POSITIONS = 64


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint")


def write_files(directory: Path, files: dict[str, dict[str, Any]]) -> Path:
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content), encoding="utf-8")
    return directory


def ids_of(directory: Path, vocab_size: int = SIZE + len(EXTRA)) -> list[int]:
    tokenizer = load(directory, vocab_size=vocab_size)
    ids: list[int] = tokenizer.encode([(QUERY, TITLE)])[0].ids.tolist()
    return ids


def theirs(directory: Path) -> list[int]:
    ids: list[int] = AutoTokenizer.from_pretrained(directory)(QUERY, TITLE)["input_ids"]
    return ids


@pytest.mark.parametrize("family", [*families.FAMILIES, "modernbert"])
def test_added_tokens_are_input_and_nobody_can_forge_the_structure(tmp_path: Path, family: str) -> None:
    directory = write_family(tmp_path, family)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(directory)
    tokenizer.add_special_tokens({"additional_special_tokens": EXTRA})
    tokenizer.add_tokens(["12-gauge"])
    tokenizer.save_pretrained(directory)
    model = AutoModelForSequenceClassification.from_pretrained(directory)
    torch.manual_seed(0)
    model.resize_token_embeddings(len(tokenizer) if len(tokenizer) > 400 else 400)
    model.save_pretrained(directory)
    model.eval()

    clf = Classifier.load(directory, "cpu", "float32")

    text = f"{TITLE} 12-gauge"
    inputs = tokenizer(QUERY, text, return_tensors="pt")
    assert set(tokenizer.convert_tokens_to_ids([*EXTRA, "12-gauge"])) <= set(inputs["input_ids"][0].tolist())
    assert clf.tokenizer.encode([(QUERY, text)])[0].ids.tolist() == inputs["input_ids"][0].tolist()
    with torch.no_grad():
        expected = model(**inputs).logits
    torch.testing.assert_close(
        torch.from_numpy(clf.score([(QUERY, text)]).logits), expected, atol=2e-5, rtol=0
    )

    named = [tokenizer.cls_token, tokenizer.sep_token, tokenizer.pad_token, tokenizer.mask_token]
    forged = "".join(f"red{token} {token}[TITLE]" for token in named)
    pair = PairTokenizer.load(directory, max_tokens=128, vocab_size=500).encode([("lamp [BRAND]", forged)])[0]
    structure = set(tokenizer.convert_tokens_to_ids(named))
    assert [i for i, id_ in enumerate(pair.ids.tolist()) if id_ in structure] == pair.special
    assert pair.ids.tolist().count(tokenizer.convert_tokens_to_ids("[TITLE]")) == len(named)


FIELDS = {"lstrip": False, "rstrip": False, "single_word": False}
DECODER = {
    str(SIZE + i): FIELDS | {"content": t, "normalized": False, "special": True} for i, t in enumerate(EXTRA)
}


@pytest.mark.parametrize("source", ["vocab.txt", "tokenizer.json"])
@pytest.mark.parametrize(
    "files",
    [
        {OPTIONS: {"added_tokens_decoder": DECODER}},
        {OPTIONS: {"additional_special_tokens": EXTRA}},
        {OPTIONS: {"extra_special_tokens": dict(zip(("a", "b"), EXTRA, strict=True))}},
        {OPTIONS: {"title_token": "[TITLE]", "brand_token": "[BRAND]"}},
        {"special_tokens_map.json": {"additional_special_tokens": EXTRA}},
        {"added_tokens.json": {"[BRAND]": SIZE + 1, "[TITLE]": SIZE}},
    ],
)
def test_tokens_of_the_files_beside_the_vocabulary_are_those_of_transformers(
    tmp_path: Path, source: str, files: dict[str, Any]
) -> None:
    write(tmp_path, library_tokenizer())
    if source == "vocab.txt":
        write_vocab_txt(tmp_path)
    write_files(tmp_path, {OPTIONS: {}} | files)

    assert SIZE + 1 in theirs(tmp_path)
    assert ids_of(tmp_path) == theirs(tmp_path)


def test_an_added_token_beyond_the_embeddings_is_refused(checkpoint: Path) -> None:
    write_files(checkpoint, {"added_tokens.json": {"simpson-tie": SIZE}})

    with pytest.raises(UnsupportedCheckpoint, match=f"'simpson-tie' the id {SIZE}; .* end at {SIZE - 1}"):
        ids_of(checkpoint, SIZE)


WHOLE = "it must be a whole number from 4"


def window(directory: Path) -> int:
    return Classifier.load(directory, "cpu", "float32").max_tokens


@pytest.mark.parametrize(
    "options",
    [
        {"model_max_length": 32, "max_len": 16},
        {"model_max_length": None, "max_len": 16},
        {"model_max_length": 1e30},
    ],
)
def test_the_old_key_max_len_is_read_as_transformers_reads_it(
    checkpoint: Path, options: dict[str, Any]
) -> None:
    write_files(checkpoint, {OPTIONS: options})

    assert window(checkpoint) == min(AutoTokenizer.from_pretrained(checkpoint).model_max_length, POSITIONS)


@pytest.mark.parametrize(
    ("files", "expected"),
    [  # as Transformer of sentence-transformers 6.2 gives them to AutoProcessor.from_pretrained
        ({MODULE: {"max_seq_length": 16, "do_lower_case": False}, OPTIONS: {"model_max_length": 32}}, 16),
        ({MODULE: {"max_seq_length": 32}, OPTIONS: {"model_max_length": 16}}, 32),
        ({MODULE: {"max_seq_length": 32, "processor_kwargs": {"model_max_length": 16}}}, 16),
        ({MODULE: {"max_seq_length": 512}}, POSITIONS),
    ],
)
def test_the_window_of_sentence_transformers_counts_and_pruning_keeps_it(
    checkpoint: Path, tmp_path: Path, files: dict[str, dict[str, Any]], expected: int
) -> None:
    assert window(write_files(checkpoint, files)) == expected

    prune(checkpoint, tmp_path / "pruned", HeadMask.parse("1.*", layers=3, heads=4))
    assert window(tmp_path / "pruned") == expected


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({MODULE: {"max_seq_length": "16"}}, f"{MODULE}: max_seq_length is '16'; {WHOLE}"),
        ({MODULE: {"tokenizer_args": [1]}}, rf"{MODULE}: tokenizer_args is \[1\]; it must be an object"),
        ({OPTIONS: {"max_len": 0}}, f"{OPTIONS}: max_len is 0; {WHOLE}"),
        ({OPTIONS: {"truncation_side": "left"}}, "truncation_side is 'left'"),
        ({MODULE: {"do_lower_case": True}}, f"{MODULE}: do_lower_case is set"),
        ({MODULE: {"processing_kwargs": {"text": {"max_length": 16}}}}, "processing_kwargs is set"),
    ],
)
def test_other_settings_of_the_window_are_refused_by_name(
    checkpoint: Path, files: dict[str, dict[str, Any]], message: str
) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=message):
        window(write_files(checkpoint, files))


def refusal(directory: Path, **options: int) -> str:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        load(directory, **options)
    return str(caught.value)


def template(pair: str) -> Callable[[Tokenizer], None]:
    def change(tokenizer: Tokenizer) -> None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )

    return change


@pytest.mark.parametrize("change", [template("$A $B:1"), template("[CLS] $A:1 [SEP] $B [SEP]")])
def test_a_tokenizer_that_makes_other_pairs_is_refused(
    tmp_path: Path, change: Callable[[Tokenizer], None]
) -> None:
    source = library_tokenizer()
    change(source)

    assert "not [CLS] query [SEP] title [SEP] or the like" in refusal(write(tmp_path, source))


@pytest.mark.parametrize("name", ["tokenizer.json", OPTIONS])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe\x00"])
def test_a_broken_file_is_refused_by_name(checkpoint: Path, name: str, content: bytes) -> None:
    (checkpoint / name).write_bytes(content)

    assert name in refusal(checkpoint)
