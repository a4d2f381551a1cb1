"""Builds the answers of `GET /v1/models`, `/v1/variants` and `/v1/masks`."""

from collections.abc import Iterable
from itertools import zip_longest

from headroom.models.classifier import Classifier
from headroom.models.cores import processor_features
from headroom.models.device import describe
from headroom.models.ops.int8_products import input_bits
from headroom.models.ops.kernel_library import Choice, choice
from headroom.service.schemas.listings import (
    CascadeStage,
    GeneratorInfo,
    HeadsResponse,
    MaskInfo,
    MasksResponse,
    ModelInfo,
    ModelsResponse,
    VariantInfo,
    VariantsResponse,
)
from headroom.service.scoring.catalog import BASE, Catalog, mask_info


def model(classifier: Classifier) -> ModelInfo:
    """Return what `GET /v1/models` says of a checkpoint."""
    config = classifier.config
    network = classifier.network
    used, skipped, _ = choice() if network.device.type == "cpu" else Choice(None)
    return ModelInfo(
        name=classifier.name,
        repository=None if classifier.origin is None else classifier.origin.repository,
        commit=None if classifier.origin is None else classifier.origin.commit,
        family=config.family,
        layers=config.num_layers,
        heads=config.num_heads,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        max_tokens=classifier.max_tokens,
        grades=list(config.labels) if config.is_graded else None,
        label_order_note=config.order_note,
        score_activation=config.score_activation,
        parameters=network.parameters,
        bytes=network.nbytes,
        sliced_bytes=network.selector.cache.nbytes,
        device=describe(network.device),
        dtype=network.number_format,
        deterministic=network.deterministic,
        processor=processor_features(),
        kernels=None if used is None else used.name,
        int8_input_bits=input_bits() if config.int8 and network.device.type == "cpu" else None,
        kernels_skipped=list(skipped),
        quality=classifier.quality,
        generator=None if classifier.generator is None else GeneratorInfo(*classifier.generator.shape),
        _labels=config.labels,
    )


def models(classifiers: Iterable[Classifier]) -> ModelsResponse:
    """Return the answer that lists the loaded checkpoints."""
    return ModelsResponse([model(classifier) for classifier in classifiers])


def variants(catalog: Catalog, classifiers: Iterable[Classifier]) -> VariantsResponse:
    """Return the answer that lists the variants of a live config, in its order.

    classifiers: the loaded checkpoints, in the order of the answer that lists them.
    """
    positions = {classifier: index for index, classifier in enumerate(classifiers)}
    return VariantsResponse(
        catalog.config.version,
        [
            VariantInfo(
                name=variant.name,
                model=variant.classifier.name,
                head_mask=variant.info,
                sliced=variant.sliced,
                parameters=variant.parameters,
                default=variant is catalog.default,
                model_index=positions[variant.classifier],
                cascade=[
                    CascadeStage(stage.name, keep)
                    for stage, keep in zip_longest(variant.stages, variant.keeps)
                ]
                or None,
                _grades=variant.classifier.grades,
            )
            for variant in catalog.variants.values()
        ],
    )


def masks(catalog: Catalog) -> MasksResponse:
    """Return the answer that lists the masks that `@name` means on the service's own checkpoint.

    A mask of the config hides the model's mask of the same name.
    """
    return MasksResponse(
        [
            MaskInfo(
                name, "config" if name in catalog.config.masks else "model", mask_info(mask, catalog.base)
            )
            for name, mask in sorted(catalog.masks[BASE].items())
        ]
    )


def heads(classifier: Classifier) -> HeadsResponse:
    """The study of the heads of the service's own checkpoint."""
    return HeadsResponse(classifier.name, classifier.num_layers, classifier.num_heads, classifier.head_study)
