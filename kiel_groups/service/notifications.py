"""Notify a webhook when a problem of a group has appeared, and when it has ended."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tornado.httpclient import AsyncHTTPClient, HTTPRequest

from kiel_groups.backoff import Backoff, RepeatedFailures
from kiel_groups.config import is_http_url
from kiel_groups.errors import ConfigError
from kiel_groups.metrics import Metrics
from kiel_groups.ops.views.checks import Finding
from kiel_groups.ops.views.documents import finding_document
from kiel_groups.service.cluster_state import ClusterState
from kiel_groups.wording import counted

log = logging.getLogger(__name__)

#: For how long a problem must last, or be absent, before the webhook is notified, in milliseconds.
AFTER_MS = 30_000

FIRING, RESOLVED = "firing", "resolved"

#: The notifications that may wait while the webhook does not answer. Then the oldest ones are dropped, and logged.
_MOST_WAITING = 1_000

#: How long one try may take, and how long sending may continue after the service was told to stop, in seconds.
_TRY_S, _CLOSE_S = 10.0, 3.0

#: The first pause after a failure, which is doubled after each further one, and the longest one, in seconds.
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0

#: The longest body of an answer that is read, in bytes. What it says is ignored.
_MOST_ANSWERED = 1 << 16


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
    Posts notifications to a URL, and tries each one again until the URL takes it, that is, answers with 2xx.

    At most one notification of a problem waits, the newest: a receiver that was away gets how things are now. The
    oldest notification goes first. After a failure, the others go first, and the pause before the next try doubles.

    With a secret, the header ``X-Kiel-Signature`` has ``sha256=`` and the HMAC-SHA256 of the body.

    Args:
        url: The URL to which notifications are posted. It may contain a secret, and is not logged.
        secret: The key of the signature. "" means no signature.

    Raises:
        ConfigError: The URL is not legal.
    """

    def __init__(self, url: str, secret: str = "") -> None:  # nosec B107 # "" means no secret
        if not is_http_url(url):
            raise ConfigError(
                "webhook: expected a URL such as https://host:8080/path, without a user and a password; the given one"
                " is not shown, because it may contain a secret"
            )
        self._url = url
        self._secret = secret.encode()
        self._waiting: dict[_Problem, Mapping[str, Any]] = {}
        #: Set if a notification was put, or the webhook is closing.
        self._woken = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._metrics = Metrics()

    def start(self, metrics: Metrics) -> None:
        """Start to send, in a task on the running event loop. ``metrics`` counts the posts."""
        self._metrics = metrics
        self._task = asyncio.get_running_loop().create_task(self._send_all())

    async def close(self) -> None:
        """
        Send the waiting notifications for at most 3 s, or until the first failure, and stop.

        The rest is dropped, and logged. The next service notifies again of problems that exist then.
        """
        self._closing.set()
        self._woken.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_CLOSE_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for notification in self._waiting.values():
            log.warning("the webhook does not get %s: the service stops", _what(notification))

    def put(self, notification: Mapping[str, Any]) -> None:
        """Queue a notification. If 1,000 notifications are waiting, drop the oldest one, and log a warning."""
        problem = _Problem(notification["cluster"], notification["group"], notification["finding"]["kind"])
        self._waiting.pop(problem, None)
        if len(self._waiting) >= _MOST_WAITING:
            oldest = self._waiting.pop(next(iter(self._waiting)))
            log.warning("the webhook does not get %s: there is room for %d", _what(oldest), _MOST_WAITING)
        self._waiting[problem] = notification
        self._metrics.gauge("webhook_waiting", len(self._waiting))
        self._woken.set()

    async def _send_all(self) -> None:
        client = AsyncHTTPClient(force_instance=True, max_body_size=_MOST_ANSWERED)
        backoff = Backoff(_PAUSE_S, _LONGEST_PAUSE_S)
        failures, now_s = RepeatedFailures(), asyncio.get_running_loop().time
        try:
            while self._waiting or not self._closing.is_set():
                if not self._waiting:
                    self._woken.clear()
                    await self._woken.wait()
                    continue
                what, failure = await self._send_oldest(client)
                if not failure:
                    if failures.forget():
                        waiting = counted(self._waiting, "notification waits", "notifications wait")
                        log.info("the webhook takes notifications again; %s", waiting)
                    backoff.reset()
                    continue
                if (times := failures.note(failure, now_s())) is not None:
                    log.warning("the webhook does not take %s: %s; it is tried again%s", what, failure, times)
                if self._closing.is_set():
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(backoff.next_s()):
                        await self._closing.wait()
        finally:
            client.close()

    async def _send_oldest(self, client: AsyncHTTPClient) -> tuple[str, str]:
        """Send a notification, and return its name, and the failure or "". After a failure, it goes to the end."""
        problem, notification = next(iter(self._waiting.items()))
        del self._waiting[problem]
        failure = "the service stops"
        try:
            failure = await self._post(client, notification)
        finally:
            if failure:
                self._waiting.setdefault(problem, notification)
            self._metrics.count("webhook_posts", outcome="failed" if failure else "taken")
            self._metrics.gauge("webhook_waiting", len(self._waiting))
        return _what(notification), failure

    async def _post(self, client: AsyncHTTPClient, notification: Mapping[str, Any]) -> str:
        """Post a notification. Return why it was not taken, or "" if it was taken."""
        body = json.dumps(notification).encode()
        headers = {"Content-Type": "application/json"}
        if self._secret:
            headers["X-Kiel-Signature"] = f"sha256={hmac.new(self._secret, body, hashlib.sha256).hexdigest()}"
        request = HTTPRequest(
            self._url, "POST", headers, body, connect_timeout=_TRY_S, request_timeout=_TRY_S, follow_redirects=False
        )
        try:
            await client.fetch(request)
        except Exception as error:  # An answer may be any nonsense, and later notifications must go out all the same.
            return f"{str(error) or type(error).__name__:.200}"
        return ""


def _what(notification: Mapping[str, Any]) -> str:
    """Name a notification for the log, such as "firing unowned of group g of cluster main"."""
    kind, group, cluster = notification["finding"]["kind"], notification["group"], notification["cluster"]
    return f"{notification['status']} {kind} of group {group} of cluster {cluster}"
