"""Measures for `make gpu`: accuracy, full batches, one pair, memory, CUDA graphs, and HTTP where ray is."""

import gc
import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import transformers
from torch import Tensor

from benchmarks import workload
from benchmarks.measure import alternate, ratio
from benchmarks.report import Row, at_least, at_most
from headroom.models.batch import pack
from headroom.models.checkpoint.config import parse_config
from headroom.models.checkpoint.hub import DEFAULT
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.classifier import Classifier
from headroom.models.masks.head_mask import RowMasks, rows_of
from headroom.models.network import Network
from headroom.models.networks import build
from headroom.models.ops.torch import CudaOps, TorchOps
from headroom.models.quality.labelled import read_pairs

PRODUCTS = 20
"""How many products are timed together: one alone takes little longer than its launch and the wait for it."""

SQUARE = 8192
"""Rows and columns of the matrices whose product gives the chip's rate, as its maker would measure it."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A network to measure, and its device."""

    device: torch.device
    dtype: torch.dtype
    shape: workload.Shape
    tokens: int
    rounds: int
    dry: bool

    def network(self, ops: TorchOps | None = None) -> Network:
        """Return the network with random weights. ops: default: the fastest operators of the device."""
        model = workload.network(self.shape)
        config = parse_config(model.config.to_dict())
        ops = CudaOps(self.device, self.dtype) if self.dry and ops is None else ops
        return build(config, model.state_dict(), device=self.device, dtype=self.dtype, ops=ops)

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
        """Return the median seconds of a call, after two turns to warm up. calls: how many share a wait."""
        seconds = []
        for turn in range(self.rounds + 2):
            self.wait()
            began = time.perf_counter()
            for _ in range(calls):
                call()
            self.wait()
            if turn > 1:
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


def accuracy(bench: Bench) -> list[Row]:
    """Compare the shipped model with float64, and with what transformers loses in the same number format."""
    if not (DEFAULT / "model.safetensors").exists():
        return [Row("the shipped model", "left out: models/default/model.safetensors is not here")]
    exact = Classifier.load(None, "cpu", "float32")
    pairs = exact.tokenizer.encode(
        read_pairs(workload.SAMPLE / "calibration.jsonl.gz")[: 16 if bench.dry else 256]
    )
    reference = transformers.BertForSequenceClassification.from_pretrained(DEFAULT).eval()
    truth = transformers_logits(reference.double(), pairs)
    order = np.asarray(exact.config.label_order)
    rows = []
    for dtype in [torch.float32] if bench.dry else [torch.float32, torch.float16, torch.bfloat16]:
        if dtype == torch.bfloat16 and torch.cuda.get_device_capability(bench.device) < (8, 0):
            continue
        classifier = Classifier.load(None, str(bench.device), str(dtype).removeprefix("torch."))
        theirs = transformers_logits(reference.to(bench.device, dtype), pairs) - truth
        name = classifier.network.number_format
        bound = 2 * float(np.abs(theirs).max()) + 1e-5
        worst = float(np.abs(classifier.forward(pairs) - truth[:, order]).max())
        target = f"≤ {bound:.2g} (twice transformers')"
        rows.append(Row(f"largest error of a logit, {name}", f"{worst:.2g}", target, worst <= bound))
    return rows


