"""
What programs of producers share: the values they send, and their reports.

It needs only the standard library, because programs of other clients run in environments without kiel-groups.
"""

from __future__ import annotations

import json
import sys
from itertools import cycle, islice

from benchmarks.delivery.log_lines import log_lines

__all__ = ["AT_ONCE", "chunks", "report"]

#: Records between two looks at the outcomes of earlier ones, and of one call that takes many.
AT_ONCE = 500
_DIFFERENT = 20


def chunks(count: int, size: int) -> list[list[bytes]]:
    """Return ``count`` values of ``size`` bytes in lists of ``AT_ONCE``; the lists repeat after a while."""
    different = [log_lines(AT_ONCE, size, seed) for seed in range(_DIFFERENT)]
    return list(islice(cycle(different), count // AT_ONCE))


def report(records: int, size: int, *, is_last: bool | None = None) -> None:
    """
    Print how many records are stored, and their bytes. After the last report, wait until the clocks are read.

    Args:
        records: The number of records.
        size: The bytes of a value.
        is_last: Whether this is the last report; by default, the first one has no records, and the other is the last.
    """
    print(json.dumps({"records": records, "bytes": records * size}), flush=True)  # noqa: T201
    if records if is_last is None else is_last:
        sys.stdin.read()
