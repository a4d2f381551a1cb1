"""The score store: scores that outlive a replica, and a file that may be damaged in any way."""

import asyncio
import os
import resource
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headroom import Classifier, HeadMask, ModelError
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.service.cli.store import prune
from headroom.service.config.file import ConfigFileError
from headroom.service.observe.metrics import Metrics
from headroom.service.scoring import kept
from headroom.service.scoring import store as store_file
from headroom.service.scoring.store import ModelKey, ScoreStore, StoredModel
from tests.checkpoints import write_checkpoint
from tests.service.experimenting import config as experiment_config
from tests.service.in_process import QUERY, TITLES, Service, check_scores, pairs, read_config, serve

BODY: dict[str, Any] = {"query": QUERY, "titles": TITLES}
COMPUTED = "headroom_batch_pairs_sum"


async def scored(service: Service, path: str = "/v1/score", **body: Any) -> tuple[str, list[dict[str, Any]]]:
    """Score, and return what `x-cache` says, and the results."""
    answer = await service.http.post(path, json=BODY | body)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-cache"], answer.json()["results"]


async def written(service: Service, rows: int) -> None:
    """Wait until the service has written so many scores."""
    async with asyncio.timeout(20):
        while service.metric("headroom_store_written_total") < rows:
            await asyncio.sleep(0.05)


async def test_scores_outlive_the_replica_and_are_those_of_the_model(
    tiny_checkpoint: Path, clf: Classifier, tmp_path: Path
) -> None:
    store = tmp_path / "scores.db"
    expected = clf.score(pairs())
    async with serve(tiny_checkpoint, score_store=store) as service:
        assert (await scored(service))[0] == "miss"
    async with serve(tiny_checkpoint, score_store=store) as service:
        cache, results = await scored(service)
        assert (cache, service.metric(COMPUTED)) == ("hit", 0)
        check_scores(results, expected.score)
        np.testing.assert_allclose(
            [row["probabilities"] for row in results], expected.probabilities, atol=1e-5
        )
        assert [row["truncated"] for row in results] == [False, False, False, True]
        assert (await scored(service, titles=[*TITLES, "new"]))[0] == "partial"
        assert service.metric(COMPUTED) == 1
        answer = await service.http.post("/rerank", json={"query": QUERY, "texts": TITLES})
        assert answer.headers["x-cache"] == "hit"
        assert service.metric('headroom_store_total{result="hit"}') == 12


