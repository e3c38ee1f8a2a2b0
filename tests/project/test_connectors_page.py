"""The page about connectors has the declared settings, and its example works."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kiel_groups import workers
from kiel_groups.errors import ConfigError
from kiel_groups.model import Record, TopicPartition
from kiel_groups.workers.plugins.connector_checks import run_settings
from kiel_groups.workers.plugins.interfaces import Connector
from kiel_groups.workers.plugins.plugin_registry import PluginRegistry
from tests.helpers.commands import REPOSITORY
from tests.helpers.connector_contexts import RecordingConnectorContext, RecordingTaskContext, one_task_settings, typed
from tests.helpers.connector_tables import SHIPPED, settings_text

pytestmark = pytest.mark.unit


def test_the_settings_are_up_to_date() -> None:
    """The page includes what ``python -m tests.helpers.connector_tables`` writes."""
    assert (REPOSITORY / "docs" / "connector-settings.txt").read_text(encoding="utf-8") == settings_text()


def test_all_shipped_connectors_are_described() -> None:
    """The page describes every connector that the package offers, and each of its settings is documented."""
    page = (REPOSITORY / "docs" / "connectors.rst").read_text(encoding="utf-8")
    offered = [plugin for plugin in PluginRegistry().plugins if plugin.name.startswith("kiel_groups.")]
    assert {plugin.alias for plugin in offered} == {each.__name__.removesuffix("Connector") for each in SHIPPED}
    assert all(f"**{plugin.alias}** " in page for plugin in offered)
    assert all(key.documentation.endswith(".") for each in SHIPPED for key in each.config)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> PluginRegistry:
    """Return a registry that finds the example as an installed package."""
    monkeypatch.syspath_prepend(REPOSITORY / "examples" / "connectors")
    return PluginRegistry([("TableSource", "sqlite_connectors:TableSourceConnector")])


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as db:
        for table in ("orders", "customers", "goods"):
            db.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, name)")
            db.executemany(f"INSERT INTO {table} (name) VALUES (?)", [(f"{table}-{n}",) for n in range(3)])
    db.close()
    return path


def source_configs(connector_class: type[Connector], config: dict[str, str], most: int) -> Any:
    whole = {"name": "c", "connector.class": "TableSource", **config}
    connector = connector_class()
    connector.start(RecordingConnectorContext(whole), typed(connector_class, whole))
    configs = connector.task_configs(most)
    return [run_settings(connector_class, whole, each).settings for each in configs]  # type: ignore[union-attr]


def test_the_example_divides_tables(example: PluginRegistry, database: Path) -> None:
    """Each table is read by one task, and there are no more tasks than tables."""
    found = example.resolve("TableSource")
    config = {"database": str(database), "tables": "orders,customers,goods"}
    assert [each["tables"] for each in source_configs(found, config, 2)] == [["orders", "goods"], ["customers"]]
    assert len(source_configs(found, config, 9)) == 3
    with pytest.raises(ConfigError, match="tables: 'a b' given; expected entries that are each the name of a table"):
        typed(found, config | {"tables": "a b"})


def test_the_example_continues_after_the_stored_row(example: PluginRegistry, database: Path) -> None:
    """Rows become records in the order of their ids; a restart continues after the row whose offset is stored."""
    found = example.resolve("TableSource")
    settings = one_task_settings(found, {"database": str(database), "tables": "orders", "batch.size": "2"})
    context = RecordingTaskContext()
    task: Any = found.task_class()
    task.start(context, settings)
    polled = [task.poll() for _ in range(3)]
    task.stop()
    assert [[record.key for record in batch] for batch in polled] == [[b"1", b"2"], [b"3"], []]
    assert json.loads(polled[0][0].value) == {"id": 1, "name": "orders-0"}
    assert (polled[0][0].topic, context.pauses) == ("orders", [0.5])
    stored = polled[0][0]
    task = found.task_class()
    task.start(RecordingTaskContext([(stored.source_partition, stored.source_offset)]), settings)
    assert [record.key for record in task.poll()] == [b"2", b"3"]
    task.stop()


def test_the_example_stores_what_was_flushed(example: PluginRegistry, tmp_path: Path) -> None:
    """Records are stored with ``flush``, once each; those of partitions that are closed without it are dropped."""
    found = example.resolve("sqlite_connectors:RecordSinkConnector")
    settings = one_task_settings(found, {"database": str(tmp_path / "s.db"), "topics": "t"})
    task: Any = found.task_class()
    task.start(RecordingTaskContext(), settings)
    task.put([Record("t", 0, 0, None, b"a"), Record("t", 0, 1, None, b"b")])
    task.put([Record("t", 0, 1, None, b"b")])
    task.flush({TopicPartition("t", 0): 2})
    task.put([Record("t", 0, 2, None, b"c")])
    task.close([TopicPartition("t", 0)])
    task.stop()
    with sqlite3.connect(tmp_path / "s.db") as db:
        assert db.execute("SELECT position, value FROM records ORDER BY position").fetchall() == [(0, b"a"), (1, b"b")]
    db.close()


def test_public_names_are_imported_when_they_are_used() -> None:
    """All names of ``kiel_groups.workers`` can be imported; an import of the package alone loads no Tornado."""
    assert all(getattr(workers, name) is not None for name in workers.__all__)
    assert set(dir(workers)) == set(workers.__all__)
    program = "import sys, kiel_groups.workers as w; w.SourceTask; print('tornado' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "False"
