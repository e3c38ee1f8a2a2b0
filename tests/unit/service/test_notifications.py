"""Notifications: problems that last, and that are gone; a webhook that refuses, and one that checks the signature."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from kiel_groups import backoff
from kiel_groups.errors import ConfigError
from kiel_groups.metrics import Metrics
from kiel_groups.ops.loaded_groups import LoadedGroups
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.service import notifications
from kiel_groups.service.cluster_state import ClusterHistory, ClusterState
from kiel_groups.service.notifications import FIRING, RESOLVED, ProblemTracker, Webhook
from tests.helpers.group_snapshots import HEALTHY, LATER_MS, LOG_ENDS, PROBLEMS
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit

AFTER_MS = 30_000

SECRET, PATH = "the-key-of-the-signature", "the-secret-of-the-path"


def state_of(znodes: Any) -> ClusterState:
    view = view_group("g", znodes, LOG_ENDS)
    return ClusterHistory().take(LoadedGroups((view,), 1, seen_ms=LATER_MS), 0.1)


WELL, ILL = state_of(HEALTHY), state_of(PROBLEMS["unowned"][0])


def told(tracker: ProblemTracker, *states: tuple[ClusterState, int]) -> list[tuple[str, str]]:
    """Return the status and the kind of each notification that these states at these seconds cause."""
    return [
        (each["status"], each["finding"]["kind"])
        for state, at_s in states
        for each in tracker.take("main", state, at_s * 1000)
    ]


def test_a_problem_is_told_when_it_lasts_and_when_it_is_gone() -> None:
    """Each is told once, after the problem was there, or gone, for thirty seconds."""
    tracker = ProblemTracker(AFTER_MS)
    assert told(tracker, (ILL, 0), (ILL, 29)) == []
    assert told(tracker, (ILL, 30), (ILL, 40)) == [(FIRING, "unowned")]
    assert told(tracker, (WELL, 50), (WELL, 79)) == []
    assert told(tracker, (WELL, 80), (WELL, 90)) == [(RESOLVED, "unowned")]
    assert told(tracker, (ILL, 100), (ILL, 130)) == [(FIRING, "unowned")]


def test_a_short_problem_is_not_told() -> None:
    """Nor is one that comes and goes again and again, each time for a shorter time."""
    tracker = ProblemTracker(AFTER_MS)
    assert told(tracker, *((ILL if at % 2 else WELL, at * 20) for at in range(10))) == []


def test_a_problem_that_is_gone_for_a_moment_is_not_told_again() -> None:
    """The webhook was told that it is there, and hears nothing while it flaps."""
    tracker = ProblemTracker(AFTER_MS)
    assert told(tracker, (ILL, 0), (ILL, 30), (WELL, 40), (ILL, 50), (ILL, 90)) == [(FIRING, "unowned")]


def test_clusters_do_not_mix() -> None:
    """The state of another cluster does not resolve a problem."""
    tracker = ProblemTracker(AFTER_MS)
    assert told(tracker, (ILL, 0), (ILL, 30)) == [(FIRING, "unowned")]
    assert tracker.take("other", WELL, 200_000) == []
    assert told(tracker, (ILL, 201)) == []


class Receiver:
    """A webhook. ``answers`` are the statuses of its next answers; then it takes everything."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[int] = []
        #: The bodies and signatures of all requests, and of those that were taken.
        self.asked: list[tuple[dict[str, Any], str]] = []
        self.taken: list[tuple[dict[str, Any], str]] = []
        self.elsewhere = 0

    @property
    def told(self) -> list[tuple[str, str]]:
        """The status and the kind of each notification that was taken."""
        return [(document["status"], document["finding"]["kind"]) for document, _ in self.taken]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "_PAUSE_S", 0.01)
    monkeypatch.setattr(notifications, "_LONGEST_PAUSE_S", 0.02)


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """Run a webhook."""
    made = Receiver()

    class Hook(RequestHandler):
        def post(self) -> None:
            request = (self.request.body, self.request.headers.get("X-Kiel-Signature", ""))
            signature = f"sha256={hmac.new(SECRET.encode(), request[0], hashlib.sha256).hexdigest()}"
            assert request[1] in ("", signature)
            made.asked.append((json.loads(request[0]), request[1]))
            status = made.answers.pop(0) if made.answers else 204
            self.set_status(status)
            self.set_header("Location", "/elsewhere")
            if status == 204:
                made.taken.append(made.asked[-1])

    class Elsewhere(RequestHandler):
        def prepare(self) -> None:
            made.elsewhere += 1

    sockets = bind_sockets(0, "127.0.0.1")
    server = HTTPServer(Application([(f"/{PATH}", Hook), ("/elsewhere", Elsewhere)], log_function=lambda _: None))
    server.add_sockets(sockets)
    made.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/{PATH}"
    yield made
    server.stop()
    await server.close_all_connections()


@asynccontextmanager
async def posting(url: str, secret: str = "") -> AsyncIterator[Webhook]:
    webhook = Webhook(url, secret)
    webhook.start(Metrics())
    yield webhook
    await webhook.close()


def notification(status: str, kind: str) -> dict[str, Any]:
    return {"status": status, "cluster": "main", "group": "g", "finding": {"kind": kind}}


