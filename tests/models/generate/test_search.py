"""Greedy and beam search, alone and in batches."""

import pytest
import torch

from headroom import Classifier
from headroom.models.generate.generator import Ask, Generator
from headroom.models.generate.memory import memory_of, states_of
from headroom.models.generate.search import Written, search
from tests.models.generate.test_network import QUESTIONS


def ask(writer: Classifier, question: str, beams: int, mask: str = "none") -> Ask:
    return writer.checked_generator().ask(question, beams, writer.generation_mask(mask))


def step_by_step(generator: Generator, question: str) -> tuple[list[int], float]:
    """Return the likeliest piece at each step, and the mean logarithm of their probabilities."""
    network = generator.network
    encoded = generator.encode(question)
    memory = memory_of([encoded], states_of(generator.encoder, [encoded]), generator.tokenizer.unknown)
    pieces = [network.config.start]
    logs = []
    has_text = False
    while len(pieces) < network.config.max_pieces:
        ids = torch.tensor([pieces])
        x, _ = network(ids, network.begin(memory))
        row = network.log_probabilities(ids, x, memory)[0, -1].exp()
        likelihood: dict[int, float] = {}
        names = [*network.pieces.tolist(), *memory.pieces[0].tolist()]
        for piece, value in zip(names, row.tolist(), strict=True):
            likelihood[piece] = likelihood.get(piece, 0.0) + value
        if not has_text:
            del likelihood[network.config.end]
        if not has_text and len(pieces) > 1:
            likelihood = {
                piece: p for piece, p in likelihood.items() if piece >= 0 and generator.readable[piece]
            }
        allowed = memory.pieces[0].tolist()
        for piece in set(pieces[1:]):
            if generator.readable[piece] and pieces[1:].count(piece) >= max(1, allowed.count(piece)):
                likelihood.pop(piece, None)
        best = max(likelihood, key=likelihood.__getitem__)
        logs.append(torch.tensor(likelihood[best]).log().item())
        if best == network.config.end:
            break
        has_text = has_text or bool(generator.readable[best])
        pieces.append(best)
    return pieces[1:], sum(logs) / (len(pieces) - 1 + 1)


@pytest.mark.parametrize("question", QUESTIONS)
def test_one_beam_takes_the_likeliest_piece_at_each_step(generator: Generator, question: str) -> None:
    with torch.inference_mode():
        pieces, log = step_by_step(generator, question)
        encoded = generator.encode(question)
        memory = memory_of([encoded], states_of(generator.encoder, [encoded]), generator.tokenizer.unknown)
        writable = generator.writable.of([encoded])
        ((written,),) = search(generator.network, memory, [1], generator.readable, writable)
    assert list(written.pieces) == pieces
    assert written.score == pytest.approx(torch.tensor(log).exp().item(), rel=1e-4)


@pytest.mark.parametrize("beams", [1, 4, 8])
def test_queries_differ_are_not_empty_and_come_best_first(writer: Classifier, beams: int) -> None:
    for question in QUESTIONS:
        queries = writer.generate_query(question, beams)
        assert 1 <= len(queries) <= beams
        assert len({one.query for one in queries}) == len(queries)
        assert all(any(map(str.isalnum, one.query)) for one in queries)
        scores = [one.score for one in queries]
        assert scores == sorted(scores, reverse=True)
        assert all(0 < score <= 1 for score in scores)


@pytest.mark.parametrize("mask", ["none", "0-1.*;cross:1.2"])
def test_a_query_counts_as_much_as_the_decoder_finds_it_likely_and_the_classifier_relevant(
    writer: Classifier, mask: str
) -> None:
    generator = writer.checked_generator()
    asked = ask(writer, QUESTIONS[0], 4, mask)
    likely = {generator.text(one): one.score for one in generator.write([asked])[0]}
    relevance = writer.score(QUESTIONS[0], list(likely), head_mask=asked.mask.encoder).score
    expected = {query: p * float(r) ** 4 for (query, p), r in zip(likely.items(), relevance, strict=True)}
    found = writer.generate_query(QUESTIONS[0], 4, mask)
    assert dict(found) == pytest.approx(expected, rel=1e-4)
    assert [one.query for one in found] == sorted(expected, key=lambda query: -expected[query])


def test_pieces_that_are_not_writable_come_only_from_the_question(generator: Generator) -> None:
    encoded = [generator.encode(question) for question in QUESTIONS]
    memory = memory_of(encoded, states_of(generator.encoder, encoded), generator.tokenizer.unknown)
    network = generator.network
    writable = torch.zeros(len(encoded), len(network.pieces), dtype=torch.bool)
    writable[:, network.pieces == network.config.end] = True
    writable[0] = True
    with torch.inference_mode():
        free, *bound = search(network, memory, [4] * len(encoded), generator.readable, writable)
    outside = [set(one.pieces) - set(memory.pieces[0].tolist()) for one in free]
    assert any(outside)
    for row, queries in enumerate(bound, start=1):
        for one in queries:
            assert set(one.pieces) <= set(memory.pieces[row].tolist())


def test_a_question_gets_the_same_queries_alone_and_beside_others(writer: Classifier) -> None:
    asks = [
        ask(writer, QUESTIONS[0], 4),
        ask(writer, QUESTIONS[0], 4, "cross:0.*"),
        ask(writer, QUESTIONS[1], 1, "0-1.*;decoder:0.1"),
        ask(writer, QUESTIONS[2], 8, "1.2"),
        ask(writer, QUESTIONS[2], 2, "skip:1;cross:1.0,1.3"),
    ]
    together = writer.write_queries(asks)
    for one, queries in zip(asks, together, strict=True):
        same_queries(queries, writer.write_queries([one])[0])
    assert together[0] != together[1]  # the mask acts


def same_queries(found: list[Written], expected: list[Written]) -> None:
    assert [one.pieces for one in found] == [one.pieces for one in expected]
    assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-5)


def test_attention_of_each_piece_over_the_question(writer: Classifier, generator: Generator) -> None:
    ((query,),) = generator.write([ask(writer, QUESTIONS[0], 1)])
    whole = generator.align(ask(writer, QUESTIONS[0], 1), query)
    assert "".join(whole.pieces).strip() == generator.text(query)
    assert whole.probabilities.shape == (2, 4, len(whole.pieces), len(whole.question))
    torch.testing.assert_close(
        torch.from_numpy(whole.probabilities).sum(-1), torch.ones(2, 4, len(whole.pieces))
    )
    masked = generator.align(ask(writer, QUESTIONS[0], 1, "cross:1.3"), query)
    assert not masked.probabilities[1, 3].any()
    torch.testing.assert_close(masked.probabilities[0], whole.probabilities[0])
