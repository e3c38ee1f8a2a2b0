"""An allocator process: it stands for election and leads, but owns nothing and is no member."""

from __future__ import annotations

from collections.abc import Callable

from kiel_groups.allocators import Allocator
from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.coordination.member.group_session import GroupSession
from kiel_groups.coordination.member.session_supervisor import SessionSupervisor
from kiel_groups.errors import KielGroupsError
from kiel_groups.metrics import Metrics

__all__ = ["AllocatorProcess"]


class AllocatorProcess:
    """
    Candidacy in one group, from ``start`` to ``close``, across sessions.

    It registers neither as a member nor as a consumer: all that is seen of it is its election znode. Who joins the
    group agrees with the other members about settings, not with it.

    Args:
        config: The group, its debounce, the limit for its allocator; settings of a member mean nothing here.
        zookeeper: Where it lives.
        allocator: What it allocates by when it leads.
        metrics: Where to count.
        on_failure: Hears of an error that no new session can mend, such as missing rights.
    """

    def __init__(
        self,
        config: GroupConfig,
        zookeeper: ZooKeeperConfig,
        allocator: Allocator,
        metrics: Metrics,
        on_failure: Callable[[KielGroupsError], None],
    ) -> None:
        self._config = config
        self._zookeeper = zookeeper
        self._allocator = allocator
        self._metrics = metrics
        self._lives = SessionSupervisor(config.group, self._begin, zookeeper.connect_timeout_ms, metrics, on_failure)

    async def start(self) -> None:
        """
        Stand for election; what prevents it is raised, later losses are mended in the background.

        Raises:
            NoZooKeeperError: No server answered in time.
            ChrootMissingError: The chroot does not exist.
            CoordinationError: ZooKeeper refused to write.
        """
        await self._lives.start()

    async def _begin(self, by_s: float) -> _AllocatorSession:
        candidacy = _AllocatorSession(
            self._config, self._zookeeper, self._allocator, self._metrics, first=self._lives.current is None
        )
        await candidacy.join(by_s)
        return candidacy

    @property
    def member_id(self) -> str | None:
        """The name by which the group knows it as a leader; another one after a lost session."""
        return self._lives.current.member_id if self._lives.current else None

    @property
    def leads(self) -> bool:
        return self._lives.current is not None and self._lives.current.leads

    async def close(self) -> None:
        """Resign: the election znode goes at once, and the next candidate leads."""
        await self._lives.close()


class _AllocatorSession(GroupSession):
    """A candidate on one session."""

    _paused = "leading, or standing by for it, is paused"

    async def _enter(self) -> None:
        self._name()
        # There is no znode whose loss would mean anything; a check of the folder is the quorum's word all the same.
        self._stand(self._layout.election)
