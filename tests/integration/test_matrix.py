"""The table of releases, stores and codecs in ``docs/matrix.rst`` agrees with real servers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiel_groups.embedded import Cluster
from tests.integration.matrix import RELEASES, STORES, table_in_docs, try_store

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


def test_the_table_is_complete() -> None:
    """The table has every release with every store."""
    assert list(table_in_docs()) == [(release, store) for release in RELEASES for store in STORES]


@pytest.mark.parametrize("store", STORES)
async def test_the_table_agrees_with_the_servers(release_cluster: Cluster, unique: Unique, store: str) -> None:
    """The table has the codecs with which members consume, rebalance and commit on real servers."""
    release = release_cluster.kafka[0].version
    assert await try_store(release_cluster, store, unique) == table_in_docs()[release, store]
