"""Chooses how many replicas share each GPU by default, from what the machine and the checkpoints say.

`python -m headroom.service.ray.gpus` prints the GPUs as JSON. CUDA is asked in a process of its own, which
ends: a context of `headroom serve` itself would take memory of each GPU for as long as it runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from headroom.models.checkpoint.config import ModelConfig, read_config
from headroom.models.checkpoint.files import bytes_of_weights, weights_of
from headroom.models.checkpoint.hub import locate
from headroom.models.errors import ModelError
from headroom.service.engine.runner import GPU_SLOTS

if TYPE_CHECKING:
    from headroom.service.config.file import ConfigFile

MAX_PER_GPU = 4
"""Limit of replicas on a GPU. Four answered 83 % of what the network does alone on an H200, measured once
with BERT-base (docs/decisions/014-feeding-a-gpu.md)."""

CORES_PER_REPLICA = 2
"""Cores of a replica on a GPU: one for its interpreter, and part of one for launches, HAProxy and Ray."""

BERT_BASE_BYTES = 440_000_000
"""Weights of the network for which MAX_PER_GPU was measured. A pair's time on the GPU grows with the weights,
its time in Python does not: a network four times as large keeps the GPU busy from one replica."""

CONTEXT_BYTES = 2**30
"""Memory of a GPU beside weights and activations: the CUDA context, cuBLAS, CUDA graphs. The whole estimate
for BERT-base is 2.1 GB; 1.8 GB were measured."""

GRAPHS_BYTES = 2**27
"""The same of 14 CUDA graphs, of which seven took 62 MiB. A checkpoint has twice as many (the first ones are
in CONTEXT_BYTES), and a variant with a mask has its own if it is sliced, or skips layers or units."""

USABLE_SHARE = 0.9
"""Share of a GPU's free memory that replicas are planned into."""

PROBE_S = 120.0
"""Limit of asking CUDA; importing torch takes seconds."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that torch sees.

    uuid: its name in CUDA_VISIBLE_DEVICES. memory: bytes that are free. capability: its major version.
    """

    name: str
    uuid: str
    memory: int
    capability: int


class Footprint(NamedTuple):
    """Bytes of the checkpoints, and of a replica on its GPU.

    network: the service's own weights. resident: weights of all variants, activations, CUDA context.
    """

    network: int
    resident: int


class Sharing(NamedTuple):
    """The default: how many replicas run, each one's part of a GPU, and why so many."""

    replicas: int
    num_gpus: float
    reason: str


def share(gpus: Sequence[Gpu], cores: int, footprint: Footprint) -> Sharing:
    """Return how many replicas run on these GPUs, at least one, by default.

    cores: those that this process may use. Each GPU gets equally many, so the smallest memory counts.
    """
    memory = min(gpu.memory for gpu in gpus)
    by_size = ceil(MAX_PER_GPU * BERT_BASE_BYTES / footprint.network)
    by_cores = cores // (CORES_PER_REPLICA * len(gpus))
    by_memory = int(USABLE_SHARE * memory / footprint.resident)
    fits = f"{_gigabytes(memory)} of free memory, about {_gigabytes(footprint.resident)} for each"
    limits = [
        (MAX_PER_GPU, "no more were measured to pay"),
        (by_size, "a network of this size needs no more"),
        (by_cores, f"{cores} cores, {CORES_PER_REPLICA} for each"),
        (by_memory, fits),
    ]
    limit, reason = min(limits, key=lambda pair: pair[0])
    per_gpu = max(1, limit)
    return Sharing(per_gpu * len(gpus), 1 / per_gpu, reason)


def notice(gpus: Sequence[Gpu], sharing: Sharing) -> str:
    """Return the line that shows the choice to the operator."""
    names = ", ".join(sorted({gpu.name for gpu in gpus}))
    each = sharing.replicas // len(gpus)
    number = f"{each} {'replica' if each == 1 else 'replicas'}"
    where = f"on the {names}" if len(gpus) == 1 else f"on each of {len(gpus)} GPUs ({names})"
    return f"{number} {where}: {sharing.reason} (--replicas N or num_replicas overrides it)"


def footprint(config: ConfigFile) -> Footprint:
    """Return what a replica of this config takes, estimated above what was measured.

    Its checkpoints must be here (`headroom.service.ray.preflight.check`). Raises ModelError.
    """
    settings = config.settings
    own = locate(settings.model)
    directories = {own}
    for variant in config.live.variants:
        if variant.checkpoint is not None:
            try:
                directories.add(locate(variant.checkpoint, own))
            except ModelError:  # an optional variant is left out
                continue
    weights = {file.resolve() for directory in directories for file in weights_of(directory)}
    bytes_of_value = 4 if settings.dtype == "float32" else 2
    shapes = [read_config(directory) for directory in directories]
    values_of_token = max(map(_values_of_token, shapes))
    activations = GPU_SLOTS * settings.batch_tokens("cuda") * values_of_token * bytes_of_value
    # A file may hold half as many bytes a value as float32 takes.
    resident = sum(file.stat().st_size for file in weights) * (2 if settings.dtype == "float32" else 1)
    masked = sum(variant.head_mask is not None for variant in config.live.variants)
    graphs = GRAPHS_BYTES * (masked + 2 * (len(directories) - 1))
    return Footprint(bytes_of_weights(own), resident + activations + graphs + CONTEXT_BYTES)


def _values_of_token(shape: ModelConfig) -> int:
    """Return the numbers that a layer holds at once for each token."""
    distances = 0  # DeBERTa's scores of them, of keys and of queries
    if shape.distances is not None:
        distances = 2 * shape.num_heads * 2 * shape.distances[0]
    return 2 * shape.intermediate_size + 4 * shape.hidden_size + distances


def probe() -> list[Gpu]:
    """Return the GPUs that torch sees here, in CUDA's order; none if it sees none. Takes seconds."""
    try:
        asked = subprocess.run(
            [sys.executable, "-P", "-m", __name__], capture_output=True, timeout=PROBE_S, check=True
        )
        return [Gpu(**fields) for fields in json.loads(asked.stdout)]
    except (OSError, ValueError, TypeError, subprocess.SubprocessError):
        return []


def _visible() -> list[Gpu]:
    import torch

    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, _ = torch.cuda.mem_get_info(index)
        gpus.append(Gpu(properties.name, f"GPU-{properties.uuid}", free, properties.major))
    return gpus


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"


if __name__ == "__main__":
    from dataclasses import asdict

    print(json.dumps([asdict(gpu) for gpu in _visible()]))
