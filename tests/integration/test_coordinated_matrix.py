"""The table of broker-coordinated groups in ``docs/matrix.rst`` agrees with real servers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiel_groups.embedded import Cluster
from tests.helpers.servers import COORDINATING_KAFKAS
from tests.integration.coordinated_matrix import STEPS, settings_of_brokers, steps_in_docs, try_release

pytestmark = pytest.mark.integration


def test_the_table_is_complete() -> None:
    """The table has each release, and a time for each step."""
    assert steps_in_docs() == dict.fromkeys(COORDINATING_KAFKAS, STEPS)


async def test_each_step_succeeds_on_real_servers(
    start_cluster: Callable[..., Cluster], coordinating_version: str
) -> None:
    """Members join, leave, die, hand partitions over, commit and outlive their coordinator, as the table says."""
    cluster = start_cluster(kafka=coordinating_version, broker_overrides=settings_of_brokers())
    assert tuple(await try_release(cluster)) == steps_in_docs()[coordinating_version]
