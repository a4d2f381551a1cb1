"""Computes networks on two threads at once, and ends with an error if a score is wrong.

Threads that run freely meet at a bad moment once in a thousand passes. So they also take turns here, line by
line: whatever one of them is about to read, the other one has just had the chance to change.

`test_threads.py` starts this as a program of its own, because a fault of this kind may end the process.
"""

import itertools
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Barrier, Lock
from types import FrameType
from typing import Any

import numpy as np
import torch

import headroom.models
from headroom.models.batch import PackedBatch, pack
from headroom.models.checkpoint.config import ModelConfig
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.network import Network
from headroom.models.networks import build
from headroom.models.ops.torch import Tensors, TorchOps
from headroom.models.selection import RowMasks

CPU = torch.device("cpu")
OURS = str(Path(headroom.models.__file__).parent)
PASSES = 3
"""How often each mask comes: new, when its weights are copied, and when they are there."""
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 0.15}
"""Largest error of a logit, as a share of the largest one."""


Turn = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Case:
    """A family's network, and the right logits of pairs under masks, each (layers, heads)."""

    family: str
    config: ModelConfig
    tensors: Tensors
    pairs: list[EncodedPair]
    masks: list[np.ndarray]
    logits: list[np.ndarray]


class Turns:
    """Two threads that run one line of our code each in turn.

    lock: the one that our code holds now and then.
    """

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._mine = [Lock(), Lock()]
        self._alone = False
        for lock in self._mine:
            lock.acquire()

    @contextmanager
    def of(self, thread: int) -> Iterator[None]:
        """Let the calling thread take part inside the `with` block."""

        def line(_frame: FrameType, event: str, _argument: object) -> Any:
            # Whoever holds the lock goes on until it is free: the other one may wait for it.
            if event == "line" and not self._alone and not self._lock.locked():
                self._pass_on(1 - thread)
                self._mine[thread].acquire(timeout=60)
            return line

        def call(frame: FrameType, _event: str, _argument: object) -> Any:
            return line if frame.f_code.co_filename.startswith(OURS) else None

        sys.settrace(call)
        try:
            yield
        finally:
            sys.settrace(None)
            self._alone = True
            self._pass_on(1 - thread)

    def _pass_on(self, thread: int) -> None:
        if self._mine[thread].locked():
            self._mine[thread].release()


def kinds_of(case: Case) -> Iterator[tuple[Network, bool]]:
    """Yield a new network of each kind, and whether threads take turns with it: each kernel is called by both
    of them at once in one kind, and line by line in another."""
    plain = TorchOps(CPU, torch.float32)
    for dtype, ops, in_turns in (
        (torch.float32, None, True),
        (torch.bfloat16, None, False),
        (torch.float32, plain, True),
    ):
        yield build(case.config, case.tensors, device=CPU, dtype=dtype, ops=ops), in_turns


def scores(
    network: Network, case: Case, batches: Sequence[PackedBatch], both: Barrier, taking_turns: Sequence[Turn]
) -> list[np.ndarray]:
    """Return the logits under each mask, pass by pass, while the other thread computes the same pass."""
    found = []
    for number, (batch, turn) in enumerate(zip(batches, taking_turns, strict=True)):
        masks = RowMasks(case.masks[number // PASSES])
        both.wait(60)
        with turn():
            found.append(network.forward(batch, masks).numpy())
    return found


def main(file: Path) -> None:
    """Compute the cases of a file."""
    sys.setswitchinterval(1e-5)
    torch.set_num_threads(1)
    for case in pickle.loads(file.read_bytes()):
        passes = len(case.masks) * PASSES
        for network, in_turns in kinds_of(case):
            turns = [Turns(network.selector.cache._lock) for _ in range(passes)]
            taking_turns: list[Sequence[Turn]] = [[nullcontext] * passes] * 2
            if in_turns:
                taking_turns = [[partial(each.of, thread) for each in turns] for thread in range(2)]
            batches = [pack(case.pairs, device=CPU) for _ in range(passes)]
            work = partial(scores, network, case, batches, Barrier(2))
            with ThreadPoolExecutor(2) as threads:
                runs = list(threads.map(work, taking_turns))
            for number, logits in enumerate(itertools.chain(*runs)):
                right = case.logits[number % passes // PASSES]
                error = np.abs(logits - right).max() / np.abs(right).max()
                assert error <= BOUNDS[network.dtype], (case.family, network.dtype, number, error)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
