"""
What an adversary sends to the REST interface: no harm follows, and the next client is answered.

``test_rest_limits.py`` has the limits of connections and times, ``test_request_forwarding.py`` who gets the token.
"""

from __future__ import annotations

import json
import re

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.rest import calls as rest_errors
from tests.helpers.fake_workers import FakeGroup, FakeWorker, serving
from tests.helpers.rest_requests import JSON, ask, send_bytes

pytestmark = pytest.mark.unit

TOKEN = "t0ken-of-all-workers"
CONFIG = {"connector.class": "FileStreamSource", "name": "c"}
#: No line of a log, and no answer, is much longer, whatever a client sends.
MOST_CHARACTERS = 10_000


def head(method: str, path: str, *headers: str, version: str = "HTTP/1.1") -> bytes:
    lines = [f"{method} {path} {version}", "Host: localhost", *headers, "Connection: close"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def put(body: bytes, *headers: str, path: str = "/connectors/c/config") -> bytes:
    length = () if any(each.startswith(("Content-Length", "Transfer-")) for each in headers) else (len(body),)
    sizes = [f"Content-Length: {each}" for each in length]
    return head("PUT", path, "Content-Type: application/json", *sizes, *headers) + body


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, id="TLS"),
        pytest.param(b"\r\n\r\n", 400, id="an empty request"),
        pytest.param(b"GET /connectors\r\n\r\n", 400, id="HTTP/0.9"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, id="HTTP/2"),
        pytest.param(head("GET", "http://attacker.example/connectors"), 404, id="a URL in place of a path"),
        pytest.param(head("GET", "//attacker.example/connectors"), 404, id="two slashes"),
        pytest.param(head("GET", "*"), 404, id="an asterisk"),
        pytest.param(head("GET", "/connectors/../connectors"), 404, id="a path that is not resolved"),
        pytest.param(head("GET", "/connectors/%2e%2e/config"), 404, id="dots that are encoded"),
        pytest.param(head("GET", "/connectors/%00"), 404, id="a null byte"),
        pytest.param(head("GET", "/connectors/a%0d%0aSet-Cookie:%20x"), 404, id="a line end"),
        pytest.param(head("GET", "/connectors/%ff"), 400, id="bytes that are no UTF-8"),
        pytest.param(head("GET", "/connectors/%ed%a0%80"), 400, id="half of a surrogate pair"),
        pytest.param(head("GET", "/connectors/%zz"), 404, id="a percent sign"),
        pytest.param(head("GET", "/connectors/" + "a" * 60_000), 404, id="a long name"),
        pytest.param(head("GET", "/connectors/" + "a" * 70_000), 0, id="headers that are too long"),
        pytest.param(head("A" * 60_000, "/connectors"), 405, id="a long method"),
        pytest.param(head("GET", "/", *(f"X-{n}: x" for n in range(4_000))), 200, id="many headers"),
        pytest.param(head("GET", "/connectors?" + "&".join(f"a{n}=1" for n in range(4_000))), 400, id="a long query"),
        pytest.param(head("GET", "/connectors?expand=%ff"), 400, id="a query that is no UTF-8"),
        pytest.param(head("GET", "/connectors/c/tasks/99999999999999999999/status"), 404, id="a large number"),
        pytest.param(head("GET", "/connectors/c/tasks/%D9%A1/status"), 404, id="a digit of another script"),
        pytest.param(head("GET", "/", "Host: attacker.example"), 400, id="two hosts"),
        pytest.param(head("GET", "/").replace(b"localhost", b"x@localhost"), 400, id="a user in the host"),
        pytest.param(head("GET", "/").replace(b"localhost", b"[::1"), 403, id="half of an address"),
        pytest.param(head("GET", "/", "Origin: null"), 403, id="a page without an origin"),
        pytest.param(head("GET", "/", "X: y", " z"), 400, id="a folded header"),
        pytest.param(head("GET", "/", "no colon"), 400, id="a header without a colon"),
        pytest.param(head("CONNECT", "attacker.example:80"), 405, id="a proxy"),
        pytest.param(head("TRACE", "/connectors"), 405, id="trace"),
        pytest.param(put(b"{}", "Content-Length: 2", "Transfer-Encoding: chunked"), 400, id="two kinds of length"),
        pytest.param(put(b"{}x", "Content-Length: 2", "Content-Length: 3"), 400, id="two lengths"),
        pytest.param(put(b"{}", "Content-Length: -1"), 400, id="a negative length"),
        pytest.param(put(b"{}", "Content-Length: +2"), 400, id="a length with a sign"),
        pytest.param(put(b"{}", "Transfer-Encoding: gzip"), 400, id="an unknown encoding"),
        pytest.param(put(b"-2\r\n{}\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), 400, id="a negative chunk"),
        pytest.param(put(b"\x1f\x8b\x08", "Content-Encoding: gzip"), 400, id="a compressed body"),
        pytest.param(put(b"[" * 200_000), 400, id="a deep list"),
        pytest.param(put(b'{"a":' * 200_000), 400, id="a deep object"),
        pytest.param(put(b'{"a": Infinity}'), 400, id="infinity"),
        pytest.param(put(b'{"a": "1", "a": "2"}'), 400, id="a name that occurs twice"),
        pytest.param(put(b'{"a": "\\ud800"}'), 400, id="half of a surrogate pair in a body"),
        pytest.param(put("{}".encode("utf-16")), 400, id="UTF-16"),
        pytest.param(put(b"\xef\xbb\xbf{}"), 400, id="a byte order mark"),
        pytest.param(put(b'{"a\\nERROR: forged": "1"}'), 400, id="a line end in the name of a setting"),
        pytest.param(put(b'{"\\u001b[2J": "1"}'), 400, id="a control character in the name of a setting"),
        pytest.param(put(b'{"": "1"}'), 400, id="an empty name of a setting"),
        pytest.param(put(b'{"%s": "1"}' % (b"k" * 1_000_000)), 400, id="a long name of a setting"),
        pytest.param(put(b'{"name": "%s"}' % (b"n" * 1_000_000)), 400, id="a long name in a body"),
        pytest.param(
            put(b"{}", path=f"/connector-plugins/{'n' * 60_000}/config/validate"), 400, id="a long name of a class"
        ),
    ],
)
async def test_an_odd_request_does_no_harm(data: bytes, status: int, caplog: pytest.LogCaptureFixture) -> None:
    """It changes nothing, its texts are bounded, the log has no error, and the next request is answered."""
    caplog.set_level("DEBUG")
    worker = FakeWorker(FakeGroup())
    async with serving(worker):
        got, answer = await send_bytes(worker.url, data)
        after = await ask(worker.url)
    assert (got, after.status, worker.group.done, worker.group.configs) == (status, 200, [], {})
    assert len(answer) < MOST_CHARACTERS
    assert answer.count(b"HTTP/1.1 ") <= 1
    assert b"Set-Cookie" not in answer.partition(b"\r\n\r\n")[0]
    ours = [record for record in caplog.records if record.name.startswith("kiel_groups")]
    assert [record for record in ours if record.levelname == "ERROR" or record.exc_info] == []
    assert max((len(record.getMessage()) for record in ours), default=0) < 500
    assert [record for record in ours if "\n" in record.getMessage()] == []


