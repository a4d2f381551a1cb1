"""Chooses the network and the mask of a request: the live config, resolved against the loaded models."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from headroom.models.checkpoint.hub import locate
from headroom.models.classifier import Classifier
from headroom.models.errors import ModelError
from headroom.models.masks.head_mask import HeadMask
from headroom.models.weights import parameters_of_layers
from headroom.service.config.kinds import kind_of_score, mixed_kinds
from headroom.service.config.masks import lacks_network, left_out, resolve_masks
from headroom.service.config.settings import InvalidConfig, LiveConfig
from headroom.service.config.variants import CUSTOM, MaskForm
from headroom.service.engine.threads import Lane
from headroom.service.errors import InvalidRequest
from headroom.service.experiments.definition import ORIGINAL
from headroom.service.schemas.responses import HeadMaskInfo
from headroom.service.scoring.cascade import Keep

logger = logging.getLogger("headroom.variants")

CACHED_CHOICES = 1024
CACHED_SPEC_CHARS = 256
"""Mask specs of up to this length are parsed once and kept. So the rows of all requests with the same spec
share one mask, which makes their batch cheap."""

NO_HEADS = HeadMaskInfo("", "none", 0, 0, 0, 0, 0, 0)
"""The mask of an answer that no network was there for."""

BASE = ""
"""The key of the service's own checkpoint among the loaded ones."""


@dataclass(frozen=True)
class Variant:
    """A servable: a loaded checkpoint under a mask. `sliced`: what is off is cut out of the weights.

    stages: of a cascade, its stages; checkpoint, classifier, mask and `sliced` are then its last stage's.
    keeps: what each stage of a cascade but the last hands on.
    configured: the config's variant, if a caller's mask is multiplied onto its own; None if this is the
        configured variant.
    is_original: the variant is the order in which the titles came. Nothing is computed; the checkpoint is the
        service's own.
    """

    name: str
    checkpoint: str
    classifier: Classifier
    mask: HeadMask
    sliced: bool
    stages: tuple[Variant, ...] = ()
    keeps: tuple[Keep, ...] = ()
    configured: Variant | None = None
    is_original: bool = False

    @cached_property
    def label(self) -> str:
        """The name for metrics, where all masks of callers count as `custom`."""
        return self.name if self.configured is None else CUSTOM

    @cached_property
    def names(self) -> tuple[str, str, str]:
        """The variant's name, the mask's id and the model's name, for the record of a request."""
        return self.name, self.info.id, self.classifier.name

    @cached_property
    def lane(self) -> Lane:
        """The lane of its rows. Rows of one lane share batches.

        Rows of different masks share a lane if their masks skip the same layers and switch the same units
        off, because a batch computes those for all of its rows. A sliced mask has a lane of its own.
        """
        lane = self.shared_lane
        return replace(lane, sliced_mask=self.mask.id) if self.sliced else lane

    @cached_property
    def shared_lane(self) -> Lane:
        """The lane in which a sliced mask is multiplied instead of sliced, so that its rows share batches."""
        return Lane(self.classifier, self.mask.structure)

    @cached_property
    def info(self) -> HeadMaskInfo:
        """The mask, as answers describe it."""
        return NO_HEADS if self.is_original else mask_info(self.mask, self.classifier)

    @cached_property
    def cost(self) -> int:
        """The cost of a token, in weights that are computed with; multiplied masks save nothing."""
        config = self.classifier.config
        return parameters_of_layers(config.under(self.mask) if self.sliced else config)

    @property
    def heads_on(self) -> int:
        """The number of heads that take part: those on under the mask that the checkpoint still holds."""
        if self.is_original:
            return 0
        kept = zip(self.mask.matrix, self.classifier.config.kept_heads, strict=True)
        return sum(int(np.count_nonzero(weights[list(heads)])) for weights, heads in kept)

    @property
    def parameters(self) -> int:
        """The number of parameters, without those of heads, units and layers that are cut out."""
        if self.is_original:
            return 0
        network = self.classifier.network
        return network.parameters - (network.parameters_off(self.mask) if self.sliced else 0)


