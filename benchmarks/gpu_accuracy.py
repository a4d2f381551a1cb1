"""How far the shipped model's logits on a GPU are from float64, for `make gpu`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import transformers

from benchmarks import workload
from benchmarks.gpu_bench import Bench
from benchmarks.report import Row
from headroom.models.batch import pack
from headroom.models.checkpoint.hub import DEFAULT
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.classifier import Classifier
from headroom.models.network import Network
from headroom.models.networks import build
from headroom.models.ops import choose
from headroom.models.ops.torch import CudaOps
from headroom.models.quality.labelled import read_pairs
from headroom.models.selection import RowMasks

CPU = torch.device("cpu")


def accuracy(bench: Bench) -> list[Row]:
    """Compare the shipped model in each number format with float64, and with what transformers loses in it.

    Under masks the reference is our float32 on the CPU.
    """
    if not (DEFAULT / "model.safetensors").exists():
        return [Row("the shipped model", "left out: models/default/model.safetensors is not here")]
    exact = Classifier.load(None, "cpu", "float32")
    pairs = exact.tokenizer.encode(
        read_pairs(workload.SAMPLE / "calibration.jsonl.gz")[: 16 if bench.dry else 256]
    )
    reference = transformers.BertForSequenceClassification.from_pretrained(DEFAULT).eval()
    truth = transformers_logits(reference.double(), pairs)
    sides = accuracy_sides(exact, pairs, truth)
    tensors = exact.network.tensors()
    rows = []
    for dtype in [torch.float32] if bench.dry else [torch.float32, torch.float16, torch.bfloat16]:
        if dtype == torch.bfloat16 and torch.cuda.get_device_capability(bench.device) < (8, 0):
            continue
        theirs = transformers_logits(reference.to(bench.device, dtype), pairs) - truth
        bound = 2 * float(np.abs(theirs).max()) + 1e-5
        plain = CudaOps(bench.device, dtype)
        fastest = plain if bench.dry else choose(exact.config, bench.device, dtype, exact.network.parts)
        for ops in (plain,) if type(fastest) is CudaOps else (fastest, plain):
            network = build(exact.config, tensors, device=bench.device, dtype=dtype, ops=ops)
            network.capture(bench.tokens)
            kernels = "torch's kernels" if ops is plain else "ours"
            rows.append(accuracy_row(f"{network.number_format}, {kernels}", network, sides, bound))
    return rows


@dataclass(frozen=True, slots=True)
class AccuracySide:
    """Batches of pairs under a mask, and their logits, (n, labels), labels as in the checkpoint."""

    name: str
    batches: Sequence[Sequence[EncodedPair]]
    expected: np.ndarray
    masks: RowMasks | None = None

    def logits(self, network: Network) -> np.ndarray:
        """Return a network's logits."""
        sliced = self.masks is not None and self.masks.weights.ndim == 2
        batches = [pack(pairs, device=network.device, ladder=network.ladder) for pairs in self.batches]
        logits = [network.forward(batch, self.masks, sliced=sliced).numpy() for batch in batches]
        return np.concatenate(logits)


def accuracy_sides(
    exact: Classifier, pairs: Sequence[EncodedPair], truth: np.ndarray
) -> Sequence[AccuracySide]:
    """Return what the accuracy is measured of; the first has no mask. truth: logits of the pairs."""
    few = [[pair] for pair in pairs[:8]]
    sides = [
        AccuracySide("no mask", [pairs], truth),
        AccuracySide("one pair, as a graph", few, truth[:8]),
    ]
    for name, mask in accuracy_masks(exact, len(pairs)).items():
        expected = exact.network.forward(pack(pairs, device=CPU), mask).numpy()
        sides.append(AccuracySide(name, [pairs], expected, mask))
    return sides


def accuracy_row(name: str, network: Network, sides: Sequence[AccuracySide], bound: float) -> Row:
    """Measure the largest error of a logit on each side, of which the first has no mask."""
    errors = {}
    same = 1.0
    for side in sides:
        logits = side.logits(network)
        errors[side.name] = float(np.abs(logits - side.expected).max())
        if side is sides[0]:
            same = float(np.mean(logits.argmax(1) == side.expected.argmax(1)))
    text = "; ".join(f"{side} {error:.2g}" for side, error in errors.items())
    return Row(
        f"largest error of a logit, {name}",
        f"{text}; {same:.1%} of the grades are the same",
        f"≤ {bound:.2g} (twice transformers')",
        max(errors.values()) <= bound,
    )


def accuracy_masks(classifier: Classifier, rows: int) -> dict[str, RowMasks]:
    """Return masks by name: another one for each row, with fractions, and one to cut out."""
    rng = np.random.default_rng(0)
    shape = (rows, classifier.num_layers, classifier.num_heads)
    by_row = rng.choice(np.array([0, 0.5, 1], np.float32), shape, p=[0.2, 0.1, 0.7])
    half = (np.indices(shape[1:]).sum(0) % 2).astype(np.float32)
    return {"masks by row": RowMasks(by_row), "half of the heads cut out": RowMasks(half)}


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
