"""Measures decoders and DeBERTa for `make gpu`: with torch's fused attention, and with the kernels chosen."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from benchmarks import decoder, workload
from benchmarks.gpu_bench import Bench
from benchmarks.report import Row
from headroom.models.batch import Beginning, PackedBatch, pack
from headroom.models.checkpoint.config import parse_config
from headroom.models.checkpoint.families import FAMILIES
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.network import Network
from headroom.models.networks import build
from headroom.models.ops.torch import CudaOps
from headroom.models.selection import RowMasks

MAX_REQUESTS = 8
"""Requests in a full batch of a decoder, whose loop over sequences would take the time of the other parts."""

TINY_DECODER = decoder.SHAPE | {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 500,
}
TINY_DEBERTA = workload.Shape("tiny", 32, 64, 500, layers=2, heads=2, family="deberta-v2")


Pack = Callable[..., PackedBatch]
"""Packs a batch anew, with the arguments of `pack`."""


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts torch's operators, views among them; a kernel of ours is none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def families(bench: Bench) -> list[Row]:
    """Measure a decoder, whose titles share their beginning, and DeBERTa: one request, and full batches."""
    shape = TINY_DECODER if bench.dry else decoder.SHAPE
    deberta = TINY_DEBERTA if bench.dry else workload.SHAPES["deberta"]
    tokens = decoder.BEFORE + decoder.TITLES * (decoder.OWN + decoder.AFTER)
    requests = min(max(1, bench.tokens // tokens), MAX_REQUESTS)
    rows = measured(
        bench,
        f"a decoder of {shape['num_hidden_layers']} layers",
        decoder.network(shape),
        {
            f"{decoder.TITLES} titles": titles(bench, shape["vocab_size"], 1),
            f"{requests} × {decoder.TITLES} titles": titles(bench, shape["vocab_size"], requests),
        },
    )
    pairs = workload.pairs(bench.lengths(), deberta.vocabulary)
    rows += measured(
        bench,
        "DeBERTa",
        workload.network(deberta),
        {
            f"{len(some)} pairs": partial(pack, some, device=bench.device)
            for some in (pairs[: decoder.TITLES], pairs)
        },
    )
    return rows


def titles(bench: Bench, vocabulary: int, requests: int) -> Pack:
    """Return what packs requests of some titles each, which share their beginning."""
    ids = np.tile(decoder.tokens(vocabulary), (requests, 1)).astype(np.int32)
    pairs = [EncodedPair(row.tobytes(), 0, 0, False) for row in ids]
    beginnings = [Beginning(row // decoder.TITLES, decoder.BEFORE) for row in range(len(pairs))]
    return partial(pack, pairs, device=bench.device, beginnings=beginnings)


def measured(bench: Bench, name: str, model: PreTrainedModel, batches: Mapping[str, Pack]) -> list[Row]:
    """Return the times of passes and their operators, and how far the logits of both sides differ."""
    sides: dict[str, Network] = {"torch's": network(bench, model, CudaOps(bench.device, bench.dtype))}
    if bench.device.type == "cuda":
        sides["ours"] = network(bench, model, None)
    rows = []
    for what, make in batches.items():
        masks = masks_of(next(iter(sides.values())), len(make().answers))
        logits = []
        for side, one in sides.items():
            whole = bench.median(partial(scored, one, make))
            masked = bench.median(partial(scored, one, make, masks))
            with Operators() as operators:
                logits.append(scored(one, make).numpy(force=True))
            text = f"{1e3 * whole:.2f} ms, with masks {1e3 * masked:.2f} ms; {operators.count:,} operators"
            rows.append(Row(f"{name}, {what}, {side}: {kernels_of(one)}", text))
        if len(logits) > 1:
            difference = np.abs(logits[1] - logits[0]).max() / logits[0].std()
            rows.append(Row(f"{name}, {what}: largest difference, over the spread", f"{difference:.1%}"))
    if len(sides) == 1:
        rows.append(Row(f"{name}, ours", "left out: no GPU"))
    return rows


def scored(one: Network, make: Pack, masks: RowMasks | None = None) -> torch.Tensor:
    """Return the logits of a batch that is packed anew, as in service: its groups and keys are too."""
    return one.forward(make(ladder=one.ladder), masks)


def network(bench: Bench, model: PreTrainedModel, ops: CudaOps | None) -> Network:
    """Return our network with the weights of a transformers model, and its CUDA graphs if it has any.

    ops: default: what is chosen.
    """
    config = parse_config(model.config.to_dict())
    tensors = FAMILIES[config.family].ours(model.state_dict(), config)
    one = build(config, tensors, device=bench.device, dtype=bench.dtype, ops=ops)
    one.capture(bench.tokens)
    return one


def masks_of(one: Network, rows: int) -> RowMasks:
    """Return a mask for each pair, equal for titles of a request, with half of the heads off."""
    shape = (rows, one.config.num_layers, one.config.num_heads)
    drawn = np.random.default_rng(0).integers(0, 2, shape).astype(np.float32)
    return RowMasks(drawn[np.arange(rows) // decoder.TITLES * decoder.TITLES])


def kernels_of(one: Network) -> str:
    """Return which kernels compute attention."""
    ops = one.ops
    varlen = isinstance(ops, CudaOps) and ops.varlen is not None
    return type(ops).__name__ + (" with varlen_attn" if varlen else "")
