"""``kiel-groups lag``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from kiel_groups.cli.parameters.cluster_address import complete_groups
from kiel_groups.cli.parameters.options import (
    NumbersCommand,
    OptionalNumber,
    Seconds,
    cluster_options,
    json_option,
    optional_number,
)
from kiel_groups.cli.terminal.messages import DONE, EPILOG, FAILED, Lines
from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.ops.actions.cluster_address import ClusterAddress
from kiel_groups.wording import own_command

if TYPE_CHECKING:
    from kiel_groups.model import TopicPartition
    from kiel_groups.ops.loaded_groups import LoadedGroups
    from kiel_groups.ops.views.group_view import GroupView
    from kiel_groups.ops.views.lag_trend import LagTrends, Trend


_INTERVAL_S = 2.0
_WINDOW_S = 60.0
#: How many times a window is sampled: twice as often as a trend needs, because a load may fail or be slow.
_SAMPLES = 21


@click.command(cls=NumbersCommand, epilog=EPILOG)
@click.argument("groups", metavar="[GROUP]...", nargs=-1, shell_complete=complete_groups)
@cluster_options
@json_option
@optional_number(
    "--window",
    "window_s",
    Seconds(least=1),
    _WINDOW_S,
    f"Sample for SECONDS ({_WINDOW_S:g} if omitted), and show the trend, too.",
)
@optional_number(
    "--watch",
    "interval_s",
    Seconds(least=0.1),
    _INTERVAL_S,
    f"Repeat every SECONDS ({_INTERVAL_S:g} if omitted) until Ctrl-C, with the trend.",
)
@optional_number(
    "--check",
    "most",
    OptionalNumber("records", least=0, whole=True),
    0,
    "Exit with 1 if the lag of a group is more than RECORDS (0 if omitted), or if not all of it is known."
    " With --window, exit with 1 unless each trend is ok, falling or steady, and RECORDS, if any, are not exceeded.",
)
@click.pass_obj
def lag(
    lines: Lines,
    /,
    *,
    groups: tuple[str, ...],
    cluster: ClusterAddress,
    as_json: bool,
    window_s: float | None,
    interval_s: float | None,
    most: int | None,
) -> int:
    """
    Show how far groups are behind.

    One group is shown by its partitions, several groups by their sums. If no group is named, all are shown. The lag of
    a partition is the end of its log minus the committed offset, or '?' if there is no committed offset.

    --window and --watch also show a trend, which needs ten samples:

    \b
    ok, falling, steady   no problem
    growing               the lag has grown at each commit
    stuck                 nothing is committed, although there is lag
    rewound               the committed offset has gone back
    unknown               there are too few samples or commits; choose a --window
                          of several times the interval of the commits

    A group of other clients may have offsets in ZooKeeper and in Kafka. If these differ, the command watches them for
    two seconds, and takes those that move. If none moves, both are shown, and --check takes the larger lag.
    """
    from kiel_groups.cli.terminal.rendering import watch

    if interval_s is not None and window_s is not None:
        raise click.UsageError("--window does not go with --watch, which has the trend of its last samples.")
    if interval_s is not None and most is not None:
        raise click.UsageError("--check does not go with --watch.")
    names, reader = tuple(dict.fromkeys(groups)), cluster.groups()
    presenter = _Presenter(lines, names, cluster, as_json=as_json)
    if interval_s is not None:
        with closing(reader.follow(*names)) as loads:
            watch(lines, loads, lambda loaded, first: presenter.show(loaded, first=first), interval_s)
    if window_s is not None:
        with closing(reader.follow(*names)) as loads:
            loaded = presenter.sample(loads, window_s)
    else:
        loaded = reader.load_all(with_lag=True, groups=names)
    presenter.show(loaded)
    is_well = presenter.has_good_trends(loaded, most) if window_s is not None else _is_within(loaded, most or 0)
    return FAILED if loaded.problems or (most is not None and not is_well) else DONE


class _Presenter:
    """
    Shows the results of successive loads of groups, with the trends of the sampled groups.

    ``names`` are the groups that the user asked for. If there is one name, the group is shown by its partitions;
    otherwise, groups are shown by their sums.
    """

    def __init__(self, lines: Lines, names: tuple[str, ...], cluster: ClusterAddress, *, as_json: bool) -> None:
        self._lines = lines
        self._names = names
        self._place = cluster.place
        self._as_json = as_json
        self._sampled: LagTrends | None = None
        self._trends: dict[str, dict[TopicPartition, Trend]] | None = None

    def sample(self, loads: Iterator[LoadedGroups | KielGroupsError], window_s: float) -> LoadedGroups:
        """
        Load the groups repeatedly for ``window_s`` seconds, and return the last result.

        If loads are slow, sampling continues until a trend has enough samples. A failed load is only reported.

        Raises:
            KielGroupsError: The first load failed.
        """
        from kiel_groups.cli.terminal.rendering import waiting
        from kiel_groups.ops.views.lag_trend import LEAST_SAMPLES

        interval_s, last, tries = window_s / (_SAMPLES - 1), None, 0
        with waiting(self._lines, "sampling", window_s) as wait:
            while True:
                loaded, tries = next(loads), tries + 1
                if not isinstance(loaded, KielGroupsError):
                    last = self._taken(loaded)
                elif last is None:
                    raise loaded
                else:
                    self._lines.say("warning", f"a sample is missing: {loaded}")
                # Where a load takes longer than the interval, samples are left out.
                passed_s = wait(0)
                if passed_s >= window_s and tries >= LEAST_SAMPLES:
                    return last
                wait(min(window_s, (passed_s // interval_s + 1) * interval_s))

    def has_good_trends(self, loaded: LoadedGroups, most: int | None) -> bool:
        """
        Return whether no trend is a problem and the lag is known.

        If ``most`` is neither None nor 0, the lag of each group must also be at most ``most``.
        """
        from kiel_groups.ops.views.lag_trend import PROBLEMS

        found = [each.verdict for trends in (self._trends or {}).values() for each in trends.values()]
        return (
            PROBLEMS.isdisjoint(found)
            and not loaded.lag_problem
            and all(not most or view.lag <= most for view in loaded.groups)
        )

    def show(self, loaded: LoadedGroups, *, first: bool | None = None) -> None:
        """
        Show the result of a load. Raise ConfigError if the user has named a group whose members have no lag.

        ``first`` says whether this is the first result of ``--watch``. It is None without ``--watch``.
        """
        from kiel_groups.cli.terminal.rendering import clock, present
        from kiel_groups.ops.views.documents import lag_document, lags_document
        from kiel_groups.ops.views.report import lag_report, lags_report

        loaded = self._with_lag_only(loaded if first is None else self._taken(loaded))
        for problem in loaded.problems if first is None else ():
            self._lines.say("warning", problem)
        heading = [] if first is None else [f"lag {self._place}, {clock()}"]
        views, trends, why = loaded.groups, self._trends, loaded.lag_problem
        if len(self._names) != 1:
            document = lags_document(views, why, trends) if self._as_json else None
            present(document, lambda listed: [*heading, *lags_report(views, why, trends, listed)], first=first)
            return
        one = (self._names[0], views[0].partitions, why, None if trends is None else trends[self._names[0]])
        document = lag_document(*one) if self._as_json else None
        present(document, lambda listed: [*heading, *lag_report(*one, listed)], first=first)

    def _taken(self, loaded: LoadedGroups) -> LoadedGroups:
        from kiel_groups.ops.views.lag_trend import LagTrends

        self._sampled = self._sampled or LagTrends()
        self._sampled.take(loaded.groups, loaded.seen_ms)
        self._trends = {view.group: self._sampled.trends(view.group) for view in loaded.groups}
        return loaded

    def _with_lag_only(self, loaded: LoadedGroups) -> LoadedGroups:
        """
        Return the load without groups whose members consume no partitions. The group with the largest lag is first.

        Raises:
            ConfigError: The user has named such a group.
        """
        for view in loaded.groups:
            if view.group in self._names and not view.partitions and not view.is_of_consumers:
                raise ConfigError(_lagless(view))
        views = [view for view in loaded.groups if view.partitions or view.is_of_consumers]
        return replace(loaded, groups=tuple(sorted(views, key=lambda view: (-view.lag, view.group))))


def _is_within(loaded: LoadedGroups, most: int) -> bool:
    """Return whether the lag of each group is known, and at most ``most``."""
    is_known = not loaded.lag_problem and all(
        each.lag is not None for view in loaded.groups for each in view.partitions
    )
    return is_known and all(view.lag <= most for view in loaded.groups)


def _lagless(view: GroupView) -> str:
    """
    Return the error text for a group whose members consume no partitions.

    The text names the command that shows the members.
    """
    text = f"the members of group {view.group} are of the type {view.protocol_type!r}, and consume no partitions"
    if not view.are_workers:
        return f"{text}; {own_command('describe', view.group)} shows them"
    return (
        f"{text}; {own_command('workers', 'describe', view.group)} shows them, and 'kiel-groups lag connect-NAME' the"
        " lag of the sink connector NAME"
    )
