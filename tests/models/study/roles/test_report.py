"""Heads built by hand for a role are found, all of them and no other; and only the needed one is missed."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from headroom.models.checkpoint.tokenizer_files import _piece
from headroom.models.study import kinds
from headroom.models.study.page import Result
from headroom.models.study.roles.report import layer_matched
from headroom.models.study.roles.scores import max_t
from headroom.models.study.study import Study
from headroom.models.study.words import Words
from tests.models.study.planted import PLANTED, planted_study

pytestmark = pytest.mark.more


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return planted_study(tmp_path_factory.mktemp("roles"), queries=10, holdout=False)


@pytest.fixture(scope="module")
def result(study: Study) -> Result:
    return kinds.run("roles", study)


@pytest.mark.parametrize("role", PLANTED)
def test_exactly_the_planted_head_holds_the_role(result: Result, role: str) -> None:
    heads = result.json["roles"][role]

    assert [(head["layer"], head["head"]) for head in heads if head["holds"]] == [PLANTED[role]]
    assert heads[0]["p_adjusted"] < 0.05
    assert 1 >= heads[0]["score"] >= heads[0]["excess"] - 0.01
    assert heads[0]["interval"][0] > 0.3
    assert len(heads) == 24


def test_only_heads_that_the_grade_depends_on_are_missed(result: Result) -> None:
    causal = result.json["causal"]["roles"]

    assert causal["term_match"]["relative"]["qwk"].value < -0.9
    assert min(causal["term_match"]["random"]["qwk"]) == 0
    for role in ("previous_word", "next_word", "segmentation", "special"):
        assert causal[role]["relative"]["qwk"].value == 0


def test_random_sets_have_as_many_heads_of_each_layer() -> None:
    held = tuple((layer, head) for layer in range(4) for head in range(12))
    heads = ((0, 1), (0, 5), (2, 3))

    sets = layer_matched(heads, held, np.random.default_rng(0), 100)

    assert len(set(sets)) == len(sets) == 100
    for one in sets:
        assert [layer for layer, _ in one] == [0, 0, 2]
        assert not set(one) & set(heads)


def test_adjusted_p_keeps_the_familywise_error_rate() -> None:
    rng = np.random.default_rng(0)
    false_alarms = 0
    for _ in range(400):
        draws = rng.standard_normal((200, 30))
        false_alarms += max_t(draws[0], draws[1:]).min() <= 0.05
    assert 0.02 < false_alarms / 400 < 0.09


def test_word_pieces_of_one_word_count_as_one(study: Study) -> None:
    tokenizer = study.classifier.tokenizer
    (pair,) = tokenizer.encode([("bal masa", "masa bel petu")])

    words = Words.of(tokenizer, pair)

    assert words.word_of.tolist() == [-1, 0, 1, 1, -1, 2, 2, 3, 4, 4, -1]
    assert words.matches == [(1, 2)]
    everywhere = np.full((1, 11, 11), 1 / 11, np.float32)
    np.testing.assert_allclose(words.attention(everywhere)[0, 0], [1 / 11, 2 / 11, 2 / 11, 1 / 11, 2 / 11])
    whole = words.attention(everywhere, special=True)
    assert whole.shape == (1, 8, 8)
    np.testing.assert_allclose(whole[0].sum(1), 1, rtol=1e-5)


def test_chinese_words_are_those_of_the_split_whatever_the_pieces(study: Study) -> None:
    """A tokenizer of pieces without spaces between them, as SentencePiece reads Chinese."""
    pieces = ["<s>", " ", "空气", "炸", "锅", "大容", "量", "5L", "</s>", " 白色", "</s>"]
    tokenizer = SimpleNamespace(pieces=lambda _: [_piece(piece) for piece in pieces])
    (pair,) = study.classifier.tokenizer.encode([("bal", "bal")])
    pair = replace(pair, data=np.arange(11, dtype=np.int32).tobytes(), query_tokens=7)
    split = {"空气炸锅大容量5L": ["空气", "炸锅", "大容量", "5L"]}

    words = Words.of(tokenizer, pair, lambda run: split.get(run, [run]))  # type: ignore[arg-type]

    assert words.spelled == ("空气", "炸锅", "大容量", "5L", "白色")
    assert words.word_of.tolist() == [-1, 0, 0, 1, 1, 2, 2, 3, -1, 4, -1]
    assert words.in_title.tolist() == [False] * 4 + [True]
