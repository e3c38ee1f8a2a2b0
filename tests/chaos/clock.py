"""The clock that all processes of a run share."""

from __future__ import annotations

import time

__all__ = ["boot_s"]


def boot_s() -> float:
    """
    Return the seconds since the boot of the machine, including suspended time. Changes of the wall clock have no
    effect.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)
