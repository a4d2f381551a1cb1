"""`headroom prune`: a checkpoint and a mask become a smaller checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    out: Annotated[Path, typer.Option(help="Directory to write; must not hold anything yet.")],
    mask: Annotated[str, typer.Option(help="The heads to remove, such as 2.3,7.* or @name.")],
    model: Annotated[str | None, typer.Option(help="Checkpoint directory or hub id.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
) -> None:
    """Remove heads for good: the new checkpoint scores as the old one does under the mask.

    Example: headroom prune --mask random:0.2@7 --out ./smaller && headroom serve --model ./smaller
    """
    import json

    from models import HeadMask
    from models.config import read_config, read_stored_masks
    from models.hub import locate
    from models.pruning import prune

    source = locate(model)
    config = read_config(source)
    head_mask = HeadMask.parse(
        mask, layers=config.num_layers, heads=config.num_heads, stored=read_stored_masks(source, config)
    )
    pruned = prune(source, out, head_mask)
    before, after = (sum(map(len, c.kept_heads)) for c in (config, pruned))
    old_bytes, new_bytes = ((d / "model.safetensors").stat().st_size for d in (source, out))
    if as_json:
        print(
            json.dumps(
                {
                    "out": str(out),
                    "head_mask": {"id": head_mask.id, "spec": head_mask.spec},
                    "heads": {"before": before, "after": after},
                    "bytes": {"before": old_bytes, "after": new_bytes},
                }
            )
        )
    else:
        print(f"{out}: {after} of {before} heads, {new_bytes / 1e6:.1f} MB of {old_bytes / 1e6:.1f} MB")
