"""A connector that shows its secrets wherever a plugin can: in errors, causes, problems, and settings of its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from kiel_groups.errors import KielGroupsError
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, ConfigKey, Settings
from kiel_groups.workers.plugins.interfaces import (
    ConnectorContext,
    SourceConnector,
    SourceRecord,
    SourceTask,
    SourceTaskContext,
)

__all__ = ["LEAKING_SOURCE"]

LEAKING_SOURCE = f"{__name__}:LeakingConnector"


class LeakingTask(SourceTask):
    """
    Writes the digest of its login into a file, which proves that it has the secret, and then shows its secrets.

    The setting ``fault`` says how: ``raise`` or ``problem``.
    """

    def start(self, context: SourceTaskContext, settings: Settings) -> None:
        login: str = settings["login"].value
        Path(settings["proof"]).write_text(sha256(login.encode()).hexdigest())
        self._context = context
        if settings["fault"] == "raise":
            try:
                raise ValueError(f"refused: {settings['url']}?login={quote(login)}")
            except ValueError as error:
                raise KielGroupsError(f"cannot log in with {login!r} and {settings['api.key']}") from error
        context.report_problem(f"cannot log in with {login} at {settings['url']}")

    async def poll(self) -> Sequence[SourceRecord]:
        await self._context.pause(0.1)
        return []


class LeakingConnector(SourceConnector):
    """With the fault ``configs``, it copies a secret into a setting of another name for its tasks."""

    config = ConfigDefinition(
        ConfigKey("login", "password"), ConfigKey("url"), ConfigKey("proof"), ConfigKey("fault", default="")
    )
    task_class = LeakingTask

    def start(self, context: ConnectorContext, settings: Settings) -> None:
        self._config, self._settings = context.config, settings

    def task_configs(self, most: int) -> list[Mapping[str, str]]:
        login = self._settings["login"].value
        copied = {"dsn": f"user={login}"} if self._settings["fault"] == "configs" else {}
        # The copy of a typed setting under its own name is stored as the reference.
        return [{**self._config, "login": login, **copied}]
