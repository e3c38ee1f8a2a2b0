"""Notify a webhook when a problem of a group has appeared, and when it has ended."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

from kiel_groups.backoff import Backoff
from kiel_groups.config import is_http_url
from kiel_groups.errors import ConfigError
from kiel_groups.ops.views.checks import Finding
from kiel_groups.ops.views.documents import finding_document
from kiel_groups.service.cluster_state import ClusterState
from kiel_groups.wording import counted

log = logging.getLogger(__name__)

#: For how long a problem must last, or be absent, before the webhook is notified, in milliseconds.
AFTER_MS = 30_000

FIRING, RESOLVED = "firing", "resolved"

#: The notifications that may wait while the webhook does not answer. Further ones are dropped, and logged.
_MOST_WAITING = 1_000

#: How often a notification is tried, and how long one try may take, in seconds.
_TRIES, _TRY_S = 8, 10.0

#: The first pause between tries, which is doubled after each, and the longest one.
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0


class _Problem(NamedTuple):
    cluster: str
    group: str
    kind: str


@dataclass(slots=True)
class _Seen:
    """
    A problem of a group, with its newest finding.

    ``is_there`` is whether the problem exists in the newest state, and ``since_ms`` is when that last changed.
    ``was_told`` is whether the last notification was that the problem exists.
    """

    finding: Finding
    since_ms: int
    is_there: bool = True
    was_told: bool = False


@dataclass(slots=True)
class ProblemTracker:
    """
    Decides which notifications are due, over successive states of clusters.

    A problem is notified when it has lasted for ``after_ms`` milliseconds. Its end is notified when it has been absent
    for the same time. Most rebalances and restarts are shorter. All findings of the same kind in a group are one
    problem.
    """

    after_ms: int
    _seen: dict[_Problem, _Seen] = field(default_factory=dict)

    def take(self, cluster: str, state: ClusterState, now_ms: int) -> list[dict[str, Any]]:
        """Add a state of a cluster. Return its notifications that are due, ordered by group and kind of problem."""
        there = {
            _Problem(cluster, status.view.group, finding.kind): finding
            for status in state.groups.values()
            for finding in status.findings
            if not finding.passing
        }
        for problem, finding in there.items():
            seen = self._seen.setdefault(problem, _Seen(finding, now_ms))
            seen.finding = finding
            if not seen.is_there:
                seen.is_there, seen.since_ms = True, now_ms
        due = []
        for problem, seen in [(key, each) for key, each in self._seen.items() if key.cluster == cluster]:
            if seen.is_there and problem not in there:
                seen.is_there, seen.since_ms = False, now_ms
            is_due = now_ms - seen.since_ms >= self.after_ms
            if not seen.is_there and (is_due or not seen.was_told):
                del self._seen[problem]
            if is_due and seen.is_there != seen.was_told:
                seen.was_told = seen.is_there
                due.append(_document(problem, seen, now_ms))
        return sorted(due, key=lambda each: (each["group"], each["finding"]["kind"]))


def _document(problem: _Problem, seen: _Seen, now_ms: int) -> dict[str, Any]:
    return {
        "status": FIRING if seen.is_there else RESOLVED,
        "cluster": problem.cluster,
        "group": problem.group,
        "finding": finding_document(seen.finding),
        "since": seen.since_ms,
        "at": now_ms,
    }


class Webhook:
    """
    Sends notifications to a URL, in order. It tries each notification up to eight times, then drops and logs it.

    With a secret, the header ``X-Kiel-Signature`` has ``sha256=`` and the HMAC-SHA256 of the body.

    Args:
        url: The URL to which notifications are posted.
        secret: The key of the signature. "" means no signature.

    Raises:
        ConfigError: The URL is not legal.
    """

    def __init__(self, url: str, secret: str = "") -> None:
        if not is_http_url(url):
            raise ConfigError(f"webhook: {url!r:.200} given; expected a URL such as https://host:8080/path")
        self._url = url
        self._secret = secret.encode()
        self._waiting: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue(_MOST_WAITING)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to send, in a task on the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._send_all())

    async def close(self) -> None:
        """Stop sending. Notifications that are not sent yet are dropped."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def put(self, notification: Mapping[str, Any]) -> None:
        """Queue a notification. If 1,000 notifications are waiting, drop it, and log a warning."""
        if self._waiting.full():
            log.warning("a notification is dropped, because %d wait for the webhook", _MOST_WAITING)
        else:
            self._waiting.put_nowait(notification)

    async def _send_all(self) -> None:
        client = AsyncHTTPClient(force_instance=True)
        try:
            while True:
                await self._send(client, await self._waiting.get())
        finally:
            client.close()

    async def _send(self, client: AsyncHTTPClient, notification: Mapping[str, Any]) -> None:
        body = json.dumps(notification).encode()
        headers = {"Content-Type": "application/json"}
        if self._secret:
            headers["X-Kiel-Signature"] = f"sha256={hmac.new(self._secret, body, hashlib.sha256).hexdigest()}"
        request = HTTPRequest(
            self._url, "POST", headers, body, connect_timeout=_TRY_S, request_timeout=_TRY_S, follow_redirects=False
        )
        backoff = Backoff(_PAUSE_S, _LONGEST_PAUSE_S)
        for left in reversed(range(_TRIES)):
            try:
                await client.fetch(request)
                return
            except (HTTPClientError, OSError) as error:
                pause_s = backoff.next_s()
                what = f"{notification['status']} {notification['finding']['kind']} of group {notification['group']}"
                outcome = f"{counted(range(left), 'try', 'tries')} left" if left else "given up"
                log.warning("the webhook does not take %s: %s; %s", what, error, outcome)
            if left:
                await asyncio.sleep(pause_s)
