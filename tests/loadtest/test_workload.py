"""The requests: what the plan says, and the same every time."""

import gzip
import json
from collections import Counter

import numpy as np
import pytest

from headroom.loadtest.pairs import made_up_pairs, read_pairs
from headroom.loadtest.plan import PlanError, make_plan
from headroom.loadtest.workload import Workload, title_counts

PAIRS = [(f"query {i // 4}", f'title "{i}" é') for i in range(40)]


def requests(traffic, *, keys=None, pairs=PAIRS, url="http://127.0.0.1:1/base/", **values):
    plan = make_plan({"url": url, "warmup": 0, "traffic": traffic, "rate": 100, "duration": 10, **values})
    return list(Workload(plan, pairs, keys or {}).requests())


def body(request):
    head, _, payload = request.payload.partition(b"\r\n\r\n")
    assert f"content-length: {len(payload)}".encode() in head
    return json.loads(payload)


def test_a_score_request_is_what_the_service_takes():
    traffic = [
        {
            "titles": 3,
            "masks": "2.3,7.*;",
            "variants": "full",
            "units": 5,
            "deadline_ms": 200,
            "on_failure": "original_order",
        }
    ]
    made = requests(traffic, keys={"HEADROOM_API_KEY": "s3cret"})
    head = made[0].payload.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    assert head[0] == "POST /base/v1/score HTTP/1.1"
    assert {"host: 127.0.0.1:1", "content-type: application/json", "authorization: Bearer s3cret"} <= set(
        head
    )
    for request in made:
        sent = body(request)
        assert sent.keys() == {"query", "titles", "head_mask", "variant", "unit", "deadline_ms", "on_failure"}
        assert sent["on_failure"] == "original_order"
        assert (sent["head_mask"], sent["variant"], sent["deadline_ms"]) == ("2.3,7.*", "full", 200)
        assert len(sent["titles"]) == request.titles == 3
        assert (sent["query"], sent["titles"][0]) in PAIRS
    assert {body(request)["unit"] for request in made} == {f"user-{i}" for i in range(5)}


def test_texts_repeat_as_zipfs_law_says():
    """A search of two titles has two pairs, which come again only if it does: so does each, as 1/k of 10."""
    pairs = [PAIRS[7 * number % 40] for number in range(40)]
    made = [body(r) for r in requests([{"titles": 2, "zipf": 1.0}], pairs=pairs, duration=100)]
    queries = Counter(sent["query"] for sent in made)
    scored = Counter((sent["query"], title) for sent in made for title in sent["titles"])
    harmonic = sum(1 / k for k in range(1, 11))
    expected = [1 / harmonic / k for k in range(1, 11)]
    assert [count / len(made) for _, count in queries.most_common()] == pytest.approx(expected, abs=0.01)
    of_pairs = [count / len(made) for _, count in scored.most_common()]
    assert of_pairs == pytest.approx([share for share in expected for _ in range(2)], abs=0.01)


def test_without_zipf_requests_begin_with_every_pair_alike():
    made = [body(r) for r in requests([{"titles": 1}], duration=100)]
    counts = Counter((sent["query"], sent["titles"][0]) for sent in made)
    assert counts.keys() == set(PAIRS)
    assert max(counts.values()) < 2 * min(counts.values())


def test_titles_masks_and_tenants_come_at_their_shares():
    traffic = [
        {
            "name": "a",
            "weight": 3,
            "titles": "1=3,10-20=1",
            "masks": "none=3,0.*=1",
            "variants": "full=1,small=1",
        },
        {"name": "b", "weight": 1, "endpoint": "compare", "titles": 2, "masks": "none,0.*"},
    ]
    made = requests(traffic, duration=100)
    tenants = Counter(request.kind.traffic.name for request in made)
    assert tenants["a"] / len(made) == pytest.approx(0.75, abs=0.02)
    a = [request for request in made if request.kind.traffic.name == "a"]
    assert sum(request.titles == 1 for request in a) / len(a) == pytest.approx(0.75, abs=0.02)
    assert {request.titles for request in a} == {1, *range(10, 21)}
    assert sum(request.kind.mask == "none" for request in a) / len(a) == pytest.approx(0.75, abs=0.02)
    assert sum(request.kind.variant == "small" for request in a) / len(a) == pytest.approx(0.5, abs=0.03)
    assert {request.kind.variant for request in a} == {"full", "small"}
    b = next(request for request in made if request.kind.traffic.name == "b")
    assert body(b)["masks"] == ["none", "0.*"]


