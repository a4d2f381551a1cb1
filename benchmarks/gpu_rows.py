"""The rows of `make gpu`: accuracy, full batches, one pair, memory, CUDA graphs, and HTTP where ray is."""

import gc
import importlib.util
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import numpy as np
import torch

from benchmarks import workload
from benchmarks.gpu_accuracy import accuracy
from benchmarks.gpu_bench import WARM_UPS, Bench
from benchmarks.gpu_families import families
from benchmarks.measure import alternate, ratio
from benchmarks.report import Row, at_least, at_most
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.network import Network
from headroom.models.ops.torch import CudaOps
from headroom.models.selection import RowMasks, rows_of

PRODUCTS = 20
"""How many products are timed together: one alone takes little longer than its launch and the wait for it."""

SQUARE = 8192
"""Rows and columns of the matrices whose product gives the chip's rate, as its maker would measure it."""


def gemm_rates(bench: Bench) -> tuple[float, float]:
    """Return FLOP/s of the network's own products at the token budget, and of one large square product."""
    flops = seconds = 0.0
    for wide, narrow in workload.products(bench.shape):
        x = bench.matrix(bench.tokens, narrow)
        weight = bench.matrix(wide, narrow)
        flops += 2 * bench.tokens * wide * narrow
        seconds += bench.median(partial(torch.matmul, x, weight.T), PRODUCTS)
    size = 256 if bench.dry else SQUARE
    one = bench.matrix(size, size)
    other = bench.matrix(size, size)
    return flops / seconds, 2 * size**3 / bench.median(lambda: one @ other, PRODUCTS)


def encoder(bench: Bench) -> list[Row]:
    """Measure full batches: the share of the products' rate, masks, and variants with fewer heads."""
    network = bench.network()
    pairs = bench.pairs()
    lengths = bench.lengths()
    batch = bench.pack(pairs, network)
    of_model, square = gemm_rates(bench)
    whole = bench.median(lambda: network.forward(batch))
    achieved = workload.useful_flops(bench.shape, lengths) / whole
    masks = bench.random_masks(len(pairs), np.random.default_rng(0))
    turns = alternate(
        {"none": lambda: network.forward(batch), "masks": lambda: network.forward(batch, masks)},
        max(20, bench.rounds),
        warm_ups=WARM_UPS,
    )
    cost = ratio(turns, "none", "masks")
    rows = [
        Row("rate of the model's products", f"{of_model / 1e12:.0f} TFLOP/s"),
        Row(f"rate of a square product ({SQUARE})", f"{square / 1e12:.0f} TFLOP/s"),
        Row("a full batch", f"{whole * 1e3:.2f} ms: {len(pairs)} pairs, {lengths.sum()} tokens"),
        Row("share of the products' rate", f"{achieved / of_model:.1%}"),
        at_least("share of the square product's rate", achieved / square, 0.55, ".0%"),
        at_most("cost of a mask per row", cost.median, 1.02, ".2f", " ×", cost.range()),
    ]
    for name, mask in variants(bench.shape).items():
        network.capture(bench.tokens, RowMasks(mask), sliced=True)
        seconds = bench.median(partial(network.forward, batch, RowMasks(mask), sliced=True))
        saved = (1 - seconds / whole) / removed_share(bench, mask)
        note = f"; {seconds * 1e3:.2f} ms with its launches"
        rows.append(at_least(f"FLOPs saved as time, {name}", saved, 0.9, ".0%", note))
    return rows


def removed_share(bench: Bench, mask: np.ndarray) -> float:
    """Return the share of a full batch's FLOPs that a mask removes."""
    lengths = bench.lengths()
    whole = workload.useful_flops(bench.shape, lengths)
    return 1 - workload.useful_flops(bench.shape, lengths, mask.mean(1).tolist()) / whole


def kernels(bench: Bench) -> list[Row]:
    """Measure a full batch, with masks too, and one pair with torch's kernels and with ours."""
    if bench.device.type != "cuda":
        return [Row("kernels of ours", "left out: no GPU")]
    from headroom.models.ops.triton import TritonOps  # not every build of torch comes with Triton

    pairs = bench.pairs()
    one = bench.one_pair()
    rows = []
    masks = bench.random_masks(len(pairs), np.random.default_rng(0))
    for name, backend in (("torch's kernels", CudaOps), ("ours", TritonOps)):
        network = bench.network(backend(bench.device, bench.dtype))
        batch = bench.pack(pairs, network)
        single = bench.pack(one, network)
        order = np.asarray(batch.order)
        masked = network.selector.select(rows_of(masks, order))
        with torch.inference_mode():
            seconds = [
                bench.median(partial(network.forward, batch)),
                bench.median(partial(network.forward, batch, masks)),
                bench.median(partial(network.logits, batch, network.selector.select(None))),
                bench.median(partial(network.logits, batch, masked)),
                bench.median(partial(network.forward, single)),
            ]
        full, with_masks, passes, masked_passes, pair = (1e3 * value for value in seconds)
        text = f"full batch {full:.2f} ms, with masks {with_masks:.2f} ms; "
        text += f"its kernels {passes:.2f} and {masked_passes:.2f} ms; one pair {pair:.2f} ms"
        rows.append(Row(name, text))
    return rows