async def test_without_a_store_and_before_it_is_open_nothing_says_that_it_is_damaged(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    def gauges(metrics: Metrics) -> set[str]:
        lines = metrics.render().decode().splitlines()
        return {line for line in lines if line.startswith(("headroom_store_usable", "headroom_store_bytes"))}

    assert gauges(Metrics()) == set()  # a replica that starts
    async with serve(tiny_checkpoint) as service:
        await service.post("/v1/score", **BODY)
        assert gauges(service.metrics) == set()
    async with serve(tiny_checkpoint, score_store=tmp_path / "scores.db") as service:
        assert "headroom_store_usable 1.0" in gauges(service.metrics)


async def test_another_replica_reads_what_this_one_has_scored(tiny_checkpoint: Path, tmp_path: Path) -> None:
    store = tmp_path / "scores.db"
    async with (
        serve(tiny_checkpoint, score_store=store) as one,
        serve(tiny_checkpoint, score_store=store) as other,
    ):
        await scored(one)
        began = time.monotonic()
        await written(one, len(TITLES))
        assert time.monotonic() - began < 5
        assert (await scored(other))[0] == "hit"


async def test_a_closed_store_is_one_file(tiny_checkpoint: Path, tmp_path: Path) -> None:
    for number in range(20):
        store = tmp_path / f"scores{number}.db"
        async with serve(tiny_checkpoint, score_store=store) as service:
            await scored(service)
        assert [path.name for path in tmp_path.glob(f"{store.name}*")] == [store.name]


async def test_other_masks_weights_and_number_formats_are_other_scores(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    store = tmp_path / "scores.db"
    other = write_checkpoint(tmp_path / "other", seed=9)
    mask = "1.0-2"
    for model in (tiny_checkpoint, other, tiny_checkpoint):
        for dtype in ("float32", "bfloat16"):
            clf = Classifier.load(model, "cpu", dtype)
            expected = clf.score(pairs()).score
            masked = clf.score(pairs(), HeadMask.parse(mask, layers=3, heads=4)).score
            async with serve(model, score_store=store, dtype=dtype) as service:
                for _ in range(2):
                    np.testing.assert_allclose(
                        [row["score"] for row in (await scored(service))[1]], expected, atol=2e-3
                    )
                    np.testing.assert_allclose(
                        [row["score"] for row in (await scored(service, head_mask=mask))[1]],
                        masked,
                        atol=2e-3,
                    )
    held = ScoreStore(store).models()
    assert sorted(model.scores for model in held) == [8] * 4
    assert not np.allclose(expected, masked, atol=2e-3)


async def test_a_unit_in_an_arm_is_always_computed(tiny_checkpoint: Path, tmp_path: Path) -> None:
    settings = {"score_store": tmp_path / "scores.db", "database_url": f"sqlite:///{tmp_path / 'e.db'}"}
    async with serve(tiny_checkpoint, experiment_config(traffic=1.0), **settings) as service:
        await scored(service)
        assert [(await scored(service, unit=f"u{number}"))[0] for number in range(3)] == ["miss"] * 3
        assert service.metric(COMPUTED) == 16


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def overwrite(path: Path) -> None:
    random = np.random.default_rng(0)
    with path.open("r+b") as file:
        for start in range(0, path.stat().st_size, 8192):
            file.seek(start + 500)
            file.write(random.bytes(3000))


def text_file(path: Path) -> None:
    path.write_text("query,title\n" * 3000)


def other_program(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE scores (model, key, logits, recalled)")


def later_format(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")


def wrong_scores(path: Path) -> None:
    """Change every score, as a fault of the disk could do it without SQLite's notice."""
    with sqlite3.connect(path) as connection:
        for key, logits in connection.execute("SELECT key, logits FROM scores").fetchall():
            wrong = (np.frombuffer(logits, np.uint8) ^ 1).tobytes()
            connection.execute("UPDATE scores SET logits = ? WHERE key = ?", (wrong, key))


DAMAGES = [cut_short, empty, overwrite, text_file, other_program, later_format, wrong_scores]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_file_gives_no_wrong_score_and_stops_nobody(
    tiny_checkpoint: Path, clf: Classifier, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    store = tmp_path / "scores.db"
    async with serve(tiny_checkpoint, score_store=store) as service:
        await scored(service)
    damage(store)
    async with serve(tiny_checkpoint, score_store=store) as service:
        cache, results = await scored(service)
        check_scores(results, clf.score(pairs()).score)
        assert cache == "miss"
        is_usable = service.metric("headroom_store_usable")
        assert is_usable == (damage in (empty, wrong_scores))


@pytest.mark.parametrize("damage", [cut_short, empty, overwrite])
async def test_a_file_that_is_damaged_while_it_is_in_use_stops_nobody(
    tiny_checkpoint: Path, clf: Classifier, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    store = tmp_path / "scores.db"
    async with serve(tiny_checkpoint, score_store=store) as service:
        said: list[str] = []
        service.metrics.notify_operator = said.append
        for number in range(30):
            await scored(service, titles=[f"{title} {number}" for title in TITLES[:3]])
        await written(service, 90)
        await asyncio.to_thread(checkpoint, store)
        damage(store)
        for number in range(30):
            body = [f"{title} {number}" for title in TITLES[:3]]
            _, results = await scored(service, titles=body)
            check_scores(results, clf.score([(QUERY, title) for title in body]).score)
        assert (await service.http.get("/health/ready")).status_code == 200
        assert all(str(store) in line and "is not used any more" in line for line in said)


def checkpoint(store: Path) -> None:
    """Have everything in the file itself, and nothing in the log beside it."""
    with sqlite3.connect(store) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def test_a_full_disk_costs_no_request(
    tiny_checkpoint: Path, clf: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "PAUSE_S", 0.0)
    async with serve(tiny_checkpoint, score_store=tmp_path / "scores.db") as service:
        await scored(service)
        await written(service, 4)
        disk = service.replica._disk
        assert disk is not None
        assert disk._writer is not None
        writer = disk._writer._connection
        (pages,) = writer.execute("PRAGMA page_count").fetchone()
        writer.execute(f"PRAGMA max_page_count = {pages}")  # SQLite then says what it says of a full disk
        titles = [f"title {number}" for number in range(900)]
        _, results = await scored(service, titles=titles)
        check_scores(results, clf.score([(QUERY, title) for title in titles]).score)
        async with asyncio.timeout(20):
            while not service.metric("headroom_store_lost_total"):
                await asyncio.sleep(0.05)
        assert (await scored(service))[0] == "hit"  # what is there is still read
        writer.execute("PRAGMA max_page_count = 1000000")
        await scored(service, titles=titles[:5])
        await written(service, 9)


async def test_a_disk_that_does_not_answer_is_not_waited_for(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(tiny_checkpoint, score_store=tmp_path / "scores.db") as service:
        disk = service.replica._disk
        assert disk is not None
        look_up = disk._look_up

        def slowly(*arguments: Any) -> Any:
            time.sleep(1.0)
            return look_up(*arguments)

        await scored(service)
        monkeypatch.setattr(disk, "_look_up", slowly)
        assert (await scored(service))[0] == "miss"


async def test_a_warm_list_is_scored_after_the_start(tiny_checkpoint: Path, tmp_path: Path) -> None:
    warm = tmp_path / "head.csv"
    warm.write_text("query,title\n" + "".join(f"{QUERY},{title}\n" for title in ("one", "two", "three")))
    settings = {"score_store": tmp_path / "scores.db", "score_store_warm": warm}
    async with serve(tiny_checkpoint, **settings) as service:
        await written(service, 3)
        assert (await scored(service, titles=["three", "two"]))[0] == "hit"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"score_store": "scores.db"}, "score_store: scores.db is not an absolute path"),
        ({"score_store": "/tmp/s.db", "score_store_mb": 3}, "score_store_mb"),
        ({"score_store_warm": "/tmp/pairs.csv"}, "score_store_warm: it needs score_store"),
    ],
)
def test_wrong_settings_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigFileError, match=message):
        read_config({}, **arguments)


@pytest.fixture
def rows(clf: Classifier) -> list[tuple[EncodedPair, HeadMask]]:
    return [(pair, clf.all_heads) for pair in clf.tokenizer.encode([(QUERY, f"t {n}") for n in range(4000)])]


def logits_of(key: bytes) -> bytes:
    """Logits that are known by their key."""
    return np.frombuffer(key + key, np.uint32)[:5].astype(np.float32).tobytes()


def test_a_process_that_is_killed_while_it_writes_leaves_no_wrong_score(
    clf: Classifier, rows: list[tuple[EncodedPair, HeadMask]], tmp_path: Path
) -> None:
    path = tmp_path / "scores.db"
    random = np.random.default_rng(0)
    store = ScoreStore(path)
    model = store.register(clf)
    keys = store.look_up(model, rows).keys
    found = 0
    for _ in range(30):
        writer = os.fork()
        if writer == 0:
            write_forever(path, model, keys)
        time.sleep(random.uniform(0.0, 0.1))
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        after = ScoreStore(path)
        kept_now = after.look_up(model, rows).logits
        after.close()
        assert len(kept_now) >= found, "what was kept is lost"
        found = len(kept_now)
        assert all(logits == logits_of(key) for key, logits in kept_now.items())
    assert found > 100


def write_forever(path: Path, model: ModelKey, keys: list[bytes]) -> None:
    """Write some scores after the other, in a process of its own."""
    try:
        store = ScoreStore(path)
        while True:
            for start in range(0, len(keys), 50):
                store.keep(model, {key: logits_of(key) for key in keys[start : start + 50]})
    finally:
        os._exit(1)


def test_a_full_store_forgets_what_nobody_asks_for(
    clf: Classifier, rows: list[tuple[EncodedPair, HeadMask]], tmp_path: Path
) -> None:
    store = ScoreStore(tmp_path / "scores.db", max_bytes=150_000)
    model = store.register(clf)
    keys = store.look_up(model, rows).keys
    popular = keys[:200]
    for start in range(200, len(keys), 100):
        found = store.look_up(model, rows[:200])
        missing = [key for key in popular if key not in found.logits]
        batch = [*keys[start : start + 100], *missing]
        store.keep(model, {key: logits_of(key) for key in batch}, found.unmarked)
        assert store.bytes_used <= 160_000
    others = len(store.look_up(model, rows[200:]).logits) / (len(rows) - 200)
    assert len(store.look_up(model, rows[:200]).logits) > 190
    assert others < 0.7


@pytest.fixture
def store_of_two(clf: Classifier, tmp_path: Path) -> Iterator[tuple[ScoreStore, ModelKey, ModelKey]]:
    other = Classifier.load(write_checkpoint(tmp_path / "other", seed=9), "cpu", "float32")
    store = ScoreStore(tmp_path / "scores.db")
    yield store, store.register(clf), store.register(other)
    store.close()


def test_a_forgotten_models_number_is_never_another_models(
    store_of_two: tuple[ScoreStore, ModelKey, ModelKey], clf: Classifier
) -> None:
    store, first, second = store_of_two
    rows = [(pair, clf.all_heads) for pair in clf.tokenizer.encode([(QUERY, "a")])]
    (key,) = store.look_up(first, rows).keys
    store.keep(second, {key: logits_of(key)})
    assert store.forget_models(lambda model: model.scores == 0) == 1
    store.keep(second, {key: logits_of(key)})  # by a process that does not know yet
    again = store.register(clf)
    assert again == first
    assert not store.look_up(first, rows).logits
    assert sorted((model.name, model.scores) for model in store.models()) == sorted(
        [(first.name, 0), (second.name, 1)]
    )
    numbers = store._connection.execute("SELECT model FROM models ORDER BY model").fetchall()
    assert numbers == [(1,), (3,)]


def test_a_model_that_is_used_while_others_are_forgotten_stays(
    store_of_two: tuple[ScoreStore, ModelKey, ModelKey], tmp_path: Path
) -> None:
    store, first, second = store_of_two
    store.keep(first, {b"k" * 16: b"1234"})
    age_models(tmp_path / "scores.db")

    def unwanted(model: StoredModel) -> bool:
        if model.name == first.name:
            store.keep(first, {})  # a process begins to use it at this moment
        return False

    assert store.forget_models(unwanted) == 0
    assert [(model.name, model.scores) for model in store.models()] == [(first.name, 1)]
    assert second.name != first.name


def age_models(path: Path) -> None:
    """Write that no model was used in the last 40 days."""
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE models SET used = used - 40 * 86400")


async def test_the_scores_of_the_model_being_served_survive_a_prune_or_are_kept_again(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "scores.db"
    async with serve(tiny_checkpoint, score_store=path) as service:
        await scored(service)
        await written(service, 4)
        age_models(path)  # as if the service had run for so long
        prune(path, unused_days=30.0)
        assert (await scored(service))[0] == "miss"
        await written(service, 8)
        assert (await scored(service))[0] == "hit"
        assert [model.scores for model in ScoreStore(path).models()] == [4]
    monkeypatch.setattr(kept, "USED_S", 0.0)
    async with serve(tiny_checkpoint, score_store=path) as service:
        age_models(path)
        async with asyncio.timeout(20):  # it only reads
            while ScoreStore(path).models()[0].used < time.time() - 86400:
                assert (await scored(service))[0] == "hit"
        prune(path, unused_days=30.0)
        assert (await scored(service))[0] == "hit"


@pytest.mark.parametrize("moment", ["before the start", "while a model is registered"])
async def test_a_lock_at_the_start_does_not_switch_the_store_off(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr(store_file, "BUSY_S", 0.05)
    monkeypatch.setattr(kept, "PAUSE_S", 0.1)
    path = tmp_path / "scores.db"
    if moment != "before the start":
        ScoreStore(path).close()
    lock = sqlite3.connect(path, isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    async with serve(tiny_checkpoint, score_store=path) as service:
        assert (await scored(service))[0] == "miss"
        assert service.metric("headroom_store_usable") == (moment != "before the start")
        lock.execute("ROLLBACK")
        lock.close()
        async with asyncio.timeout(20):
            while (await scored(service))[0] != "hit":
                await asyncio.sleep(0.05)
        assert service.metric("headroom_store_usable") == 1


async def test_a_store_that_cannot_be_written_at_the_start_is_read(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "scores.db"
    async with serve(tiny_checkpoint, score_store=path) as service:
        await scored(service)
    monkeypatch.setattr(store_file, "BUSY_S", 0.05)
    lock = sqlite3.connect(path, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    async with serve(tiny_checkpoint, score_store=path) as service:
        assert (await scored(service))[0] == "hit"
        lock.close()


def test_a_store_on_a_full_disk_is_read(
    clf: Classifier, rows: list[tuple[EncodedPair, HeadMask]], tmp_path: Path
) -> None:
    store = ScoreStore(tmp_path / "scores.db")
    model = store.register(clf)
    key = store.look_up(model, rows).keys[0]
    store.keep(model, {key: logits_of(key)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # no file can grow, as if the disk were full
    try:
        other = ScoreStore(tmp_path / "scores.db")
        with pytest.raises(sqlite3.OperationalError):
            other.keep(model, {bytes(16): logits_of(key)})
        assert other.look_up(model, rows).logits == {key: logits_of(key)}
        with pytest.raises(ModelError, match=r"score store .*scores\.db: "):
            other.forget(0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    other.close()
    store.close()


async def test_a_stage_that_cannot_be_registered_costs_the_others_nothing(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "PAUSE_S", 0.1)
    small = write_checkpoint(tmp_path / "small", seed=5, num_hidden_layers=1)
    config = {
        "variants": [
            {"name": "full"},
            {"name": "small", "checkpoint": str(small)},
            {"name": "cascade", "cascade": [{"variant": "small", "keep": 1}, {"variant": "full"}]},
        ]
    }
    is_readable = False

    def digest(directory: Path) -> str:
        if directory == small and not is_readable:
            raise OSError("the share with the checkpoints does not answer")
        return str(directory)

    monkeypatch.setattr(store_file, "digest_of", digest)
    async with serve(tiny_checkpoint, config, score_store=tmp_path / "scores.db") as service:
        await scored(service, variant="cascade")
        await written(service, 1)
        assert (await scored(service, variant="cascade"))[0] == "partial"
        assert service.metric('headroom_store_total{result="hit"}') == 1
        assert service.metric('headroom_store_total{result="miss"}') == 1  # nobody asked for small's
        is_readable = True
        async with asyncio.timeout(20):
            while (await scored(service, variant="cascade"))[0] != "hit":
                await asyncio.sleep(0.05)


def test_processes_that_make_the_file_together_all_open_it(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.db" for number in range(40)]
    began = time.time() + 0.2
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            open_all(paths, began)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    secrets = set()
    for path in paths:
        with sqlite3.connect(path) as connection:
            secrets.update(connection.execute("SELECT value FROM about WHERE name = 'secret'").fetchall())
    assert len(secrets) == len(paths)


def open_all(paths: list[Path], began: float) -> None:
    """Open each file at its time, which is the same in all processes, and end with 0 if that works."""
    status = 1
    try:
        for number, path in enumerate(paths):
            while time.time() < began + number * 0.03:
                pass
            ScoreStore(path).close()
        status = 0
    finally:
        os._exit(status)