async def test_a_webhook_that_refuses_gets_the_notification_again(caplog: pytest.LogCaptureFixture) -> None:
    """It is tried again until it is taken, with a signature that the receiver can check; redirects are refusals."""
    async with receiving() as receiver:
        caplog.set_level("INFO")
        receiver.answers = [503, 503, 302]
        async with posting(receiver.url, SECRET) as webhook:
            (due,) = ProblemTracker(0).take("main", ILL, 0)
            webhook.put(due)
            await eventually(lambda: receiver.taken, "the notification is taken")
        assert receiver.taken == [receiver.asked[-1]]
        assert receiver.taken[0][1]
        assert receiver.taken[0][0]["finding"]["kind"] == "unowned"
        assert (len(receiver.asked), receiver.elsewhere) == (4, 0)
        assert [record.message.partition("; it")[0] for record in caplog.records] == [
            "the webhook does not take firing unowned of group g of cluster main: HTTP 503: Service Unavailable",
            "the webhook does not take firing unowned of group g of cluster main: HTTP 302: Found",
            "the webhook takes notifications again; 0 notifications wait",
        ]
        assert PATH not in caplog.text
        assert SECRET not in caplog.text


async def test_a_receiver_that_stays_away_is_logged_at_growing_intervals(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator may have missed the first line. The gauge counts what waits, also before the next try."""
    monkeypatch.setattr(backoff, "REPEAT_S", 0.05)
    metrics = Metrics()
    webhook = Webhook("http://127.0.0.1:1/")
    webhook.start(metrics)
    webhook.put(notification(FIRING, "unowned"))
    webhook.put(notification(FIRING, "stuck"))
    assert [value for name, _, value in metrics.samples() if name == "webhook_waiting"] == [2]
    await eventually(lambda: len(caplog.messages) >= 2, "a second line")
    await webhook.close()
    assert re.search(r"Connection refused; it is tried again, \d+ times in 0 s$", caplog.messages[1])


async def test_a_receiver_that_was_away_gets_how_things_are_now() -> None:
    """Of each problem, the newest notification is sent, however long the receiver was away; a later one is not lost."""
    async with receiving() as receiver:
        receiver.answers = [503] * 20
        async with posting(receiver.url) as webhook:
            webhook.put(notification(FIRING, "unowned"))
            webhook.put(notification(FIRING, "stuck"))
            await eventually(lambda: len(receiver.asked) > 5, "the receiver refuses")
            webhook.put(notification(RESOLVED, "unowned"))
            await eventually(lambda: len(receiver.taken) == 2, "both are taken")
        assert sorted(receiver.told) == [(FIRING, "stuck"), (RESOLVED, "unowned")]


async def test_a_notification_that_is_never_taken_does_not_stop_others() -> None:
    """After a failure, the other notifications go first."""
    async with receiving() as receiver:
        receiver.answers = [400]
        async with posting(receiver.url) as webhook:
            for kind in ("a", "b", "c"):
                webhook.put(notification(FIRING, kind))
            await eventually(lambda: len(receiver.taken) == 3, "all are taken")
        assert [kind for _, kind in receiver.told] == ["b", "c", "a"]


async def test_waiting_notifications_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The oldest ones are dropped, and the log says so."""
    async with receiving() as receiver:
        monkeypatch.setattr(notifications, "_MOST_WAITING", 2)
        webhook = Webhook(receiver.url)
        for kind in ("a", "b", "c"):
            webhook.put(notification(FIRING, kind))
        assert "does not get firing a of group g of cluster main: there is room for 2" in caplog.text
        webhook.start(Metrics())
        await webhook.close()
        assert [kind for _, kind in receiver.told] == ["b", "c"]


async def test_a_service_that_stops_sends_what_waits(caplog: pytest.LogCaptureFixture) -> None:
    """A receiver that refuses is not waited for, and the log has what it does not get."""
    async with receiving() as receiver:
        async with posting(receiver.url) as webhook:
            webhook.put(notification(RESOLVED, "a"))
        assert (receiver.told, caplog.text) == ([(RESOLVED, "a")], "")
        receiver.answers = [503] * 20
        async with posting(receiver.url) as webhook:
            webhook.put(notification(RESOLVED, "b"))
            await eventually(lambda: len(receiver.asked) > 2, "the receiver refuses")
        assert (
            caplog.messages[-1] == "the webhook does not get resolved b of group g of cluster main: the service stops"
        )


@pytest.mark.parametrize("answer", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", b""])
async def test_an_answer_that_is_no_http_is_a_failure(answer: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """So is one that is too long. The notification is tried again, as after any failure."""
    asked = 0

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with server, posting(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/") as webhook:
        webhook.put(notification(FIRING, "a"))
        await eventually(lambda: asked > 2, "it is tried again")
    assert "does not take firing a" in caplog.text


@pytest.mark.parametrize("url", ["", "host/path", "ftp://host/", "http://", "http://host:99999/", "http://u:p@host/"])
def test_a_url_that_cannot_be_posted_to_is_refused(url: str) -> None:
    """The error comes before the service starts, and not at the first problem. It does not show the URL."""
    with pytest.raises(ConfigError, match="webhook: ") as raised:
        Webhook(url)
    assert not url or url not in str(raised.value)
