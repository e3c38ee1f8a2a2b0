"""Decide whether a piece of work may still deliver records and commit, at the moment when it is about to."""

from __future__ import annotations

from typing import Protocol

from kiel_groups.errors import ClaimLostError

__all__ = ["TrustedSession", "WorkFence"]


class TrustedSession(Protocol):
    """The worker's ZooKeeper session; ``Session`` is one."""

    @property
    def trusted(self) -> bool:
        """Whether the lease of the session runs and its connection is up."""

    async def wait_trusted(self) -> None:
        """
        Wait until the session is trusted.

        Raises:
            SessionLostError: It is over.
        """


class WorkFence:
    """
    The fence of one runner: it is passed before each delivery and each commit.

    A process that was frozen past its lease finds its session untrusted, and delivers nothing more.

    Args:
        session: The session that has the claim.
    """

    def __init__(self, session: TrustedSession) -> None:
        self._session = session
        #: Why the runner may not deliver or commit any more; "" while it may.
        self.shut_reason = ""

    def shut(self, reason: str) -> None:
        """Have the runner deliver and commit nothing more. Of several reasons, the first is kept."""
        self.shut_reason = self.shut_reason or reason

    @property
    def is_open(self) -> bool:
        """Whether records may be delivered now."""
        return not self.shut_reason and self._session.trusted

    async def wait_open(self) -> None:
        """
        Wait until records may be delivered. A session without a connection opens the fence when it is back.

        Raises:
            ClaimLostError: The fence was shut.
            SessionLostError: The session is over.
        """
        while not self.is_open:
            if self.shut_reason:
                raise ClaimLostError(f"nothing is delivered any more: {self.shut_reason}")
            await self._session.wait_trusted()
