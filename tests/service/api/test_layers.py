"""Who may call: holders of a key, as often as it may; without keys this machine; and which web pages."""

import asyncio
import hashlib
from pathlib import Path

import httpx
import pytest

from headroom.service.config import key_file
from headroom.service.config.keys import Allowance, ApiKey, KeyRing, parse_api_keys
from headroom.service.config.settings import InvalidConfig, Settings
from headroom.service.errors import RateLimited, Unauthorized
from tests.service.api.test_api import SCORE, app_with, assert_error
from tests.service.asgi import client
from tests.service.in_process import QUERY, serve
from tests.service.running import PATIENCE_S

SHOP = "https://shop.example"


async def ask(
    headers: dict[str, str], method: str = "POST", path: str = "/v1/score", **settings: object
) -> httpx.Response:
    async with client(app_with(**settings)) as session:
        return await session.request(method, path, json=SCORE if method == "POST" else None, headers=headers)


LOCAL = "localhost LOCALHOST:8000 localhost. a.localhost:1 127.0.0.1:8000 127.8.0.1 [::1]:8000"
OTHERS = "rebound.example:8000 localhost.example 10.0.0.7 [fe80::1] 0.0.0.0:8000 evil@localhost.x [x"


@pytest.mark.parametrize("host", LOCAL.split())
async def test_this_machine_may_call_a_service_without_keys(host: str) -> None:
    assert (await ask({"host": host})).status_code == 200
    assert (await ask({"host": host, "origin": f"http://{host}"})).status_code == 200  # its own page


@pytest.mark.parametrize("host", OTHERS.split())
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/score"), ("GET", "/v1/models"), ("GET", "/metrics")]
)
async def test_a_name_that_was_rebound_to_this_machine_reads_nothing(
    method: str, path: str, host: str
) -> None:
    assert "HEADROOM_API_KEYS" in assert_error(await ask({"host": host}, method, path), 403, "forbidden")


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost:3000", "null", "file://", ""])
async def test_a_page_of_another_site_is_refused(origin: str) -> None:
    for path in ("/v1/score", "/v1/models"):
        refused = await ask({"origin": origin}, "POST" if path == "/v1/score" else "GET", path)
        assert "another site" in assert_error(refused, 403, "forbidden")
        assert "access-control-allow-origin" not in refused.headers


async def test_probes_and_keys_are_asked_for_no_name() -> None:
    for path in ("/health/live", "/health/ready", "/", "/v2/health/ready"):
        assert (await ask({"host": "10.0.0.7:8000"}, "GET", path)).status_code == 200
    elsewhere = {"host": "relevance.example", "origin": SHOP, "authorization": "Bearer alpha"}
    assert (await ask(elsewhere, api_keys="alpha")).status_code == 200


async def test_allowed_origins_may_read_answers_and_errors_and_no_others() -> None:
    settings = {"cors_origins": f"{SHOP}, http://localhost:3000", "api_keys": "alpha"}
    asks = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    preflight = await ask({"origin": SHOP, **asks}, "OPTIONS", **settings)  # browsers send it without a key
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == SHOP
    assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
    assert "POST" in preflight.headers["access-control-allow-methods"]
    refused = await ask({"origin": SHOP}, **settings)
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, SHOP)
    answer = await ask({"origin": SHOP, "authorization": "Bearer alpha"}, **settings)
    assert answer.status_code == 200
    assert answer.headers["access-control-expose-headers"] == "*"
    for app in (settings, {"api_keys": "alpha"}):
        other = await ask({"origin": "https://evil.example", **asks}, "OPTIONS", **app)
        assert other.status_code in (400, 401)
        assert "access-control-allow-origin" not in other.headers
    keyless = await ask({"origin": SHOP}, cors_origins=[SHOP])
    assert (keyless.status_code, keyless.headers["access-control-allow-origin"]) == (200, SHOP)


@pytest.mark.parametrize(
    ("origin", "reason"),
    [
        *((origin, "https://") for origin in ("*", "shop.example", f"{SHOP}/", "https://a,", 3, [1])),
        ("https://shop.example:443", "leaves out :443"),
        ("https://shop.example:", "no such port"),
        ("https://bücher.example", "in ASCII"),
    ],
)
def test_an_origin_that_no_browser_sends_is_refused(origin: object, reason: str) -> None:
    """It would never match, and the shop's page could not tell why it is refused."""
    with pytest.raises(ValueError, match=reason):
        Settings(cors_origins=origin)  # type: ignore[arg-type]
    sent = (
        "https://shop.example:8443",
        "http://shop.example:443",
        "http://[::1]:3000",
        "https://xn--bcher-kva.example",
    )
    assert Settings(cors_origins=",".join(sent)).cors_origins == sent  # type: ignore[arg-type]


