"""`headroom train`: a graded classifier from somebody's own labelled pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    epochs: Annotated[int, typer.Option(min=1, max=1000)] = 3,
    rate: Annotated[float, typer.Option(min=1e-8, max=1.0, help="Peak learning rate.")] = 5e-5,
    batch_tokens: Annotated[
        int, typer.Option(min=128, max=1_000_000, help="Padded tokens of a batch.")
    ] = 4096,
    max_tokens: Annotated[int, typer.Option(min=8, max=512, help="Longest pair; the rest is cut.")] = 128,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="metrics.json on standard output.")] = False,
) -> None:
    """Fine-tune a graded classifier; the best epoch on the validation queries is kept and calibrated.

    Progress goes to standard error. A run that was stopped goes on when the same command is given again.

    Example: headroom train --data judgments.csv --model bert-base-uncased --out ./mine
    """
    import json
    import logging

    import transformers

    from models.training.data import GRADES
    from models.training.tuning import Options, Scratch, tune

    if from_scratch and model is not None:
        raise typer.BadParameter("is not possible together with --model", param_hint="--from-scratch")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    metrics = tune(
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
    if as_json:
        print(json.dumps(metrics))
    else:
        found = "  ".join(f"{name} {value:.3f}" for name, value in metrics["validation"].items())
        print(f"{out}: epoch {metrics['best_epoch']} of {epochs}, validation {found}")
