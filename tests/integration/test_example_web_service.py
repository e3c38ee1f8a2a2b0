"""The example of a web service that consumes in the background: its health, its readiness, and its end."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from kiel_groups.embedded import Cluster
from tests.helpers.cluster_data import committed, members, produce
from tests.helpers.commands import REPOSITORY, Running
from tests.helpers.waiting import eventually
from tests.proxies import FaultProxy

pytestmark = pytest.mark.integration

PROGRAM = str(REPOSITORY / "examples" / "web_service" / "service.py")

Unique = Callable[[str], str]


def get(url: str) -> tuple[int, str]:
    """Return the status and the body of an answer."""
    try:
        with urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


async def test_the_service_is_ready_while_it_is_a_member(cluster_39: Cluster, unique: Unique) -> None:
    """
    It is not ready while ZooKeeper is out of reach, and while it ends, and is healthy all the time. It finishes the
    record in flight, commits it, and leaves the group.
    """
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    # Two minutes of work: far more than the service does before its end.
    values = await produce(cluster_39, topic, 240)
    server, slash, chroot = cluster_39.zk_hosts.partition("/")
    with FaultProxy(server) as proxy:
        options = ["--brokers", cluster_39.brokers[0], "--zookeeper", proxy.address + slash + chroot]
        with Running([PROGRAM, topic, *options, "--group", group, "--port", "0", "--work", "0.5"]) as service:
            service.wait_for_error("INFO web_service: serving on ")
            url = service.errors[0].split()[-1]
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
            await eventually(lambda: get(f"{url}/readyz") == (200, "ready\n"), "it has joined")
            await eventually(lambda: get(f"{url}/views")[1] != "{}", "it consumes")
            assert "kiel_sessions_opened_total 1.0" in get(f"{url}/metrics")[1]
            proxy.refuse()
            proxy.cut()
            not_ready = (503, "not a member of the group\n")
            await eventually(lambda: get(f"{url}/readyz") == not_ready, "it has no connection to ZooKeeper")
            assert get(f"{url}/healthz") == (200, "ok\n")
            proxy.heal()
            await eventually(lambda: get(f"{url}/readyz")[0] == 200, "it is back")

            def finished() -> int:
                return len(json.loads(get(f"{url}/views")[1]))

            before = finished()
            await eventually(lambda: finished() > before, "a record is finished, and the next one is in flight")
            before = finished()
            service.process.send_signal(signal.SIGTERM)
            service.wait_for_error("INFO web_service: shutting down")
            # The service may have ended before it is asked.
            with suppress(URLError, ConnectionError):
                assert get(f"{url}/readyz") == (503, "shutting down\n")
                assert get(f"{url}/healthz")[0] == 200
            assert service.wait() == 0
            assert service.errors[-1] == "INFO web_service: left the group"
    assert before < committed(cluster_39, group, topic) < len(values)
    assert members(cluster_39, group) == []


def test_a_service_that_cannot_start_says_why() -> None:
    """If no broker answers, the service ends with one line."""
    nowhere = ["--brokers", "127.0.0.1:1", "--zookeeper", "127.0.0.1:1"]
    with Running([PROGRAM, "topic", *nowhere, "--port", "0"]) as service:
        assert service.wait(30) == 1
        assert service.errors[-1].startswith("error: no")
        assert not any("Traceback" in line for line in service.errors)
