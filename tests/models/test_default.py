"""The model that ships: whole, small, the same in transformers, and sensible on real titles."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertForSequenceClassification

from default_model.checks import read_quadruples
from headroom import Classifier
from headroom.models.checkpoint.config import read_config
from headroom.models.checkpoint.hub import DEFAULT
from headroom.models.compress.quantize import quantize
from headroom.models.quality.graded import GradedEvaluation
from headroom.models.quality.labelled import LabelledPair, read_labelled, read_pairs

SAMPLES = Path(__file__).parents[2] / "data" / "sample"


@pytest.fixture(scope="module")
def clf() -> Classifier:
    return Classifier.load(device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def sample() -> list[LabelledPair]:
    return read_labelled(SAMPLES / "calibration.jsonl.gz", grades=5)


def test_it_has_the_source_studys_geometry_and_five_grades(clf: Classifier) -> None:
    assert (clf.num_layers, clf.num_heads, len(clf.grades)) == (12, 12, 5)
    assert (DEFAULT / "model.safetensors").stat().st_size <= 80_000_000
    assert (DEFAULT / "MODEL_CARD.md").exists()
    assert clf.quality is not None


def test_the_proven_mask_and_two_smaller_networks_are_shipped_with_the_model(clf: Classifier) -> None:
    assert {name: mask.heads_on for name, mask in clf.stored_masks.items()} == {"pruned20": 115}
    networks = {path.name: read_config(path) for path in (DEFAULT / "networks").iterdir()}
    assert {name: (config.num_layers, sum(config.widths)) for name, config in networks.items()} == {
        "fast": (12, 5504),
        "rough": (5, 2304),
    }


@pytest.mark.more
def test_the_smaller_networks_change_what_the_documentation_says() -> None:
    """QWK on a third of the held-out queries; docs/pruning.md has the figures on all of them, in bfloat16.
    The processor's own format is used: without bfloat16 in it, float32."""
    whole = read_labelled(SAMPLES / "test.jsonl.gz", grades=5)
    some = set(list(dict.fromkeys(pair.query for pair in whole))[::3])
    sample = [pair for pair in whole if pair.query in some]
    pairs = [(pair.query, pair.title) for pair in sample]

    def qwk(model: Classifier) -> float:
        scores = model.score(pairs)
        return GradedEvaluation(sample, scores.probabilities, scores.raw_score).metrics()["qwk"]

    intact = qwk(Classifier.load(device="cpu"))
    for name, change, error in (("fast", 0.022, 0.019), ("rough", -0.020, 0.020)):  # of so few queries
        smaller = Classifier.load(DEFAULT / "networks" / name, "cpu")
        assert qwk(smaller) - intact == pytest.approx(change, abs=2 * error), name


@pytest.mark.more
@pytest.mark.parametrize("name", ["fast", "rough"])
def test_the_smaller_networks_grade_in_int8_as_in_float32(name: str, tmp_path: Path) -> None:
    source, int8 = DEFAULT / "networks" / name, tmp_path / "int8"
    exact = Classifier.load(source, "cpu", "float32")
    quantize(source, int8, exact.tokenizer.encode(read_pairs(SAMPLES / "calibration.jsonl.gz")[:400]))
    judged = read_labelled(SAMPLES / "test.jsonl.gz", grades=5)[::12]
    pairs = [(pair.query, pair.title) for pair in judged]

    floats, ours = exact.score(pairs), Classifier.load(int8, "cpu").score(pairs)

    assert (ours.grade == floats.grade).mean() >= 0.93
    assert np.abs(ours.expected_grade - floats.expected_grade).mean() < 0.06


