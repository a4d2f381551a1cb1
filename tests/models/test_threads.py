"""Threads share a network: replicas and studies compute with two or more of them at once."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from headroom.models.checkpoint.config import parse_config
from headroom.models.checkpoint.families import FAMILIES
from tests import families, own_code
from tests.models.reference import random_pair, random_weights, reference
from tests.models.two_threads import Case

SHAPE = {"hidden_size": 64}
"""With heads of 16 numbers, which our kernels compute."""
LENGTHS = (3, 30, 61, 64)
ONE_OF_EACH_NETWORK = (
    *("bert", "electra", "distilbert", "deberta-v2", "modernbert"),
    *("new", "jina-bert"),
    *("qwen3", "gemma"),
)
"""The other families differ from these in their tensors' names and their tokenizers."""


def case_of(family: str) -> Case:
    """Return a random network of a family, and logits that do not come from our code."""
    rng = np.random.default_rng(0)
    pairs = [random_pair(rng, length, 180) for length in LENGTHS]
    masks = [np.ones((3, 4), np.float32), *random_weights(rng, 1, 3, 4)]
    if family in own_code.FAMILIES:
        raw = own_code.config_of(family, **SHAPE)
        theirs = own_code.tensors_of(family, raw)
        logits = [
            np.stack([own_code.logits_of(family, raw, theirs, pair, mask) for pair in pairs])
            for mask in masks
        ]
    else:
        shape = SHAPE | ({"num_hidden_layers": 3} if family == "modernbert" else {})
        model = families.model_of(family, **shape)
        raw, theirs = model.config.to_dict(), model.state_dict()
        logits = [reference(model, pairs, torch.float32, np.stack([mask] * len(pairs))) for mask in masks]
    config = parse_config(raw)
    tensors = dict(FAMILIES[config.family].ours(theirs, config))
    return Case(family, config, tensors, pairs, masks, logits)


def test_two_threads_compute_what_one_does(tmp_path: Path) -> None:
    """With every network: on networks that compute for the first time and on warm ones, under new masks and
    under those that came before. Memory that is freed is overwritten, so that who reads it is found out."""
    cases = tmp_path / "cases"
    cases.write_bytes(pickle.dumps([case_of(family) for family in ONE_OF_EACH_NETWORK]))
    ran = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.models.two_threads", str(cases)],
        env=os.environ | {"PYTHONMALLOC": "debug", "MALLOC_PERTURB_": "165"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
