"""
The lines by which the members of a group that brokers coordinate report what happens to them, as words with spaces.

Times are nanoseconds of the system's monotonic clock, which all processes share; Java calls it ``nanoTime``. The module
needs only the standard library, because programs of other clients run in environments without kiel-groups.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["MemberEvent", "report"]

_lock = threading.Lock()


class MemberEvent(NamedTuple):
    """
    One line: when, which of the members of its process, what, and the partitions as ``topic:number``.

    ``kind`` is one of

    - ``prepared``: the member exists, and joins at a line of input.
    - ``joining``: the member is about to subscribe.
    - ``assigned``, ``revoked``, ``lost``: its listener was notified.
    - ``record``: a record was delivered; the words are its partition and its offset.
    - ``leaving``, ``left``: the member is about to close, and has closed.
    - ``failed``: the member ends because of an error; ``words`` name it.
    """

    at_ns: int
    member: int
    kind: str
    words: tuple[str, ...]

    @property
    def partitions(self) -> frozenset[str]:
        """The partitions of an assignment or a revocation."""
        return frozenset(self.words)

    @classmethod
    def parse(cls, line: str) -> MemberEvent:
        """Parse one line."""
        at_ns, member, kind, *words = line.split()
        return cls(int(at_ns), int(member), kind, tuple(words))


def report(member: int, kind: str, words: Iterable[object] = ()) -> None:
    """Print one line. Members on several threads may do so at once."""
    with _lock:
        print(time.monotonic_ns(), member, kind, *words)  # noqa: T201
        sys.stdout.flush()
