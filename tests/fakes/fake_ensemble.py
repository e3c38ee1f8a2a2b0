"""
A simulated ZooKeeper ensemble: servers, a log, sessions, and the faults of real ensembles, on simulated time.

A leader with a quorum commits requests; every server applies the log in order, at its own pace. As in ZooKeeper, a
server without contact to a leader still answers pings and reads until the sync limit. Sessions expire by the leader's
clock. ``tests/integration/test_fake_zookeeper.py`` runs the same cases here and on real servers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from kazoo.exceptions import KazooException, RuntimeInconsistency, SessionExpiredError, SessionMovedError
from kazoo.protocol.serialization import Close, Sync, Transaction

from tests.fakes.fake_network import Link
from tests.fakes.fake_server import Entry, FakeServer, PendingRequest
from tests.fakes.timeline import Timeline
from tests.fakes.znode_tree import Tree

__all__ = ["FakeEnsemble", "Entry", "FakeSession"]

#: The shortest and the longest session timeout, in ticks.
LEAST_TICKS, MOST_TICKS = 2, 20
#: Seconds between the moment when the other servers notice the loss of the leader and the election of the next one.
ELECTION_S = 0.1


@dataclass(slots=True)
class FakeSession:
    """
    A session. ``server`` is the server that its client connected to last. Writes through other servers are refused.
    """

    session_id: int
    timeout_ms: int
    server: FakeServer
    expires_s: float = 0.0


class FakeEnsemble:
    """
    The servers of an ensemble, with one log.

    Args:
        timeline: The clock and the source of randomness.
        servers: The number of servers.
        tick_ms: ZooKeeper's unit of time. Session timeouts are between 2 and 20 ticks.
        max_session_timeout_ms: The longest session timeout granted, by default 20 ticks.
        sync_limit: The ticks after which a server without contact to a leader stops serving (``syncLimit``).
        reports_moves: Whether a transaction on a connection that its session has left is answered with an error, as by
            servers of 3.4. If not, the connection is closed, as by later servers. Other writes always close it.
    """

    def __init__(
        self,
        timeline: Timeline,
        servers: int = 1,
        *,
        tick_ms: int = 500,
        max_session_timeout_ms: int | None = None,
        sync_limit: int = 4,
        reports_moves: bool = False,
    ) -> None:
        self.timeline = timeline
        self._draw = timeline.random.random
        self.tick_ms = tick_ms
        self.reports_moves = reports_moves
        self.sync_limit_s = sync_limit * tick_ms / 1000
        self.max_session_timeout_ms = max_session_timeout_ms or MOST_TICKS * tick_ms
        self.servers = [FakeServer(self, number) for number in range(1, servers + 1)]
        self.leader: FakeServer | None = self.servers[0]
        #: The znodes with all committed changes. Each server applies these changes to its own tree later.
        self.tree = Tree()
        for server in self.servers:
            server.tree.denied = self.tree.denied
        self.log: list[Entry] = []
        self.sessions: dict[int, FakeSession] = {}
        #: Called with every entry when it is committed, before any server has applied it.
        self.observers: list[Callable[[Entry], None]] = []
        self._former_leader: FakeServer | None = self.leader
        self._granted: dict[int, int] = {}
        self._epoch = 1
        self._lost_leaders = 0
        self._last_zxid = 1 << 32
        self._apply_due_s = dict.fromkeys(self.servers, 0.0)
        self._forward_due_s = dict.fromkeys(self.servers, 0.0)

    def delay_s(self) -> float:
        """Return the delay of a message between two hosts: about a millisecond, and sometimes much longer."""
        draw = self._draw()
        return 0.0003 + draw / 1000 if draw < 0.99 else draw * 0.1

    # Sessions

    def password(self, session_id: int) -> bytes:
        return session_id.to_bytes(16, "big", signed=True)

    def touch(self, session_id: int) -> None:
        """Renew a session: its client's message or ping has reached the leader."""
        session = self.sessions.get(session_id)
        if session is not None:
            # A real leader expires sessions once a tick.
            tick_s = self.tick_ms / 1000
            end_s = self.timeline.now_s + session.timeout_ms / 1000
            session.expires_s = (end_s // tick_s + 1) * tick_s

    def open_session(self, server: FakeServer, link: Link, asked_ms: int) -> None:
        """Open a session. This is committed like a write, so it waits for a leader."""
        granted_ms = max(LEAST_TICKS * self.tick_ms, min(asked_ms, self.max_session_timeout_ms))
        self._forward(server, lambda: self._open_session(server, link, granted_ms))

    def _open_session(self, server: FakeServer, link: Link, granted_ms: int) -> None:
        session_id = (server.number << 56) + len(self._granted) + 1
        self._granted[session_id] = granted_ms
        self.sessions[session_id] = FakeSession(session_id, granted_ms, server)
        self.touch(session_id)
        self.timeline.at(self.sessions[session_id].expires_s, self._expire_if_due, session_id)
        entry = self._entry(session_id, server)
        entry.opens = True
        self._commit(entry)
        # By then, the server has applied the entry.
        self.timeline.at(self._apply_due_s[server], server.answer_connect, link, session_id, granted_ms)

    def reopen_session(self, server: FakeServer, link: Link, request: Any) -> None:
        """
        Resume a session for a client that reconnects. The leader decides, because it knows whether the session still
        exists.
        """
        self._forward(server, lambda: self._reopen_session(server, link, request))

    def _reopen_session(self, server: FakeServer, link: Link, request: Any) -> None:
        session = self.sessions.get(request.session_id)
        valid = session is not None and request.passwd == self.password(request.session_id)
        if session is not None and valid:
            session.server = server
            self.touch(session.session_id)
        granted_ms = self._granted[request.session_id] if valid else 0
        self.timeline.after(self.delay_s(), server.answer_connect, link, request.session_id, granted_ms)

    def reopen_without_quorum(self, server: FakeServer, session_id: int) -> int:
        """
        Resume a session on a leader that has lost its quorum and has not noticed. Such a leader decides without a
        quorum.

        Returns:
            The timeout that was granted, in milliseconds.
        """
        if session_id in self.sessions:
            self.sessions[session_id].server = server
        return self._granted[session_id]

    def has_moved(self, server: FakeServer, link: Link) -> bool:
        """Return whether the link's session has moved to another server. Only the leader knows this."""
        session = self.sessions.get(link.session_id)
        return server is self.leader and session is not None and session.server is not server

    def _expire_if_due(self, session_id: int) -> None:
        session = self.sessions.get(session_id)
        if session is None:
            return
        if self.leader is not None and self.timeline.now_s >= session.expires_s:
            self.expire(session_id)
        else:
            self.timeline.at(max(session.expires_s, self.timeline.now_s + 0.1), self._expire_if_due, session_id)

    def expire(self, session_id: int) -> None:
        """
        Expire a session. Its client's connection is closed, and the client learns of the expiry when it reconnects.
        """
        entry = self._entry(session_id, None)
        self._end_session(entry)
        self._commit(entry)

    def _end_session(self, entry: Entry) -> None:
        entry.closes = True
        self.sessions.pop(entry.session_id, None)
        entry.changes = self.tree.end_session(entry.session_id, entry.zxid)

    # Writes

    def submit(self, server: FakeServer, pending: PendingRequest) -> None:
        """Forward a request to the leader. The request waits while there is no leader."""
        self._forward(server, partial(self._perform, server, pending))

    def _forward(self, server: FakeServer, ask: Callable[[], None]) -> None:
        if not server.contact:
            server.waiting_for_leader.append(ask)
            return
        now_s = self.timeline.now_s
        if server is self.leader:
            due_s = max(self._forward_due_s[server], now_s)
        else:
            due_s = self._forward_due_s[server] = max(self._forward_due_s[server], now_s + self.delay_s())
        if due_s > now_s:
            self.timeline.at(due_s, self._arrive, server, ask)
        else:
            self._arrive(server, ask)

    def _arrive(self, server: FakeServer, ask: Callable[[], None]) -> None:
        if server.contact and not (self.leader is not None and self.leader.frozen):
            ask()
        elif server.up:
            server.waiting_for_leader.append(ask)

    def _perform(self, server: FakeServer, pending: PendingRequest) -> None:
        session_id = pending.link.session_id
        session = self.sessions.get(session_id)
        entry = self._entry(session_id, server)
        entry.pending = pending
        if session is None:
            entry.error = SessionExpiredError()
        elif isinstance(pending.request, Close):
            self._end_session(entry)
        elif isinstance(pending.request, Sync):
            entry.value = pending.request.path
        elif session.server is not server:
            if self.reports_moves and isinstance(pending.request, Transaction):
                others = len(pending.request.operations) - 1
                entry.value = [SessionMovedError(), *(RuntimeInconsistency() for _ in range(others))]
            else:
                entry.by_old_connection = True
        else:
            try:
                entry.value, entry.changes = self.tree.perform(
                    pending.request, session_id, entry.zxid, int(self.timeline.now_s * 1000)
                )
            except KazooException as error:
                entry.error = error
        self._commit(entry)

    def _entry(self, session_id: int, server: FakeServer | None) -> Entry:
        self._last_zxid += 1
        return Entry(self._last_zxid, session_id, server)

    def _commit(self, entry: Entry) -> None:
        self.log.append(entry)
        for observer in self.observers:
            observer(entry)
        for server in self.servers:
            if server.contact:
                self._schedule_apply(server)

    def _schedule_apply(self, server: FakeServer) -> None:
        """Schedule the application of all entries committed so far to a server's tree."""
        now_s = self.timeline.now_s
        delay_s = server.lag_s + (0.0 if server is self.leader else self.delay_s())
        due_s = self._apply_due_s[server] = max(self._apply_due_s[server], now_s + delay_s)
        if due_s > now_s:
            self.timeline.at(due_s, self._apply, server, len(self.log))
        else:
            self._apply(server, len(self.log))

    def _apply(self, server: FakeServer, until: int) -> None:
        if server.contact and not server.frozen:
            while server.applied < until:
                server.apply(self.log[server.applied])

    # The leader

    def believes_to_lead(self, server: FakeServer) -> bool:
        """
        Return whether a server regards itself as the leader. Such a server may have lost its quorum and not noticed
        yet.
        """
        return server.serving and server is (self.leader or self._former_leader)

    def update_contacts(self) -> None:
        """Recompute, after a fault, which servers have contact to a leader. Schedule sync limits and elections."""
        able = [server for server in self.servers if server.up and not server.frozen and not server.cut]
        quorum = len(able) > len(self.servers) // 2
        crashed = self.leader is not None and not self.leader.up
        if self.leader is not None and not (quorum and self.leader in able):
            self._former_leader, self.leader = self.leader, None
            self._lost_leaders += 1
        elif self.leader is None and quorum and self._former_leader_returns(able):
            self.leader = self._former_leader
        for server in self.servers:
            self._set_contact(server, self.leader is not None and server in able, at_once=crashed)
        if self.leader is None and quorum:
            # The servers notice a broken connection at once, and a silent connection only after the sync limit.
            wait_s = 0.0 if crashed else self.timeline.random.uniform(0.0, self.sync_limit_s)
            self.timeline.after(ELECTION_S + wait_s, self._elect, self._lost_leaders)

    def _former_leader_returns(self, able: list[FakeServer]) -> bool:
        """Return whether the former leader is back before a quorum of servers has stopped following it."""
        following = sum(server.serving for server in able)
        return self._former_leader in able and self._former_leader.serving and following > len(self.servers) // 2

    def _set_contact(self, server: FakeServer, contact: bool, *, at_once: bool) -> None:
        if contact == server.contact:
            return
        server.contact = contact
        if not contact:
            server.losses += 1
            self.timeline.after(0.0 if at_once else self.sync_limit_s, self._stop_serving, server, server.losses)
            return
        if server is not self.leader and server is self._former_leader:
            server.close_clients()  # Another server leads now.
        server.serving = True
        # A real follower reports its clients' sessions when it answers the leader's next ping, within half a tick.
        for session_id in server.sessions_to_touch:
            self.touch(session_id)
        server.sessions_to_touch.clear()
        waiting, server.waiting_for_leader = server.waiting_for_leader, []
        for ask in waiting:
            self._forward(server, ask)
        self._schedule_apply(server)

    def _stop_serving(self, server: FakeServer, losses: int) -> None:
        if server.contact or server.losses != losses or server.frozen:
            return
        server.serving = False
        server.close_clients()

    def _elect(self, lost_leaders: int) -> None:
        if self.leader is not None or self._lost_leaders != lost_leaders:
            return  # There is a leader, or there was a leader since: this election belongs to an earlier loss.
        able = [server for server in self.servers if server.up and not server.frozen and not server.cut]
        if len(able) <= len(self.servers) // 2:
            return
        self.leader = self.timeline.random.choice(able)
        self._epoch += 1
        self._last_zxid = self._epoch << 32
        for server in able:
            server.close_clients()
            self._set_contact(server, True, at_once=True)
        for session_id in self.sessions:
            self.touch(session_id)

    # Faults

    def cut(self, server: FakeServer) -> None:
        """Cut a server off from the other servers. Its clients still reach it."""
        server.cut = True
        self.update_contacts()

    def freeze(self, server: FakeServer) -> None:
        """Freeze a server, as SIGSTOP does. It answers nothing, and its connections stay open."""
        server.frozen = True
        self.update_contacts()

    def crash(self, server: FakeServer) -> None:
        """Kill a server, and reset its connections."""
        server.up = server.serving = False
        for link in list(server.links):
            link.reset()
        server.close_clients()
        self.update_contacts()

    def heal(self, server: FakeServer) -> None:
        """End all faults of a server."""
        server.cut, server.lag_s, server.up = False, 0.0, True
        if server.frozen:
            server.thaw()
        self.update_contacts()
