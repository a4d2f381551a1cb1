"""Checks a config against the checkpoints that it names, by their small files: without a server or torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headroom.models.checkpoint.config import read_config, read_stored_masks
from headroom.models.checkpoint.files import check_weights, digest_of
from headroom.models.checkpoint.hub import DEFAULT, locate, origin_of
from headroom.models.errors import ModelError
from headroom.service.config.kinds import kind_of_score, mixed_kinds
from headroom.service.config.masks import lacks_network, left_out, refuse, resolve_masks
from headroom.service.config.settings import InvalidConfig

if TYPE_CHECKING:
    from headroom.models.checkpoint.config import ModelConfig
    from headroom.service.config.file import ConfigFile


class Findings(NamedTuple):
    """The faults of a config, and the variants that it leaves out.

    faults: a sentence about each, which begins with the field of `user_config`. left_out: why optional
        variants are left out, by name.
    """

    faults: list[str]
    left_out: dict[str, str]


def check_models(config: ConfigFile, *, weights: bool = True) -> Findings:
    """Check variants, masks and experiments against the service's own checkpoint and the variants' own ones.

    weights: whether hub checkpoints are downloaded whole; if not, only the files that describe them are.
    Raises UnsupportedCheckpoint if the service's own one cannot be served.
    """
    faults: list[str] = []

    def note(fault: InvalidConfig) -> None:
        faults.append(str(fault))

    kinds: dict[str, str] = {}
    for name, (directory, model) in _checkpoints(config, weights, note).items():
        try:
            if weights or origin_of(directory) is None:
                check_weights(directory)
            stored = read_stored_masks(directory, model)
        except ModelError as error:
            if name is None:
                raise
            note(_fault_of_checkpoint(config, name, error))
            continue
        _, masks = resolve_masks(config.live, model, stored, name, note)
        kinds |= dict.fromkeys(masks, kind_of_score(model))
    reasons: dict[str, str] = {}
    if not faults:  # else variants are missing for those
        try:
            reasons = left_out(config.live, kinds)
        except InvalidConfig as error:
            return Findings([str(error)], {})
        faults += mixed_kinds(config.live, kinds)
    return Findings(faults, reasons)


def wrong_digests(config: ConfigFile) -> Iterator[str]:
    """Yield a sentence for each directory whose files are not those of `digests`. Reads them whole."""
    for name, wanted in config.live.digests.items():
        directory = Path(name or config.settings.model or DEFAULT).expanduser()
        if directory.is_dir() and (digest := digest_of(directory, masks=True)) != wanted:
            yield f"digests[{name!r}]: the files in {directory} have another digest, {digest}"


def check_checkpoints(config: ConfigFile) -> None:
    """Check the variants' own checkpoints; download what the cache lacks. Raises InvalidConfig."""
    _checkpoints(config, True, refuse)


def _checkpoints(
    config: ConfigFile, weights: bool, on_fault: Callable[[InvalidConfig], None]
) -> dict[str | None, tuple[Path, ModelConfig]]:
    """Return directory and shape of each checkpoint that can be served, by its name in variants; None is the
    service's own. Raises UnsupportedCheckpoint if that cannot be served."""
    own = locate(config.settings.model, weights=weights)
    base = read_config(own, config.settings.label_order)
    found: dict[str | None, tuple[Path, ModelConfig]] = {None: (own, base)}
    wrong: set[str] = set()
    for variant in config.live.variants:
        name = variant.checkpoint
        if name is None or name in found or name in wrong or lacks_network(variant, own):
            continue
        try:
            directory = locate(name, own, weights=weights)
            found[name] = directory, read_config(directory)
        except ModelError as error:
            wrong.add(name)
            on_fault(_fault_of_checkpoint(config, name, error))
    return found


def _fault_of_checkpoint(config: ConfigFile, name: str, error: ModelError) -> InvalidConfig:
    """Return the fault of a variant's own checkpoint, which names the first variant that has it."""
    variant = next(entry.name for entry in config.live.variants if entry.checkpoint == name)
    return InvalidConfig(f"variants.{variant}.checkpoint: {error}")
