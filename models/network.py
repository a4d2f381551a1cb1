"""What everything above the networks asks of one, and which class computes a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from models.batch import PackedBatch
from models.bert import Bert
from models.checkpoint.config import ModelConfig
from models.checkpoint.families import FAMILIES
from models.live_heads import AttentionHeads, Live, LiveHeads
from models.ops.torch import TorchOps

NETWORKS: dict[str, Any] = {"bert": Bert}
"""By `Family.network`."""


class NetworkLayer(Protocol):
    """One layer. `attention` is None if pruning left no head."""

    @property
    def attention(self) -> AttentionHeads | None: ...


class Network(Protocol):
    """A classifier's network, its weights laid out for one device; see `models.bert.Bert`."""

    config: ModelConfig
    device: torch.device
    dtype: torch.dtype
    deterministic: bool
    ops: TorchOps
    live_heads: LiveHeads
    parameters: int
    nbytes: int

    @property
    def layers(self) -> Sequence[NetworkLayer]: ...

    @property
    def max_pack_tokens(self) -> int | None:
        """Return the tokens of the largest pack that the device computes well; None for any number."""

    @property
    def number_format(self) -> str:
        """Return the number format of the layers' products."""

    def forward(
        self, batch: PackedBatch, head_weights: np.ndarray | None = None, *, sliced: bool = False
    ) -> Tensor:
        """Return the logits of a packed batch, (rows, labels) float32 in the caller's order of rows.

        head_weights: (rows, layers, heads) float32 in the caller's order of rows, or (layers, heads) for all
            rows; 1 keeps a head, 0 removes it; None keeps all.
        sliced: the mask belongs to a sliced variant, so exactly its live heads are computed.
        """

    def logits(self, batch: PackedBatch, live: Sequence[Live]) -> Tensor:
        """Return the logits, (B or more, labels) float32, in the pack's order."""

    def embed(self, batch: PackedBatch) -> Tensor:
        """Return what enters the first layer: (T, D)."""

    def layer_outputs(
        self,
        x: Tensor,
        batch: PackedBatch,
        live: Sequence[Live],
        *,
        start: int = 0,
        stop: int | None = None,
        first_only: bool = False,
        keep: bool = False,
    ) -> Iterator[Tensor]:
        """Yield what leaves each of the layers start … stop − 1, (T, D) each.

        first_only: the network's last layer computes only what `classify` reads.
        keep: the caller keeps x and what is yielded, so no layer may overwrite its input.
        """

    def context(
        self, number: int, x: Tensor, batch: PackedBatch, live: Live, *, first_only: bool = False
    ) -> Tensor | None:
        """Return concat(head_1 … head_h) of layer `number`, (T, h·d), the input of W^O; None without heads.

        x: (T, D), what enters the layer.
        """

    def after_attention(
        self, number: int, residual: Tensor, context: Tensor | None, live: Live, *, overwrite: bool = False
    ) -> Tensor:
        """Return what enters the feed-forward half of layer `number`, (T, D). residual: what entered it."""

    def feed_forward(self, number: int, x: Tensor) -> Tensor:
        """Compute the feed-forward half of layer `number`. x: (T, D), may be overwritten → (T, D)."""

    def classify(self, first: Tensor) -> Tensor:
        """Return the logits of what the last layer yielded with `first_only`."""

    def attention_maps(
        self, batch: PackedBatch, heads: Sequence[tuple[int, int]], head_weights: np.ndarray | None = None
    ) -> np.ndarray:
        """Return what some heads attend to in a batch of one pair of n tokens: (len(heads), n, n) float32."""

    def in_plain_torch(self) -> Network:
        """Return the same network in float32 on `TorchOps`: slower, and differentiable."""

    def tensors(self) -> dict[str, Tensor]:
        """Return float32 weights under our names; int8 weights as the floats they stand for."""


def build(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    *,
    device: torch.device,
    dtype: torch.dtype,
    deterministic: bool = False,
    ops: TorchOps | None = None,
) -> Network:
    """Return the network of a checkpoint's family.

    tensors: what `models.checkpoint.tensors.read_tensors` returns. ops: default: the fastest of the device.
    """
    network: Network = NETWORKS[FAMILIES[config.family].network](
        config, tensors, device=device, dtype=dtype, deterministic=deterministic, ops=ops
    )
    return network
