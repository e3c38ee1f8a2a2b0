"""List the routes of the REST interface, which are those of Kafka Connect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kiel_groups.workers.rest import connector_operations as connectors
from kiel_groups.workers.rest import other_operations as others
from kiel_groups.workers.rest.rest_calls import Operation

__all__ = ["ROUTES", "Route"]


class Route(NamedTuple):
    """A pattern of paths, and the operation of each method."""

    pattern: str
    operations: Mapping[str, Operation]


_CONNECTOR: Final = "/connectors/([^/]+)"
_TASK: Final = f"{_CONNECTOR}/tasks/([0-9]{{1,9}})"

#: All routes. Clients may add a slash to each path.
ROUTES: Final = (
    Route("", {"GET": others.get_worker}),
    Route("/connectors", {"GET": connectors.list_connectors, "POST": connectors.create_connector}),
    Route(_CONNECTOR, {"GET": connectors.get_connector, "DELETE": connectors.delete_connector}),
    Route(
        f"{_CONNECTOR}/config",
        {"GET": connectors.get_config, "PUT": connectors.change_config, "PATCH": connectors.patch_config},
    ),
    Route(f"{_CONNECTOR}/status", {"GET": connectors.get_connector_status}),
    Route(f"{_CONNECTOR}/restart", {"POST": connectors.restart_connector}),
    Route(f"{_CONNECTOR}/pause", {"PUT": connectors.pause_connector}),
    Route(f"{_CONNECTOR}/resume", {"PUT": connectors.resume_connector}),
    Route(f"{_CONNECTOR}/tasks", {"GET": others.get_tasks}),
    Route(f"{_TASK}/status", {"GET": others.get_task_status}),
    Route(f"{_TASK}/restart", {"POST": others.restart_task}),
    Route("/connector-plugins", {"GET": others.get_plugins}),
    Route("/connector-plugins/([^/]+)/config/validate", {"PUT": others.validate_config}),
)
