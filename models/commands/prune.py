"""`headroom prune` removes heads, feed-forward units and layers: a checkpoint becomes a smaller one."""

import json
from typing import Annotated

import typer

from headroom.models.checkpoint.config import read_config, read_stored_masks
from headroom.models.checkpoint.files import check_empty
from headroom.models.checkpoint.hub import locate
from headroom.models.commands.options import FORMS, AsJson, Model, NewDirectory, read_form


def command(
    out: NewDirectory,
    mask: Annotated[str, typer.Option(help=f"Mask that says what to remove: {FORMS}.")],
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Remove heads, units and layers for good. The new checkpoint scores like the old one with the mask. Its
    layers are numbered from 0.

    Example: headroom prune --mask @pruned20 --out ./smaller && headroom serve --model ./smaller
    """
    check_empty(out)
    source = locate(model)
    config = read_config(source)
    weights = config.parse_mask(read_form(mask), read_stored_masks(source, config))
    config.check_head_left(weights)

    from headroom.models.api.smaller import pruned  # imports torch

    smaller = pruned(source, config, weights, out)
    if not as_json:
        print(smaller)
        return
    refusal = smaller.transformers
    document = {
        "out": str(out),
        "head_mask": {"id": weights.id, "spec": weights.spec},
        **{name: {"before": old, "after": new} for name, (old, new) in smaller.sizes.items()},
        "transformers": {"loads": refusal is None, "reason": refusal},
    }
    print(json.dumps(document))
