"""Compares variants and masks over the same pairs, and shows the attention of heads over one pair."""

from collections.abc import Generator, Iterable
from typing import cast

import orjson

from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.classifier import Classifier
from headroom.models.errors import InvalidMask
from headroom.models.masks.head_mask import heads_of
from headroom.service.config.variants import MaskForm
from headroom.service.engine.request import Deadline
from headroom.service.engine.threads import Lane, PairRow
from headroom.service.errors import InvalidRequest
from headroom.service.observe.access_log import current
from headroom.service.schemas.requests import AttentionRequest, CompareRequest
from headroom.service.schemas.responses import (
    AttentionResponse,
    CompareColumn,
    CompareResponse,
    HeadAttention,
    Matrix,
    Usage,
)
from headroom.service.scoring.catalog import Catalog, Variant
from headroom.service.scoring.column import Computed
from headroom.service.scoring.score import Scorer, characters_of_mask

MAX_ATTENTION_VALUES = 4_000_000
"""Maximum values of one `/v1/attention`: heads times tokens squared."""

VALUES_AT_ONCE = 20_000
"""Numbers of a matrix that are written at once; they take about a millisecond."""

VALUES_PER_CHARACTER = 16
"""Values that are written as JSON in the time in which a character is tokenized."""


async def compare(
    scorer: Scorer, request: CompareRequest, catalog: Catalog, deadline: Deadline
) -> CompareResponse:
    """Score the pairs under every mask and variant, pair by pair in the same batches."""
    characters = sum(map(characters_of_mask, request.masks))
    variants = await scorer.off_loop(_chosen(catalog, request), characters)
    columns, computed = await scorer.columns(request, variants, deadline, shared=True)
    answers = []
    for column in columns:
        variant = column.variant
        results = column.results()
        scorer.count(column, results, computed)
        answers.append(CompareColumn(variant.info, variant.name, results, column.stages, column.is_cut_short))
    if any(column.is_cut_short for column in columns):
        scorer.metrics.count("degraded_total")
    usage = Usage(
        pairs=sum(column.usage.pairs for column in columns),
        tokens=sum(column.usage.tokens for column in columns),
    )
    return CompareResponse(catalog.base.name, answers, usage, computed.timing(deadline))


async def attention(
    scorer: Scorer, request: AttentionRequest, catalog: Catalog, deadline: Deadline
) -> AttentionResponse:
    """Return the attention of the wanted heads over one pair."""
    name = catalog.name_of_network(request.variant)
    variant = await scorer.choose(catalog, name, request.head_mask)
    current().set_columns([variant.names], 1)
    classifier = variant.classifier
    computed = Computed()
    pairs = await scorer.encode(classifier, [(request.query, request.title)], request, computed)
    pair = cast(EncodedPair, pairs[0])  # not in chunks
    heads = _heads_of(request.heads, classifier)
    values = len(heads) * len(pair) ** 2
    if values > MAX_ATTENTION_VALUES:
        raise InvalidRequest(
            f"{len(heads)} heads of {len(pair)} tokens are {values} values; "
            f"one answer holds {MAX_ATTENTION_VALUES}",
            param="heads",
        )
    row = PairRow(len(pair), Lane(classifier, kind="attention"), pair, variant.mask, heads)
    await scorer.run([row], deadline, computed)
    written = await scorer.off_loop(_written(row.result), values // VALUES_PER_CHARACTER)
    return AttentionResponse(
        model=classifier.name,
        variant=variant.name,
        head_mask=variant.info,
        tokens=classifier.tokenizer.tokens(pair),
        texts=classifier.tokenizer.texts(pair),
        special=pair.special,
        segments=[0] * pair.title_start + [1] * (len(pair) - pair.title_start),
        heads=[HeadAttention(*head, matrix) for head, matrix in zip(heads, written, strict=True)],
        timing_ms=computed.timing(deadline),
    )


def _chosen(catalog: Catalog, request: CompareRequest) -> Generator[None, None, list[Variant]]:
    """Choose the variant and mask of each column, and write the masks as answers describe them."""
    variants = []
    for number, form in enumerate(request.masks):
        variants.append(_variant(f"masks[{number}]", catalog, None, form))
        yield
    for number, name in enumerate(request.variants):
        variants.append(_variant(f"variants[{number}]", catalog, name, None))
    return variants


def _written(matrices: Iterable[Matrix]) -> Generator[None, None, list[orjson.Fragment]]:
    """Write matrices as JSON, a few rows at a time: orjson holds up every thread while it writes."""
    written = []
    for matrix in matrices:
        rows_at_once = max(1, VALUES_AT_ONCE // matrix.shape[1])
        parts = []
        for start in range(0, len(matrix), rows_at_once):
            rows = matrix[start : start + rows_at_once]
            parts.append(orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1])
            yield
        written.append(orjson.Fragment(b"[" + b",".join(parts) + b"]"))
    return written


def _variant(param: str, catalog: Catalog, name: str | None, form: MaskForm | None) -> Variant:
    """Choose the variant and mask of one column; errors name the column."""
    try:
        variant = catalog.choose(name, form)
        _ = variant.info  # kept by the variant, and by its mask
        return variant
    except (InvalidRequest, InvalidMask) as error:
        raise InvalidRequest(str(error).removeprefix("variant: "), param=param) from None


def _heads_of(spec: str, classifier: Classifier) -> tuple[tuple[int, int], ...]:
    """Return the heads of a list such as `2.3,4.*` as (layer, head): a mask of this spec switches them off.

    Raises InvalidRequest if it is no such list, or empty.
    """
    try:
        return heads_of(spec, classifier.num_layers, classifier.num_heads)
    except InvalidMask as error:
        raise InvalidRequest(str(error), param="heads") from None