def test_a_key_file_may_have_comments_and_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "api-keys"
    file.write_bytes(
        "\ufeff# of the shop, since May\r\nalpha\r\n  # of the operators\nboss;role=admin\n".encode()
    )
    keys = Settings(api_keys="alpha,boss;role=admin").api_keys  # type: ignore[arg-type]
    assert key_file.read_api_keys(file) == keys


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_key_may_be_written_as_its_digest_and_the_digest_is_no_key() -> None:
    """So that a config file may be shown: printf %s alpha | sha256sum."""
    digest = "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8"
    keys = parse_api_keys(["alpha;rate=0.5", "beta;role=admin"])
    assert keys[0].entry == f"sha256:{digest};role=user;rate=0.5"
    assert parse_api_keys([key.entry for key in keys]) == keys
    ring = KeyRing(parse_api_keys(f"sha256:{digest}"))
    assert ring.authenticate(b"Bearer alpha")
    for wrong in (digest, f"sha256:{digest}"):
        with pytest.raises(Unauthorized):
            ring.authenticate(f"Bearer {wrong}".encode())


WRONG_OPTIONS = "role=root rate=0 rate=-1 rate=nan rate=fast rate rate= rate=inf pairs=9"
WRONG_ENTRIES = "s3cr3t, , s3cr3t,other,s3cr3t ;rate=1 schlüssel sha256:s3cr3t sha256:"


@pytest.mark.parametrize(
    "text",
    [
        *(f"s3cr3t;{option}" for option in (*WRONG_OPTIONS.split(), "colour=red", "rate=1;rate=2")),
        *(*WRONG_ENTRIES.split(), "s3cr3t key"),
    ],
)
def test_a_wrong_entry_is_refused_without_repeating_the_key(text: str) -> None:
    with pytest.raises(ValueError, match=r"^entry \d+: ") as caught:
        parse_api_keys(text)
    assert "s3cr3t" not in str(caught.value)


def test_a_rate_lets_a_burst_of_one_second_through_and_then_the_rate() -> None:
    clock = Clock()
    keys = parse_api_keys("alpha;rate=5")
    ring = KeyRing(keys, clock)
    for _ in range(5):
        ring.spend(keys[0])
    with pytest.raises(RateLimited) as caught:
        ring.spend(keys[0])
    assert caught.value.retry_after == pytest.approx(0.2)
    clock.now += 0.2001
    ring.spend(keys[0])
    with pytest.raises(RateLimited):
        ring.spend(keys[0])
    clock.now += 3600  # an idle hour saves up no more than a second's worth
    for _ in range(5):
        ring.spend(keys[0])
    with pytest.raises(RateLimited):
        ring.spend(keys[0])


def mount(directory: Path, content: str | None) -> Path:
    """Lay a Secret as Kubernetes does: the file is a link through a directory that is exchanged whole."""
    version = directory / f"..{len(list(directory.iterdir()))}"
    version.mkdir()
    if content is not None:
        (version / "api-keys").write_text(content)
    draft = directory / "..draft"
    draft.symlink_to(version.name)
    draft.replace(directory / "..data")
    file = directory / "api-keys"
    if not file.is_symlink():
        file.symlink_to("..data/api-keys")
    return file