@torch.no_grad()
def transformers_logits(
    model: transformers.BertForSequenceClassification, pairs: Sequence[EncodedPair]
) -> np.ndarray:
    """Return transformers' logits of each pair on its own, (n, labels) float64."""
    logits = []
    for pair in pairs:
        ids = torch.from_numpy(pair.ids.astype(np.int64))[None].to(model.device)
        kinds = (torch.arange(len(pair), device=model.device) >= pair.first_segment).long()[None]
        logits.append(model(input_ids=ids, token_type_ids=kinds).logits[0].double().cpu())
    return torch.stack(logits).numpy()


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
    batch = pack(pairs, device=bench.device)
    of_model, square = gemm_rates(bench)
    whole = bench.median(lambda: network.forward(batch))
    achieved = workload.useful_flops(bench.shape, lengths) / whole
    masks = bench.random_masks(len(pairs), np.random.default_rng(0))
    turns = alternate(
        {"none": lambda: network.forward(batch), "masks": lambda: network.forward(batch, masks)},
        max(20, bench.rounds),
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
    batch = pack(pairs, device=bench.device)
    single = pack(one, device=bench.device)
    masks = bench.random_masks(len(pairs), np.random.default_rng(0))
    for name, backend in (("torch's kernels", CudaOps), ("ours", TritonOps)):
        network = bench.network(backend(bench.device, bench.dtype))
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
        return network.forward(pack(some, device=bench.device)).numpy(force=True)

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
    network = bench.network()
    pairs = bench.pairs()
    weights = allocated() - before
    batch = pack(pairs, device=bench.device)
    torch.cuda.reset_peak_memory_stats(bench.device)
    network.forward(batch)
    peak = torch.cuda.max_memory_allocated(bench.device) - before
    held = allocated()
    halves = variants(bench.shape)["half of the heads off"]
    network.forward(batch, RowMasks(np.full_like(halves, 0.5)))
    weighted = allocated() - held
    network.forward(batch, RowMasks(halves), sliced=True)
    sliced = allocated() - held - weighted
    graphs = memory_of_graphs(bench, network)
    reserved_growth, allocated_growth = memory_growth(bench, network)
    share = f"{weighted / weights:.1%} of the weights"
    return [
        Row("weights", f"{weights / 2**20:.0f} MiB, reported as {network.nbytes / 2**20:.0f} MiB"),
        Row("peak of a full batch, weights included", f"{peak / 2**20:.0f} MiB"),
        Row("a second variant, all heads at 0.5, nothing cut", share, "≤ 2 %", weighted <= 0.02 * weights),
        Row("a sliced variant, half of the heads cut out", f"{sliced / weights:.1%} of the weights"),
        Row("CUDA graphs of up to 20 pairs", f"{graphs / 2**20:.0f} MiB"),
        Row(
            "reserved, growth from 100 to 300 mixed batches",
            f"{reserved_growth:.1%}",
            "none",
            reserved_growth <= 0.02,
        ),
        Row(
            "allocated, growth from 100 to 300 mixed batches",
            f"{allocated_growth:.1%}",
            "none",
            allocated_growth <= 0.02,
        ),
    ]


def memory_of_graphs(bench: Bench, network: Network) -> int:
    """Return the bytes that CUDA graphs of 1 to 20 pairs take."""

    def free() -> int:
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(bench.device)[0]

    pairs = bench.pairs()
    before = free()
    for count in 2 * [*range(1, 21)]:  # the second pass of a shape is captured
        network.forward(pack(pairs[:count], device=bench.device))
    return before - free()


def memory_growth(bench: Bench, network: Network) -> tuple[float, float]:
    """Return by what share reserved and allocated memory grow from the 100th to the 300th mixed batch."""
    pairs = bench.pairs()
    rng = np.random.default_rng(0)
    reserved = []
    allocated = []
    for turn in range(300):
        some = pairs[: int(rng.integers(1, len(pairs)))]
        network.forward(pack(some, device=bench.device), bench.random_masks(len(some), rng))
        if turn in (99, 299):
            reserved.append(torch.cuda.memory_reserved(bench.device))
            allocated.append(torch.cuda.memory_allocated(bench.device))
    return reserved[1] / reserved[0] - 1, allocated[1] / allocated[0] - 1


def graph(bench: Bench) -> list[Row]:
    """Measure passes as CUDA graphs, which no launch on the host delays: of one pair, and of full batches."""
    if bench.device.type != "cuda":
        return [Row("passes as CUDA graphs", "left out: no GPU")]
    network = bench.network()
    rows = list[Row]()
    one = pack(bench.one_pair(), device=bench.device)
    batch = pack(bench.pairs(), device=bench.device)
    whole = network.selector.select(None)
    own_stream = torch.cuda.stream(torch.cuda.current_stream(bench.device))
    with torch.inference_mode(), own_stream:  # a capture that fails leaves the thread on another one
        try:
            full = 0.0
            for name, packed in (("one pair's", one), ("a full batch's", batch)):
                run = partial(network.logits, packed, whole)
                eager = bench.median(run)
                full = captured(bench, run)
                text = f"{full * 1e3:.2f} ms, without {eager * 1e3:.2f} ms"
                rows.append(Row(f"{name} pass as a CUDA graph", text))
            for name, mask in variants(bench.shape).items():
                selection = network.selector.select(RowMasks(mask), sliced=True)
                seconds = captured(bench, partial(network.logits, batch, selection))
                saved = (1 - seconds / full) / removed_share(bench, mask)
                text = f"{seconds * 1e3:.2f} ms: {saved:.0%} of the FLOPs saved as time"
                rows.append(Row(f"the same, {name}", text))
        except RuntimeError as error:
            rows.append(Row("a pass as a CUDA graph", "failed: " + str(error).partition("\n")[0]))
    return rows


def captured(bench: Bench, run: Callable[[], Tensor]) -> float:
    """Return the seconds of a pass as a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    run()  # kernels are compiled outside the capture
    with torch.cuda.graph(graph):
        run()
    return bench.median(graph.replay)


def over_http(bench: Bench) -> list[Row]:
    """Measure our server, asked for 100 titles on each of 128 connections: one replica, and four."""
    if bench.device.type != "cuda" or importlib.util.find_spec("ray") is None:
        return [Row("HTTP", "left out: no GPU, or no ray")]
    from benchmarks import checkpoints, load, serving  # they need packages of the server

    rates = []
    bodies = load.bodies(load.texts(100, 40))
    for replicas in (1, 4):
        with (
            serving.headroom(model=checkpoints.checkpoint("base"), replicas=replicas) as server,
            closing(load.Client(server.url, itertools.cycle(bodies), 128).start()) as client,
        ):
            time.sleep(3)  # until batches are full
            before = client.answered
            time.sleep(6)
            rates.append(100 * (client.answered - before) / 6)
    return [at_least("one replica, pairs/s", rates[0], 30_000, ",.0f", f"; four {rates[1]:,.0f}")]


PARTS: dict[str, Callable[[Bench], list[Row]]] = {
    "Accuracy, shipped model": accuracy,
    "Full batches": encoder,
    "What our kernels bring": kernels,
    "As a replica uses it": service_like,
    "Memory": memory,
    "Over HTTP": over_http,
    "CUDA graph": graph,
}
"""By name, in their order; the graph is last, because a failed capture may leave the process unusable."""
