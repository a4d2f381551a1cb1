"""The model, variants and masks that options and the config file name, resolved as the service would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headroom.models.commands.options import Network, Sides, read_form
from headroom.models.terminal import counted

if TYPE_CHECKING:
    from headroom import Classifier, HeadMask
    from headroom.models.quality.comparison import Side, Truth
    from headroom.models.quality.labelled import Columns
    from headroom.service.config.settings import LiveConfig
    from headroom.service.config.variants import MaskForm, VariantConfig
    from headroom.service.scoring.catalog import Catalog, Variant


@dataclass(frozen=True, slots=True)
class Setup:
    """Model, live config, device and number format that the service would start with.

    model: a checkpoint's directory or hub id, None for the shipped one. path: of the config file, None if no
    file was read.
    """

    model: str | None
    live: LiveConfig
    device: str
    dtype: str
    path: Path | None
    label_order: tuple[str, ...] | None = None
    deterministic: bool = False

    def label_order_of(self, variant: VariantConfig) -> tuple[str, ...] | None:
        """Return the order of the labels of a variant's checkpoint; None: as it says."""
        return None if variant.checkpoint else self.label_order

    def only(self, variants: Sequence[str]) -> LiveConfig:
        """Return a config with these variants and the stages of cascades among them.

        The first is the default. The user asked for them, so it is an error if the model has no such mask.
        Raises ValueError if there is no variant of one of these names.
        """
        from headroom.service.config.settings import LiveConfig
        from headroom.service.experiments.definition import ORIGINAL

        declared = {variant.name: variant for variant in self.live.variants}
        for name in variants:
            if name == ORIGINAL:
                raise ValueError(
                    f"--variant: {name!r} is the order in which the titles come and gives no scores; name "
                    f"another: {', '.join(declared)}"
                )
            if name not in declared:
                where = f" in {self.path}" if self.path else " (with --model, name its file by --config)"
                names = ", ".join(declared)
                raise ValueError(f"--variant: there is no variant {name!r}{where}; there are {names}")
        wanted = {*variants}
        wanted |= {stage.variant for name in variants for stage in declared[name].cascade or ()}
        named = tuple(
            variant.model_copy(update={"optional": False})
            for variant in self.live.variants
            if variant.name in wanted
        )
        return LiveConfig(masks=self.live.masks, variants=named, default=variants[0])

    def load(self, live: LiveConfig) -> Catalog:
        """Load the model and what a config names."""
        from headroom.service.scoring.catalog import load_catalog  # torch comes after the checks without it

        return load_catalog(
            live, self.model, self.device, self.dtype, self.label_order, deterministic=self.deterministic
        )


def read_setup(network: Network) -> Setup:
    """Return what the config file says, unless the options say otherwise; "auto" leaves it to the file.

    Without a file, the default one counts, which belongs to the default model only.
    """
    from headroom.models.cores import check_device_name, check_dtype_name
    from headroom.service.cli.serve import DEFAULT_CONFIG
    from headroom.service.config import file as config_file
    from headroom.service.config.settings import LiveConfig

    check_device_name(network.device)
    check_dtype_name(network.dtype)
    path = DEFAULT_CONFIG if network.config is None and network.model is None else network.config
    if path is None:
        return Setup(network.model, LiveConfig(), network.device, network.dtype, None, network.label_order)
    file = config_file.load(path, config_file.Overrides())
    settings = file.settings
    return Setup(
        network.model or settings.model,
        file.live,
        settings.device if network.device == "auto" else network.device,
        settings.dtype if network.dtype == "auto" else network.dtype,
        path,
        label_order=network.label_order or (settings.label_order if network.model is None else None),
        deterministic=settings.deterministic,
    )


def resolve(network: Network) -> Variant:
    """Return the variant and mask that the options name; without a variant, the config's default."""
    return _resolve_with_model(network)[0]


def both(network: Network) -> tuple[Variant, Variant]:
    """Return the config's default variant, and the variant and mask that the options name."""
    form = None if network.mask is None else read_form(network.mask)
    setup = read_setup(network)
    default = setup.live.default_network
    live = setup.only(list(dict.fromkeys([default, network.variant or default])))

    catalog = setup.load(live)
    return catalog.choose(default, None), catalog.choose(network.variant, form, with_units=True)


