"""Who may use the REST interface of a worker."""

from __future__ import annotations

import base64

import pytest
from tornado.httputil import HTTPHeaders

from kiel_groups.errors import ConfigError
from kiel_groups.rest.calls import RestError
from kiel_groups.rest.server import AccessRules
from kiel_groups.rest.settings import RestSettings
from tests.helpers.fake_workers import FakeGroup, FakeWorker, serving
from tests.helpers.rest_requests import ask

pytestmark = pytest.mark.unit

TOKEN = "t0ken-of-all-workers"
BASIC = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()


def status_of(settings: RestSettings, **headers: str) -> int:
    """Return the status with which a request is refused, or 200."""
    try:
        AccessRules(settings).check("GET", HTTPHeaders(headers))
    except RestError as error:
        return error.status
    return 200


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer  {TOKEN}", 200),
        (f"Basic {BASIC}", 200),
        ("", 401),
        (TOKEN, 401),
        ("Bearer", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        ("Basic ???", 401),
        ("Basic ää", 401),
        (f"Digest {TOKEN}", 401),
    ],
)
def test_a_token_must_be_given(given: str, status: int) -> None:
    """The token is that of a bearer, or the password of basic credentials, which clients of Kafka Connect know."""
    settings = RestSettings(host="0.0.0.0", token=TOKEN)
    assert status_of(settings, Host="worker.example", Authorization=given) == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1:8083"}, 200),
        ({"Host": "[::1]:8083"}, 200),
        ({"Host": "LOCALHOST:8083"}, 200),
        ({"Host": "worker.example"}, 200),
        ({}, 200),
        ({"Host": "attacker.example"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": "localhost", "Origin": "http://localhost:8000"}, 200),
        ({"Host": "localhost", "Origin": "http://attacker.example"}, 403),
        ({"Host": "localhost", "Origin": "null"}, 403),
    ],
)
def test_web_pages_are_refused_without_a_token(headers: dict[str, str], status: int) -> None:
    """A page of another site may neither send requests to loopback, nor let its own name resolve to loopback."""
    assert status_of(RestSettings(advertised_host="worker.example"), **headers) == status


@pytest.mark.parametrize("scheme", [f"Bearer {TOKEN}", f"Basic {BASIC}"])
@pytest.mark.parametrize(
    ("settings", "headers", "status"),
    [
        ({}, {"Host": "127.0.0.1:8083"}, 200),
        ({}, {"Host": "attacker.example"}, 403),
        ({}, {"Host": "attacker.example", "Origin": "http://attacker.example"}, 403),
        ({}, {"Host": "localhost", "Origin": "http://attacker.example"}, 403),
        ({}, {"Host": "localhost", "Origin": "null"}, 403),
        ({}, {"Origin": "null"}, 403),
        ({}, {"Host": "localhost", "Origin": "http://localhost:8000"}, 200),
        ({"advertised_host": "proxy.example"}, {"Host": "proxy.example", "Origin": "https://proxy.example"}, 200),
        ({"advertised_host": "proxy.example"}, {"Host": "127.0.0.1:8083", "Origin": "https://proxy.example"}, 200),
        ({"host": "0.0.0.0"}, {"Host": "worker.example"}, 200),
        ({"host": "0.0.0.0"}, {"Host": "worker.example", "Origin": "http://worker.example"}, 200),
        ({"host": "0.0.0.0"}, {"Host": "worker.example", "Origin": "http://attacker.example"}, 403),
        ({"host": "0.0.0.0"}, {"Host": "worker.example", "Origin": "http://localhost:8000"}, 403),
        ({"host": "0.0.0.0"}, {"Host": "worker.example", "Origin": "null"}, 403),
    ],
)
def test_web_pages_are_refused_with_a_token(
    settings: dict[str, str], headers: dict[str, str], status: int, scheme: str
) -> None:
    """Browsers add a password to requests of every page. A server for other machines does not know all its names."""
    assert status_of(RestSettings(token=TOKEN, **settings), **headers, Authorization=scheme) == status


async def test_a_refused_request_is_answered_before_its_body() -> None:
    """The answer is a document with the status, whatever the route and the body."""
    worker = FakeWorker(FakeGroup())
    async with serving(worker, token=TOKEN):
        for path in ("/", "/connectors", "/nothing"):
            got = await ask(worker.url + path, "POST", b"x" * 10)
            assert (got.status, got.document["error_code"], got.headers["WWW-Authenticate"]) == (401, 401, "Bearer")
        right = await ask(worker.url, headers={"Authorization": f"Bearer {TOKEN}"})
    assert right.status == 200


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host": "0.0.0.0"}, "host: other machines can connect to 0.0.0.0, and no token is given"),
        ({"host": "worker.example"}, "host: other machines can connect to worker.example"),
        ({"host": "::"}, "host: other machines can connect to ::"),
        ({"host": ""}, "host: '' given"),
        ({"host": "localhost:80"}, "host: 'localhost:80' given"),
        ({"host": "http://x"}, "host: 'http://x' given"),
        ({"advertised_host": "a/b"}, "advertised_host: 'a/b' given"),
        ({"port": 65536}, "port: 65536 given; expected 0 to 65535"),
        ({"port": -1}, "port: -1 given"),
        ({"port": True}, "port: True given"),
        ({"port": "80"}, "port: '80' given"),
        ({"timeout_s": 0}, "timeout_s: 0 given"),
        ({"timeout_s": True}, "timeout_s: True given"),
        ({"timeout_s": float("nan")}, "timeout_s: nan given"),
        ({"token": "short"}, "token: 5 characters given; expected 16 or more"),
        ({"token": "a token with blanks in it"}, "token: 25 characters given"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], message: str) -> None:
    """An error says what was given, but not the token; other machines can connect only with a token."""
    with pytest.raises(ConfigError) as raised:
        RestSettings(**settings)  # type: ignore[arg-type]
    assert str(raised.value).startswith(message)


def test_a_token_has_a_digest_for_comparisons() -> None:
    """Workers of a group compare digests. Those of another group differ, and a digest is too short to guess by."""
    digest = RestSettings(token=TOKEN).token_digest("loaders")
    assert digest == RestSettings(token=TOKEN).token_digest("loaders")
    assert digest not in (RestSettings(token=TOKEN + "!").token_digest("loaders"), "")
    assert digest != RestSettings(token=TOKEN).token_digest("archivers")
    assert len(digest) == 4
    assert RestSettings().token_digest("loaders") == ""


def test_a_token_is_not_printed() -> None:
    """Logs may show settings."""
    assert TOKEN not in repr(RestSettings(token=TOKEN))


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "http://127.0.0.1:7"),
        ({"host": "::1"}, "http://[::1]:7"),
        ({"host": "0.0.0.0", "token": TOKEN, "advertised_host": "worker.example"}, "http://worker.example:7"),
    ],
)
def test_a_url_has_the_advertised_host(settings: dict[str, str], url: str) -> None:
    """Other workers reach a worker by the advertised host, or by the one that it listens on."""
    assert RestSettings(**settings).url(7) == url  # type: ignore[arg-type]


def test_a_worker_on_all_addresses_advertises_its_machine() -> None:
    """No other machine could reach the address 0.0.0.0."""
    assert "0.0.0.0" not in RestSettings(host="0.0.0.0", token=TOKEN).url(7)
