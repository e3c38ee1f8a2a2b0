"""
The paths of the znodes of a group's workers, all relative to the chroot.

A connector's name may have any characters, so its znodes have a percent-encoded name. ``connector`` as the last part of
a path stands for the connector itself, beside the numbers of its tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote, unquote

from kiel_groups.errors import ConfigError
from kiel_groups.group.znodes.contents import LARGEST_OFFSET, whole_number
from kiel_groups.group.znodes.layout import ROOT

__all__ = ["WorkerLayout", "connector_of", "history_offset_of", "znode_name"]

#: The name of a connector's owner znode, beside those of its tasks.
CONNECTOR = "connector"

#: The longest name of a connector, in characters. Percent-encoding may make it 12 times as long.
LONGEST_NAME = 255

_DIGITS = 10


def znode_name(connector: str) -> str:
    """
    Return the name of a connector's znodes: the connector's name, percent-encoded.

    Raises:
        ConfigError: The name is empty, too long, or cannot be encoded.
    """
    if not isinstance(connector, str) or not 0 < len(connector) <= LONGEST_NAME:
        raise ConfigError(f"connector: {connector!r:.80} given; expected a name of 1 to {LONGEST_NAME} characters")
    try:
        name = quote(connector, safe="")
    except UnicodeEncodeError:
        raise ConfigError(f"connector: {connector!r:.80} given; its name has half of a surrogate pair") from None
    # ZooKeeper does not permit "." and ".." as parts of a path.
    return name.replace(".", "%2E") if name in {".", ".."} else name


def connector_of(name: str) -> str | None:
    """Return the connector whose znodes have this name, or None for a name that ``znode_name`` never returns."""
    try:
        connector = unquote(name, errors="strict")
        return connector if znode_name(connector) == name else None
    except (UnicodeDecodeError, ConfigError):
        return None


def history_offset_of(name: str) -> int | None:
    """Return the configuration offset in the name of a history entry, or None for any other name."""
    return whole_number(name, LARGEST_OFFSET) if len(name) >= _DIGITS else None


@dataclass(frozen=True)
class WorkerLayout:
    """
    The paths of the workers of one group.

    Parameters named ``connector`` are names of connectors. ``task`` is a task's number, or None for the connector
    itself.
    """

    group: str

    @cached_property
    def workers(self) -> str:
        """The path above the workers' ephemeral znodes, by which they prove that their session is alive."""
        return f"{ROOT}/{self.group}/workers"

    def worker(self, worker_id: str) -> str:
        return f"{self.workers}/{worker_id}"

    @cached_property
    def config(self) -> str:
        """The path of the znode with the configuration offset. Every change of the configuration writes it."""
        return f"{ROOT}/{self.group}/connect"

    @cached_property
    def connectors(self) -> str:
        """The path above the configurations of the connectors."""
        return f"{self.config}/connectors"

    def connector(self, connector: str) -> str:
        return f"{self.connectors}/{znode_name(connector)}"

    @cached_property
    def history(self) -> str:
        """The path above the entries of the latest changes, one per change."""
        return f"{self.config}/history"

    def history_entry(self, offset: int) -> str:
        return f"{self.history}/{offset:0{_DIGITS}d}"

    @cached_property
    def statuses(self) -> str:
        return f"{self.config}/status"

    def status(self, connector: str, task: int | None = None) -> str:
        """Return the path of a status. That of a connector is above those of its tasks."""
        folder = f"{self.statuses}/{znode_name(connector)}"
        return folder if task is None else f"{folder}/{task}"

    @cached_property
    def offsets(self) -> str:
        """The path above the source offsets, by connector."""
        return f"{self.config}/offsets"

    def connector_offsets(self, connector: str) -> str:
        return f"{self.offsets}/{znode_name(connector)}"

    def source_offset(self, connector: str, digest: str) -> str:
        """Return the path of the offset of the source partition with this digest."""
        return f"{self.connector_offsets(connector)}/{digest}"

    @cached_property
    def owners(self) -> str:
        """The path above the owner znodes, by connector. Each is the claim of a connector or of a task."""
        return f"{self.config}/owners"

    def connector_owners(self, connector: str) -> str:
        return f"{self.owners}/{znode_name(connector)}"

    def owner(self, connector: str, task: int | None = None) -> str:
        return f"{self.connector_owners(connector)}/{CONNECTOR if task is None else task}"

    @cached_property
    def folders(self) -> tuple[str, ...]:
        """The paths of the persistent znodes that must exist before a worker starts."""
        return (self.workers, self.connectors, self.history, self.statuses, self.offsets, self.owners)
