"""The README's table of releases, codecs and stores is what real servers say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiel_groups.embedded import Cluster
from tests.integration.matrix import CODECS, RELEASES, STORES, table_in_readme, try_codec, try_store

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


def test_the_table_is_whole() -> None:
    """Every release, with every codec and every store."""
    assert {release: set(cells) for release, cells in table_in_readme().items()} == {
        release: {*CODECS, *STORES} for release in RELEASES
    }


@pytest.mark.parametrize("codec", CODECS)
async def test_a_codec(shared_clusters: Callable[..., Cluster], kafka_version: str, unique: Unique, codec: str) -> None:
    """A group consumes what a producer compressed, or the broker refuses it, as the table says."""
    works = await try_codec(shared_clusters("3.9.5", kafka_version), unique("topic"), unique("group"), codec)
    assert works == table_in_readme()[kafka_version][codec]


@pytest.mark.parametrize("store", STORES)
async def test_a_store(shared_clusters: Callable[..., Cluster], kafka_version: str, unique: Unique, store: str) -> None:
    """Members consume, hand over and commit, or are refused, as the table says."""
    works = await try_store(shared_clusters("3.9.5", kafka_version), unique("topic"), unique("group"), store)
    assert works == table_in_readme()[kafka_version][store]
