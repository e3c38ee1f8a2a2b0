"""Log and count the failed requests of one member that it repeats, each cause once."""

from __future__ import annotations

import logging

from kiel_groups.errors import KielGroupsError
from kiel_groups.group.coordinated.coordinator_codes import GroupRequest, Reaction, reaction_to
from kiel_groups.metrics import Metrics
from kiel_groups.wire.error_codes import ErrorCode

__all__ = ["RequestFailures", "reported"]

log = logging.getLogger(__name__)

#: What the member could not do.
_WORDS = {
    GroupRequest.FIND: "find its coordinator",
    GroupRequest.JOIN: "join",
    GroupRequest.SYNC: "sync",
    GroupRequest.HEARTBEAT: "prove its membership",
}

#: The reactions after which the member continues. A refusal that stops it is reported as an error.
_REPEATED = frozenset({Reaction.WAIT, Reaction.FIND, Reaction.NEW_ID, Reaction.LOST})


class RequestFailures:
    """
    The failures of a member since its membership was last confirmed.

    Args:
        group: The group's name.
        metrics: Counts ``group_requests_failed`` by request.
    """

    def __init__(self, group: str, metrics: Metrics) -> None:
        self._group = group
        self._metrics = metrics
        self._cause = ""
        #: The last error, or None if the membership was confirmed after it.
        self.last: KielGroupsError | None = None

    def note(self, request: GroupRequest, error: KielGroupsError) -> None:
        """Count a failed request, and log its cause unless the one before has failed for the same one."""
        self._metrics.count("group_requests_failed", request=request.value)
        self.last = error
        cause, self._cause = self._cause, f"{request}: {error}"
        if cause != self._cause:
            log.warning("group %s: could not %s: %s; retrying", self._group, _WORDS[request], error)

    def note_code(self, request: GroupRequest, code: ErrorCode) -> None:
        """Note a code after which the member repeats the request, finds its coordinator, or joins anew."""
        if reaction_to(request, code.number) in _REPEATED:
            self.note(request, code.exception(f"group {self._group}: {request.value}"))

    def forget(self) -> None:
        """Forget the failures, because the membership is confirmed: the next one is logged again."""
        self.last, self._cause = None, ""


def reported(group: str, error: BaseException) -> KielGroupsError:
    """Return an error as callers of this package expect it: the error itself, or one that has it as its cause."""
    if isinstance(error, KielGroupsError):
        return error
    wrapped = KielGroupsError(f"group {group}: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
