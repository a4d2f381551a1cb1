"""The variants and masks that options name, resolved as the service would."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from models import Classifier
    from service.scoring.catalog import Choice
    from service.settings import LiveConfig


def resolve(
    model: str | None,
    config: Path | None,
    variant: str | None,
    mask: str | None,
    device: str,
    dtype: str,
) -> Choice:
    """Return the variant and mask that the options name."""
    from models.device import check_device_name, check_dtype_name
    from service.settings import LiveConfig

    check_device_name(device)
    check_dtype_name(dtype)
    names = () if variant is None else (variant,)
    live = read_live(model, config, names)
    live = only(live, names) if names else LiveConfig(masks=live.masks)
    for entry in live.variants:
        check_masks(live.model_copy(update={"variants": (entry,)}), entry.checkpoint or model, mask)

    from models import Classifier  # imports torch, so it comes after the checks that do not need it
    from service.scoring.catalog import BASE, build_catalog

    def load(path: str | None) -> Classifier:
        return Classifier.load(path, device, dtype)

    return build_catalog(live, {BASE: load(model)}, load).choose(variant, mask)


def read_live(model: str | None, config: Path | None, variants: Sequence[str]) -> LiveConfig:
    """Return the live config of a file, or of the default one, which belongs to the default model only.

    Raises ValueError if it declares no variant of one of these names.
    """
    from service.cli.serve import DEFAULT_CONFIG
    from service.deployment import config_file
    from service.settings import LiveConfig

    path = DEFAULT_CONFIG if config is None and model is None else config
    live = LiveConfig() if path is None else config_file.load(path, config_file.Overrides()).live
    declared = {variant.name for variant in live.variants}
    for name in variants:
        if name not in declared:
            raise ValueError(f"--variant: there is no variant {name!r} in {path or 'the default config'}")
    return live


def only(live: LiveConfig, variants: Sequence[str]) -> LiveConfig:
    """Return a config with these variants and the stages of cascades among them; the first is the default.

    The user asked for these variants, so it is an error if the model has no such mask.
    """
    wanted = {*variants}
    wanted |= {stage.variant for v in live.variants if v.name in variants for stage in v.cascade or ()}
    named = [v.model_copy(update={"optional": False}) for v in live.variants if v.name in wanted]
    return live.model_copy(update={"variants": tuple(named), "default": variants[0], "experiments": ()})


def check_masks(live: LiveConfig, checkpoint: str | None, mask: str | None) -> None:
    """Raise the errors of a wrong checkpoint or mask before torch is imported, which takes seconds.

    live: a config whose only variant is the one to score with. checkpoint: that variant's checkpoint.
    """
    from models import HeadMask
    from models.checkpoint.config import read_config, read_stored_masks
    from models.checkpoint.hub import locate
    from service.variant_masks import resolve_masks, resolve_variant

    directory = locate(checkpoint)
    own = read_config(directory)
    shape = {"layers": own.num_layers, "heads": own.num_heads}
    stored = read_stored_masks(directory, own)
    masks = resolve_masks(live, **shape, units=own.intermediate_size, stored=stored)
    resolve_variant(live, live.variants[0].name, **shape, masks=masks)
    if mask is not None:
        HeadMask.parse(mask, **shape, stored=masks)
