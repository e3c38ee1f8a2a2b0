"""Releases of claims that were never opened."""

from __future__ import annotations

from typing import Any, cast

import pytest
from kazoo.client import KazooClient

from kiel_groups.group.offset_tracker import OffsetTracker
from kiel_groups.group.partition_offsets import StartPosition
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.members.zookeeper.owner_znodes import Releases
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.session import Session
from tests.fakes import Host, fake_client
from tests.sim.session_bench import SessionBench, owner_znodes_of

pytestmark = [pytest.mark.sim, pytest.mark.failures]

P0, LAYOUT = TopicPartition("t", 0), GroupLayout("g")
OFFSET, OWNER = LAYOUT.offset(P0), LAYOUT.owner(P0)


class DisturbedRelease(SessionBench):
    """A release of P0 by its owner, before or during which another client changes the owner znode or the offset."""

    def __init__(self, *, opened: bool) -> None:
        super().__init__()
        self.operator: KazooClient = fake_client(Host(self.ensemble))
        self.tracker = OffsetTracker()
        self.opened = opened

    def release(self, change: str, when: str, monkeypatch: pytest.MonkeyPatch) -> Releases:
        """
        Claim P0, disturb the claim, and release it.

        Args:
            change: "nothing"; "set": an operator sets the offset; "claim" or "claim and open": another member owns the
                partition.
            when: "before" the release, or "within" it, right before it is written.
            monkeypatch: The test's fixture.
        """
        self.operator.start()
        self.operator.create(OFFSET, b"5", makepath=True)

        async def work(session: Session, writer: FencedWriter) -> Releases:
            owner_znodes = owner_znodes_of(session, writer, self.tracker)
            assert await owner_znodes.claim([P0]) == {P0}
            if self.opened:
                self.tracker.open({P0: StartPosition(5, 0, 1)})
            if when == "before":
                self._disturb(change)
                await writer.prove()
            else:
                self._disturb_within(writer, change, monkeypatch)
            return await owner_znodes.release([P0])

        return cast(Releases, self.run(work))

    def _disturb(self, change: str) -> None:
        if change == "set":
            self.operator.set_async(OFFSET, b"7")
        if change.startswith("claim"):
            self.operator.delete_async(OWNER)
            self.operator.create_async(OWNER, b"other-0", ephemeral=True)
        if change == "claim and open":
            self.operator.set_async(OFFSET, b"5")

    def _disturb_within(self, writer: FencedWriter, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
        write = writer.write

        async def writing(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(writer, "write", write)
            self._disturb(change)
            await writer.prove()
            return await write(*arguments, **options)

        monkeypatch.setattr(writer, "write", writing)

    @property
    def owner(self) -> bytes | None:
        znode = self.ensemble.tree.znodes.get(OWNER)
        return None if znode is None else znode.data


@pytest.fixture
def disturbed() -> DisturbedRelease:
    """Return a bench for the release of a claim that was never opened."""
    return DisturbedRelease(opened=False)


@pytest.mark.parametrize(("change", "when"), [("claim", "before"), ("claim and open", "within")])
def test_another_members_claim_is_not_deleted(
    disturbed: DisturbedRelease, monkeypatch: pytest.MonkeyPatch, change: str, when: str
) -> None:
    """
    A release does not delete the claim of another member. It first reads the owner, and checks the version of the
    offset, which the opening of a claim changes.
    """
    done = disturbed.release(change, when, monkeypatch)
    assert (done.released, done.gone) == (frozenset(), {P0})
    assert disturbed.owner == b"other-0"


@pytest.mark.parametrize("opened", [False, True])
def test_a_release_keeps_an_offset_that_is_set_meanwhile(monkeypatch: pytest.MonkeyPatch, opened: bool) -> None:
    """
    If an operator sets the offset meanwhile, the member still releases its claim, and does not overwrite the operator's
    offset.
    """
    disturbed = DisturbedRelease(opened=opened)
    done = disturbed.release("set", "within", monkeypatch)
    assert (done.released, done.gone) == ({P0}, frozenset())
    assert disturbed.owner is None
    assert disturbed.ensemble.tree.znodes[OFFSET].data == b"7"


def test_an_undisturbed_claim_is_released(disturbed: DisturbedRelease, monkeypatch: pytest.MonkeyPatch) -> None:
    """The release of a claim that was never opened does not write the offset."""
    done = disturbed.release("nothing", "before", monkeypatch)
    assert (done.released, done.gone) == ({P0}, frozenset())
    assert disturbed.owner is None
    assert disturbed.ensemble.tree.znodes[OFFSET].version == 0