@dataclass(frozen=True, slots=True)
class Catalog:
    """A live config in force: immutable, so that a request sees one config from start to end.

    base: the service's own checkpoint. default: the variant of requests that name none.
    masks: stored masks of each checkpoint, by the checkpoint's key.
    """

    config: LiveConfig
    base: Classifier
    default: Variant
    variants: Mapping[str, Variant]
    masks: Mapping[str, Mapping[str, HeadMask]]
    _chosen: dict[tuple[str, str], Variant] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def classifiers(self) -> dict[str, Classifier]:
        """The checkpoints that some variant uses, by key."""
        return {variant.checkpoint: variant.classifier for variant in self.variants.values()}

    @property
    def score_kinds(self) -> dict[str, str | None]:
        """Return what score each variant gives, as a phrase, by its name; None for `original`."""
        return _score_kinds(self.variants)

    @property
    def definitions(self) -> dict[str, str]:
        """Return what each variant computes with, by its name: a text that changes if that does."""
        return {name: _definition(variant, self.config.digests) for name, variant in self.variants.items()}

    def choose(self, name: str | None, form: MaskForm | None, *, with_units: bool = False) -> Variant:
        """Return the variant called `name` (None: the default) with a request's mask multiplied onto its own.

        with_units: the mask may switch feed-forward units off, as a stored one may.
        A mask without a name is laid on the default network. Raises InvalidRequest for an unknown variant
        and for a mask on `original`, and InvalidMask for a wrong mask.
        """
        if name is not None and name not in self.variants:
            raise InvalidRequest(
                f"there is no variant {name!r}; there are {', '.join(self.variants)}", param="variant"
            )
        if name is None and form is not None:
            name = self.config.default_network
        variant = self.default if name is None else self.variants[name]
        if form is None:
            return variant
        if variant.is_original:
            raise InvalidRequest(
                f"{ORIGINAL!r} is the order in which the titles came and has no heads; leave the mask "
                "out, or name another variant",
                param="head_mask",
            )
        if not isinstance(form, str) or len(form) > CACHED_SPEC_CHARS:
            return self._masked(variant, form, with_units)
        masked = self._chosen.get((variant.name, form))
        if masked is None:
            masked = self._masked(variant, form)
            if len(self._chosen) >= CACHED_CHOICES:
                self._chosen.clear()
            self._chosen[variant.name, form] = masked
        return masked

    def name_of_network(self, name: str | None) -> str:
        """Return the name, or for None that of the default network. Raises InvalidRequest for `original`."""
        if name == ORIGINAL:
            raise InvalidRequest(
                f"{ORIGINAL!r} is the order in which the titles came, and this needs a network; name another",
                param="variant",
            )
        return name or self.config.default_network

    def _masked(self, variant: Variant, form: MaskForm, with_units: bool = False) -> Variant:
        if variant.stages:
            stages = tuple(self._masked(stage, form, with_units) for stage in variant.stages)
            return replace(variant, mask=stages[-1].mask, sliced=False, stages=stages, configured=variant)
        mask = variant.mask * HeadMask.parse(
            form,
            layers=variant.classifier.num_layers,
            heads=variant.classifier.num_heads,
            units=variant.classifier.config.intermediate_size if with_units else None,
            stored=self.masks[variant.checkpoint],
        )
        return replace(variant, mask=mask, sliced=False, configured=variant)


def mask_info(mask: HeadMask, classifier: Classifier) -> HeadMaskInfo:
    """Return how answers name a mask of a model."""
    widths = classifier.config.widths
    return HeadMaskInfo(
        id=mask.id,
        spec=mask.spec,
        heads_on=mask.heads_on,
        heads=mask.layers * mask.heads,
        units_on=mask.units_on(widths),
        units=sum(widths),
        layers_on=len(mask.layers_kept),
        layers=mask.layers,
    )


def build_catalog(
    config: LiveConfig, loaded: Mapping[str, Classifier], load: Callable[[str], Classifier]
) -> Catalog:
    """Resolve a live config; checkpoints that it names and that are not in `loaded` are loaded.

    loaded: by key, with the service's own under BASE. The config's named masks must fit that one; another
        checkpoint, which may have another shape, has those that fit it.
    load: takes a checkpoint's path.
    Raises InvalidConfig if a mask does not fit its model or a checkpoint cannot be loaded.
    """
    base = loaded[BASE]
    _check_content(config, BASE, base)
    classifiers = {key: one for key, one in loaded.items() if config.digests.get(key) in (None, one.digest)}
    keys = {BASE: None} | {
        entry.checkpoint or BASE: None
        for entry in config.variants
        if entry.cascade is None and not lacks_network(entry, base.directory)
    }
    masks: dict[str, Mapping[str, HeadMask]] = {}
    variants: dict[str, Variant] = {}
    for key in keys:
        classifier = classifiers[key] = _load(config, key, classifiers, load)
        masks[key], mask_of_variant = resolve_masks(
            config, classifier.config, classifier.stored_masks, key or None
        )
        for entry in config.variants:
            if (mask := mask_of_variant.get(entry.name)) is not None:
                variants[entry.name] = Variant(entry.name, key, classifier, mask, entry.sliced)
    for name, reason in left_out(config, variants).items():
        logger.info("variant %s is left out: %s", name, reason)
    for problem in mixed_kinds(config, _score_kinds(variants)):
        raise InvalidConfig(problem)
    _add_cascades(config, variants)
    variants = _in_order(config, variants) | {ORIGINAL: _original(base)}
    return Catalog(config, base, variants[config.default_variant], variants, masks)


