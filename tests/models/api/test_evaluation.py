"""`headroom.evaluate`: the command's figures, from a frame, a file or a list."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from headroom import Classifier, Evaluated, ModelError, evaluate
from tests.prompt import options as options
from tests.prompt import run as run

pytestmark = pytest.mark.usefixtures("one_thread")

THINGS = "lamp cable case screw deck towel angle bracket".split()
COLOURS = "red blue black white steel".split()


@pytest.fixture(scope="module")
def judged() -> pd.DataFrame:
    """160 pairs of 40 queries: the grade is how many of two words the title shares, or a few more."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(40):
        query = f"{COLOURS[number % 5]} {THINGS[number % 8]} {number}"
        for drawn in rng.choice(len(COLOURS) * len(THINGS), 4, replace=False):
            title = f"{COLOURS[drawn % 5]} {THINGS[drawn // 5]}"
            shared = len(set(query.split()) & set(title.split()))
            rows.append((query, title, 2 * shared))
    return pd.DataFrame(rows, columns=["query", "title", "grade"])


@pytest.fixture(scope="module")
def evaluated(clf: Classifier, judged: pd.DataFrame) -> Evaluated:
    return evaluate(clf, judged, masks=["none", "1-2.*"])


def test_a_table_has_each_metric_of_each_side_with_its_interval_and_its_paired_change(
    clf: Classifier, judged: pd.DataFrame, evaluated: Evaluated
) -> None:
    table = evaluated.to_frame()
    assert table.groupby("side", sort=False)["head_mask"].first().to_dict() == {
        "full": "none",
        "full 1-2.*": "1-2.*",
    }
    values = table.set_index(["side", "metric"])
    for side, mask in (("full", None), ("full 1-2.*", "1-2.*")):
        pairs = list(judged[["query", "title"]].itertuples(index=False, name=None))
        right = (clf.score(pairs, head_mask=mask).grade == judged["grade"].to_numpy()).mean()
        assert values.loc[(side, "accuracy"), "value"] == pytest.approx(right)
    of_mask = values.loc["full 1-2.*"]
    np.testing.assert_allclose(of_mask["change"], of_mask["value"] - values.loc["full"]["value"], atol=1e-9)
    with_interval = of_mask.dropna()  # few queries have a title of the highest grade
    assert {"accuracy", "ndcg10"} <= set(with_interval.index)
    assert (with_interval["change_low"] <= with_interval["change"]).all()
    assert (with_interval["change"] <= with_interval["change_high"]).all()
    assert values.loc["full"]["change"].isna().all()


def test_a_frame_a_file_and_a_list_give_the_same_figures(
    clf: Classifier, judged: pd.DataFrame, evaluated: Evaluated, tmp_path: Path
) -> None:
    judged.to_csv(tmp_path / "judged.csv", index=False)
    renamed = judged.rename(columns={"query": "q", "title": "name", "grade": "stars"})
    tuples = list(judged.itertuples(index=False, name=None))
    for again in (
        evaluate(clf, tmp_path / "judged.csv", masks=["none", "1-2.*"]),
        evaluate(clf, tuples, masks=[clf.all_heads, clf.mask("1-2.*")]),
        evaluate(clf, renamed, ["none", "1-2.*"], query="q", title="name", grade="stars"),
    ):
        pd.testing.assert_frame_equal(again.to_frame(), evaluated.to_frame())


def test_several_models_are_compared_in_what_they_share(
    clf: Classifier, one_label: Classifier, judged: pd.DataFrame
) -> None:
    table = evaluate({"graded": clf, "plain": one_label}, judged).to_frame()
    metrics = table.groupby("side")["metric"].agg(set)
    assert "ndcg10" in metrics["plain"]
    assert "qwk" in metrics["graded"] - metrics["plain"]
    change = table[table["side"] == "plain"].set_index("metric")["change"]
    assert np.isfinite(change["ndcg10"])
    two = evaluate([clf, clf], judged).to_frame()
    assert two["side"].unique().tolist() == [clf.name, f"{clf.name} 1"]


def test_it_shows_itself_in_a_terminal_and_in_a_notebook(evaluated: Evaluated) -> None:
    first = repr(evaluated).splitlines()[1]
    assert first.endswith("on data: 160 pairs, 40 queries (32 with titles of different grades)")
    assert "ndcg10" in repr(evaluated)
    page = evaluated._repr_html_()
    assert page.startswith(f"<p><strong>{first}</strong></p>\n<p>full 1-2.* ")
    assert page.count("<table>") == page.count("</table>") > 2
    labels = [text.get_text() for text in evaluated.plot().axes[0].get_yticklabels()]
    labels_of_changes = ["full 1-2.*", "word overlap", "BM25", "order"]
    assert labels == labels_of_changes, "paired changes from the first side"


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"columns": ["query", "title", "rating"]}, {}, "data has no column 'grade'; found 'query', 'title'"),
        ({"title": None}, {}, "data, row 0: there is no title"),
        ({}, {"masks": ["none", "3.*"]}, r"masks\[1\]: layer 3 does not exist; this model has layers 0 to 2"),
        ({}, {"relevant": 5}, "relevant: 5 is outside the model's grades above 0, 1 to 4"),
    ],
)
def test_wrong_input_is_refused_in_a_sentence(
    clf: Classifier, judged: pd.DataFrame, change: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    wrong = judged.copy()
    if "columns" in change:
        wrong.columns = change["columns"]
    else:
        wrong = wrong.assign(**change)
    with pytest.raises(ModelError, match=message) as error:
        evaluate(clf, wrong, **options)
    assert "\n" not in str(error.value)


def test_grades_are_compared_where_each_query_has_one_title(clf: Classifier, judged: pd.DataFrame) -> None:
    """An order needs two titles; a grade does not, and was told that its 160 queries are too few."""
    alone = judged.assign(query=[f"{query} {row}" for row, query in enumerate(judged["query"])])
    evaluated = evaluate(clf, alone, masks=["none", "2.3"])
    (difference,) = evaluated.content["differences"]
    assert {name for name, needed in difference["queries_needed"].items() if needed is None} == {"ndcg10"}


@pytest.mark.parametrize("relevant", [0, 101, 2.5])
def test_a_model_without_grades_takes_a_relevant_grade_above_0(
    one_label: Classifier, judged: pd.DataFrame, relevant: Any
) -> None:
    with pytest.raises(ModelError, match=f"relevant: {relevant} is outside the grades above 0, 1 to 100"):
        evaluate(one_label, judged, relevant=relevant)
