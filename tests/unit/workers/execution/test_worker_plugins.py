"""Classes of connectors are imported, and settings are checked, on threads and within a limit."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.workers.execution import worker_plugins
from kiel_groups.workers.execution.work_plan import WorkSpec
from kiel_groups.workers.execution.worker_plugins import WorkerPlugins
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, ConfigKey, Settings
from kiel_groups.workers.plugins.plugin_registry import PluginRegistry
from kiel_groups.workers.plugins.secret_references import SecretReferences
from kiel_groups.zookeeper.runtime import Runtime
from tests.helpers.counting_connectors import COUNTING_SOURCE, CountingSourceConnector, plugins
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit

#: The events that ``Waiting.check`` sets and waits for.
started, released = threading.Event(), threading.Event()


class Waiting(CountingSourceConnector):
    """Its check takes until the test releases it."""

    @classmethod
    def check(cls, settings: Settings) -> Mapping[str, Sequence[str]]:
        started.set()
        released.wait(10)
        return {"topic": ["topic: it is not to my taste"]}


class Exiting(CountingSourceConnector):
    """Its check tries to end the process."""

    @classmethod
    def check(cls, settings: Settings) -> Mapping[str, Sequence[str]]:
        raise SystemExit("bye")


@pytest.fixture(autouse=True)
def events() -> None:
    started.clear()
    released.clear()


def config_of(cls: type) -> dict[str, str]:
    return {"name": "c", "connector.class": f"{__name__}:{cls.__name__}"}


def lookups(limit_s: float = 10.0) -> WorkerPlugins:
    return WorkerPlugins(plugins(), Runtime(), limit_s)


class Converting(CountingSourceConnector):
    """Has a setting that is the name of a class, as each of its tasks has."""

    config = ConfigDefinition(ConfigKey("converter", "class"))


async def test_settings_that_name_classes_import_only_allowed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a configuration, in a check without one, and in a task of a configuration that another worker has accepted."""
    (tmp_path / "loud_converters.py").write_text("class Converter: pass", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    offers = [("Converting", f"{__name__}:Converting")]
    config = {"name": "c", "connector.class": "Converting", "converter": "loud_converters:Converter"}

    spec = WorkSpec(config=config, task=config)

    async def refusals(allowed: list[str]) -> list[str]:
        plugins = WorkerPlugins(PluginRegistry(offers, allowed), Runtime())
        texts: list[str] = []
        for check in (plugins.checked(config), plugins.report("Converting", config)):
            try:
                await check
            except ConfigError as error:
                texts.append(str(error))
        try:
            await plugins.settings(spec)
        except ConfigError as error:
            texts.append(str(error))
        return texts

    text = (
        "converter: 'loud_converters:Converter' is not allowed on this worker; expected one of Converting; to allow it,"
        " start all workers of the group with --plugin-classes installed,loud_converters"
    )
    assert await refusals(["installed"]) == [text] * 3
    assert "loud_converters" not in sys.modules
    assert await refusals(["installed", "loud_converters"]) == []
    assert sys.modules.pop("loud_converters")


async def test_a_check_that_waits_does_not_block_the_worker() -> None:
    """The event loop runs on, and the check's errors are those of the settings, also in the answer to users."""
    both = asyncio.gather(lookups().checked(config_of(Waiting)), lookups().report(f"{__name__}:Waiting", {"name": "c"}))
    await eventually(started.is_set, "the check runs")
    assert not both.done()
    released.set()
    checked, (report, _) = await both
    assert checked.errors == {"topic": ("topic: it is not to my taste",)}
    assert report["name"] == f"{__name__}.Waiting"


async def test_the_secrets_of_a_problem_are_hidden_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of settings takes a second to be searched for them."""

    def waiting(config: Mapping[str, str], definition: ConfigDefinition) -> set[str]:
        started.set()
        released.wait(10)
        return {config["my.password"]} if config else set()

    monkeypatch.setattr(worker_plugins, "secret_values", waiting)
    making = asyncio.ensure_future(lookups().problem_text("no \n hunter2", WorkSpec(config={"my.password": "hunter2"})))
    await eventually(started.is_set, "the search runs")
    assert not making.done()
    released.set()
    assert await making == "no [hidden]"


async def test_a_check_that_does_not_return_fails() -> None:
    """The error names it and the limit."""
    try:
        with pytest.raises(ConfigError, match=r"^Waiting\.check did not return within 0\.05 s"):
            await lookups(0.05).checked(config_of(Waiting))
    finally:
        released.set()


async def test_a_check_that_exits_is_an_error_of_the_settings() -> None:
    """The worker and its thread survive it."""
    with pytest.raises(KielGroupsError, match="SystemExit"):
        await lookups().checked(config_of(Exiting))


async def test_an_import_that_does_not_return_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module may wait for a network when it is imported."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow_connector.py").write_text(
        f"import sys\nsys.modules[{__name__!r}].released.wait(10)\nclass Slow: pass\n"
    )
    try:
        with pytest.raises(
            ConfigError, match=r"^connector\.class: the import of 'slow_connector:Slow' did not return within 0\.05 s"
        ):
            await lookups(0.05).resolve("slow_connector:Slow")
    finally:
        released.set()
        sys.modules.pop("slow_connector", None)


async def test_a_class_in_settings_is_imported_off_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check of settings ends at its limit, also that of a task."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow_converter.py").write_text(
        f"import sys\nsys.modules[{__name__!r}].released.wait(10)\nclass Slow: pass\n"
    )
    config = config_of(Converting) | {"converter": "slow_converter:Slow"}
    found = lookups(0.05)
    task = found.settings(WorkSpec(config=config, task=config))
    try:
        for check in (task, found.report(config["connector.class"], config)):
            with pytest.raises(ConfigError, match=r"did not return within 0\.05 s"):
                await check
    finally:
        released.set()
        sys.modules.pop("slow_converter", None)


async def test_a_class_is_found_after_it_was_resolved() -> None:
    """Only the lookup imports it."""
    plugin: Any = lookups()
    with pytest.raises(ConfigError, match="is not imported"):
        plugin.found(COUNTING_SOURCE)
    assert await plugin.resolve(COUNTING_SOURCE) is CountingSourceConnector
    assert plugin.found(COUNTING_SOURCE) is CountingSourceConnector


async def test_a_class_is_required() -> None:
    """Without one, nothing can be checked."""
    with pytest.raises(ConfigError, match=r"connector\.class: required, but not given"):
        await lookups().checked({"name": "c"})


async def test_entry_points_without_a_connector_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """The log has one warning for each, with its name and the error; the others are listed."""
    offers = [("Gone", f"{__name__}:Gone"), ("Absent", "absent_module:X"), ("Counting", COUNTING_SOURCE)]
    found = WorkerPlugins(PluginRegistry(offers), Runtime())
    await found.warn_of_problems()
    assert [plugin.alias for plugin in await found.installed()] == ["CountingSource"]
    assert caplog.messages == [
        "the entry point 'Absent' of the group kiel_groups.connectors offers no usable connector: 'absent_module:X':"
        " cannot import 'absent_module': ModuleNotFoundError: No module named 'absent_module'",
        "the entry point 'Gone' of the group kiel_groups.connectors offers no usable connector:"
        f" '{__name__}:Gone': the module '{__name__}' has no class 'Gone'",
    ]


async def test_a_warning_that_takes_too_long_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says that the installed connectors are not known."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow_plugin.py").write_text(f"import sys\nsys.modules[{__name__!r}].released.wait(10)\n")
    try:
        await WorkerPlugins(PluginRegistry([("Slow", "slow_plugin:X")]), Runtime(), 0.05).warn_of_problems()
    finally:
        released.set()
        sys.modules.pop("slow_plugin", None)
    (message,) = caplog.messages
    assert message.startswith("cannot list the installed connectors: ")
    assert message.endswith("the import of the installed connectors did not return within 0.05 s")


async def test_errors_have_no_secret_that_a_run_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value counts that the run has read, also if the reference has another one by then."""
    monkeypatch.setenv("LOGIN", "hunter2")
    found = WorkerPlugins(plugins(), Runtime(), references=SecretReferences(variables=["LOGIN"]))
    config = {"name": "c", "connector.class": COUNTING_SOURCE, "tasks.max": "1"}
    spec = WorkSpec(config, {"login": "${env:LOGIN}"})
    run = await found.settings(spec)
    assert run.texts == {"login": "hunter2"}
    monkeypatch.setenv("LOGIN", "renewed")
    texts = await found.error_texts(OSError("refused: ${env:LOGIN} is hunter2"), spec, run.secrets)
    assert texts.summary == "refused: ${env:LOGIN} is [hidden]"
    assert "hunter2" not in texts.trace
    assert await found.problem_text("waits\nfor hunter2", spec, run.secrets) == "waits for [hidden]"
    assert await found.problem_text("waits for two  blanks", spec, {"two  blanks"}) == "waits for [hidden]"
