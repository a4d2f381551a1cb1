"""Compares variants and masks over the same pairs, and shows the attention of heads over one pair."""

from typing import cast

from models.checkpoint.tokenizer import EncodedPair
from models.classifier import Classifier
from models.errors import InvalidMask
from models.masks.head_mask import HeadMask
from service.config.variants import MaskForm
from service.engine.request import Deadline
from service.engine.threads import Lane, PairRow
from service.errors import InvalidRequest
from service.observe.access_log import current
from service.schemas import responses
from service.schemas.requests import AttentionRequest, CompareRequest
from service.schemas.responses import AttentionResponse, CompareResponse, HeadAttention, Usage
from service.scoring.catalog import Catalog, Variant
from service.scoring.score import Computed, Scorer

MAX_ATTENTION_VALUES = 4_000_000
"""Maximum values of one `/v1/attention`: heads times tokens squared."""


async def compare(
    scorer: Scorer, request: CompareRequest, catalog: Catalog, deadline: Deadline
) -> CompareResponse:
    """Score the pairs under every mask and variant, pair by pair in the same batches."""
    variants = [_variant(f"masks[{i}]", catalog, None, mask) for i, mask in enumerate(request.masks)]
    variants += [_variant(f"variants[{i}]", catalog, name, None) for i, name in enumerate(request.variants)]
    columns, computed = await scorer.columns(request, variants, deadline, shared=True)
    answers = []
    for column in columns:
        variant, results = column.variant, column.results()
        scorer.count(column, results, computed)
        if column.is_cut_short:
            scorer.metrics.count("degraded_total")
        answers.append(
            responses.Column(variant.info, variant.name, results, column.stages, column.is_cut_short)
        )
    usage = Usage(
        pairs=sum(column.usage.pairs for column in columns),
        tokens=sum(column.usage.tokens for column in columns),
    )
    return CompareResponse(catalog.base.name, answers, usage, computed.timing(deadline))


async def attention(
    scorer: Scorer, request: AttentionRequest, catalog: Catalog, deadline: Deadline
) -> AttentionResponse:
    """Return the attention of the wanted heads over one pair."""
    variant = catalog.choose(request.variant, request.head_mask)
    current().asks_for([(variant.name, variant.mask.id)], 1)
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
    return AttentionResponse(
        model=classifier.name,
        variant=variant.name,
        head_mask=variant.info,
        tokens=classifier.tokenizer.tokens(pair),
        segments=[0] * pair.title_start + [1] * (len(pair) - pair.title_start),
        heads=[HeadAttention(*head, matrix) for head, matrix in zip(heads, row.result, strict=True)],
        timing_ms=computed.timing(deadline),
    )


def _variant(param: str, catalog: Catalog, name: str | None, form: MaskForm | None) -> Variant:
    """Choose the variant and mask of one column; errors name the column."""
    try:
        return catalog.choose(name, form)
    except (InvalidRequest, InvalidMask) as error:
        raise InvalidRequest(str(error).removeprefix("variant: "), param=param) from None


def _heads_of(spec: str, classifier: Classifier) -> tuple[tuple[int, int], ...]:
    """Return the heads of a list such as `2.3,4.*` as (layer, head): a mask of this spec switches them off.

    Raises InvalidRequest if it is no such list, or empty.
    """
    try:
        mask = HeadMask.parse(spec, layers=classifier.num_layers, heads=classifier.num_heads)
    except InvalidMask as error:
        raise InvalidRequest(str(error), param="heads") from None
    if mask.skipped:
        raise InvalidRequest("names layers with skip:; list heads, such as 2.3,4.*", param="heads")
    if not mask.off:
        raise InvalidRequest("names no head; list some, such as 2.3,4.*", param="heads")
    return mask.off
