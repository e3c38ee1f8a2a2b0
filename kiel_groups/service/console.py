"""The console: web pages for operators. The server renders them from the newest state of each cluster."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterator, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

from tornado.template import Loader
from tornado.web import StaticFileHandler

from kiel_groups.errors import KielGroupsError
from kiel_groups.ops.views.group_view import GroupView, PartitionView
from kiel_groups.ops.views.lag_trend import worst_verdict
from kiel_groups.rest.calls import RestError
from kiel_groups.rest.server import AccessRules, GuardedHandler
from kiel_groups.service.api import in_order
from kiel_groups.service.cluster_state import GroupStatus
from kiel_groups.service.connectors import Work, list_work
from kiel_groups.service.served_cluster import ServedCluster
from kiel_groups.wording import counted

_FOLDER = Path(__file__).parent

#: The folder of scripts and styles.
STATIC = str(_FOLDER / "static")

#: Nothing is loaded from elsewhere, and no script or style is in a page.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'none';"
    " base-uri 'none'; frame-ancestors 'none'"
)

#: More partitions than these are shown without a text for each.
_MOST_DETAILED = 2_000

#: The most connectors and tasks that a page lists, and the most characters of a worker's error.
_MOST_WORK, _LONGEST_PROBLEM = 2_000, 1_000

#: The colours of owners in the style sheet, and the heights of bars.
_COLOURS, _BARS = 8, 3

_loader = Loader(str(_FOLDER / "templates"))


class _PageHandler(GuardedHandler):
    def initialize(self, access: AccessRules, clusters: Mapping[str, ServedCluster]) -> None:  # type: ignore[override]
        """Store the access rules, and the clusters by name. Tornado calls this method."""
        super().initialize(access)
        self._clusters = clusters

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")

    def prepare(self) -> None:
        """
        Check the access of the request as other handlers do.

        If the token is missing or wrong, the answer makes a browser ask its user for the token as a password.
        """
        try:
            super().prepare()
        except RestError as error:
            if error.status == HTTPStatus.UNAUTHORIZED:
                error.headers["WWW-Authenticate"] = 'Basic realm="kiel-groups"'
            raise

    def show(self, template: str, **values: Any) -> None:
        """Render a template with these values, and answer with the page."""
        page = _loader.load(template).generate(
            counted=counted,
            number=_number,
            worst_verdict=worst_verdict,
            here=self.request.path,
            **values,
        )
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.write(page)


class GroupsHandler(_PageHandler):
    """Serves the page of all groups. Groups that need an operator come first."""

    def get(self) -> None:
        """Answer with the page of all groups of all clusters."""
        self.show(
            "groups.html",
            clusters=list(self._clusters.values()),
            ordered=in_order,
            group_path=_group_path,
            events="/v1/events",
        )


class _Cell(NamedTuple):
    """A partition in the grid: its owner's number, its colour and bar height as style classes, and its tooltip."""

    owner: str
    colour: str
    bar: str
    title: str


class GroupHandler(_PageHandler):
    """Serves the page of one group."""

    def get(self, cluster_name: str, group: str) -> Awaitable[None] | None:
        """
        Answer with the page of this group, or with a page that says that the group does not exist.

        The latter has the status 404. An open page that htmx replaces gets it with 200, because htmx shows no errors.
        """
        events = f"/v1/events?cluster={quote_plus(cluster_name)}&group={quote_plus(group)}"
        cluster = self._clusters.get(cluster_name)
        status = None if cluster is None else cluster.state.groups.get(group)
        if cluster is None or status is None:
            self.set_status(HTTPStatus.OK if "HX-Request" in self.request.headers else HTTPStatus.NOT_FOUND)
            self.show("gone.html", cluster_name=cluster_name[:100], group=group[:100], events=events)
            return None
        return self.show_group(cluster, status, events)

    def show_group(self, cluster: ServedCluster, status: GroupStatus, events: str) -> Awaitable[None] | None:
        """Answer with the page of a group. ``events`` is the path of the events of the group."""
        view = status.view
        members = list(enumerate(view.members, 1))
        self.show(
            "group.html",
            cluster=cluster,
            status=status,
            view=view,
            members=members,
            drained=() if view.dynamic_config is None else view.dynamic_config.drained,
            of_brokers=cluster.address.is_of_brokers,
            topics=list(_topics(view)),
            detailed=len(view.partitions) <= _MOST_DETAILED,
            lags=json.dumps(status.lags),
            utc=_utc,
            api_path=f"/v1{_group_path(cluster.name, view.group)}",
            events=events,
        )
        return None


class ConnectorsHandler(GroupHandler):
    """Serves the page of the connectors of a worker group."""

    async def show_group(self, cluster: ServedCluster, status: GroupStatus, events: str) -> None:
        """Ask a worker, and answer with the page of the group's connectors and tasks, or with the worker's error."""
        works, problem = list[Work](), ""
        try:
            works = await list_work(cluster, status)
        except KielGroupsError as error:
            problem = str(error)[:_LONGEST_PROBLEM]
        path = f"/v1{_group_path(cluster.name, status.view.group)}/connectors"
        self.show(
            "connectors.html",
            cluster=cluster,
            view=status.view,
            group_path=_group_path(cluster.name, status.view.group),
            works=works,
            most=_MOST_WORK,
            problem=problem,
            api_path=path,
            connector_path=lambda work: f"{path}/{quote(work.connector, safe='')}",
            events=events,
        )


class StaticHandler(StaticFileHandler):
    """Serves scripts, styles and icons. Requests for them need no token."""

    def initialize(self, access: AccessRules, path: str) -> None:  # type: ignore[override]
        """Store the folder. Tornado calls this method. The access rules do not apply."""
        super().initialize(path)

    def set_extra_headers(self, path: str) -> None:
        """
        Set the headers of a file, for security and for caches.

        Browsers keep files with a version in their name for a year, and ask whether other files have changed.
        """
        self.set_header("Server", "kiel-groups")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "max-age=31536000, immutable" if "-" in path else "no-cache")


def _topics(view: GroupView) -> Iterator[tuple[str, list[_Cell]]]:
    """Yield each topic of a group, in alphabetical order, with the cells of its partitions."""
    numbers = {member.member_id: at for at, member in enumerate(view.members, 1)}
    most = max((each.lag or 0 for each in view.partitions), default=0)
    topics: dict[str, list[_Cell]] = {}
    for each in view.partitions:
        topics.setdefault(each.topic_partition.topic, []).append(_cell(each, numbers, most))
    yield from sorted(topics.items())


def _cell(partition: PartitionView, numbers: Mapping[str, int], most: int) -> _Cell:
    at = numbers.get(partition.owner or "")
    owner = "–" if partition.owner is None else "?" if at is None else str(at)
    colour = "none" if at is None else f"o{at % _COLOURS}"
    lag = partition.lag or 0
    # The bar is that of the logarithm: a partition with a tenth of the largest lag is in trouble, too.
    bar = f"b{max(1, round(_BARS * lag.bit_length() / most.bit_length()))}" if lag else ""
    title = f"{partition.topic_partition}, owner {partition.owner or 'none'}, lag {_number(partition.lag)}"
    return _Cell(owner, colour, bar, title)


def _group_path(cluster: str, group: str) -> str:
    return f"/clusters/{quote(cluster, safe='')}/groups/{quote(group, safe='')}"


def _number(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _utc(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
