"""Writes a trained model as a Hugging Face checkpoint in 16 bits, and checks it by loading it again.

    python -m models.training.demo.export --weights runs/default/reading.best.pt --out runs/best

writes the weights of a stage that still runs, with a temperature, so that they can be measured.
"""

import argparse
import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import BertForSequenceClassification

from models.checkpoint.checks import readable_as_usual
from models.training.data import VALIDATION_FOLDS, read_judged
from models.training.demo.figures import temperature_of
from models.training.evaluate import by_family, logits_of, probabilities_of
from models.training.network import Model
from models.training.saved import read_saved
from models.training.vocabulary import save_tokenizer

PROBES = (
    ("angle bracket", "Simpson Strong-Tie 12-Gauge Angle"),
    ("iphone 12 case", "Clear Case for Apple iPhone 12, Shockproof"),
    ("sofa", "Wood deck screws, 5 lb box"),
)


def export(
    model: Model,
    tokenizer: Tokenizer,
    directory: Path,
    *,
    temperature: float,
    metrics: Mapping[str, Any],
) -> float:
    """Write config.json, model.safetensors (float16), the tokenizer's files and metrics.json.

    temperature: kept in config.json under "headroom"; it divides the logits before the softmax.
    Returns the largest difference of a probe's logits between the float32 model and the file read back as
    float32. Raises ValueError if the file does not load whole.
    """
    model = model.cpu()
    written = copy.deepcopy(model).half()
    written.config.headroom = {"temperature": temperature}
    written.config.hidden_dropout_prob = 0.1  # the usual rate for further training
    written.config.attention_probs_dropout_prob = 0.1
    written.save_pretrained(directory)
    save_tokenizer(tokenizer, directory, max_tokens=model.config.max_position_embeddings)
    (directory / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")
    readable_as_usual(directory)
    read, loading = BertForSequenceClassification.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True
    )
    if wrong := {kind: keys for kind, keys in loading.items() if keys}:
        raise ValueError(f"{directory} does not load whole: {wrong}")
    before = logits_of(model, tokenizer, PROBES, bf16=False)
    after = logits_of(read, tokenizer, PROBES, bf16=False)
    return float(np.abs(before - after).max())


def trainable(directory: Path) -> tuple[Model, Tokenizer]:
    """Return a written checkpoint's model in float32, as training needs it, and its tokenizer."""
    model = BertForSequenceClassification.from_pretrained(
        directory,
        dtype=torch.float32,
        attn_implementation="eager",  # trains twice as fast as sdpa on a CPU under bf16 autocast
    )
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        setattr(model.config, name, 0.0)
    return model, Tokenizer.from_file(str(directory / "tokenizer.json"))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m models.training.demo.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--weights", type=Path, required=True, help="STAGE.pt or STAGE.best.pt of a run")
    parser.add_argument(
        "--like",
        type=Path,
        default=Path("models/default"),
        help="what it began with; default: %(default)s",
    )
    parser.add_argument(
        "--learnt",
        type=float,
        default=1.0,
        help="their share; the rest is --like's; default: 1",
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    options = parser.parse_args(arguments)
    model, tokenizer = trainable(options.like)
    learnt = read_saved(options.weights)["model"]
    began_with = model.state_dict()
    model.load_state_dict({name: began_with[name].lerp(learnt[name], options.learnt) for name in learnt})
    rows = read_judged(options.data, VALIDATION_FOLDS)
    logits = logits_of(model, tokenizer, [(row.query, row.title) for row in rows])
    temperature = temperature_of(model, tokenizer, rows, logits)
    by_source = by_family(rows, probabilities_of(logits, temperature))
    metrics = {
        "temperature": temperature,
        "validation": by_source["products"],
        "validation_by_source": by_source,
    }
    export(model, tokenizer, options.out, temperature=temperature, metrics=metrics)
    print(f"{options.out}: temperature {temperature:.3f}")


if __name__ == "__main__":
    main()
