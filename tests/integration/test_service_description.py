"""The description of the service's interface is valid, and its operations behave as described."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.ops.actions.cluster_address import ZOOKEEPER, ClusterAddress
from kiel_groups.rest.settings import RestSettings
from kiel_groups.service.service import Service
from tests.helpers.rest_requests import ask
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

TOKEN = "t0ken-of-the-service"


@pytest.mark.slow
async def test_the_operations_behave_as_described(fresh_cluster: Cluster, tmp_path: Path) -> None:
    """The description is valid OpenAPI 3.1, and schemathesis finds no request that is answered otherwise."""
    # Each process that collects the tests would spend a fourth of a second on this import, also where no test needs it.
    from openapi_spec_validator import validate

    address = ClusterAddress(ZOOKEEPER, fresh_cluster.zk_hosts, 10.0)
    service = Service(RestSettings(port=0, token=TOKEN, open_reads=True), {"main": address}, interval_s=60)
    service.start()

    async def is_ready() -> bool:
        return (await ask(f"{service.url}/readyz")).status == 200

    await eventually(is_ready, "the groups are known")
    url = f"{service.url}/v1/openapi.json"
    validate((await ask(url)).document)
    # What the names of groups and topics may be is not in the description, so valid requests may be refused.
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "run", url, "--header", f"Authorization: Bearer {TOKEN}"),
        *("--max-examples", "5", "--phases", "coverage,fuzzing", "--exclude-checks", "positive_data_acceptance"),
        # A group whose workers have left in an earlier test is answered with 503, which schemathesis takes for a fault.
        *("--exclude-path-regex", "/connectors"),
        cwd=tmp_path,  # It keeps a cache there.
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    await service.close()
    assert process.returncode == 0, output.decode()[-4_000:]
