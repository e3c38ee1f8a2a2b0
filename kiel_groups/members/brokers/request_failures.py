"""Count the failed requests that a member repeats, and log each cause once, then at growing intervals."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kiel_groups.backoff import RepeatedFailures
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.member_state import CoordinatorCode, GroupRequest, Reaction, reaction_to
from kiel_groups.metrics import Metrics
from kiel_groups.wire.error_codes import ErrorCode
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.tasks import SlowStep

log = logging.getLogger(__name__)


#: The failed step of the member, in words. The search for the coordinator has words of its own.
_WORDS = {
    GroupRequest.JOIN: "join",
    GroupRequest.SYNC: "sync",
    GroupRequest.HEARTBEAT: "prove its membership",
}

#: The event that a slow request waits for, in words.
_AWAITED = {GroupRequest.JOIN: "the answer to its join", GroupRequest.SYNC: "its assignment"}

#: The reactions after which the member continues. A refusal that stops it is reported as an error.
_REPEATED = frozenset({Reaction.WAIT, Reaction.FIND, Reaction.TAKE_ID, Reaction.NEW_ID, Reaction.LOST})

#: The codes of a broker while the coordinator of a group is created, elected or started.
_STARTING = frozenset({CoordinatorCode.LOADING, CoordinatorCode.NOT_AVAILABLE, CoordinatorCode.NOT_COORDINATOR})

#: How long these codes may come before the first join without a warning, in seconds. The first request makes a new
#: cluster create the topic of the offsets, by default with 50 partitions, and elect their leaders.
CREATION_S = 10.0

#: Hints for requests whose code has a cause that its usual hint does not name.
_HINTS: Mapping[tuple[GroupRequest, int], str] = {
    (GroupRequest.SYNC, CoordinatorCode.UNKNOWN): (
        "; it cannot store a group whose metadata and assignments exceed its message.max.bytes"
    )
}


class RequestFailures:
    """
    Counts and logs the failed requests of a member since its membership was last confirmed.

    Args:
        group: The group's name.
        metrics: Counts ``group_requests_failed`` by request.
        runtime: The clock.
        find: How the member finds its coordinator, in words for the log.
    """

    def __init__(self, group: str, metrics: Metrics, runtime: Runtime, find: str) -> None:
        self._group = group
        self._metrics = metrics
        self._runtime = runtime
        self._words = {**_WORDS, GroupRequest.FIND: find}
        #: The failures by their cause, and the level at which it is logged.
        self._failures = RepeatedFailures()
        self._has_joined = False
        #: When a coordinator was first missing, in seconds of boot time.
        self._missing_since_s: float | None = None
        #: The last error, or None if the membership was confirmed after it.
        self.last: KielGroupsError | None = None

    def note(self, request: GroupRequest, error: KielGroupsError) -> None:
        """
        Count a failed request, and log its cause. If the same cause occurs again, log it at growing intervals.

        Before the first join, a coordinator that is not available yet causes no warning during ``CREATION_S``. Nor does
        an error that the log has already.
        """
        self._metrics.count("group_requests_failed", request=request.value)
        self.last = error
        level, what = self._level(error), self._words[request]
        times = self._failures.note((f"{request}: {error}", level), self._runtime.boot_time_s())
        if times is not None:
            log.log(level, "group %s: could not %s%s: %s; retrying", self._group, what, times, error)

    def note_code(self, request: GroupRequest, code: ErrorCode) -> None:
        """Call ``note`` if the member retries the request, finds its coordinator or joins again after this code."""
        if reaction_to(request, code.number) in _REPEATED:
            error = code.exception(f"group {self._group}: {request.value}")
            if hint := _HINTS.get((request, code.number)):
                error = type(error)(f"{error}{hint}", code=code.number)
            self.note(request, error)

    def slow(self, request: GroupRequest, why: str) -> SlowStep:
        """
        Return a context for one request, which logs warnings while the answer is late. ``why`` is the likely cause.
        """
        return SlowStep(
            lambda seconds: log.warning(
                "group %s: this member has waited %.0f s for %s: %s", self._group, seconds, _AWAITED[request], why
            )
        )

    def forget(self) -> None:
        """Forget the failures, because the membership is confirmed. So the object logs the next failure at once."""
        self.last, self._has_joined = None, True
        self._failures.forget()

    def _level(self, error: KielGroupsError) -> int:
        if getattr(error, "is_logged", False):
            return logging.DEBUG
        if self._has_joined or getattr(error, "code", None) not in _STARTING:
            return logging.WARNING
        now_s = self._runtime.boot_time_s()
        self._missing_since_s = now_s if self._missing_since_s is None else self._missing_since_s
        return logging.INFO if now_s - self._missing_since_s < CREATION_S else logging.WARNING


def reported(group: str, error: BaseException) -> KielGroupsError:
    """Return ``error`` if it is a KielGroupsError, or else a new KielGroupsError with ``error`` as its cause."""
    if isinstance(error, KielGroupsError):
        return error
    wrapped = KielGroupsError(f"group {group}: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
