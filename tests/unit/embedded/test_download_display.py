"""The jars of servers are fetched before the servers start, with the progress."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from kiel_groups.embedded import download_display
from kiel_groups.embedded.releases import ClassPath
from kiel_groups.errors import ServerError

pytestmark = pytest.mark.unit


def fetched_of(monkeypatch: pytest.MonkeyPatch, *missing: str) -> list[str]:
    """Replace the downloads. Return the list of the class paths that are wanted; those of ``missing`` fail."""
    wanted: list[str] = []

    def jar_folder(class_path: ClassPath, progress: Callable[..., object]) -> Path:
        wanted.append(class_path.name)
        if class_path.name in missing:
            raise ServerError(f"no {class_path.name}")
        return Path()

    monkeypatch.setattr(download_display, "jar_folder", jar_folder)
    return wanted


def test_the_jars_of_the_zookeeper_that_replaces_another_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of 3.4.6 are those of Kafka 0.8.2.2; without them, the start of the servers would fetch them unseen."""
    wanted, text = fetched_of(monkeypatch, "zookeeper-3.9.5"), io.StringIO()
    assert download_display.fetch_servers(Console(file=text, width=200), "0.9.0.1") == "3.4.6"
    assert wanted == ["kafka-0.9.0.1", "zookeeper-3.9.5", "kafka-0.8.2.2"]
    assert "ZooKeeper 3.9.5 cannot be fetched; using 3.4.6 instead: no zookeeper-3.9.5" in text.getvalue()


@pytest.mark.parametrize("zookeeper", [None, "3.9.5"])
def test_without_any_zookeeper_there_is_an_error(monkeypatch: pytest.MonkeyPatch, zookeeper: str | None) -> None:
    """A version that the user has chosen is not replaced."""
    wanted = fetched_of(monkeypatch, "zookeeper-3.9.5", "kafka-0.8.2.2")
    with pytest.raises(ServerError, match="no zookeeper-3.9.5" if zookeeper else r"no kafka-0\.8\.2\.2"):
        download_display.fetch_servers(Console(file=io.StringIO()), "0.9.0.1", zookeeper)
    assert ("kafka-0.8.2.2" in wanted) is (zookeeper is None)
