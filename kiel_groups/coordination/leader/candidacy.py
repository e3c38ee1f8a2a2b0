"""The candidacy of one process on one session: its part in the election, and what it does while it leads."""

from __future__ import annotations

from collections.abc import Callable

from kiel_groups.coordination.leader.election import Election
from kiel_groups.coordination.leader.leader_driver import LeaderDriver, PlanMaker, PlanRequests
from kiel_groups.coordination.session.session_context import SessionContext
from kiel_groups.group.leader import candidate

__all__ = ["Candidacy"]


class Candidacy:
    """
    The election, and the leader's parts, which are idle while another process leads.

    Args:
        context: The process on its session.
        planner: Returns the maker of the group's plans.
        proof: The znode that must exist for this process to be a candidate; see ``Election``.
    """

    def __init__(self, context: SessionContext, planner: Callable[[PlanRequests], PlanMaker], proof: str) -> None:
        self._leader_driver = LeaderDriver(context, planner, self.recheck)
        self._election = Election(context, proof, self._lead, self._leader_driver.resign)

    @property
    def leads(self) -> bool:
        """Whether this process is the group's leader."""
        return self._election.leads

    @property
    def alone(self) -> bool:
        """Whether this process leads and knows of no other member."""
        return self._leader_driver.alone

    def enter(self) -> None:
        """Become a candidate. The znode ``proof`` must have been registered."""
        self._election.feed(candidate.EnterElection())

    def recheck(self) -> None:
        """Read the candidates again: an operator may have deleted the election znode, or a watch was lost."""
        self._election.feed(candidate.Resumed())

    def end(self) -> None:
        """Stop leading and taking part, because the session is over."""
        self._leader_driver.close()
        self._election.feed(candidate.SessionEnded())

    def _lead(self, path: str, succeeds: bool) -> None:
        self._leader_driver.lead(path, succeeds=succeeds)
