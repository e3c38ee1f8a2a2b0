"""The end of ``kiel-groups serve``."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack

import pytest

from kiel_groups.cli.commands.serve import _clean_up

pytestmark = pytest.mark.unit


def test_the_end_does_not_wait_for_each_group_of_zookeepers_that_are_silent() -> None:
    """A service manager kills a service whose end takes long."""
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        hosts = [f"127.0.0.1:{each.getsockname()[1]}" for each in silent]
        began_s = time.monotonic()
        _clean_up({each: [f"group-{number}" for number in range(5)] for each in hosts})
        assert time.monotonic() - began_s < 4