def variants(shape: workload.Shape) -> dict[str, np.ndarray]:
    """Return masks of sliced variants by name, (layers, heads) float32."""
    numbers = np.arange(shape.layers * shape.heads).reshape(shape.layers, shape.heads)
    return {
        "half of the heads off": (numbers % 2 == 0).astype(np.float32),
        "three quarters of the heads off": (numbers % 4 == 0).astype(np.float32),
        "half of the layers' heads off": (numbers // shape.heads % 2 == 0).astype(np.float32),
    }


def service_like(bench: Bench) -> list[Row]:
    """Measure packing, computing and reading scores as a replica does: one pair, and two streams."""
    network = bench.network()
    pairs = bench.pairs()

    def scores(some: Sequence[EncodedPair]) -> np.ndarray:
        return network.forward(bench.pack(some, network)).numpy(force=True)

    one = bench.one_pair()
    median = bench.median(lambda: scores(one))
    rows = [at_most("one pair, p50", median * 1e3, 1.5, ".2f", " ms")]

    def own_stream() -> None:
        if bench.device.type == "cuda":
            torch.cuda.set_stream(torch.cuda.Stream(bench.device))  # type: ignore[no-untyped-call]

    def work(_: int) -> None:
        for _ in range(bench.rounds):
            scores(pairs)

    for threads in (1, 2):
        with ThreadPoolExecutor(threads, initializer=own_stream) as pool:
            list(pool.map(work, range(threads)))  # to warm up
            began = time.perf_counter()
            computed = time.process_time()
            list(pool.map(work, range(threads)))
            seconds = time.perf_counter() - began
            computed = time.process_time() - computed
            rate = threads * bench.rounds * len(pairs) / seconds
        busy = f"{computed / seconds:.1f} cores busy"
        rows.append(Row(f"pairs/s with {threads} stream(s)", f"{rate:,.0f}; {busy}"))
    return rows


def memory(bench: Bench) -> list[Row]:
    """Measure the GPU's memory: weights, a full batch, other variants, and growth over mixed batches."""
    if bench.device.type != "cuda":
        return [Row("memory", "left out: no GPU")]
    gc.collect()
    torch.cuda.empty_cache()  # of what earlier parts left, all that follows could be served without growth

    def allocated() -> int:
        return torch.cuda.memory_allocated(bench.device)

    before = allocated()
    network = bench.network(graphs=False)
    pairs = bench.pairs()
    weights = allocated() - before
    batch = bench.pack(pairs, network)
    torch.cuda.reset_peak_memory_stats(bench.device)
    network.forward(batch)
    peak = torch.cuda.max_memory_allocated(bench.device) - before
    held = allocated()
    halves = variants(bench.shape)["half of the heads off"]
    network.forward(batch, RowMasks(np.full_like(halves, 0.5)))
    weighted = allocated() - held
    network.forward(batch, RowMasks(halves), sliced=True)
    sliced = allocated() - held - weighted
    share = f"{weighted / weights:.1%} of the weights"
    return [
        Row("weights", f"{weights / 2**20:.0f} MiB, reported as {network.nbytes / 2**20:.0f} MiB"),
        Row("peak of a full batch, weights included", f"{peak / 2**20:.0f} MiB"),
        Row("a second variant, all heads at 0.5, nothing cut", share, "≤ 2 %", weighted <= 0.02 * weights),
        Row("a sliced variant, half of the heads cut out", f"{sliced / weights:.1%} of the weights"),
        *graph_memory(bench, network),
        *memory_growth(bench, network),
    ]


def graph_memory(bench: Bench, network: Network) -> list[Row]:
    """Measure the memory of CUDA graphs."""
    half = RowMasks(variants(bench.shape)["half of the heads off"])
    before = free_memory(bench)
    network.capture(bench.tokens)
    whole = before - free_memory(bench)
    network.capture(bench.tokens, half, sliced=True)
    sliced = before - whole - free_memory(bench)
    return [
        Row("CUDA graphs of the whole network", f"{whole / 2**20:.0f} MiB"),
        Row("CUDA graphs of a sliced variant, without its weights", f"{sliced / 2**20:.0f} MiB"),
    ]


def free_memory(bench: Bench) -> int:
    """Return the GPU's free bytes."""
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(bench.device)[0]


def memory_growth(bench: Bench, network: Network) -> list[Row]:
    """Measure by what share reserved and allocated memory grow from the 100th to the 300th mixed batch."""
    pairs = bench.pairs()
    rng = np.random.default_rng(0)
    measures = {"reserved": torch.cuda.memory_reserved, "allocated": torch.cuda.memory_allocated}
    found: dict[str, list[int]] = {name: [] for name in measures}
    for turn in range(300):
        some = pairs[: int(rng.integers(1, len(pairs)))]
        network.forward(bench.pack(some, network), bench.random_masks(len(some), rng))
        if turn in (99, 299):
            for name, measure in measures.items():
                found[name].append(measure(bench.device))
    growth = {name: last / first - 1 for name, (first, last) in found.items()}
    return [
        Row(f"{name}, growth from 100 to 300 mixed batches", f"{share:.1%}", "none", share <= 0.02)
        for name, share in growth.items()
    ]


def graphs_and_none(bench: Bench) -> list[Row]:
    """Measure passes of few pairs and of full batches, with CUDA graphs and without.

    Without graphs, a repeated mask of a single request is cut out.
    """
    network = bench.network()
    graphs = network.graphs
    pairs = bench.pairs()
    rng = np.random.default_rng(1)
    rows = []
    for size, some in (("one pair", bench.one_pair()), ("20 pairs", pairs[:20]), ("a full batch", pairs)):
        batch = bench.pack(some, network)
        for name, masks in some_masks(bench, len(some), rng).items():
            is_variant = name == VARIANT
            if is_variant:
                network.capture(bench.tokens, masks, sliced=True)
            forward = partial(network.forward, batch, masks, sliced=is_variant)
            seconds = []
            for used in (None, graphs):
                network.graphs = used
                seconds.append(bench.median(forward))
            before, after = (f"{1e3 * value:.2f} ms" for value in seconds)
            row = f"{after}, without graphs {before}"
            if masks is not None:
                choose_parts = partial(network.selector.select, masks, batch.order)
                row += f"; choosing what to compute {1e3 * bench.median(choose_parts):.2f} ms"
            rows.append(Row(f"{size}, {name}", row))
    if graphs is not None:
        rows.append(Row("graphs", f"{len(graphs)} captured"))
    return rows


VARIANT = "a sliced variant"


def some_masks(bench: Bench, rows: int, rng: np.random.Generator) -> dict[str, RowMasks | None]:
    """Return masks of a batch of this many rows, by name."""
    one = bench.random_masks(1, rng)
    requests = min(rows, 20)
    of_requests = bench.random_masks(requests, rng)
    return {
        "no mask": None,
        "a mask that repeats": RowMasks(one.weights[0]),
        "a mask by request": RowMasks(of_requests.weights, index=np.arange(rows) * requests // rows),
        "a mask by row": bench.random_masks(rows, rng),
        VARIANT: RowMasks(variants(bench.shape)["half of the heads off"]),
    }


def over_http(bench: Bench) -> list[Row]:
    """Measure our server, asked for 100 titles on each of 128 connections: one replica, and the default."""
    if bench.device.type != "cuda" or importlib.util.find_spec("ray") is None:
        missing = "no GPU" if bench.device.type != "cuda" else "no ray"
        return [Row(name, f"left out: {missing}") for name in OVER_HTTP]
    one = http_rate(replicas=1)
    default = http_rate(replicas=None)
    alone = network_rate(bench)
    return [
        at_least(OVER_HTTP[0], one, 30_000, ",.0f"),
        Row(OVER_HTTP[1], f"{default:,.0f}"),
        at_least(OVER_HTTP[2], default / alone, 0.8, ".0%", f" of {alone:,.0f}"),
    ]


OVER_HTTP = (
    "one replica, pairs/s",
    "one command, with the replicas that it chooses, pairs/s",
    "the same, share of the network alone on one stream",
)


def http_rate(replicas: int | None) -> float:
    """Return the pairs/s that our server answers, of 40 requests again and again: their tokens are cached.

    replicas: None: as many as it chooses.
    """
    from benchmarks import checkpoints, load, serving  # they need packages of the server

    bodies = load.bodies(load.texts(100, 40))
    with (
        serving.headroom(model=checkpoints.checkpoint("base"), replicas=replicas) as server,
        closing(load.Client(server.url, itertools.cycle(bodies), 128).start()) as client,
    ):
        time.sleep(3)  # until batches are full
        before = client.answered
        time.sleep(6)
        answered = client.answered - before
        client.check()
        return 100 * answered / 6


def network_rate(bench: Bench) -> float:
    """Return the pairs/s of full batches, packed, computed and read one after the other."""
    network = bench.network()
    pairs = bench.pairs()
    seconds = bench.median(lambda: network.forward(bench.pack(pairs, network)).numpy(force=True))
    return len(pairs) / seconds


PARTS: dict[str, Callable[[Bench], list[Row]]] = {
    "Accuracy, shipped model": accuracy,
    "Full batches": encoder,
    "What our kernels bring": kernels,
    "Decoders and DeBERTa": families,
    "With CUDA graphs and without": graphs_and_none,
    "As a replica uses it": service_like,
    "Memory": memory,
    "Over HTTP": over_http,
}
"""By name, in their order."""