def network_of(network: Network) -> tuple[Classifier, HeadMask]:
    """Return the classifier and the mask that the options name."""
    variant = resolve(network)
    return variant.classifier, variant.mask


def _resolve_with_model(network: Network) -> tuple[Variant, Classifier]:
    """Return the variant that the options name, and the service's own model, which is loaded for it."""
    from headroom.models.checkpoint.hub import locate

    form = None if network.mask is None else read_form(network.mask)
    setup = read_setup(network)
    live = setup.only([network.variant or setup.live.default_network])
    for entry in live.variants:
        if entry.cascade is None:
            directory = locate(entry.checkpoint or setup.model, setup.model)
            only = live.model_copy(update={"variants": (entry,)})
            check_masks(only, directory, form, setup.label_order_of(entry))

    catalog = setup.load(live)
    return catalog.choose(None, form, with_units=True), catalog.base


def default_line(variant: str, mask: str | None) -> str:
    """Return the line which says that the config's default variant, which has a mask, scores."""
    with_mask = "" if mask is None else f" with the mask {mask} laid on it"
    return f"the config's default, {variant}, scores{with_mask} (--variant names another)"


def check_masks(
    live: LiveConfig, directory: Path, mask: MaskForm | None, label_order: Sequence[str] | None = None
) -> None:
    """Raise the errors of a wrong checkpoint or mask before torch is imported, which takes seconds.

    live: a config whose only variant is the one to score with. directory: that variant's checkpoint;
    label_order: of its labels.
    """
    from headroom.models.checkpoint.config import read_config, read_stored_masks
    from headroom.service.config.masks import left_out, resolve_masks

    model = read_config(directory, label_order)
    stored = read_stored_masks(directory, model)
    masks, of_variant = resolve_masks(live, model, stored, live.variants[0].checkpoint)
    left_out(live, of_variant)
    if mask is not None:
        model.parse_mask(mask, masks)


def sides(network: Network, data: Path, columns: Columns, relevant: int | None) -> Sides:
    """Judge the variant and its baseline on labelled pairs, for `headroom evaluate --variant`.

    That is a cascade's last stage, or the intact model: `full`, or `intact` if the variant has a checkpoint
    of its own or is `full` itself. A smaller network (`@NAME`) is compared with its model.
    """
    from headroom.models.commands.options import read_truth
    from headroom.service.scoring.catalog import BASE
    from headroom.service.scoring.offline import base_variant

    variant, model = _resolve_with_model(network)
    classifier = variant.classifier
    if variant.stages:
        base = variant.stages[-1]
        name = base.name
    elif variant.checkpoint.startswith("@"):
        name = "full"
        base = base_variant(model)
    else:
        is_base = variant.checkpoint == BASE and variant.name != "full"
        name = "full" if is_base else "intact"
        base = replace(variant, mask=classifier.all_heads)
    configs = [base.classifier.config, classifier.config]
    truth, labels = read_truth(data, configs, columns, relevant)
    baseline, _ = _side(name, base, truth)
    side, stages = _side(variant.name, variant, truth)
    if baseline.model != side.model:
        baseline = replace(baseline, name=baseline.model)
        side = replace(side, name=side.model)
    return Sides([baseline, side], truth.pairs, labels, stages)


def _side(name: str, variant: Variant, truth: Truth) -> tuple[Side, dict[str, int]]:
    """Return a variant as judged, and of a cascade how many pairs ended at each stage."""
    from headroom.models.quality.comparison import Side
    from headroom.service.scoring.offline import score

    with counted("pairs", len(truth.pairs)) as advance:
        scored = score(variant, [(pair.query, pair.title) for pair in truth.pairs], advance=advance)
    ended = Counter(scored.stages or ())
    stages = {stage.name: ended[stage.name] for stage in variant.stages}
    spec = name if stages else variant.mask.spec
    model = variant.classifier.name
    return Side(name, model, name, spec, truth.evaluation(scored.scores, name)), stages
