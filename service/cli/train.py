"""`headroom train`: a graded classifier from somebody's own labelled pairs."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def command(
    data: Annotated[
        Path, typer.Option(help="Labelled pairs: csv, tsv, jsonl or parquet of query,title,grade.")
    ],
    out: Annotated[Path, typer.Option(help="Checkpoint directory to write; must not hold anything yet.")],
    validation: Annotated[
        Path | None,
        typer.Option(help="Pairs of other queries to choose and calibrate by.  [default: a tenth]"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="BERT checkpoint to start from: directory or hub id.")
    ] = None,
    from_scratch: Annotated[
        bool, typer.Option(help="Start from nothing: 12 layers x 12 heads x 192.")
    ] = False,
    labels: Annotated[
        str | None, typer.Option(help="Names of the grades, least relevant first, comma-separated.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, max=1000, help="[default: 3, of few pairs more: at least 150 steps]")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=1e-8, max=1.0, help="Peak learning rate.  [default: 5e-5 for a width of 768, 2e-4 for 192]"
        ),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            min=128,
            max=1_000_000,
            help="Padded tokens of a batch.  [default: 4096, of few pairs fewer: at least 16 pairs]",
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=8, max=512, help="Longest pair; the rest is cut.")] = 128,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="metrics.json on standard output.")] = False,
) -> None:
    """Fine-tune a graded classifier; the best epoch on the validation queries is kept and calibrated.

    Progress goes to standard error. A run that was stopped goes on when the same command is given again.

    Example: headroom train --data judgments.csv --model bert-base-uncased --out ./mine
    """
    from models.training.data import GRADES
    from models.training.job import Options, Scratch, prepare

    if from_scratch and model is not None:
        raise typer.BadParameter("is not possible together with --model", param_hint="--from-scratch")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    job = prepare(
        Options(
            data=data,
            out=out,
            validation=validation,
            base=Scratch() if from_scratch else model,
            labels=GRADES if labels is None else tuple(name.strip() for name in labels.split(",")),
            epochs=epochs,
            rate=rate,
            batch_tokens=batch_tokens,
            max_tokens=max_tokens,
            seed=seed,
            device=device,
        )
    )
    import transformers

    from models.training.tuning import tune

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    metrics = tune(job)
    if as_json:
        print(json.dumps(metrics))
    else:
        print(f"{out}: {summary(metrics)}")
    if not metrics["better"]:
        print(
            "headroom: the result is not better than the start on the validation pairs; give more or other "
            "pairs, another --rate, or a --validation file with more queries",
            file=sys.stderr,
        )


def summary(metrics: dict[str, Any]) -> str:
    """What was done and what came of it, in lines for people."""
    loss, queries = metrics["loss"], metrics["validation_queries"]
    lines = [
        f"{metrics['steps']} steps in {metrics['epochs']} epochs, learning rate up to {metrics['rate']:.2g}; "
        f"epoch {metrics['best_epoch']} was the best",
        *(
            f"loss on the {pairs} pairs: {loss[pairs]['before']:.3f} → {loss[pairs]['after']:.3f}"
            for pairs in ("training", "validation")
        ),
        f"on the {queries} validation {'query' if queries == 1 else 'queries'}:",
    ]
    without = []
    for name, value in metrics["validation"].items():
        interval = metrics["validation_intervals"][name]
        shown = f"  {name:<9} {_shown(metrics['validation_before'][name])} → {_shown(value)}"
        if interval["low"] is None:
            without.append(name)
        else:
            shown += f" ({interval['low']:.3f} to {interval['high']:.3f})"
        lines.append(shown)
    if without:
        lines.append(f"  no 95 % interval for {', '.join(without)}: too few queries")
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
