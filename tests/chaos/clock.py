"""The clock that all processes of a run share."""

from __future__ import annotations

import time

__all__ = ["boot_s"]


def boot_s() -> float:
    """Return the seconds since the machine was booted; suspended time counts, and setting the wall clock does not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
