"""Calls in a fork of the test process."""

from __future__ import annotations

import os
from collections.abc import Callable

from kiel_groups.errors import ClosedError


def assert_refused_in_fork(*calls: Callable[[], object]) -> None:
    """Make these calls in a fork of the process. Assert that one raises the ClosedError that names the fork."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for call in calls:
                call()
        except ClosedError as error:
            status = 0 if f"belongs to process {os.getppid()}, and this is a fork of it" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
