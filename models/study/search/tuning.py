"""Mask tuning: scales for the heads that stay, so that each layer computes nearly what it did before.

Kwon et al. 2022, §4.3 (https://arxiv.org/abs/2204.09656). A scale may exceed 1, so the result is no head
mask: it is folded into W^O by models.compress.prune.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import lsq_linear
from torch import Tensor

from models.attention import head_rows
from models.batch import PackedBatch
from models.checkpoint.tokenizer import EncodedPair
from models.ops.torch import normed
from models.selection import Chosen
from models.study.base import Matrix
from models.study.gradients import DifferentiableNetwork

LARGEST = 10.0
"""The largest scale: with a larger one, a head would stand in for something that it does not compute."""

RIDGE = 1e-2
"""How strongly scales are held at 1, in units of a head's mean squared output."""

NO_OUTPUT = 1e-30
"""The mean squared output from which on heads and units count as putting out nothing."""

Floats = NDArray[np.float64]


def tuned_scales(
    network: DifferentiableNetwork,
    pairs: Sequence[EncodedPair],
    masks: Sequence[Matrix],
    *,
    done: Callable[[int], None] = lambda _: None,
) -> list[Matrix]:
    """Return for each mask the scales of the heads that it keeps: (layers, heads) float32 each, 0 to LARGEST.

    The layers are tuned from the lowest up. Each layer's scales minimise the squared difference between its
    residual stream after attention and that of the intact model, over all tokens of `pairs`, given the
    outputs of the tuned layers below. masks: (layers, heads) each, 1 for the heads that stay, 0 for the
    others. done: called after each layer of each mask.
    """
    scales = [np.array(mask, np.float32) for mask in masks]
    with torch.inference_mode():
        batches = list(network.batches(pairs))
        intact = [network.network.embed(batch) for batch in batches]
        streams = [list(intact) for _ in masks]
        for number, heads in enumerate(network.config.kept_heads):
            contexts = contexts_of(network, number, intact, batches)
            before = _outputs(network, number, intact, contexts)
            wanted = [x + outputs.sum(1) for x, outputs in zip(intact, before, strict=True)]
            ones = torch.ones(len(heads), device=network.device)
            intact = _onward(network, number, intact, contexts, ones)
            for place, mask in enumerate(masks):
                contexts = contexts_of(network, number, streams[place], batches)
                outputs = _outputs(network, number, streams[place], contexts)
                kept = [i for i, head in enumerate(heads) if mask[number, head] > 0]
                if kept:
                    targets = [(y - x).flatten() for y, x in zip(wanted, streams[place], strict=True)]
                    designs = [parts[:, kept].transpose(1, 2).flatten(0, 1) for parts in outputs]
                    for i, scale in zip(kept, least_squares(designs, targets), strict=True):
                        scales[place][number, heads[i]] = scale
                of_layer = torch.from_numpy(scales[place][number, list(heads)]).to(network.device)
                streams[place] = _onward(network, number, streams[place], contexts, of_layer)
                done(1)
    return scales


def contexts_of(
    network: DifferentiableNetwork, number: int, streams: Sequence[Tensor], batches: Sequence[PackedBatch]
) -> list[Tensor | None]:
    """Return the input of W^O of layer `number` with all its heads, (T, h·d) for each batch; None if it has
    no heads. streams: what enters the layer, (T, D) each."""
    layer = network.network.layers[number]
    chosen = Chosen(layer.heads, layer.units)
    return [
        network.network.context(layer, x, batch, chosen) for x, batch in zip(streams, batches, strict=True)
    ]


def _outputs(
    network: DifferentiableNetwork, number: int, streams: Sequence[Tensor], contexts: Sequence[Tensor | None]
) -> list[Tensor]:
    return [head_outputs(network, number, x, one) for x, one in zip(streams, contexts, strict=True)]


def _onward(
    network: DifferentiableNetwork,
    number: int,
    streams: Sequence[Tensor],
    contexts: Sequence[Tensor | None],
    scales: Tensor,
) -> list[Tensor]:
    """Return the output of the layer with its heads scaled by `scales` (h,)."""
    layer = network.network.layers[number]
    chosen = Chosen(layer.heads, layer.units)
    after = []
    for x, context in zip(streams, contexts, strict=True):
        if context is not None:
            context = (context.view(len(context), len(scales), -1) * scales[:, None]).flatten(1)
        x = network.network.after_attention(layer, x, context, chosen)
        after.append(layer.units.down(layer.units.inner(normed(x, layer.feed_forward_input_norm)), x))
    return after


def head_outputs(network: DifferentiableNetwork, number: int, x: Tensor, context: Tensor | None) -> Tensor:
    """Return what each head adds to the residual stream x, without the bias: (T, D) → (T, h, D)."""
    attention = network.network.layers[number].heads
    if attention is None or context is None:
        return x.new_zeros(x.shape[0], 0, x.shape[1])
    size, output = attention.head_size, attention.output.weight
    slices = [output[:, head_rows([place], size)] for place in range(attention.count)]
    return torch.einsum("thd,hod->tho", context.view(x.shape[0], -1, size), torch.stack(slices))


def ridge_of(trace: float, size: int) -> float:
    """Return λ for normal equations of a trace and size; also where heads or units put out nothing but 0.

    Then it is far from the smallest numbers, which linear algebra takes for 0 on some processors.
    """
    return RIDGE * max(trace / size, NO_OUTPUT)


def least_squares(designs: Sequence[Tensor], targets: Sequence[Tensor]) -> Floats:
    """Return argmin ‖A·m − b‖² + λ‖m − 1‖² for 0 ≤ m ≤ LARGEST, from the normal equations of all batches."""
    gram = sum((a.T @ a).double() for a in designs)
    moment = sum((a.T @ b).double() for a, b in zip(designs, targets, strict=True))
    assert isinstance(gram, Tensor)
    assert isinstance(moment, Tensor)
    g, r = gram.numpy(force=True), moment.numpy(force=True)
    ridge = ridge_of(float(np.trace(g)), len(g))
    g, r = g + ridge * np.eye(len(g)), r + ridge
    root = np.linalg.cholesky(g).T  # ‖root·m − root⁻ᵀ·r‖² is the same quadratic form
    return np.asarray(lsq_linear(root, np.linalg.solve(root.T, r), bounds=(0, LARGEST)).x)
