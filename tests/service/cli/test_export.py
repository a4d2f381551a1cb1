"""`headroom experiment export`, and the queries of docs/warehouse.md on its file."""

import json
import re
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from headroom.service.cli.export import export_rows
from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.events import Click, Exposure, Impression, Outcome
from headroom.service.experiments.export import COLUMNS, Page, page
from headroom.service.experiments.interleaving import impression_id
from headroom.service.experiments.store import Store
from tests.prompt import Run
from tests.service.experimenting import KEYS
from tests.service.experiments.making import declares, experiment, exposure, in_log, send
from tests.service.page.seeding import served

ROOT = Path(__file__).parents[3]
SQL = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "warehouse.md").read_text("utf-8"), re.DOTALL)
AB = experiment()
ORDER = experiment(name="order", kind="interleave", salt="o", metrics=[{"name": "click"}])
SHOWN = ("ct-s", "tcs-", "ssss")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A database with an A/B test and an interleaving experiment."""
    address = f"sqlite:///{tmp_path / 'x.db'}"
    store = Store(address)
    for config in (AB, ORDER):
        store.append(declares(config, time=1.0))
    store.add([exposure(f"u{n}", ("control", "pruned")[n % 2], time=100.25 + n) for n in range(5)])
    outcomes = [Outcome("prune20", f"o{n}", f"u{n}", "click", 1.5, 200.0) for n in range(7)]
    send(store, outcomes, [AB])
    units = [f"u{n % 20}" for n in range(60)]
    store.add([Exposure("order", unit, "interleaved", 7, 10.0, "v") for unit in set(units)])
    lists = [
        Impression("order", impression_id("order", unit), unit, 20.0, "v", SHOWN[n % 3], (1, 0))
        for n, unit in enumerate(units)
    ]
    store.add(lists)
    sent = [
        Click("order", f"{n}", each.unit, "click", each.id, 1.0, 30.0, n % 7 // 5)
        for n, each in enumerate(lists)
        if n % 4
    ]
    assert send(store, sent, [ORDER]).accepted == 45
    yield address
    store.close()


def rows_of(file: Path) -> list[dict[str, Any]]:
    table = parquet.read_table(file)
    assert tuple(table.column_names) == COLUMNS
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def test_an_ab_test_leaves_with_the_arm_of_each_row(
    run: Run, url: str, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    out = tmp_path / "prune20.parquet"
    with served(tiny_checkpoint, database_url=url) as address:
        shown = run("experiment", "export", "prune20", "--out", str(out), "--url", address)
    assert f"{out}: 12 rows" in shown.out
    rows = rows_of(out)
    assert [(row["kind"], row["unit"], row["variation_id"]) for row in rows[4:7]] == [
        ("exposure", "u4", "control"),
        ("outcome", "u0", "control"),
        ("outcome", "u1", "pruned"),
    ]
    assert rows[11]["variation_id"] is None  # u6 was not exposed
    assert rows[0]["timestamp"] == datetime.fromtimestamp(100.25, UTC)
    assert {row["experiment_id"] for row in rows} == {"prune20"}
    assert (rows[5]["metric"], rows[5]["value"], rows[5]["team"]) == ("click", 1.5, None)


def test_the_queries_of_the_docs_give_the_preference_of_the_report(
    run: Run, url: str, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    out = tmp_path / "order.parquet"
    with served(tiny_checkpoint, database_url=url) as address:
        run("experiment", "export", "order", "--out", str(out), "--url", address)
    rows = rows_of(out)
    warehouse = sqlite3.connect(":memory:")
    warehouse.execute(f"CREATE TABLE headroom ({', '.join(map(json.dumps, COLUMNS))})")
    values = [[str(row[name]) if name == "timestamp" else row[name] for name in COLUMNS] for row in rows]
    warehouse.executemany(f"INSERT INTO headroom VALUES ({', '.join('?' * len(COLUMNS))})", values)
    exposed, outcomes, posthog, preference = (warehouse.execute(query).fetchall() for query in SQL)
    assert (len(exposed), len(outcomes), len(posthog)) == (20, 45, 20)
    assert exposed[0][2:] == ("order", "interleaved")
    assert posthog[0][0] == "$feature_flag_called"
    store = Store(url)
    found = analyse(store, in_log(store, "order"), 100.0).preference
    store.close()
    assert found is not None
    assert preference == [(pytest.approx(found.estimate), found.units)]
    assert 0 < found.units < 20
    warehouse.close()


def test_an_export_over_http_is_that_of_the_database_and_for_admins(
    run: Run, url: str, tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headroom.service.experiments.export.page.__defaults__", ("", 20))
    gone = tmp_path / "gone.parquet"
    store = Store(url)
    with served(tiny_checkpoint, api_keys=KEYS, database_url=url) as address:
        options = ["--url", address, "--key", "boss"]
        for name in ("order", "prune20"):
            by_http = tmp_path / f"{name}.http.parquet"
            directly = tmp_path / f"{name}.parquet"
            run("experiment", "export", name, "--out", str(by_http), *options)
            export_rows(partial(page, store, name), directly)
            assert parquet.read_table(by_http).equals(parquet.read_table(directly))
        missing = run("experiment", "export", "gone", "--out", str(gone), *options, status=1)
        assert "There is no experiment 'gone'" in missing.err
        user = run("experiment", "export", "order", "--out", str(gone), *options, "--key", "plain", status=1)
        assert "admin" in user.err
    store.close()
    assert not gone.exists()
    assert not list(tmp_path.glob("*.tmp"))


def test_a_file_that_comes_while_the_rows_are_read_stays(tmp_path: Path) -> None:
    out = tmp_path / "F.parquet"

    def get_page(*_: str) -> Page:
        out.write_text("mine")
        return Page([], None)

    with pytest.raises(RuntimeError, match=r"F\.parquet has come while the rows were read"):
        export_rows(get_page, out)
    assert [path.name for path in tmp_path.iterdir()] == ["F.parquet"]
    assert out.read_text() == "mine"


def test_an_export_replaces_no_file(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "F.parquet"
    out.write_text("mine")
    assert f"{out} exists" in run("experiment", "export", "order", "--out", str(out), status=1).err
    assert out.read_text() == "mine"
