"""The network that `make gpu` measures, and how it times a call; with --dry a tiny network on the CPU."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks import workload
from headroom.models.batch import PackedBatch, pack
from headroom.models.checkpoint.config import parse_config
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.network import Network
from headroom.models.networks import build
from headroom.models.ops.torch import CudaOps, TorchOps
from headroom.models.selection import RowMasks

WARM_UPS = 3
"""Turns before a call is timed: the first compiles kernels, and the second cuts a repeated mask out."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A network to measure, and its device."""

    device: torch.device
    dtype: torch.dtype
    shape: workload.Shape
    tokens: int
    rounds: int
    dry: bool

    def network(self, ops: TorchOps | None = None, *, graphs: bool = True) -> Network:
        """Return the network with random weights, and with CUDA graphs on a GPU.

        ops: default: the fastest operators of the device. graphs: whether CUDA graphs are captured.
        """
        model = workload.network(self.shape)
        config = parse_config(model.config.to_dict())
        ops = CudaOps(self.device, self.dtype) if self.dry and ops is None else ops
        network = build(config, model.state_dict(), device=self.device, dtype=self.dtype, ops=ops)
        if graphs:
            network.capture(self.tokens)
        return network

    def pack(self, pairs: Sequence[EncodedPair], network: Network) -> PackedBatch:
        """Pack pairs as a replica does."""
        return pack(pairs, device=self.device, ladder=network.ladder)

    def pairs(self) -> list[EncodedPair]:
        """Return query–title pairs of about `tokens` tokens together."""
        return workload.pairs(self.lengths(), self.shape.vocabulary)

    def one_pair(self) -> list[EncodedPair]:
        """Return one pair of the usual length."""
        return [min(self.pairs(), key=lambda pair: abs(len(pair) - 25))]

    def lengths(self) -> np.ndarray:
        """Return the pairs' lengths."""
        lengths = workload.query_title_lengths(self.tokens)
        return lengths[: max(1, int(np.searchsorted(lengths.cumsum(), self.tokens, side="right")))]

    def random_masks(self, rows: int, rng: np.random.Generator) -> RowMasks:
        """Return another mask for each row, with half of the heads off."""
        shape = (rows, self.shape.layers, self.shape.heads)
        return RowMasks(rng.integers(0, 2, shape).astype(np.float32))

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def median(self, call: Callable[[], object], calls: int = 1) -> float:
        """Return the median seconds of a call, after turns to warm up. calls: how many share a wait."""
        seconds = []
        for turn in range(WARM_UPS + self.rounds):
            self.wait()
            began = time.perf_counter()
            for _ in range(calls):
                call()
            self.wait()
            if turn >= WARM_UPS:
                seconds.append((time.perf_counter() - began) / calls)
        return statistics.median(seconds)

    def matrix(self, rows: int, columns: int) -> Tensor:
        """Return random numbers."""
        return torch.randn(rows, columns, device=self.device).to(self.dtype)


def real() -> Bench:
    """Return BERT-base on the current GPU, in its fastest number format."""
    device = torch.device("cuda", torch.cuda.current_device())
    half = torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
    return Bench(device, half, workload.SHAPES["base"], 16_384, 30, dry=False)


def dry() -> Bench:
    """Return a tiny network on the CPU."""
    tiny = workload.Shape("tiny, 2 × 2 × 32", 32, 64, 500, layers=2, heads=2)
    return Bench(torch.device("cpu"), torch.float32, tiny, 512, 3, dry=True)
