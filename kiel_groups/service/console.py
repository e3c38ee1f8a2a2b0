"""The console: web pages for operators. The server renders them from the newest state of each cluster."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from mimetypes import guess_type
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from tornado.template import Loader

from kiel_groups.errors import KielGroupsError
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.ops.views.lag_trend import worst_verdict
from kiel_groups.rest.calls import RestError, status_text
from kiel_groups.rest.server import AccessRules, GuardedHandler
from kiel_groups.service.api import in_order
from kiel_groups.service.cluster_state import GroupStatus
from kiel_groups.service.connectors import Work, list_work
from kiel_groups.service.group_page import escaped, group_values, number
from kiel_groups.service.mirror_page import mirrors
from kiel_groups.service.served_cluster import ServedCluster
from kiel_groups.wording import counted

_FOLDER = Path(__file__).parent

#: The scripts, styles and icons by name.
STATIC_FILES = {file.name: file.read_bytes() for file in (_FOLDER / "static").iterdir()}

#: Nothing is loaded from elsewhere, and no script or style is in a page.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'none';"
    " base-uri 'none'; frame-ancestors 'none'"
)

#: The most connectors and tasks that a page lists, and the most characters of a worker's error.
_MOST_WORK, _LONGEST_PROBLEM = 2_000, 1_000


def _shown_state(view: GroupView) -> str:
    """Return the state of a group as a word. A group of programs is settled when its newest rebalance is done."""
    return "settled" if view.state == "done" else view.state


_loader = Loader(
    str(_FOLDER / "templates"), autoescape="escaped", namespace={"escaped": escaped, "shown_state": _shown_state}
)


class _PageHandler(GuardedHandler):
    def initialize(self, access: AccessRules, clusters: Mapping[str, ServedCluster]) -> None:  # type: ignore[override]
        """Store the access rules, and the clusters by name. Tornado calls this method."""
        super().initialize(access)
        self._clusters = clusters

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Content-Security-Policy", _POLICY)
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

    def head(self, *arguments: str) -> Awaitable[None] | None:
        """Answer as to GET, without the body."""
        return self.get(*arguments)

    def show(self, template: str, **values: Any) -> None:
        """Render a template with these values, and answer with the page."""
        page = _loader.load(template).generate(
            counted=counted,
            number=number,
            worst_verdict=worst_verdict,
            here=self.request.uri,
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


class GroupHandler(_PageHandler):
    """Serves the page of one group."""

    def get(self, cluster_name: str, group: str) -> Awaitable[None] | None:
        """
        Answer with the page of this group, or with a page that says that the group does not exist or is not known yet.

        The latter have the status 404 or 503. Since htmx shows no errors, an open page gets the news that its group
        does not exist with the status 200. As long as the group is not known, an open page gets no news.
        """
        events = f"/v1/events?cluster={quote_plus(cluster_name)}&group={quote_plus(group)}"
        cluster = self._clusters.get(cluster_name)
        status = None if cluster is None else cluster.state.groups.get(group)
        if cluster is None:  # A stream of the events of an unknown cluster is refused.
            events = "/v1/events"
        if cluster is None or status is None:
            is_known = cluster is None or cluster.state.loaded_ms > 0
            if "HX-Request" in self.request.headers:
                self.set_status(HTTPStatus.OK if is_known else HTTPStatus.NO_CONTENT)
            else:
                self.set_status(HTTPStatus.NOT_FOUND if is_known else HTTPStatus.SERVICE_UNAVAILABLE)
            if self.get_status() != HTTPStatus.NO_CONTENT:
                names = {"cluster_name": cluster_name[:100], "group": group[:100]}
                self.show("gone.html", **names, is_known=is_known, is_shown=cluster is not None, events=events)
            return None
        return self.show_group(cluster, status, events)

    def show_group(self, cluster: ServedCluster, status: GroupStatus, events: str) -> Awaitable[None] | None:
        """Answer with the page of a group. ``events`` is the path of the events of the group."""
        by_lag = self.get_query_argument("colour", "") == "lag"
        self.show(
            "group.html",
            **group_values(status, time.time_ns() // 1_000_000, by_lag=by_lag),
            cluster=cluster,
            of_brokers=cluster.address.is_of_brokers,
            path=self.request.path,
            utc=_utc,
            api_path=f"/v1{_group_path(cluster.name, status.view.group)}",
            events=events,
        )
        return None


class ConnectorsHandler(GroupHandler):
    """Serves the page of the connectors of a worker group."""

    async def show_group(self, cluster: ServedCluster, status: GroupStatus, events: str) -> None:
        """Ask a worker, and answer with the page of the group's connectors and tasks, or with the worker's error."""
        works, problem, group = list[Work](), "", status.view.group
        try:
            works = await list_work(cluster, status)
        except KielGroupsError as error:
            problem = cluster.pasteable(str(error)[:_LONGEST_PROBLEM])
        path = f"/v1{_group_path(cluster.name, group)}/connectors"
        self.show(
            "connectors.html",
            cluster=cluster,
            view=status.view,
            group_path=_group_path(cluster.name, group),
            works=works,
            most=_MOST_WORK,
            problem=problem,
            mirrors=list(mirrors(works, group, cluster.answering.get(group, ""), time.time_ns() // 1_000_000)),
            pasteable=cluster.pasteable,
            api_path=path,
            connector_path=lambda work: f"{path}/{quote(work.connector, safe='')}",
            events=events,
        )


class StaticHandler(GuardedHandler):
    """Serves scripts, styles and icons. Requests for them need no token."""

    def initialize(self, access: AccessRules, files: Mapping[str, bytes]) -> None:  # type: ignore[override]
        """Store the access rules, which do not apply, and the files by name. Tornado calls this method."""
        super().initialize(access)
        self._files = files

    def prepare(self) -> None:
        """Accept the request: the files have no secrets."""

    def get(self, name: str) -> None:
        """
        Answer with a file, or with the status 404.

        Browsers keep files with a version in their name for a year, and ask whether other files have changed.
        """
        if name not in self._files:
            raise RestError(HTTPStatus.NOT_FOUND, status_text(HTTPStatus.NOT_FOUND))
        self.set_header("Content-Type", guess_type(name)[0] or "application/octet-stream")
        self.set_header("Cache-Control", "max-age=31536000, immutable" if "-" in name else "no-cache")
        self.write(self._files[name])

    head = get


def _group_path(cluster: str, group: str) -> str:
    return f"/clusters/{quote(cluster, safe='')}/groups/{quote(group, safe='')}"


def _utc(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
