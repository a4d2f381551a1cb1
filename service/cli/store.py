"""`headroom store` looks into a score store, and makes it smaller."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from headroom.models.commands.options import AsJson
from headroom.models.numbers import minute
from headroom.models.terminal import table

app = typer.Typer(help="The scores that are kept on disk (`score_store`).", no_args_is_help=True)

DAY_S = 86_400

Store = Annotated[Path, typer.Argument(metavar="PATH", help="The score store's file.", show_default=False)]


@app.command()
def stats(path: Store, as_json: AsJson = False) -> None:
    """Say which models' scores a store holds, how many, and when they were last used.

    Example: headroom store stats /var/lib/headroom/scores.db
    """
    import orjson

    from headroom.service.scoring.store import ScoreStore

    store = ScoreStore(path, create=False)
    models = store.models()
    size = store.bytes_used
    store.close()
    if as_json:
        print(orjson.dumps({"path": str(path), "bytes": size, "models": models}).decode())
        return
    total = sum(model.scores for model in models)
    print(f"{path}: {total:,} scores of {len(models)} models, {size / 1e6:.1f} MB")
    rows = [("model", "number format", "scores", "last used", "SHA-256")]
    rows += [
        (
            model.name,
            model.number_format,
            f"{model.scores:,}",
            minute(model.used),
            model.digest[:12],
        )
        for model in models
    ]
    print(table(rows))


@app.command()
def prune(
    path: Store,
    unused_days: Annotated[
        float,
        typer.Option(
            min=0, help="Remove the scores of models that no process has had loaded for this many days."
        ),
    ] = 30.0,
    megabytes: Annotated[
        float | None,
        typer.Option(
            "--mb",
            min=0,
            help="Then evict scores that were not asked for lately, down to this many megabytes.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a store smaller: forget models that are not used any more, and give the room back to the disk.

    It may be in use meanwhile.

    Example: headroom store prune /var/lib/headroom/scores.db --unused-days 7
    """
    import orjson

    from headroom.service.scoring.store import ScoreStore

    store = ScoreStore(path, create=False)
    before = store.bytes_used
    since = time.time() - unused_days * DAY_S
    forgotten = store.forget_models(lambda model: model.used >= since)
    if megabytes is not None:
        store.forget(megabytes * 1e6)
    store.shrink()
    left = sum(model.scores for model in store.models())
    after = store.bytes_used
    store.close()
    if as_json:
        document = {"path": str(path), "scores": left, "bytes": {"before": before, "after": after}}
        print(orjson.dumps(document | {"forgotten_with_their_models": forgotten}).decode())
        return
    print(f"{path}: {left:,} scores are left, {after / 1e6:.1f} of {before / 1e6:.1f} MB")
