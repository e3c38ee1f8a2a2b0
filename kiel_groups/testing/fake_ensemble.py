"""
A ZooKeeper that is none: servers, a log, sessions, and the faults that real ones have, on simulated time.

One leader commits what most servers reach; every server applies the log in its order, each at its own pace. A server
without contact to a leader goes on answering what it can alone, until it gives up, as real ones do. Sessions end by the
leader's clock. ``tests/integration/test_fake_zookeeper.py`` runs the same cases here and on real servers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from kazoo.exceptions import KazooException, RuntimeInconsistency, SessionExpiredError, SessionMovedError
from kazoo.protocol.serialization import Close, Sync, Transaction

from kiel_groups.testing.fake_network import Link
from kiel_groups.testing.fake_server import Entry, FakeServer, Question
from kiel_groups.testing.timeline import Timeline
from kiel_groups.testing.znode_tree import Tree

__all__ = ["FakeEnsemble", "Entry", "FakeSession"]

#: In ticks: sessions last so long.
LEAST_TICKS, MOST_TICKS = 2, 20
#: Seconds from the loss of a leader to the next one, where the others notice it at once.
ELECTION_S = 0.1


@dataclass(slots=True)
class FakeSession:
    """``server`` is where its client connected last: writes that come by way of another one are refused."""

    session_id: int
    timeout_ms: int
    server: FakeServer
    expires_s: float = 0.0


class FakeEnsemble:
    """
    Some servers and one truth.

    Args:
        timeline: The clock, and where chance comes from.
        servers: How many there are.
        tick_ms: ZooKeeper's unit of time; sessions last between 2 and 20 of them.
        max_session_timeout_ms: The longest session granted; 20 ticks unless given.
        sync_limit: For how many ticks a server without contact goes on before it gives up (``syncLimit``).
        tells_of_moves: Whether a transaction that comes by a connection that its session has left is told so, as by
            servers of 3.4; later ones close that connection, as all do for other writes.
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
        self.patience_s = sync_limit * tick_ms / 1000
        self.max_session_timeout_ms = max_session_timeout_ms or MOST_TICKS * tick_ms
        self.servers = [FakeServer(self, number) for number in range(1, servers + 1)]
        self.leader: FakeServer | None = self.servers[0]
        #: What is committed; servers follow.
        self.truth = Tree()
        self.log: list[Entry] = []
        self.sessions: dict[int, FakeSession] = {}
        #: Told of every entry when it is committed, before any server has applied it.
        self.observers: list[Callable[[Entry], None]] = []
        self._former_leader: FakeServer | None = self.leader
        self._granted: dict[int, int] = {}
        self._epoch = 1
        self._lost_leaders = 0
        self._last_zxid = 1 << 32
        self._apply_due_s = dict.fromkeys(self.servers, 0.0)
        self._forward_due_s = dict.fromkeys(self.servers, 0.0)

    def delay_s(self) -> float:
        """How long a message takes between two machines: a millisecond, and sometimes much longer."""
        draw = self._draw()
        return 0.0003 + draw / 1000 if draw < 0.99 else draw * 0.1

    # Sessions

    def password(self, session_id: int) -> bytes:
        return session_id.to_bytes(16, "big", signed=True)

    def touch(self, session_id: int) -> None:
        """A sign of life reached the leader."""
        session = self.sessions.get(session_id)
        if session is not None:
            # A real leader looks once a tick.
            tick_s = self.tick_ms / 1000
            end_s = self.timeline.now_s + session.timeout_ms / 1000
            session.expires_s = (end_s // tick_s + 1) * tick_s

    def open_session(self, server: FakeServer, link: Link, asked_ms: int) -> None:
        """A new session; committed like a write, and so it waits for a leader."""
        granted_ms = max(LEAST_TICKS * self.tick_ms, min(asked_ms, self.max_session_timeout_ms))
        self._forward(server, lambda: self._open_session(server, link, granted_ms))

    def _open_session(self, server: FakeServer, link: Link, granted_ms: int) -> None:
        session_id = (server.number << 56) + len(self._granted) + 1
        self._granted[session_id] = granted_ms
        self.sessions[session_id] = FakeSession(session_id, granted_ms, server)
        self.touch(session_id)
        self.timeline.at(self.sessions[session_id].expires_s, self._look_at_session, session_id)
        entry = self._entry(session_id, server)
        entry.opens = True
        self._commit(entry)
        # The server has applied it by then.
        self.timeline.at(self._apply_due_s[server], server.welcome, link, session_id, granted_ms)

    def reopen_session(self, server: FakeServer, link: Link, request: Any) -> None:
        """A client that comes back: the leader knows whether its session lives."""
        self._forward(server, lambda: self._reopen_session(server, link, request))

    def _reopen_session(self, server: FakeServer, link: Link, request: Any) -> None:
        session = self.sessions.get(request.session_id)
        valid = session is not None and request.passwd == self.password(request.session_id)
        if session is not None and valid:
            session.server = server
            self.touch(session.session_id)
        granted_ms = self._granted[request.session_id] if valid else 0
        self.timeline.after(self.delay_s(), server.welcome, link, request.session_id, granted_ms)

    def take_over(self, server: FakeServer, session_id: int) -> int:
        """
        A client comes back to a leader that has lost its quorum and does not know it: it trusts what it knows itself.

        Returns:
            The timeout that was granted.
        """
        if session_id in self.sessions:
            self.sessions[session_id].server = server
        return self._granted[session_id]

    def is_astray(self, server: FakeServer, link: Link) -> bool:
        """Whether a client of the leader's own has connected elsewhere since; other servers do not know."""
        session = self.sessions.get(link.session_id)
        return server is self.leader and session is not None and session.server is not server

    def _look_at_session(self, session_id: int) -> None:
        session = self.sessions.get(session_id)
        if session is None:
            return
        if self.leader is not None and self.timeline.now_s >= session.expires_s:
            self.expire(session_id)
        else:
            self.timeline.at(max(session.expires_s, self.timeline.now_s + 0.1), self._look_at_session, session_id)

    def expire(self, session_id: int) -> None:
        """The leader ends a session; its client learns of it when it is told."""
        entry = self._entry(session_id, None)
        self._end_session(entry)
        self._commit(entry)

    def _end_session(self, entry: Entry) -> None:
        entry.closes = True
        self.sessions.pop(entry.session_id, None)
        entry.changes = self.truth.end_session(entry.session_id, entry.zxid)

    # Writes

    def submit(self, server: FakeServer, question: Question) -> None:
        """Pass a request on to the leader; without one it waits."""
        self._forward(server, partial(self._perform, server, question))

    def _forward(self, server: FakeServer, ask: Callable[[], None]) -> None:
        if not server.contact:
            server.held.append(ask)
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
            server.held.append(ask)

    def _perform(self, server: FakeServer, question: Question) -> None:
        session_id = question.link.session_id
        session = self.sessions.get(session_id)
        entry = self._entry(session_id, server)
        entry.question = question
        if session is None:
            entry.error = SessionExpiredError()
        elif isinstance(question.request, Close):
            self._end_session(entry)
        elif isinstance(question.request, Sync):
            entry.value = question.request.path
        elif session.server is not server:
            if self.reports_moves and isinstance(question.request, Transaction):
                others = len(question.request.operations) - 1
                entry.value = [SessionMovedError(), *(RuntimeInconsistency() for _ in range(others))]
            else:
                entry.strays = True
        else:
            try:
                entry.value, entry.changes = self.truth.perform(
                    question.request, session_id, entry.zxid, int(self.timeline.now_s * 1000)
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
                self._have_applied(server)

    def _have_applied(self, server: FakeServer) -> None:
        """Let a server apply, a little later, all that is committed now."""
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

    # Who leads

    def believes_to_lead(self, server: FakeServer) -> bool:
        """Also of a leader that has lost its quorum and does not know it yet."""
        return server.serving and server is (self.leader or self._former_leader)

    def settle(self) -> None:
        """To be called after any fault: who is in contact with whom now, and who gives up when."""
        able = [server for server in self.servers if server.up and not server.frozen and not server.cut]
        quorum = len(able) > len(self.servers) // 2
        crashed = self.leader is not None and not self.leader.up
        if self.leader is not None and not (quorum and self.leader in able):
            self._former_leader, self.leader = self.leader, None
            self._lost_leaders += 1
        elif self.leader is None and quorum and self._may_go_on(able):
            self.leader = self._former_leader
        for server in self.servers:
            self._set_contact(server, self.leader is not None and server in able, at_once=crashed)
        if self.leader is None and quorum:
            # A broken connection is noticed at once, a silent one when the patience is over.
            wait_s = 0.0 if crashed else self.timeline.random.uniform(0.0, self.patience_s)
            self.timeline.after(ELECTION_S + wait_s, self._elect, self._lost_leaders)

    def _may_go_on(self, able: list[FakeServer]) -> bool:
        """Whether the last leader is back before a quorum of the others has given it up."""
        faithful = sum(server.serving for server in able)
        return self._former_leader in able and self._former_leader.serving and faithful > len(self.servers) // 2

    def _set_contact(self, server: FakeServer, contact: bool, *, at_once: bool) -> None:
        if contact == server.contact:
            return
        server.contact = contact
        if not contact:
            server.losses += 1
            self.timeline.after(0.0 if at_once else self.patience_s, self._give_up, server, server.losses)
            return
        if server is not self.leader and server is self._former_leader:
            server.close_clients()  # Somebody else leads now.
        server.serving = True
        # A real follower tells with its next answer to a ping of the leader's, half a tick later at most.
        for session_id in server.heard:
            self.touch(session_id)
        server.heard.clear()
        held, server.held = server.held, []
        for ask in held:
            self._forward(server, ask)
        self._have_applied(server)

    def _give_up(self, server: FakeServer, losses: int) -> None:
        if server.contact or server.losses != losses or server.frozen:
            return
        server.serving = False
        server.close_clients()

    def _elect(self, lost_leaders: int) -> None:
        if self.leader is not None or self._lost_leaders != lost_leaders:
            return  # Somebody leads, or led since: patience is counted anew.
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
        """Cut a server off from the others; its clients still reach it."""
        server.cut = True
        self.settle()

    def freeze(self, server: FakeServer) -> None:
        """SIGSTOP: it answers nothing, its connections stay."""
        server.frozen = True
        self.settle()

    def crash(self, server: FakeServer) -> None:
        """It is gone, with all its connections."""
        server.up = server.serving = False
        for link in list(server.links):
            link.reset()
        server.close_clients()
        self.settle()

    def heal(self, server: FakeServer) -> None:
        """End whatever fault it has."""
        server.cut, server.lag_s, server.up = False, 0.0, True
        if server.frozen:
            server.thaw()
        self.settle()
