"""Define how a member reaches the coordinator of its group; the simulator has an implementation of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from kiel_groups.errors import BrokerError
from kiel_groups.wire.error_codes import ErrorCode
from kiel_groups.wire.framing import Request
from kiel_groups.wire.groups.sync_group_v0 import SyncGroupResponse

__all__ = ["BeatAnswer", "FindError", "GroupTransport", "code_of"]

T = TypeVar("T")


class FindError(BrokerError):
    """No broker has named the coordinator; ``code`` is the broker's, or None if none answered."""


class BeatAnswer(NamedTuple):
    """
    The answer to a heartbeat: its error code, or None if none came.

    ``failure`` says why there is none, or why the membership is over if the coordinator is no broker.
    """

    code: int | None
    failure: str = ""


def code_of(answer: object) -> int:
    """Return the error code of the answer to a heartbeat, a leave request or a sync."""
    code = answer.error if isinstance(answer, SyncGroupResponse) else answer
    assert isinstance(code, ErrorCode), answer
    return code.number


class GroupTransport(Protocol):
    """The requests of one member about its group."""

    async def find(self, doubted: int | None = None) -> int:
        """
        Ask any broker for the coordinator, once, and return its node id.

        A ``doubted`` coordinator is asked itself only if no other broker is known.

        Raises:
            FindError: No broker has named it.
        """

    async def send(self, coordinator: int, request: Request[T], timeout_s: float, *, aside: bool = False) -> T:
        """
        Send a request to the coordinator once, and return its answer.

        A join and a sync occupy their connection until the group is ready. ``aside`` sends a request beside them.

        Raises:
            KielGroupsError: There is no answer in time, or none that can be read.
        """

    def beat(
        self, coordinator: int, request: Request[object], timeout_s: float, answered: Callable[[BeatAnswer], None]
    ) -> None:
        """
        Send a heartbeat, off the event loop; it may block for ``timeout_s``. ``answered`` is called once.

        The event loop may be blocked meanwhile. A leave request, or the sync of a stable member, may be sent in the
        same way.
        """

    def close_beats(self) -> None:
        """Close the connection of heartbeats, on the heartbeat's thread."""