@pytest.mark.parametrize(
    "given",
    [
        [],
        [""],
        ["Bearer"],
        ["Bearer "],
        [f"Bearer {TOKEN[:-1]}"],
        [f"Bearer {TOKEN}!"],
        [f"Bearer {TOKEN.upper()}"],
        [f"Bearer {TOKEN} {TOKEN}"],
        [f"Token {TOKEN}"],
        [TOKEN],
        ["Bearer wrong", f"Bearer {TOKEN}"],
        [f"Bearer {TOKEN}", "Bearer wrong"],
        ["Basic !"],
        ["Basic " + "A" * 5_000],
        # Base64 of the token without a colon, and of one in the place of the user.
        ["Basic dDBrZW4tb2YtYWxsLXdvcmtlcnM="],
        ["Basic dDBrZW4tb2YtYWxsLXdvcmtlcnM6"],
        ["Bearer \xfc"],
    ],
)
async def test_no_other_text_passes_for_the_token(given: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """Neither reads nor changes are answered, and neither the answer nor the log shows the token or what was given."""
    caplog.set_level("DEBUG")
    group = FakeGroup()
    group.add("c", CONFIG)
    worker = FakeWorker(group)
    headers = [f"Authorization: {each}" for each in given]
    async with serving(worker, token=TOKEN):
        got = [
            await send_bytes(worker.url, head("GET", f"/connectors?token={TOKEN}&access_token={TOKEN}", *headers)),
            await send_bytes(worker.url, head("GET", "/connectors", f"Cookie: token={TOKEN}", *headers)),
            await send_bytes(worker.url, head("DELETE", "/connectors/c", *headers)),
            await send_bytes(worker.url, head("OPTIONS", "/connectors/c", *headers)),
            await send_bytes(worker.url, put(json.dumps(CONFIG).encode(), *headers)),
            await send_bytes(worker.url, head("GET", "/no/such/route", *headers)),
        ]
    assert [status for status, _ in got] == [401] * 6
    assert (group.done, list(group.configs)) == ([], ["c"])
    texts = caplog.text.lower() + "".join(answer.decode() for _, answer in got).lower()
    assert TOKEN not in texts
    assert "wrong" not in texts.replace("missing or wrong", "")


@pytest.mark.parametrize(
    "name", ["..", ".", "a/b", "a%2Fb", " ", "#", "?x=1", "a;b", "ü" * 100, "\u202etxt", "__proto__", "connectors"]
)
async def test_a_name_reaches_its_connector_and_no_other_one(name: str) -> None:
    """Whatever the characters of a name are, the place in the answer leads to it."""
    worker = FakeWorker(FakeGroup())
    worker.group.add("other", CONFIG)
    async with serving(worker):
        created = await ask(
            f"{worker.url}/connectors", "POST", {"name": f"x{name}", "config": {**CONFIG, "name": None}}
        )
        place = worker.url + created.headers["Location"]
        read = await ask(place)
        deleted = await ask(place, "DELETE")
    assert (created.status, read.status, deleted.status) == (201, 200, 204)
    assert read.document["name"] == f"x{name}".strip()
    assert list(worker.group.configs) == ["other"]


async def test_an_error_that_quotes_much_is_cut() -> None:
    """Errors quote what users have given; the answer and the log line that another worker writes of it stay short."""
    worker = FakeWorker(FakeGroup(), ConfigError("x" * 1_000_000))
    async with serving(worker):
        got = await ask(f"{worker.url}/connectors", "POST", {"name": "c", "config": CONFIG}, JSON)
    assert (got.status, got.document["error_code"]) == (400, 400)
    assert got.document["message"] == "x" * rest_errors._LONGEST_TEXT + "… (991,808 characters more)"


async def test_requests_that_follow_each_other_at_once_are_answered_in_order() -> None:
    """A client may send the next request before it has read an answer; a refused one ends the connection."""
    worker = FakeWorker(FakeGroup())
    worker.group.add("c", CONFIG)
    reads = b"".join(head("GET", path).replace(b"Connection: close\r\n", b"") for path in ("/", "/connectors", "/x"))
    async with serving(worker):
        _, answer = await send_bytes(worker.url, reads + head("GET", "/", "no colon") + head("DELETE", "/connectors/c"))
    statuses = re.findall(rb"HTTP/1\.1 (\d+) ", answer)
    # The end of a connection with unread bytes may overtake the last answer.
    assert statuses[:3] == [b"200", b"200", b"404"]
    assert statuses[3:] in ([], [b"400"])
    assert worker.group.done == []
