"""Measures the parts of a request's time below HTTP, in this process."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.crowd import Requests
from benchmarks.parts import measure as shares_of
from models.checkpoint.hub import DEFAULT
from models.classifier import Classifier
from models.head_mask import HeadMask
from service.batching.scheduler import Batch, Item, Scheduler
from service.engine import Lane, Row, RowScore, score_rows
from service.http import strict_json
from service.schemas.requests import ScoreRequest
from service.schemas.responses import ScoreResult, to_json

TIMES = 100


def measure(titles: int, model: Path = DEFAULT) -> dict[str, Any]:
    """Return milliseconds of each part of a request: processor time, but wall time for the forward pass.

    `forward` in the result holds the shares of the forward pass by part.
    """
    classifier = Classifier.load(model)
    requests = Requests(titles)
    bodies = [requests.body() for _ in range(TIMES)]
    parse = partial(strict_json.loads, max_depth=32, max_parts=50_000)
    values = [parse(body) for body in bodies]
    texts = [[(value["query"], title) for title in value["titles"]] for value in values]
    mask = HeadMask.none(classifier.num_layers, classifier.num_heads)

    parts = {"parse JSON": _median_ms(lambda k: parse(bodies[k]))}
    parts["validate"] = _median_ms(lambda k: ScoreRequest.model_validate(values[k]))
    parts["tokenize, new texts"] = _median_ms(lambda k: classifier.tokenizer.encode(texts[k]))
    parts["tokenize, known texts"] = _median_ms(lambda k: classifier.tokenizer.encode(texts[k]))
    rows = [[Row(pair, mask) for pair in classifier.tokenizer.encode(pairs)] for pairs in texts]
    parts["schedule"] = asyncio.run(_schedule(rows))
    parts["forward"] = _median_ms(lambda k: score_rows(classifier, rows[k]), clock=time.perf_counter)
    scored = [score_rows(classifier, batch) for batch in rows]
    parts["answer"] = _median_ms(lambda k: to_json(_answer(classifier, rows[k], scored[k])))
    some = [[row.pair for row in batch] for batch in rows[:20]]
    shares = shares_of(lambda: [classifier.forward(pairs) for pairs in some], calls=1)
    return {"titles": titles, "ms": parts, "forward": shares}


def as_markdown(result: dict[str, Any]) -> str:
    """Return a table of the parts in their order."""
    shares = ", ".join(f"{name} {share:.0%}" for name, share in result["forward"].items())
    lines = [f"| part of a request of {result['titles']} titles | ms |", "|---|---|"]
    lines += [
        f"| {name}{f' ({shares})' if name == 'forward' else ''} | {milliseconds:.3f} |"
        for name, milliseconds in result["ms"].items()
    ]
    return "\n".join(lines)


def _median_ms(call: Callable[[int], object], clock: Callable[[], float] = time.thread_time) -> float:
    taken = []
    for turn in range(TIMES):
        began = clock()
        call(turn)
        taken.append(clock() - began)
    return statistics.median(taken) * 1000


async def _schedule(rows: Sequence[Sequence[Row]]) -> float:
    """Return the milliseconds of admission, batching and delivery, with a device that takes no time."""

    async def run(batch: Batch[Row]) -> Sequence[Row]:
        return [item.payload for item in batch.items]

    scheduler: Scheduler[Row, Row] = Scheduler(
        run, max_batch_tokens=1024, max_queue_tokens=65_536, max_request_tokens=128_000, max_age_s=0.5
    )
    running = asyncio.create_task(scheduler.run())
    taken = []
    for batch in rows:
        began = time.thread_time()
        await scheduler.submit([Item(len(row.pair), Lane(""), row) for row in batch]).result()
        taken.append(time.thread_time() - began)
    await scheduler.drain()
    await running
    return statistics.median(taken) * 1000


def _answer(
    classifier: Classifier, rows: Sequence[Row], scored: Sequence[RowScore | Exception]
) -> list[ScoreResult]:
    return [
        ScoreResult(
            index,
            score.grade,
            None if score.grade is None else classifier.grades[score.grade],
            score.expected_grade,
            score.score,
            score.probabilities,
            len(row.pair),
            row.pair.unknown_tokens,
            row.pair.truncated,
            score.raw_score,
        )
        for index, (row, score) in enumerate(zip(rows, scored, strict=True))
        if isinstance(score, RowScore)
    ]
