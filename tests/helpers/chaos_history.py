"""The history of a chaos run without findings, as a base for tests that modify it."""

from __future__ import annotations

from tests.chaos.checker import Limits
from tests.chaos.history import Acknowledged, Commit, Delivery, History, Inflicted, Ownership, Process

__all__ = ["END_S", "FIRST_PID", "LIMITS", "SECOND_PID", "sound_history"]

LIMITS = Limits(unowned_s=9.0, late_s=19.0)
FIRST_PID, SECOND_PID = 101, 102
END_S = 60.0


def sound_history() -> History:
    """
    Return a history of one partition and ten records.

    The first process is killed at 10 s with record 5 in flight; the second one continues at 15 s.
    """
    early = [Delivery(FIRST_PID, 0, number, 7, number, 1.0 + number, 1.5 + number) for number in range(5)]
    cut_off = Delivery(FIRST_PID, 0, 5, 7, 5, 9.9, None)
    late = [Delivery(SECOND_PID, 0, number, 9, number, 11.0 + number, 11.5 + number) for number in range(5, 10)]
    return History(
        partitions=1,
        acknowledged=[Acknowledged(number, 0, number, 0.5 + number) for number in range(10)],
        deliveries=[*early, cut_off, *late],
        ownerships=[Ownership(0, 7, 1, FIRST_PID, 0.5, 15.0), Ownership(0, 9, 2, SECOND_PID, 15.2, None)],
        commits=[Commit(0, 0, 0.6, True), Commit(0, 5, 6.0, True), Commit(0, 5, 15.3, True), Commit(0, 10, 25.0, True)],
        faults=[Inflicted(1, "member-kill", "member-0", 10.0, 12.0)],
        processes=[Process(FIRST_PID, 0.0, 10.0), Process(SECOND_PID, 0.0, None)],
        end_s=END_S,
    )
