"""The clock that all processes of a run share."""

from __future__ import annotations

import time

__all__ = ["boot_s"]


def boot_s() -> float:
    """
    Return the seconds since the boot of the machine. They include suspended time, and do not follow the wall clock.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)
