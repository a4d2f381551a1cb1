"""The page's own arithmetic, in the browser: attention of joined words, Prometheus text, csv files."""

import pytest

from tests.service.page.browsing import Page

pytestmark = pytest.mark.slow

METRICS = """\
# HELP a_total Things \\\\ done.
# TYPE a_total counter
a_total{kind="x",why="say \\"no\\", {then} = 1"} %d
a_total{kind="y",why=""} %d
t_bucket{le="0.1"} %d
t_bucket{le="1.0"} %d
t_bucket{le="+Inf"} %d
t_sum %d
t_count %d
gone NaN
"""
BEFORE = METRICS % (100, 5, 10, 10, 10, 1, 10)
AFTER = METRICS % (160, 1, 10, 30, 30, 11, 30)
"""x grew by 60; y began anew and is at 1; 20 things took 0.1 to 1 s."""


def test_rates_and_quantiles_come_from_differences(page: Page) -> None:
    page.open()
    script = """(() => {
      const [before, after] = [...arguments].slice(0, 2).map((text) => prometheus.parse(text));
      return [
        prometheus.growth(before, after, 'a_total', {kind: 'x'}),
        prometheus.growth(before, after, 'a_total', {kind: 'y'}),
        prometheus.samples(after, 'a_total')[0].labels.why, prometheus.quantileOf(before, after, 't', 0.5),
        prometheus.meanOf(before, after, 't'), prometheus.quantileOf(after, after, 't', 0.5),
        prometheus.quantileOf(before, after, 't', 0.5, {}, [{pairs: 20, seconds: 0.5}]), // the tab's own
        prometheus.quantileOf(before, after, 't', 0.5, {}, [{pairs: 20, seconds: null}]), // not known
      ]})()"""
    assert page.evaluate(script, BEFORE, AFTER) == [
        60,
        1,
        'say "no", {then} = 1',
        pytest.approx(0.55),
        0.5,
        None,
        None,
        pytest.approx(0.55),
    ]


def test_unknown_pieces_show_their_text(page: Page) -> None:
    page.open()
    script = "tokens.withUnknown(arguments[0], arguments[1], arguments[2])"
    names = ["[CLS]", "a", "[UNK]", "mouse", "[SEP]", "[UNK]", "[UNK]", "##s", "[SEP]"]
    found = page.evaluate(script, names, [0] * 5 + [1] * 4, ["A ☃☃ mouse", "龘 𓀀s"])
    assert found == ["[CLS]", "a", "☃☃", "mouse", "[SEP]", "龘", "𓀀", "##s", "[SEP]"]


def test_files_are_read_with_quotes_lines_and_tabs(page: Page) -> None:
    page.open()
    script = "arguments[0].map((text) => texts.readFile(text)).map(({query, titles}) => [query, titles])"
    files = [
        '\ufeffquery,title\r\na,"x, ""y""\nz"\r\na,w\r\nb,v\r\n',
        "Title\tgrade\none\t1\n\ntwo\t2\n",
        "just a title\nanother, with a comma\n",
        "",
    ]
    assert page.evaluate(script, files) == [
        ["a", ['x, "y"\nz', "w"]],
        [None, ["one", "two"]],
        [None, ["just a title", "another, with a comma"]],
        [None, []],
    ]
