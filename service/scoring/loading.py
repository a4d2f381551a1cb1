"""Loads the checkpoints of a config and warms them up."""

from collections.abc import Callable, Sequence
from functools import partial

from headroom.models.classifier import Classifier
from headroom.models.device import one_thread
from headroom.models.selection import RowMasks
from headroom.service.config.settings import LiveConfig, Settings
from headroom.service.engine.threads import Engine
from headroom.service.scoring.catalog import BASE, Catalog, build_catalog, make_room


def load(
    settings: Settings, config: LiveConfig, threads: int, on_failure: Callable[[str], None]
) -> tuple[Engine, Catalog]:
    """Load and warm up the models that settings and config name; blocks for seconds.

    threads: torch threads of the forward pass on a CPU. on_failure: called with the kind when the device
        fails.
    Raises ModelError or InvalidConfig.
    """
    base = load_classifier(settings, settings.model, settings.label_order)
    config.check_limits(settings.queue_tokens(base.network.device.type))
    catalog = build_catalog(config, {BASE: base}, partial(load_classifier, settings))
    engine = Engine({BASE: base} | catalog.classifiers, threads=threads, on_failure=on_failure)
    warm_up(engine, settings, catalog)
    return engine, catalog


def load_classifier(
    settings: Settings, path: str | None, label_order: Sequence[str] | None = None
) -> Classifier:
    """Load a checkpoint onto the device and in the number format of the settings. Raises ModelError.

    label_order: the labels' names, least relevant first; None: the order that the checkpoint says.

    On one torch thread, so that the calling thread gets no OpenMP helpers: helpers stay awake between two
    products only while the process has no more of them than cores. With a second set of helpers a batch of
    30 titles took 78 ms on two cores, without it 54 ms.
    """
    with one_thread():
        return Classifier.load(
            path,
            settings.device,
            settings.dtype,
            deterministic=settings.deterministic,
            label_order=label_order,
        )


def warm_up(engine: Engine, settings: Settings, catalog: Catalog, warm: Catalog | None = None) -> None:
    """Run every lane of a catalog once under each of its masks, but those that `warm` has as well: traffic
    goes on at the same time."""
    make_room(engine.classifiers.values(), catalog)
    seen = set() if warm is None else {(v.lane, v.mask) for v in warm.variants.values() if not v.is_original}
    batch_tokens = settings.batch_tokens(engine.device_type)
    default = catalog.variants[catalog.config.default_network]
    for variant in catalog.variants.values():
        if variant.is_original:
            continue
        lane = variant.lane
        if (lane, variant.mask) not in seen:
            seen.add((lane, variant.mask))
            rate, batch_tokens = engine.warm_up(lane, batch_tokens, variant.mask)
            if (lane, variant.mask) == (default.lane, default.mask):
                engine.tokens_per_second = rate
    engine.batch_tokens = engine.batch_tokens or batch_tokens
    drop_graphs(engine, [catalog] if warm is None else [catalog, warm])


def drop_graphs(engine: Engine, catalogs: Sequence[Catalog]) -> None:
    """Drop CUDA graphs of variants that none of these catalogs has."""
    variants = [variant for one in catalogs for variant in one.variants.values() if not variant.is_original]
    for classifier in engine.classifiers.values():
        graphs = classifier.network.graphs
        if graphs is not None:
            of_classifier = [variant for variant in variants if variant.classifier is classifier]
            graphs.keep((RowMasks.of(variant.mask), variant.sliced) for variant in of_classifier)
