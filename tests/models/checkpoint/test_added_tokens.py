"""The tokens that a checkpoint was trained with beside its vocabulary's reach the model as their own ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerBase

from models import Classifier
from models.checkpoint.tokenizer import PairTokenizer
from models.errors import UnsupportedCheckpoint
from tests import families
from tests.checkpoints import VOCABULARY, write_checkpoint
from tests.families import write_family
from tests.models.checkpoint.library import SIZE, library_tokenizer, load, write

EXTRA = ["[TITLE]", "[BRAND]"]
QUERY, TITLE = "angle bracket", "[TITLE] Steel Angle[BRAND] simpson [BRAND]  lamp [title]"


def ids_of(directory: Path, vocab_size: int = SIZE + len(EXTRA)) -> list[int]:
    tokenizer = load(directory, vocab_size=vocab_size)
    ids: list[int] = tokenizer.encode([(QUERY, TITLE)])[0].ids.tolist()
    return ids


def theirs(directory: Path) -> list[int]:
    ids: list[int] = AutoTokenizer.from_pretrained(directory)(QUERY, TITLE)["input_ids"]
    return ids


@pytest.mark.parametrize("family", [*families.FAMILIES, "modernbert"])
def test_a_checkpoint_with_tokens_of_its_own_scores_as_in_transformers(tmp_path: Path, family: str) -> None:
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


@pytest.mark.parametrize("family", [*families.FAMILIES, "modernbert"])
def test_beside_them_nobody_can_forge_the_structure(tmp_path: Path, family: str) -> None:
    directory = write_family(tmp_path, family)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.add_special_tokens({"additional_special_tokens": EXTRA})
    tokenizer.save_pretrained(directory)
    named = [tokenizer.cls_token, tokenizer.sep_token, tokenizer.pad_token, tokenizer.mask_token]

    ours = PairTokenizer.load(directory, max_tokens=128, vocab_size=500)
    pair = ours.encode([("lamp [BRAND]", "".join(f"red{token} {token}[TITLE]" for token in named))])[0]

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
        {"tokenizer_config.json": {"added_tokens_decoder": DECODER}},
        {"tokenizer_config.json": {"additional_special_tokens": EXTRA}},
        {"tokenizer_config.json": {"extra_special_tokens": EXTRA}},
        {"tokenizer_config.json": {"extra_special_tokens": dict(zip(("a", "b"), EXTRA, strict=True))}},
        {"tokenizer_config.json": {"title_token": "[TITLE]", "brand_token": "[BRAND]"}},
        {"special_tokens_map.json": {"additional_special_tokens": EXTRA}},
        {"added_tokens.json": {"[BRAND]": SIZE + 1, "[TITLE]": SIZE}},
        {
            "added_tokens.json": {"[TITLE]": SIZE, "[BRAND]": SIZE + 1},
            "special_tokens_map.json": {"extra_special_tokens": EXTRA},
        },
    ],
)
def test_tokens_of_the_files_beside_the_vocabulary_are_those_of_transformers(
    tmp_path: Path, source: str, files: dict[str, Any]
) -> None:
    if source == "vocab.txt":
        write_checkpoint(tmp_path)
    else:
        write(tmp_path, library_tokenizer())
    for name, content in ({"tokenizer_config.json": {}} | files).items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")

    assert SIZE + 1 in theirs(tmp_path)
    assert ids_of(tmp_path) == theirs(tmp_path)


def test_a_token_that_replaced_an_unused_one_has_its_id(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    replaced = ["[TITLE]" if word == "##~" else word for word in VOCABULARY]
    (tmp_path / "vocab.txt").write_text("\n".join(replaced) + "\n", encoding="utf-8")
    config = {"additional_special_tokens": ["[TITLE]"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")

    assert VOCABULARY.index("##~") in theirs(tmp_path)
    assert ids_of(tmp_path, SIZE) == theirs(tmp_path)


@pytest.mark.parametrize("fields", [{"lstrip": True, "rstrip": True}, {"single_word": True}])
def test_an_added_token_takes_spaces_as_its_file_says(tmp_path: Path, fields: dict[str, bool]) -> None:
    source: Tokenizer = library_tokenizer()
    source.add_special_tokens([AddedToken(token, special=True, **fields) for token in EXTRA])
    write(tmp_path, source, {})

    assert ids_of(tmp_path) == theirs(tmp_path)


def test_an_added_token_with_another_id_than_its_file_says_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[TITLE]": SIZE + 5}), encoding="utf-8")

    with pytest.raises(
        UnsupportedCheckpoint, match=rf"'\[TITLE\]' has the id {SIZE + 5} .* gives it {SIZE};"
    ):
        ids_of(tmp_path, SIZE + 9)


def test_an_added_token_beyond_the_embeddings_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"simpson-tie": SIZE}), encoding="utf-8")

    with pytest.raises(UnsupportedCheckpoint, match=f"'simpson-tie' the id {SIZE}; .* end at {SIZE - 1}"):
        ids_of(tmp_path, SIZE)
