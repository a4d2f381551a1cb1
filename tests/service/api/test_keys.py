"""Who may call a service without API keys, and which web pages may read its answers."""

from __future__ import annotations

import httpx
import pytest

from service.config.settings import Settings
from tests.service.api.test_api import SCORE, app_with, assert_error
from tests.service.asgi import client

SHOP = "https://shop.example"


async def ask(
    headers: dict[str, str], method: str = "POST", path: str = "/v1/score", **settings: object
) -> httpx.Response:
    async with client(app_with(**settings)) as session:
        return await session.request(method, path, json=SCORE if method == "POST" else None, headers=headers)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "localhost.",
        "a.localhost:1",
        "127.0.0.1:8000",
        "127.8.0.1",
        "[::1]:8000",
    ],
)
async def test_this_machine_may_call_a_service_without_keys(host: str) -> None:
    assert (await ask({"host": host})).status_code == 200
    assert (await ask({"host": host, "origin": f"http://{host}"})).status_code == 200  # its own page


@pytest.mark.parametrize(
    "host",
    [
        "rebound.example:8000",
        "localhost.example",
        "10.0.0.7",
        "[fe80::1]",
        "0.0.0.0:8000",
        "evil@localhost.x",
        "[x",
    ],
)
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
    assert "x-config-version" in answer.headers["access-control-expose-headers"].lower()
    for app in (settings, {"api_keys": "alpha"}):
        other = await ask({"origin": "https://evil.example", **asks}, "OPTIONS", **app)
        assert other.status_code == 401
        assert not [name for name in other.headers if name.startswith("access-control")]
    keyless = await ask({"origin": SHOP}, cors_origins=[SHOP])
    assert (keyless.status_code, keyless.headers["access-control-allow-origin"]) == (200, SHOP)


@pytest.mark.parametrize("origins", ["*", "shop.example", "https://shop.example/", "https://a,", 3, [1]])
def test_a_wrong_origin_in_the_settings_is_refused(origins: object) -> None:
    with pytest.raises(ValueError, match=r"https://"):
        Settings(cors_origins=origins)  # type: ignore[arg-type]
