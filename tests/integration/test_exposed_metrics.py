"""What real processes expose to Prometheus is on the page about metrics, and what alarms and dashboard use is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kiel_groups import Producer
from kiel_groups.embedded import Cluster
from kiel_groups.embedded.processes import ReservedPort
from kiel_groups.ops.actions.cluster_address import ZOOKEEPER, ClusterAddress
from kiel_groups.rest.metrics_text import metrics_answer, registry_families
from kiel_groups.rest.settings import RestSettings
from kiel_groups.service.group_metrics import families
from kiel_groups.service.service import Service
from tests.helpers.commands import Running
from tests.helpers.metrics_page import check_exposed, exposed, names_in_files

pytestmark = pytest.mark.integration


async def test_metrics_of_real_processes(cluster_39: Cluster, unique: Callable[[str], str]) -> None:
    """A producer, a consumer and a worker with metrics ports, and the service, which shows their groups."""
    topic, name, brokers = unique("topic"), unique("group"), ",".join(cluster_39.brokers)
    await cluster_39.create_topic(topic, 2)
    # The processes listen beside the sockets that reserve the ports.
    reserved = [ReservedPort() for _ in range(2)]
    ports = [str(each.number) for each in reserved]
    words = ["--zookeeper", cluster_39.zk_hosts, "--brokers", brokers, "--metrics-port"]
    consume = ["consume", topic, "--group", name, "--from", "earliest", *words, ports[0]]
    work = ["workers", "run", "--group", f"{name}-workers", "--port", "0", *words, ports[1]]
    service = Service(
        RestSettings(port=0), {"main": ClusterAddress(ZOOKEEPER, cluster_39.zk_hosts, 10.0)}, interval_s=1
    )
    service.start()
    producer = Producer(brokers)
    with Running(["-m", "kiel_groups", *consume]) as consumer, Running(["-m", "kiel_groups", *work]):
        await producer.connect()
        await asyncio.gather(*(producer.produce(topic, str(each)) for each in range(10)))
        await asyncio.to_thread(consumer.wait_for_lines, 10)
        await exposed(
            f"http://127.0.0.1:{ports[0]}",
            *("kiel_records_handed_out", "kiel_assigned_partitions", "kiel_offsets_committed", "kiel_commit_seconds"),
        )
        await exposed(f"http://127.0.0.1:{ports[1]}", "kiel_assigned_tasks", "kiel_sessions_opened")
        found = await exposed(service.url, "kiel_rest_requests", "process_resident_memory_bytes")
    assert found >= {family.name for family in families([], 0)}
    names_in_files(found)
    produced = check_exposed(metrics_answer(registry_families(({}, producer.metrics))).text)
    assert produced >= {"kiel_records_produced", "kiel_bytes_produced", "kiel_request_seconds"}
    await producer.close()
    await service.close()
    for each in reserved:
        each.release()