def _in_order(config: LiveConfig, variants: Mapping[str, Variant]) -> dict[str, Variant]:
    """Return the variants in the order of the config."""
    return {entry.name: variants[entry.name] for entry in config.variants if entry.name in variants}


def _original(base: Classifier) -> Variant:
    """Return the variant that is the order in which the titles come."""
    return Variant(ORIGINAL, BASE, base, base.all_heads, sliced=False, is_original=True)


def load_catalog(
    config: LiveConfig,
    model: str | None,
    device: str,
    dtype: str,
    label_order: Sequence[str] | None = None,
    *,
    deterministic: bool = False,
) -> Catalog:
    """Load what a live config names, for use without a server.

    model: the service's own checkpoint; None: the shipped one. label_order: of its labels, from least to most
    relevant. deterministic: float32 scores that are the same bits in any batch. Raises ModelError and
    InvalidConfig.
    """
    load = partial(Classifier.load, device=device, dtype=dtype, deterministic=deterministic)
    return build_catalog(config, {BASE: load(model, label_order=label_order)}, load)


def _load(
    config: LiveConfig,
    key: str,
    loaded: Mapping[str, Classifier],
    load: Callable[[str], Classifier],
) -> Classifier:
    """Return the checkpoint of this key, loaded if it is not yet. Raises InvalidConfig, naming a variant."""
    if key in loaded:
        return loaded[key]
    try:
        directory = locate(key, loaded[BASE].directory)
        same = next((one for one in loaded.values() if one.directory == directory.resolve()), None)
        classifier = same or load(str(directory) if key.startswith("@") else key)
        _check_content(config, key, classifier)
        return classifier
    except (ModelError, InvalidConfig) as error:
        user = next(entry.name for entry in config.variants if entry.checkpoint == key)
        raise InvalidConfig(f"variants.{user}.checkpoint: {error}") from error


def _check_content(config: LiveConfig, key: str, classifier: Classifier) -> None:
    """Raise InvalidConfig if a checkpoint's files are not those that the config was checked with."""
    wanted = config.digests.get(key)
    if wanted is not None and wanted != classifier.digest:
        raise InvalidConfig(
            f"the files in {classifier.directory} have changed since the service began to serve them: put "
            "them back or restart the service, and give new weights a directory of their own"
        )


def _add_cascades(config: LiveConfig, variants: dict[str, Variant]) -> None:
    """Add the cascades whose stages are all there."""
    for entry in config.variants:
        if entry.cascade is None or any(stage.variant not in variants for stage in entry.cascade):
            continue
        stages = tuple(variants[stage.variant] for stage in entry.cascade)
        keeps = tuple(stage.keep for stage in entry.cascade if stage.keep is not None)
        last = stages[-1]
        variants[entry.name] = Variant(
            entry.name, last.checkpoint, last.classifier, last.mask, last.sliced, stages, keeps
        )


def _definition(variant: Variant, digests: Mapping[str, str]) -> str:
    """Return what a variant computes with, as hex digits. digests: of the checkpoints, by their path."""
    if variant.is_original:
        return ORIGINAL
    digest = digests.get(variant.checkpoint)
    stages = [_definition(stage, digests) for stage in variant.stages]
    parts = (variant.checkpoint, digest, variant.mask.id, variant.sliced, variant.keeps, stages)
    order = variant.classifier.config.changed_order
    return hashlib.sha256(f"{parts!r}{order or ''}".encode()).hexdigest()[:12]


def _score_kinds(variants: Mapping[str, Variant]) -> dict[str, str | None]:
    """Return the kind of score that each variant gives, by its name."""
    return {
        name: None if variant.is_original else kind_of_score(variant.classifier.config)
        for name, variant in variants.items()
    }


def make_room(classifiers: Iterable[Classifier], catalog: Catalog) -> None:
    """Size each classifier's cache of sliced weights for the catalog's sliced lanes."""
    lanes = {variant.lane: variant.mask for variant in catalog.variants.values() if variant.sliced}
    sliced = Counter(lane.classifier for lane in lanes)
    of_units = Counter(lane.classifier for lane, mask in lanes.items() if mask.units_off is not None)
    # All rows under a stored mask that switches units off can be in one batch, too.
    stored = {
        variant.classifier
        for variant in catalog.variants.values()
        if any(mask.units_off is not None for mask in catalog.masks[variant.checkpoint].values())
    }
    for one in set(classifiers):
        one.network.selector.make_room(sliced=sliced[one], unit_masks=of_units[one] + (one in stored))