@pytest.mark.parametrize(
    ("endpoint", "path", "fields"),
    [
        ("rerank", "/v1/rerank", {"query", "documents"}),
        ("tei-rerank", "/rerank", {"query", "texts"}),
        ("attention", "/v1/attention", {"query", "title", "heads"}),
        ("condense", "/v1/condense", {"query", "titles"}),
    ],
)
def test_other_endpoints_get_their_own_shape(endpoint, path, fields):
    request = requests([{"endpoint": endpoint, "titles": 2}], url="http://127.0.0.1:1")[0]
    assert request.payload.startswith(f"POST {path} ".encode())
    assert body(request).keys() == fields


def test_any_path_can_be_asked_for():
    request = requests([{"endpoint": "GET /health/live?a=%20"}])[0]
    assert request.payload.startswith(b"GET /base/health/live?a=%20 HTTP/1.1\r\n")
    assert request.payload.endswith(b"\r\n\r\n")


def test_only_what_comes_after_the_warm_up_is_measured():
    made = requests([{}], warmup=2, arrivals="constant")
    assert [r.measured for r in made] == [False] * 200 + [True] * 1000


def test_the_largest_number_of_titles_is_named():
    assert title_counts(100_000)[0].tolist() == [100_000]
    for text in ("100001", "1-100001", "0", "0-5", "5-0"):
        with pytest.raises(PlanError, match=f"--titles: '{text}': a request has from 1 to 100,000 titles"):
            title_counts(text)
    with pytest.raises(PlanError, match="--titles: '5-1': write the smaller number first"):
        title_counts("5-1")


def test_made_up_pairs_have_the_lengths_of_product_search():
    pairs = made_up_pairs(1)
    tokens = np.array([len(query.split()) + len(title.split()) + 3 for query, title in pairs])
    assert tokens.mean() == pytest.approx(25, rel=0.02)
    assert np.quantile(tokens, [0.95, 0.99]) == pytest.approx([39, 48], abs=1.5)
    assert len({query for query, _ in pairs}) > 400
    assert made_up_pairs(1) == pairs != made_up_pairs(2)


def test_pairs_are_read_from_the_files_that_people_have(tmp_path):
    pairs = [("angle, bracket", 'the "best" é'), ("screws", "wood deck screws")]
    csv = tmp_path / "a.csv"
    csv.write_text(
        'id,query,title\n1,"angle, bracket","the ""best"" é"\n2,screws,wood deck screws\n', "utf-8-sig"
    )
    tsv = tmp_path / "a.tsv"
    tsv.write_text('query\ttitle\nangle, bracket\t"the ""best"" é"\nscrews\twood deck screws\n', "utf-8")
    jsonl = tmp_path / "a.jsonl"
    jsonl.write_text("\n".join(json.dumps({"query": q, "title": t, "grade": 1}) for q, t in pairs) + "\n\n")
    assert read_pairs(csv) == read_pairs(tsv) == read_pairs(jsonl) == pairs
    packed = tmp_path / "a.tsv.gz"
    packed.write_bytes(gzip.compress(tsv.read_bytes()))
    assert read_pairs(packed) == pairs


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.csv", "query,title\na,b\n ,b\n", "row 2: expected the texts query and title"),
        ("a.jsonl", "{\n", "cannot be read"),
        (
            "a.tsv",
            'query\ttitle\na\tb\nc\t"d\ne\tf"\n',
            "row 2: a quote does not close in its line; double it",
        ),
        ("a.txt", "a\tb\n", "none of .csv, .tsv, .jsonl, .ndjson"),
    ],
)
def test_a_wrong_file_of_pairs_is_refused(tmp_path, name, text, reason):
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(PlanError, match=reason):
        read_pairs(file)
