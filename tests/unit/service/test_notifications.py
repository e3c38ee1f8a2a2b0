"""Notifications: problems that last, and that are gone; a webhook that refuses, and one that checks the signature."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from kiel_groups.errors import ConfigError
from kiel_groups.ops.loaded_groups import LoadedGroups
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.service import notifications
from kiel_groups.service.cluster_state import ClusterHistory, ClusterState
from kiel_groups.service.notifications import FIRING, RESOLVED, ProblemTracker, Webhook
from tests.helpers.group_snapshots import HEALTHY, LATER_MS, LOG_ENDS, PROBLEMS
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit

AFTER_MS = 30_000


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


@contextmanager
def receiver(refusals: int) -> Iterator[tuple[str, list[tuple[bytes, str]]]]:
    """Run a webhook that refuses the first requests, and yield its URL and what it has taken."""
    taken: list[tuple[bytes, str]] = []
    left = refusals

    class Hook(RequestHandler):
        def post(self) -> None:
            nonlocal left
            if left:
                left -= 1
                self.set_status(503)
            else:
                taken.append((self.request.body, self.request.headers.get("X-Kiel-Signature", "")))

    sockets = bind_sockets(0, "127.0.0.1")
    server = HTTPServer(Application([("/", Hook)]))
    server.add_sockets(sockets)
    try:
        yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}/", taken
    finally:
        server.stop()


async def test_a_webhook_that_refuses_gets_the_notification_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again until it is taken, with a signature that the receiver can check."""
    monkeypatch.setattr(notifications, "_PAUSE_S", 0.01)
    with receiver(refusals=2) as (url, taken):
        webhook = Webhook(url, "secret")
        webhook.start()
        tracker = ProblemTracker(0)
        (notification,) = tracker.take("main", ILL, 0)
        webhook.put(notification)
        await eventually(lambda: taken, "the notification is taken")
        await webhook.close()
    body, signature = taken[0]
    assert json.loads(body)["finding"]["kind"] == "unowned"
    assert signature == f"sha256={hmac.new(b'secret', body, hashlib.sha256).hexdigest()}"
    assert len(taken) == 1


async def test_notifications_for_a_webhook_that_never_answers_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those beyond the bound are dropped, and the log says so; each one is given up after its last try."""
    monkeypatch.setattr(notifications, "_PAUSE_S", 0.0)
    monkeypatch.setattr(notifications, "_MOST_WAITING", 1)
    webhook = Webhook("http://127.0.0.1:1/")
    (notification,) = ProblemTracker(0).take("main", ILL, 0)
    for _ in range(3):
        webhook.put(notification)
    assert caplog.text.count("a notification is dropped") == 2
    webhook.start()
    await eventually(lambda: "given up" in caplog.text, "the notification is given up")
    await webhook.close()
    await asyncio.sleep(0)


@pytest.mark.parametrize("url", ["", "host/path", "ftp://host/", "http://", "http://host:99999/", "http://u:p@host/"])
def test_a_url_that_cannot_be_posted_to_is_refused(url: str) -> None:
    """The error comes before the service starts, and not at the first problem."""
    with pytest.raises(ConfigError, match="webhook: "):
        Webhook(url)
