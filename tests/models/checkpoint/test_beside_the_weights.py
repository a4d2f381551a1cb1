"""What lies beside the weights counts as in transformers, is said, or is refused by name."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer

from headroom import UnsupportedCheckpoint
from tests.checkpoints import load, write_checkpoint
from tests.families import edit_json, write_family

PAIR = ("angle bracket", "usb lamps, usbs and a usb hub")


def theirs(directory: Path) -> list[int]:
    ids: list[int] = AutoTokenizer.from_pretrained(directory)(*PAIR)["input_ids"]
    return ids


def test_an_adapter_is_refused_and_not_left_out(tmp_path: Path) -> None:
    """transformers would add its weights to the model's."""
    write_checkpoint(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8}))
    with pytest.raises(UnsupportedCheckpoint, match=r"adapter_config\.json: .* merge it"):
        load(tmp_path)


@pytest.mark.parametrize("flag", ["single_word", "lstrip", "rstrip", "normalized"])
@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "modernbert"])
def test_flags_of_added_tokens_count_as_in_transformers(tmp_path: Path, family: str, flag: str) -> None:
    directory = write_family(tmp_path, family, vocab_size=400)
    file = directory / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_tokens([AddedToken("usb", normalized=False)])
    tokenizer.save(str(file))
    flags = {name: name == flag for name in ("single_word", "lstrip", "rstrip", "normalized")}
    token = {"content": "usb", "special": False, **flags}
    edit_json(directory / "tokenizer_config.json", added_tokens_decoder={tokenizer.token_to_id("usb"): token})
    reader = load(directory).tokenizer
    assert reader.encode([PAIR])[0].ids.tolist() == theirs(directory)


@pytest.mark.parametrize("adds", [None, True, False])
@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "deberta-v2", "modernbert"])
def test_a_space_before_a_text_is_added_as_transformers_5_adds_it(
    tmp_path: Path, family: str, adds: bool | None
) -> None:
    """tokenizer_config.json decides for the classes that know the option, tokenizer.json for general ones."""
    directory = write_family(tmp_path, family)
    if adds is not None:
        edit_json(directory / "tokenizer_config.json", add_prefix_space=adds)
    assert load(directory).tokenizer.encode([PAIR])[0].ids.tolist() == theirs(directory)


@pytest.mark.parametrize("flags", [{}, {"normalized": False, "lstrip": True, "rstrip": True}])
@pytest.mark.parametrize("family", ["bert", "xlm-roberta", "modernbert"])
def test_an_added_token_of_several_words_is_whole_in_long_texts(
    tmp_path: Path, family: str, flags: dict[str, bool]
) -> None:
    directory = write_family(tmp_path, family, vocab_size=400)
    file = directory / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_tokens([AddedToken("usb cable of steel", **flags)])
    tokenizer.save(str(file))
    whole = Tokenizer.from_file(str(file))
    reader = load(directory).tokenizer
    for start in range(0, 24, 5):
        text = "x" * start + " usb cable of steel" * 200
        ids = [id_ for portion in reader.portions(text) for id_ in portion.ids]
        assert ids == whole.encode(text, add_special_tokens=False).ids
