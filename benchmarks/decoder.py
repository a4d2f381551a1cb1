"""Measures a decoder whose titles share their beginning, alone against transformers."""

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel

from benchmarks.measure import alternate, ratio
from benchmarks.report import Report, times_as_fast
from benchmarks.workload import encoder
from headroom.models.batch import Beginning, pack
from headroom.models.checkpoint.tokenizer import EncodedPair, PairTemplate

SHAPE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 20_000,
}
"""Qwen3-Reranker-0.6B's, but for 4 of 28 layers and an eighth of the vocabulary, which costs a look-up."""
TITLES = 20
BEFORE = 90
OWN = 20
AFTER = 9
"""Titles of a request; tokens before a title, of it, and after it."""
OURS = "ours bf16"
APART = "ours bf16, nothing shared"
BF16 = "transformers bf16"
FP32 = "transformers fp32"
TARGET = 2.5


def measure(rounds: int, shape: dict[str, Any] = SHAPE) -> Report:
    """Measure requests of TITLES titles."""
    model = network(shape)
    ids = tokens(shape["vocab_size"])
    half = network(shape).bfloat16()
    ours = encoder(model, torch.bfloat16)
    template = PairTemplate((0,) * BEFORE, (), (0,) * AFTER, two_segments=False)
    pairs = [EncodedPair(row.astype(np.int32).tobytes(), 0, 0, False, template) for row in ids]
    beginnings = [Beginning(None, BEFORE)] * TITLES
    rows = torch.from_numpy(ids)

    @torch.inference_mode()
    def transformers(reference: PreTrainedModel) -> np.ndarray:
        logits: np.ndarray = reference(input_ids=rows).logits.float().numpy()
        return logits

    def own(shared: list[Beginning] | None) -> np.ndarray:
        return ours.forward(pack(pairs, device=ours.device, beginnings=shared)).numpy()

    sides: dict[str, Callable[[], np.ndarray]] = {
        OURS: lambda: own(beginnings),
        APART: lambda: own(None),
        BF16: lambda: transformers(half),
        FP32: lambda: transformers(model),
    }
    right = sides[FP32]()
    seconds = alternate(sides, rounds, warm_ups=2)
    report = Report(
        f"{shape['num_hidden_layers']} layers, random weights; requests of {TITLES} titles of {OWN} tokens "
        f"behind {BEFORE}, with {AFTER} after each. *Error*: of the logits against {FP32}, over their spread."
    )
    report.tables["Qwen3-0.6B's shape"] = [
        {
            "engine": name,
            "requests/s": f"{1 / statistics.median(seconds[name]):.2f}",
            f"{OURS} is ×": ratio(seconds, OURS, name).text(),
            "error": f"{np.sqrt(((side() - right) ** 2).mean()) / right.std():.1%}",
        }
        for name, side in sides.items()
    ]
    report.rows.append(times_as_fast(f"20 titles a request: × {BF16}", ratio(seconds, OURS, BF16), TARGET))
    return report


def network(shape: dict[str, Any]) -> PreTrainedModel:
    """Return a transformers classifier with random weights, larger than usual so that errors show."""
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3", num_labels=1, pad_token_id=0, **shape)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data.mul_(2)
    return model


def tokens(vocabulary: int) -> np.ndarray:
    """Return the tokens of a request's pairs: (TITLES, BEFORE + OWN + AFTER) int64."""
    rng = np.random.default_rng(0)
    before, own, after = (rng.integers(1, vocabulary, size) for size in (BEFORE, (TITLES, OWN), AFTER))
    return np.concatenate([np.tile(before, (TITLES, 1)), own, np.tile(after, (TITLES, 1))], axis=1)