async def test_a_changed_key_file_is_followed_and_a_wrong_one_is_not(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(key_file, "READ_SECONDS", 0.02)
    monkeypatch.setattr(key_file, "SETTLE_SECONDS", 0.01)
    keys = tmp_path / "keys"
    keys.mkdir()
    file = mount(keys, "alpha;rate=0.01\n\nboss;role=admin\n")
    async with serve(tiny_checkpoint, api_keys_file=file) as service:

        async def status(key: str) -> int:
            answer = await service.http.get("/v1/models", headers={"authorization": f"Bearer {key}"})
            return answer.status_code

        async def refused(expected: float) -> None:
            async with asyncio.timeout(PATIENCE_S):
                while service.metric("headroom_api_keys_refused") != expected:
                    await asyncio.sleep(0.01)

        async def accepted(key: str) -> None:
            async with asyncio.timeout(PATIENCE_S):
                while await status(key) != 200:
                    await asyncio.sleep(0.01)

        assert [await status(key) for key in ("alpha", "alpha", "boss", "beta")] == [200, 429, 200, 401]
        mount(keys, "alpha;rate=0.01,beta")
        await accepted("beta")
        assert [await status(key) for key in ("alpha", "boss")] == [429, 401], "a rate began anew"
        assert not caplog.records
        mount(keys, "gamma,s3cr3t;role=root")
        await refused(1)
        assert [await status(key) for key in ("beta", "gamma")] == [200, 401]
        mount(keys, None)
        while len(caplog.records) < 2:
            await asyncio.sleep(0.01)
        mount(keys, "gamma")
        await accepted("gamma")
        await refused(0)
        assert await status("beta") == 401
    wrong, missing, right = (record.getMessage() for record in caplog.records)
    assert wrong.startswith(f"api_keys_file: {file}: entry 2: ")
    assert wrong.endswith("; the keys before stay in force")
    assert "s3cr3t" not in wrong
    assert missing == f"api_keys_file: {file}: No such file or directory; the keys before stay in force"
    assert right == f"{file} is in order again; its keys are in force"


async def test_a_key_file_that_is_half_written_is_not_taken(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with the start of an admin's key, which was a key for five seconds, and the whole one none."""
    monkeypatch.setattr(key_file, "READ_SECONDS", 0.02)
    monkeypatch.setattr(key_file, "SETTLE_SECONDS", 0.01)
    file = tmp_path / "keys"
    file.write_text("alpha\nsecret12;role=admin\n", encoding="utf-8")
    half = "alpha\nsecret"
    look, replace = key_file.read_api_keys, KeyRing.replace
    taken: list[set[str]] = []

    def look_and_write_the_rest(path: Path) -> tuple[ApiKey, ...]:
        found = look(path)
        if file.read_text(encoding="utf-8") == half:
            file.write_text("alpha\nsecret34;role=admin\n", encoding="utf-8")
        return found

    def note(ring: KeyRing, keys: tuple[ApiKey, ...]) -> None:
        taken.append({key.name for key in keys})
        replace(ring, keys)

    monkeypatch.setattr(KeyRing, "replace", note)
    async with serve(tiny_checkpoint, api_keys_file=file):
        monkeypatch.setattr(key_file, "read_api_keys", look_and_write_the_rest)
        file.write_text(half, encoding="utf-8")
        names = {
            word: hashlib.sha256(word.encode()).hexdigest()[:8] for word in ("alpha", "secret", "secret34")
        }
        async with asyncio.timeout(PATIENCE_S):
            while {names["alpha"], names["secret34"]} not in taken:
                await asyncio.sleep(0.01)
    assert not any(names["secret"] in keys for keys in taken)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not an empty text"),
        (b"s3cr3t\ns3cr3t;role=root", "entry 2: "),
        (b"\xff", "not UTF-8 text"),
        (b"a," * 600_000, "larger than 1 MiB"),
        (None, "No such file or directory"),
    ],
)
def test_no_service_starts_with_a_wrong_key_file(content: bytes | None, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "api-keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidConfig) as caught:
        app_with(api_keys_file=file)
    assert str(caught.value).startswith(f"api_keys_file: {file}: ")
    assert reason in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


def test_keys_come_from_one_place_and_a_file_is_named_in_full() -> None:
    with pytest.raises(ValueError, match="api_keys_file: give it or api_keys, not both"):
        Settings(api_keys="alpha", api_keys_file=Path("/keys"))
    with pytest.raises(ValueError, match="keys is not an absolute path"):
        Settings(api_keys_file=Path("keys"))


async def test_requests_at_once_cannot_all_be_let_in_on_what_is_left_for_one(tiny_checkpoint: Path) -> None:
    headers = {"authorization": "Bearer alpha"}
    body = {"pairs": [[QUERY, f"angle {number}"] for number in range(500)]}
    async with serve(tiny_checkpoint, api_keys="alpha;rate=20") as service:
        answers = await asyncio.gather(
            *(service.http.post("/v1/score", json=body, headers=headers) for _ in range(10))
        )
        assert sorted(answer.status_code for answer in answers) == [200] + [429] * 9
        assert service.metric('headroom_pairs_total{arm="",variant="full"}') == 500


def test_a_debt_is_paid_at_the_rate() -> None:
    clock = Clock()
    (key,) = parse_api_keys("alpha;rate=5")
    ring = KeyRing((key,), clock)
    request = Allowance(ring, key)
    ring.spend(key)
    request.check()
    request.add(30)
    request.check()  # its later rows are part of what was let in
    request.add(10)
    other = Allowance(ring, key)
    with pytest.raises(RateLimited) as caught:
        other.check()
    assert caught.value.retry_after == pytest.approx(35 / 5)
    clock.now += 7.01
    other.check()
    with pytest.raises(RateLimited):
        ring.spend(key)
    clock.now += 0.2
    ring.spend(key)
