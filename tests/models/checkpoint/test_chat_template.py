"""A decoder's prompt is what transformers renders and reads; a template that does more is refused by name."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, normalizers
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from headroom import Classifier, UnsupportedCheckpoint
from headroom.models.checkpoint import sandbox
from tests.checkpoints import load
from tests.decoders import FAMILIES, write_decoder
from tests.families import edit_config
from tests.modernberts import write_modernbert

PAIRS = [("angle bracket", "steel angle"), ("what is 12?", "-5 % (off)?\n"), ("usb", ""), ("  a ", "b\n")]
SIMPLE = "Q: {{ messages[0].content }}\nD: {{ messages[1].content }}\n->"
QUERY = "messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first"
DOCUMENT = "messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first"
ENDING = f"{{{{ {QUERY} }}}}\n# {{{{ {DOCUMENT} }}}}"
"""The document stands at the end."""


def write(directory: Path, template: str, family: str = "qwen3", **options: Any) -> Path:
    return write_decoder(directory, family, 4, causal=False, template=template, **options)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial may take a second."""
    monkeypatch.setattr(sandbox, "CPU_SECONDS", 1)


def theirs(directory: Path, query: str, title: str) -> list[int]:
    """The tokens of a pair as transformers renders and reads them."""
    messages = [{"role": "query", "content": query}, {"role": "document", "content": title}]
    tokenizer = AutoTokenizer.from_pretrained(directory)
    ids: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return ids


def logits_of(directory: Path, ids: list[int]) -> np.ndarray:
    """The logits that transformers computes of tokens."""
    model = AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        logits: np.ndarray = model(input_ids=torch.tensor([ids])).logits[0].numpy()
    return logits


TOKENS = "{{ bos_token }}{{ eos_token }}{{ pad_token }}"


@pytest.mark.parametrize(
    ("family", "template"),
    [
        ("gemma", TOKENS + SIMPLE),
        ("qwen3", TOKENS + ENDING),
        ("qwen3", "{% if add_generation_prompt %}yes: {% endif %}" + ENDING + "{{ eos_token }}"),
    ],
)
def test_tokens_and_scores_are_those_of_transformers(tmp_path: Path, family: str, template: str) -> None:
    """With special tokens of the class, with pad tokens or a document at the end, and no title."""
    directory = write(tmp_path, template, family)
    clf = load(directory)
    pad = json.loads((directory / "config.json").read_text())["pad_token_id"]

    together = clf.score(PAIRS).logits
    for pair, encoded, scores in zip(PAIRS, clf.tokenizer.encode(PAIRS), together, strict=True):
        ids = theirs(directory, *pair)
        np.testing.assert_allclose(scores, logits_of(directory, ids), atol=2e-5)
        np.testing.assert_allclose(clf.score([pair]).logits[0], scores, atol=2e-5)
        while ids[-1] == pad:
            ids.pop()
        assert encoded.ids.tolist() == ids


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (SIMPLE.replace("content", "content | tojson"), "does more than to put texts in their places"),
        (SIMPLE.replace("content", "content[:1000]"), "does more"),
        (f"{{{{ strftime_now('%Y') }}}} {SIMPLE}", "writes the date"),
        (f"{SIMPLE} {{{{ {QUERY} }}}}", "shows the query, the document, the query, but"),
        (f"{{{{ raise_exception('no ' ~ ({QUERY})) }}}}", "TemplateError: no "),
        (f"{{% if instruction %}}asked{{% endif %}}{SIMPLE}", "an instruction that it does not show"),
    ],
)
def test_a_template_that_does_more_is_refused_by_name(tmp_path: Path, template: str, reason: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=reason):
        load(write(tmp_path, template))


def test_only_a_template_of_other_roles_gives_way_to_the_published_prompt(tmp_path: Path) -> None:
    chat = "{{ strftime_now('%Y') }}{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    strict = "{% if messages[0].role != 'user' %}{{ raise_exception('roles must alternate') }}{% endif %}"
    published = load(write_decoder(tmp_path / "none", "qwen3", 4)).tokenizer.encode(PAIRS)
    for name, template in (("chat", chat), ("strict", strict)):
        directory = write_decoder(tmp_path / name, "qwen3", 4, template=template)
        for one, other in zip(load(directory).tokenizer.encode(PAIRS), published, strict=True):
            np.testing.assert_array_equal(one.ids, other.ids)


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = b %}{% endfor %}{% endfor %}",
        "{{ ('x' * 9999999999) * 9 }}",
    ],
)
@pytest.mark.usefixtures("impatient")
def test_a_template_that_loops_for_days_does_not_hang_a_start(tmp_path: Path, template: str) -> None:
    directory = write(tmp_path, template + SIMPLE)
    began = time.monotonic()
    with pytest.raises(UnsupportedCheckpoint, match="a few short texts take more than"):
        load(directory)
    assert time.monotonic() - began < 60


def test_a_template_whose_texts_fill_the_memory_is_refused(tmp_path: Path) -> None:
    """The texts are an answer of the trial's process, which the server would hold whole."""
    directory = write(tmp_path, "{{ 'x' * 70000000 }}" + SIMPLE)
    with pytest.raises(UnsupportedCheckpoint, match="it makes more than 64 MiB of a few short texts"):
        load(directory)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("by", ["modules.json", "config.json"])
def test_a_classifier_of_plain_pairs_is_served_as_such(tmp_path: Path, family: str, by: str) -> None:
    """As sentence-transformers trains one without a chat template, and as a user can say."""
    directory = write_decoder(tmp_path, family, 6, causal=False, max_position_embeddings=200)
    if by == "modules.json":
        kind = "sentence_transformers.base.modules.transformer.Transformer"
        (directory / by).write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": kind}]))
    else:
        edit_config(directory, headroom={"prompt": "pair"})
    clf = load(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    pairs = [*PAIRS, ("angle " * 30, "steel lamp " * 300)]

    together = clf.score(pairs).logits
    for pair, encoded, scores in zip(pairs, clf.tokenizer.encode(pairs), together, strict=True):
        ids = tokenizer([pair], truncation="longest_first", max_length=200)["input_ids"][0]
        assert encoded.ids.tolist() == ids
        np.testing.assert_allclose(scores, logits_of(directory, ids), atol=2e-5)


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.Prepend("x" * 10**7),
        normalizers.Sequence([normalizers.Replace("a", "a" * 10**4), normalizers.Replace("a", "a" * 10**5)]),
    ],
)
@pytest.mark.usefixtures("impatient")
def test_a_tokenizer_that_takes_seconds_for_a_letter_is_refused(
    tmp_path: Path, normalizer: normalizers.Normalizer
) -> None:
    directory = write_modernbert(tmp_path)
    file = directory / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.normalizer = normalizer
    tokenizer.save(str(file))
    with pytest.raises(UnsupportedCheckpoint, match="a few short texts take more than"):
        Classifier.load(directory, "cpu")
