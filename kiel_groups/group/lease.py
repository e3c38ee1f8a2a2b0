"""
Compute how long a member may trust its claims.

A claim is valid as long as its session exists. Only an answered quorum write confirms the session, because a server
that is cut off from its quorum still answers pings and reads. The answer proves that the session existed when the write
was *sent*.
"""

from __future__ import annotations

from kiel_groups.errors import ConfigError

#: Shares of the granted session timeout.
HEARTBEAT_SHARE = 1 / 6
LARGEST_HEARTBEAT_SHARE = 1 / 3
LEASE_SHARE = 0.5


def lease_deadline(last_proof_s: float, session_timeout_ms: int) -> float:
    """
    Return the time until which a member may trust its claims, if ZooKeeper does not confirm the session again.

    The rest of the session timeout is for pauses and clock drift.

    Args:
        last_proof_s: Send time of the newest answered quorum write, in seconds on the boot-time clock.
        session_timeout_ms: The timeout that the server granted, in milliseconds.

    Returns:
        Seconds on the same clock. Fetching, delivering and committing must have stopped by that time.

    Source:
        ZooKeeper Programmer's Guide, "ZooKeeper Sessions".
    """
    return last_proof_s + session_timeout_ms / 1000 * LEASE_SHARE


def heartbeat_interval_s(session_timeout_ms: int, asked_ms: int | None = None) -> float:
    """
    Return the interval between heartbeats, in seconds.

    Args:
        session_timeout_ms: The timeout that the server granted, in milliseconds.
        asked_ms: The setting ``heartbeat_interval_ms``. None means a sixth of the timeout, so that two heartbeats may
            be lost before a lease of half the timeout ends.

    Returns:
        The requested interval, but at most a third of the timeout.
    """
    timeout_s = session_timeout_ms / 1000
    if asked_ms is None:
        return timeout_s * HEARTBEAT_SHARE
    return min(asked_ms / 1000, timeout_s * LARGEST_HEARTBEAT_SHARE)


def check_heartbeat_interval(session_timeout_ms: int, asked_ms: int | None) -> None:
    """
    Refuse an interval so long that a single slow heartbeat would end the lease.

    Raises:
        ConfigError: The interval is over a third of the timeout that the server granted.
    """
    most_ms = int(session_timeout_ms * LARGEST_HEARTBEAT_SHARE)
    if asked_ms is not None and asked_ms > most_ms:
        raise ConfigError(
            f"heartbeat_interval_ms: {asked_ms} given; expected at most {most_ms}, a third of the session timeout that"
            f" ZooKeeper granted ({session_timeout_ms} ms). Leave it out, or raise session_timeout_ms (and the server's"
            " maxSessionTimeout where that is what lowers it)"
        )


def answer_limit_s(session_timeout_ms: int) -> float:
    """Return the number of seconds after which an unanswered heartbeat means that the connection is dead."""
    return session_timeout_ms / 1000 * HEARTBEAT_SHARE
