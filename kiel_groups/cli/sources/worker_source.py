"""Give commands the connectors of a worker group, from the REST interface of one of its workers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast
from urllib.parse import quote, urlencode

from kiel_groups.cli.parameters.worker_options import WorkerAddress
from kiel_groups.errors import ConfigError, NoWorkerError, ProtocolError, TokenError, UnknownConnectorError
from kiel_groups.workers.rest_client.http_exchange import connector_path
from kiel_groups.workers.rest_client.worker_client import WorkerClient

__all__ = ["ConfigDoubts", "WorkerSource"]

#: How long a command waits for an answer, in seconds. A worker gives up earlier.
_ANSWER_WAIT_S = 65.0


class ConfigDoubts(NamedTuple):
    """
    What a worker doubts in settings that it accepts.

    Args:
        warnings: Such as a setting that is not declared, or a topic that does not exist.
        mistyped: Settings that are probably misspelt, each with the declared one that is meant.
    """

    warnings: Sequence[str] = ()
    mistyped: Mapping[str, str] = {}


class WorkerSource:
    """
    A worker, asked in blocking calls. They raise the errors of ``WorkerClient.call``.

    Args:
        address: The worker.
    """

    def __init__(self, address: WorkerAddress) -> None:
        self._address = address

    def connectors(self) -> dict[str, Any]:
        """Return the status and the configuration of each connector, as REST answers them, by name."""
        found = self._ask("GET", "/connectors?expand=status&expand=info")
        if not isinstance(found, dict):
            raise ProtocolError(f"{self._address.url} is not the interface of a worker: it lists no connectors")
        return dict(sorted(found.items()))

    def create(self, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """Create a connector, and return its configuration."""
        return self._object("POST", "/connectors", {"name": name, "config": config})

    def config(self, name: str) -> dict[str, Any]:
        """Return the settings of a connector, without secrets."""
        return self._object("GET", f"{connector_path(name)}/config")

    def put_config(self, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the settings of a connector that exists, and return its configuration."""
        return self._object("PUT", f"{connector_path(name)}/config", config)

    def patch_config(self, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change some settings of a connector that exists, of which None removes one; return its configuration."""
        return self._object("PATCH", f"{connector_path(name)}/config", changes)

    def doubts(self, config: Mapping[str, Any]) -> ConfigDoubts:
        """
        Return what a worker doubts in settings that it accepts.

        It is nothing if the settings cannot be checked, as those of a class that cannot be imported: the worker says
        why when they are stored.
        """
        path = f"/connector-plugins/{quote(str(config.get('connector.class', '')), safe='')}/config/validate"
        try:
            found = self._object("PUT", path, config)
        except (ConfigError, UnknownConnectorError):
            return ConfigDoubts()
        warnings, mistyped = found.get("warnings"), found.get("mistyped")
        return ConfigDoubts(
            list(map(str, warnings)) if isinstance(warnings, list) else [],
            mistyped if isinstance(mistyped, dict) else {},
        )

    def status(self, name: str) -> dict[str, Any]:
        """Return what a connector and its tasks do."""
        return self._object("GET", f"{connector_path(name)}/status")

    def delete(self, name: str) -> None:
        """Delete a connector."""
        self._ask("DELETE", connector_path(name))

    def pause(self, name: str) -> None:
        """Pause a connector and its tasks."""
        self._ask("PUT", f"{connector_path(name)}/pause")

    def resume(self, name: str) -> None:
        """Resume a connector and its tasks."""
        self._ask("PUT", f"{connector_path(name)}/resume")

    def restart_task(self, name: str, task: int) -> None:
        """Restart one task."""
        self._ask("POST", f"{connector_path(name)}/tasks/{task}/restart")

    def restart(self, name: str, *, with_tasks: bool, only_failed: bool) -> None:
        """Restart a connector, and with ``with_tasks`` its tasks; with ``only_failed``, only what has failed."""
        query = urlencode({"includeTasks": str(with_tasks).lower(), "onlyFailed": str(only_failed).lower()})
        self._ask("POST", f"{connector_path(name)}/restart?{query}")

    def plugins(self) -> list[dict[str, Any]]:
        """Return the connectors that are installed at the worker."""
        return cast("list[dict[str, Any]]", self._ask("GET", "/connector-plugins"))

    def _object(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> dict[str, Any]:
        found = self._ask(method, path, document)
        if not isinstance(found, dict):
            raise ProtocolError(f"{self._address.url} is not the interface of a worker: it answers with no object")
        return found

    def _ask(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> Any:
        async def ask() -> Any:
            async with WorkerClient(*self._address, timeout_s=_ANSWER_WAIT_S) as client:
                return await client.call(method, path, document)

        try:
            return asyncio.run(ask())
        except TokenError as error:
            raise TokenError(self._token_advice()) from error
        except NoWorkerError as error:
            hint = "'kiel-groups workers run' starts a worker, and '--url' names another one"
            raise NoWorkerError(f"{error}; {hint}") from error

    def _token_advice(self) -> str:
        if self._address.token:
            return f"the worker at {self._address.url} has another token than the file of '--token-file'"
        return (
            f"the worker at {self._address.url} asks for a token; give the file with it by '--token-file', or by"
            " KIEL_GROUPS_TOKEN_FILE in the environment"
        )
