"""Fields of config.json mean what they mean to transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.activations import ACT2CLS, ACT2FN

from models import Classifier
from models.checkpoint.fields import ACTIVATIONS
from models.ops.torch import FUNCTIONS
from tests.checkpoints import write_checkpoint
from tests.families import edit_config

PARAMETERS = {"prelu", "xielu"}
"""Activations of transformers with weights of their own."""
RARE = {"laplace", "relu2", "sqrtsoftplus"}
"""Activations of other families' networks."""


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

    scores = Classifier.load(directory, "cpu", "float32").score([("angle bracket", "steel angle")])

    with torch.no_grad():
        np.testing.assert_allclose(scores.logits, theirs(**inputs).logits, atol=2e-5)
