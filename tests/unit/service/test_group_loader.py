"""Repeated readings of a group share one session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from kiel_groups.admin import cluster_admin
from kiel_groups.errors import CoordinationError, KielGroupsError, UnknownGroupError
from kiel_groups.ops.group_view import GroupView, view_group
from kiel_groups.service import group_loader
from kiel_groups.service.group_loader import follow_group
from kiel_groups.service.loaded_groups import LoadedGroups

pytestmark = pytest.mark.unit

LOADED = LoadedGroups((view_group("g", {}),), brokers=1)


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """
    Return the list of opened sessions. A reading returns ``LOADED`` while its session is ``connected``, and fails
    afterwards.
    """
    opened: list[SimpleNamespace] = []

    @contextmanager
    def zookeeper(hosts: str, *, timeout_s: float) -> Iterator[SimpleNamespace]:
        session = SimpleNamespace(connected=True, closed=False)
        opened.append(session)
        try:
            yield session
        finally:
            session.closed = True

    def load(client: SimpleNamespace, *args: object) -> LoadedGroups[GroupView]:
        if client.connected:
            return LOADED
        raise CoordinationError("connection lost")

    monkeypatch.setattr(cluster_admin, "zookeeper", zookeeper)
    monkeypatch.setattr(group_loader, "_load", load)
    return opened


def test_a_session_lasts_until_a_reading_fails(sessions: list[SimpleNamespace]) -> None:
    """
    Readings share one session until a reading fails. Then the session is closed, the error is yielded, and the next
    reading opens another session.
    """
    readings = follow_group("z:2181", "g")
    assert [next(readings) for _ in range(3)] == [LOADED] * 3
    assert len(sessions) == 1
    sessions[0].connected = False
    assert isinstance(next(readings), KielGroupsError)
    assert sessions[0].closed
    assert [next(readings) for _ in range(2)] == [LOADED] * 2
    assert [session.closed for session in sessions] == [True, False]
    readings.close()
    assert [session.closed for session in sessions] == [True, True]


def test_an_unknown_group_ends_the_readings(sessions: list[SimpleNamespace], monkeypatch: pytest.MonkeyPatch) -> None:
    """
    An unknown group ends the readings with an error. It was deleted, or its name is wrong, so a retry would not help.
    """

    def unknown(*args: object) -> LoadedGroups[GroupView]:
        raise UnknownGroupError("there is none")

    monkeypatch.setattr(group_loader, "_load", unknown)
    with pytest.raises(UnknownGroupError):
        next(follow_group("z:2181", "g"))
    assert [session.closed for session in sessions] == [True]
