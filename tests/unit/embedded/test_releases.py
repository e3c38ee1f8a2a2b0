"""Each release has one version of each jar, and Kafka's jars are of that release."""

from __future__ import annotations

from collections import Counter

import pytest

from kiel_groups.embedded.releases import CLASS_PATHS, DEFAULT_KAFKA, KAFKAS, PREFETCHED, kafka_release
from kiel_groups.errors import ConfigError
from tests.helpers.servers import COORDINATING_KAFKAS, EARLY_KAFKAS, LATE_KAFKAS, played_kafkas

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("version", KAFKAS)
def test_a_class_path_has_each_jar_once(version: str) -> None:
    """A class path has no jar in two versions, all of Kafka's jars have the release, and file names differ."""
    jars = kafka_release(version).classes.coordinates
    assert max(Counter((jar.group, jar.artifact.partition("_2.")[0]) for jar in jars).values()) == 1
    assert {jar.version for jar in jars if jar.group == "org.apache.kafka"} == {version}
    assert len({jar.jar for jar in jars}) == len(jars)


def test_the_table_of_releases_is_that_of_the_class_paths() -> None:
    """Each class path of Kafka is a release, and an unknown release is refused with the known ones."""
    assert [f"kafka-{version}" for version in KAFKAS] == [name for name in CLASS_PATHS if name.startswith("kafka-")]
    assert DEFAULT_KAFKA in KAFKAS
    with pytest.raises(ConfigError, match=r"'0\.10' is not in the table .* known: 0\.8\.0, .*, 3\.9\.1"):
        kafka_release("0.10")


def test_tests_choose_among_the_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests play 0.9.0.1 and 3.9.1 unless KAFKA_RELEASES names others. The set-up fetches what they play."""
    assert list(KAFKAS) == list(dict.fromkeys((*EARLY_KAFKAS, *COORDINATING_KAFKAS, *LATE_KAFKAS)))
    monkeypatch.delenv("KAFKA_RELEASES", raising=False)
    assert played_kafkas() == ["0.9.0.1", "3.9.1"]
    fetched = {path.name for path in PREFETCHED}
    assert {f"kafka-{version}" for version in (*EARLY_KAFKAS, *played_kafkas(), *LATE_KAFKAS)} <= fetched
    monkeypatch.setenv("KAFKA_RELEASES", "1.1.1,2.8.2")
    assert played_kafkas() == ["1.1.1", "2.8.2"]
    monkeypatch.setenv("KAFKA_RELEASES", "all")
    assert played_kafkas() == list(COORDINATING_KAFKAS)