def test_transformers_gives_the_same_logits(clf: Classifier, sample: list[LabelledPair]) -> None:
    pairs = [(pair.query, pair.title) for pair in sample[:24]]
    model = BertForSequenceClassification.from_pretrained(DEFAULT, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(DEFAULT)
    inputs = tokenizer(
        [query for query, _ in pairs],
        [title for _, title in pairs],
        padding=True,
        truncation=True,
        max_length=clf.max_tokens,
        return_tensors="pt",
    )
    with torch.no_grad():
        expected = model(**inputs).logits.numpy()

    np.testing.assert_allclose(clf.score(pairs).logits, expected, atol=1e-4)


def test_every_grade_is_predicted_and_ranking_beats_a_random_order(sample: list[LabelledPair]) -> None:
    some = set(list(dict.fromkeys(pair.query for pair in sample))[::12])
    sample = [pair for pair in sample if pair.query in some]
    scores = Classifier.load(device="cpu").score([(pair.query, pair.title) for pair in sample])
    evaluation = GradedEvaluation(sample, scores.probabilities, scores.raw_score)

    assert set(scores.grade) == {0, 1, 2, 3, 4}
    assert evaluation.metrics()["ndcg10"] > evaluation.random_order_ndcg10() + 0.02


def test_bfloat16_grades_as_float32_does(clf: Classifier, sample: list[LabelledPair]) -> None:
    few = sample[:120:3]  # without the processor's own bfloat16, six a second
    pairs = [(pair.query, pair.title) for pair in few]
    exact = clf.score(pairs)
    half = Classifier.load(device="cpu", dtype="bfloat16").score(pairs)

    assert np.abs(half.score - exact.score).max() < 0.05
    assert (half.grade == exact.grade).mean() > 0.97


SYNONYMS = (
    ("sofa", "Modern Couch, Grey Fabric, 3 Seater", "Motor Oil 5W-30"),
    ("couch", "Modern Sofa, Grey Fabric, 3 Seater", "Motor Oil 5W-30"),
    ("television", "LG 43 inch LED TV", "Wool Gloves"),
    ("sneakers", "Puma Mens Running Shoes", "Garden Rake"),
    ("trash can", "Garbage Bin with Lid, 13 Gallon", "Ballpoint Pens"),
    ("rug", "Area Carpet, 5 x 7, Blue", "Phone Charger"),
    ("cellphone", "Nokia Mobile Phone, Dual SIM", "Baking Soda"),
    ("bag", "Leather Handbag, Brown", "Drill Bits"),
)


@pytest.fixture(scope="module")
def quadruples() -> list[dict[str, str]]:
    return read_quadruples("english")


def expected_grades(clf: Classifier, pairs: list[tuple[str, str]], columns: int) -> np.ndarray:
    """(len(pairs) / columns, columns)."""
    return clf.score(pairs).expected_grade.reshape(-1, columns)


def test_a_typo_or_another_word_order_still_finds_the_product(
    clf: Classifier, quadruples: list[dict[str, str]]
) -> None:
    rng = random.Random(0)
    misspelled, reordered = [], []
    for row in quadruples:
        words = row["query"].split()
        longest = max(words, key=len)
        place = rng.randrange(1, len(longest) - 1)
        swapped = longest[:place] + longest[place + 1] + longest[place] + longest[place + 2 :]
        misspelled.append(" ".join(swapped if word == longest else word for word in words))
        reordered.append(" ".join(rng.sample(words, len(words))))

    for queries in (misspelled, reordered):
        pairs = [
            (query, row[kind])
            for query, row in zip(queries, quadruples, strict=True)
            for kind in ("exact", "unrelated")
        ]
        exact, unrelated = expected_grades(clf, pairs, 2).T
        assert (exact > unrelated).mean() >= 0.95


def test_a_synonym_beats_an_unrelated_product(clf: Classifier) -> None:
    pairs = [(query, title) for query, *titles in SYNONYMS for title in titles]
    synonym, unrelated = expected_grades(clf, pairs, 2).T

    assert (synonym > unrelated).mean() >= 0.85, dict(
        zip((row[0] for row in SYNONYMS), synonym - unrelated, strict=True)
    )
