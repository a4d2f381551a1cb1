"""Which family a config.json is of, what is refused by name, and what makes a score of one label.

published.json holds the fields that matter of rerankers as they are published, and where each was read.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.activations import ACT2CLS, ACT2FN

from headroom import UnsupportedCheckpoint
from headroom.models.checkpoint.config import parse_config
from headroom.models.checkpoint.fields import ACTIVATIONS
from headroom.models.ops.torch import FUNCTIONS
from tests import own_code
from tests.checkpoints import load, write_checkpoint
from tests.families import edit_config, model_of, write_family
from tests.own_code import config_of

PAIRS = [("angle bracket", "steel angle, 12-gauge"), ("usb lamp", "wood deck screws"), ("tool", "")]


@pytest.mark.parametrize("model_type", ["deberta", 7])
def test_other_architectures_are_refused_by_name(model_type: object) -> None:
    raw = model_of("bert").config.to_dict() | {"model_type": model_type}

    with pytest.raises(UnsupportedCheckpoint) as caught:
        parse_config(raw)

    assert f"model_type is {model_type!r}" in str(caught.value)
    assert "supported: bert" in str(caught.value)


DYNAMIC = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "rope_parameters": None}


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("bert", {"position_embedding_type": "alibi"}, "position_embedding_type is 'alibi'"),
        ("bert", {"auto_map": {"AutoModel": "modeling.JinaBertModel"}}, "auto_map"),
        ("bert", {"model_type": None, "architectures": ["AlbertForSequenceClassification"]}, "Albert"),
        ("deberta-v2", {"conv_kernel_size": 3}, "conv_kernel_size is 3"),
        ("deberta-v2", {"share_att_key": False}, "share_att_key is False"),
        *(
            ("deberta-v2", {"max_relative_positions": largest}, f"{largest}; with 16 .* at least 10")
            for largest in (1, 3, 8, 9)
        ),
        ("qwen3", {"architectures": ["JinaForRanking"]}, "listwise"),
        ("qwen3", {"use_sliding_window": True}, "use_sliding_window is True"),
        ("qwen3", DYNAMIC, "rope_scaling is"),
        (
            "qwen2",
            {"head_dim": 514, "max_position_embeddings": 131_072},
            "max_position_embeddings is 131072; times the 514 numbers of a head .* at most 67,108,864",
        ),
        (
            "modernbert",
            {"hidden_size": 10**7, "max_position_embeddings": 8192},
            "times the 2,500,000 numbers",
        ),
        ("new", {"logn_attention_scale": True}, "logn_attention_scale is True"),
        ("new", {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_scaling is"),
        ("jina-bert", {"feed_forward_type": "original"}, "feed_forward_type is 'original'"),
        ("jina-bert", {"auto_map": {"AutoModel": "mine.Model"}}, "brings code of its own"),
        ("xlm-roberta-flash", {"lora_adaptations": ["a"]}, "lora_adaptations"),
    ],
)
def test_what_only_looks_like_a_family_is_refused(family: str, changes: dict[str, Any], message: str) -> None:
    config = config_of(family) if family in own_code.FAMILIES else model_of(family).config.to_dict()
    with pytest.raises(UnsupportedCheckpoint, match=message):
        parse_config(config | changes)


@pytest.mark.parametrize("architectures", [None, ["BertModel"], ["BertForSequenceClassification"]])
def test_an_old_config_without_model_type_is_berts(
    checkpoints: dict[str, Path], tmp_path: Path, architectures: list[str] | None
) -> None:
    old = Path(shutil.copytree(checkpoints["bert"], tmp_path / "old"))
    edit_config(old, model_type=None, architectures=architectures)

    np.testing.assert_array_equal(
        load(old).score(PAIRS).logits, load(checkpoints["bert"]).score(PAIRS).logits
    )


@pytest.mark.parametrize("pad", [0, 2, 3, 20])  # <s>, </s>, <unk>, a piece of text
def test_a_padding_token_that_occurs_in_pairs_is_refused(
    checkpoints: dict[str, Path], tmp_path: Path, pad: int
) -> None:
    source = Path(shutil.copytree(checkpoints["xlm-roberta"], tmp_path / "source"))
    edit_config(source, pad_token_id=pad)

    with pytest.raises(UnsupportedCheckpoint, match=f"pad_token_id is {pad}"):
        load(source)


def test_regression_has_one_label() -> None:
    one, five = (model_of("bert", num_labels=n).config.to_dict() for n in (1, 5))

    assert parse_config(one | {"problem_type": "regression"}).score_activation == "sigmoid"
    with pytest.raises(UnsupportedCheckpoint, match="problem_type is 'regression'"):
        parse_config(five | {"problem_type": "regression"})


IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"


@pytest.mark.parametrize(
    ("fields", "activation"),
    [
        ({}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, "identity"),
        ({"sbert_ce_default_activation_function": IDENTITY}, "identity"),
        (
            {
                "sentence_transformers": {"activation_fn": SIGMOID},
                "sbert_ce_default_activation_function": IDENTITY,
            },
            "sigmoid",
        ),
    ],
)
def test_a_one_label_score_has_the_activation_that_sentence_transformers_stored(
    tmp_path: Path, fields: dict[str, Any], activation: str
) -> None:
    directory = write_family(tmp_path / "one", "roberta", num_labels=1)
    edit_config(directory, **fields)
    clf = load(directory)

    scores = clf.score(PAIRS)

    logits = scores.logits[:, 0]
    probability = 1 / (1 + np.exp(-logits))
    assert (clf.config.score_activation, clf.grades) == (activation, ())
    np.testing.assert_allclose(scores.score, logits if activation == "identity" else probability, rtol=1e-6)
    np.testing.assert_allclose(scores.probabilities[:, 0], probability, rtol=1e-5)
    np.testing.assert_allclose(clf.relevance(scores.score), probability, rtol=1e-5)


def test_another_activation_is_refused_by_name_and_graded_models_need_none() -> None:
    fields = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}
    one, five = (model_of("bert", num_labels=n).config.to_dict() | fields for n in (1, 5))

    with pytest.raises(UnsupportedCheckpoint, match=r"sentence_transformers\.activation_fn is .*Tanh"):
        parse_config(one)
    assert parse_config(five).score_activation == "softmax"


PARAMETERS = {"prelu", "xielu"}
"""Activations of transformers with weights of their own."""
RARE = set("gelu_10 hardswish laplace leaky_relu mish quick_gelu relu2 relu6 sqrtsoftplus".split())
"""Activations that no published reranker of our families has; they are refused by name."""


def test_every_activation_is_that_of_transformers() -> None:
    assert set(ACT2CLS) - PARAMETERS - RARE == set(ACTIVATIONS)
    x = torch.linspace(-30, 30, 4001)
    for name, ours in ACTIVATIONS.items():
        torch.testing.assert_close(FUNCTIONS[ours](x), ACT2FN[name](x), atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "fields",
    [
        {"num_labels": 1, "id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}},
        {"num_labels": 1, "id2label": None, "label2id": None},
        {"num_labels": 1},
    ],
)
def test_num_labels_counts_where_the_names_say_otherwise(tmp_path: Path, fields: dict[str, Any]) -> None:
    directory = write_checkpoint(tmp_path, num_labels=1)
    edit_config(directory, **fields)
    theirs = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    inputs = AutoTokenizer.from_pretrained(directory)("angle bracket", "steel angle", return_tensors="pt")

    scores = load(directory).score([("angle bracket", "steel angle")])

    with torch.no_grad():
        np.testing.assert_allclose(scores.logits, theirs(**inputs).logits, atol=2e-5)


PAGE = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
MODELS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("published.json").read_text())


def row(repository: str) -> list[str]:
    """The cells of a model's row in the table of docs/models.md."""
    (line,) = re.findall(rf"^\| `{re.escape(repository)}`.*$", PAGE, re.MULTILINE)
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("repository", MODELS)
def test_a_published_model_loads_or_is_refused_as_the_page_says(repository: str) -> None:
    expected, config = (MODELS[repository][part] for part in ("expected", "config"))
    _, _, loads, evidence = row(repository)
    assert evidence == "config.json"
    assert loads.startswith("no: " if "refused" in expected else "yes")
    if "refused" in expected:
        with pytest.raises(UnsupportedCheckpoint, match=expected["refused"]):
            parse_config(config)
        return
    shape = parse_config(config)
    assert (shape.family, shape.labels) == (expected["family"], ("LABEL_0",))
    assert (shape.num_layers, shape.num_heads) == (config["num_hidden_layers"], config["num_attention_heads"])
    assert shape.score_activation == expected.get("activation", "sigmoid")
