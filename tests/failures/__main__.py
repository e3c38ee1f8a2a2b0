"""
Write the pages of failures, ``docs/failures*.rst``: a row for each test of ``PAGES``, made of its name and docstring.

    python -m tests.failures
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kiel_groups.clients import GroupedConsumer
from kiel_groups.config import BrokerConfig, ZooKeeperConfig

WIDTH = 120

#: The settings that decide how long a failure lasts, and the time that each one sets.
SETTINGS = {
    "session_timeout_ms": "until ZooKeeper expires a silent session and deletes its owner znodes",
    "reconcile_interval_ms": "between checks that need no watch, up to a third longer or shorter",
    "auto_commit_interval_ms": "between automatic commits",
    "drain_alarm_ms": "until an alarm, for a partition that is revoked, or claimed and not read",
    "zk_timeout_ms": "for joining; then an error is raised",
    "retry_backoff_ms": "before a join is tried again; doubled with each failure up to 5 s, with jitter",
    "connect_timeout_ms": "for a connection to a broker",
    "metadata_max_age_ms": "between questions to brokers for the leaders of partitions",
    "max_poll_interval_ms": "for one record, one list of values, or one hook of a listener",
    "loop_stall_ms": "for which the event loop may be blocked",
    "static_grace_ms": "for which the place of a static member is kept",
    "allocator_timeout_ms": "for an allocator",
}


class Page(NamedTuple):
    """
    A page of failures.

    Attributes:
        title: The title of the page.
        head: The text above its rows; ``{settings}`` is the table of ``SETTINGS``.
        tests: The tests that have a row, by file below ``tests``. No names stand for all tests of the file.
    """

    title: str
    head: str
    tests: dict[str, tuple[str, ...]]


_FAILURES = Page(
    "What can fail, and what the group does",
    """\
Each row names a failure and says what the group does, how long that takes, and whether records are repeated. A record
is not lost unless its row says so; a record in flight, or finished and not yet committed, may be delivered again.
``operating.rst`` describes how to notice a failure and what to do about it, ``ownership.rst`` why the guarantees hold,
and ``glossary.rst`` the terms. This page is about servers: ZooKeeper and brokers that die, freeze, refuse or answer
wrongly. The others:

- ``failures-members.rst``: members, leaders and listeners that die, freeze or hang, and clients that do not fit.
- ``failures-operators.rst``: what operators change, delete or reset while a group runs, and mistakes in settings.
- ``failures-workers.rst``: workers and their connectors, producers, and Spark.

The times are settings of the members. Two more follow from the session timeout: a member stops delivering when its
lease ends, half of the timeout after the last answered heartbeat was sent; a heartbeat is sent every sixth of it.

{settings}

A test of each name causes the failure, on real servers where the row names no file, and for most of the others. Tests
in ``tests/failures`` wait a bounded time for the group to recover. Most of them fail if a record was delivered under a
claim that was not the newest of its partition, if a value was never delivered, or if an offset was committed beyond
what was delivered. ``scripts/test -m failures`` runs them all. ``simulation.rst`` and, on real servers, ``chaos.rst``
describe random faults.
""",
    {
        "failures/test_acls.py": (),
        "failures/test_broker_answers.py": (),
        "failures/test_broker_outages.py": (),
        "failures/test_ensembles.py": (),
        "failures/test_sessions.py": (),
        "integration/test_group_lease.py": ("a_silence_within_the_lease", "a_lease_ends_before_its_session"),
        "integration/test_group_delivery.py": (
            "a_broker_restarts_under_a_running_group",
            "a_leader_of_partitions_is_killed",
            "a_committed_offset_beyond_the_log",
            "zookeeper_restarts_under_a_running_group",
            "a_frozen_zookeeper_shuts_the_gate_in_time",
            "a_listener_that_raises_does_not_block_the_group",
        ),
        "unit/clients/net/test_deposed_leaders.py": (
            "a_deposed_leader_with_a_shorter_log_does_not_cause_a_reset",
            "the_bootstrap_name_of_a_deposed_leader_is_not_another_broker",
        ),
        "integration/test_broker_offset_store.py": (
            "a_broker_that_is_down_costs_only_time",
            "a_member_with_the_other_store_is_refused",
            "brokers_that_store_no_offsets_are_refused",
        ),
        "integration/test_group_join_leave.py": (
            "a_member_without_its_znode_is_not_foreign",
            "a_member_leaves_while_no_broker_answers",
        ),
    },
)

_FAILURES_MEMBERS = Page(
    "What can fail in members",
    """\
Members, leaders and listeners that die, freeze or hang, and clients that do not fit the group. ``failures.rst`` says
how to read the rows, and has the settings that the times come from.
""",
    {
        "failures/test_claims.py": (),
        "failures/test_group_leaders.py": (),
        "failures/test_subscriptions.py": (),
        "integration/test_group_watchdog.py": (
            "an_event_loop_is_blocked_for_good",
            "an_application_hangs_with_a_record_in_flight",
            "on_stalled_hangs_or_exits",
            "a_listener_hangs",
        ),
        "integration/test_group_static.py": (
            "a_rolling_restart_moves_no_partition",
            "a_member_connects_long_before_it_subscribes",
            "a_process_restarts_faster_than_its_old_session_expires",
            "two_members_have_one_instance",
            "an_assignment_in_the_wrong_slot_is_repaired",
        ),
        "integration/test_group_membership.py": (
            "partitions_are_added_under_a_running_group",
            "a_process_is_killed",
            "a_session_expires",
            "a_shorter_session_timeout_is_granted",
            "the_parent_of_all_owner_znodes_is_deleted",
            "brokers_are_found_in_zookeeper",
        ),
        "integration/test_group_subscription.py": (
            "a_topic_is_dropped_from_the_subscription",
            "an_assignment_names_a_topic_without_subscription",
        ),
        "integration/test_kiel_api_rebalance.py": (
            "a_drain_waits_for_values_in_flight_after_undelivered_ones",
            "a_drain_gives_up_undelivered_values",
        ),
        "integration/test_kiel_api_consume.py": ("a_deserializer_that_fails_on_every_value",),
        "integration/test_java_tools.py": (
            "a_java_consumer_that_joins_later_raises_an_alarm",
            "a_java_consumer_keeps_members_from_joining",
            "a_member_of_kiel_that_joins_later_raises_an_alarm",
        ),
        "sim/test_size_limits.py": (
            "a_thousand_members_at_once",
            "a_plan_near_the_size_limit",
            "a_subscription_beyond_the_size_limit",
        ),
    },
)

_FAILURES_OPERATORS = Page(
    "What operators can do to a running group",
    """\
What a group does when operators change, delete or reset something while it runs, and at mistakes in settings.
``failures.rst`` says how to read the rows, and has the settings that the times come from.
""",
    {
        "failures/test_operator_changes.py": (),
        "integration/test_group_resets.py": (
            "an_idle_owner_adopts_a_reset",
            "an_idle_owner_whose_assignment_keeps_changing",
            "a_reset_to_the_committed_offset",
            "a_busy_owner_adopts_a_reset",
            "a_reset_during_a_rebalance",
            "a_truncated_log_with_latest",
            "an_emptied_log_with_earliest",
            "a_reset_during_an_assigned_hook",
            "a_topic_is_created_again_under_a_running_group",
        ),
        "unit/clients/delivery/test_position_reset.py": (
            "records_that_are_still_in_the_log_are_delivered_before_a_reset",
            "a_record_in_flight_beyond_the_end_of_the_log_is_not_committed",
            "a_position_that_is_in_the_log_after_all_is_kept",
            "a_look_up_of_the_logs_range_that_fails_is_repeated",
        ),
        "unit/members/offsets/test_topic_incarnations.py": ("a_failed_check_on_a_lost_session_is_not_repeated",),
        "integration/test_force_release.py": (
            "a_live_member_stops_before_its_claims_could_be_deleted",
            "claims_that_are_not_released_are_deleted_after_the_wait",
        ),
        "sim/test_unopened_claims.py": ("another_members_claim_is_not_deleted",),
        "integration/test_group_bad_input.py": (
            "no_chroot",
            "a_member_that_disagrees_with_its_group",
            "unreadable_settings_are_an_error",
            "an_allocator_that_fails",
        ),
    },
)

_FAILURES_WORKERS = Page(
    "What can fail in workers, producers and Spark",
    """\
Workers that die, freeze or lose their servers, connectors that fail or hang, producers that are stopped, and faults
while Spark reads. ``failures.rst`` says how to read the rows, and has the settings that the times come from.
""",
    {
        "failures/test_workers.py": (),
        "failures/test_sinks_of_workers.py": (),
        "failures/test_workers_without_brokers.py": (),
        "integration/test_producer_close.py": (
            "a_producer_is_stopped_by_ctrl_c",
            "a_producer_is_closed_while_its_broker_is_frozen",
        ),
        "unit/clients/net/test_connection.py": (
            "answers_out_of_order_are_matched_to_their_requests",
            "an_answer_to_no_request_leaves_the_others_unknown",
        ),
        "unit/spark/test_archive_folders.py": ("a_file_is_on_the_disk_before_its_name_is",),
        "spark/test_broker_faults.py": ("an_empty_answer_skips_nothing",),
    },
)

#: The pages by their names.
PAGES = {
    "failures": _FAILURES,
    "failures-members": _FAILURES_MEMBERS,
    "failures-operators": _FAILURES_OPERATORS,
    "failures-workers": _FAILURES_WORKERS,
}

#: Tests of other folders that have a row, by file.
ELSEWHERE = {
    file: names for page in PAGES.values() for file, names in page.tests.items() if not file.startswith("failures/")
}


def document(name: str) -> str:
    """Return a whole page."""
    page = PAGES[name]
    text = f"{page.title}\n{'=' * len(page.title)}\n\n{page.head.replace('{settings}', _settings())}"
    return "\n".join([text, *_rows(page.tests)])


def _settings() -> str:
    """Return a table of the settings with their defaults."""
    defaults = {name: each.default for name, each in inspect.signature(GroupedConsumer).parameters.items()}
    # The consumer's own defaults of these depend on what coordinates the group.
    defaults |= {name: each.default for name, each in inspect.signature(ZooKeeperConfig).parameters.items()}
    defaults |= {name: each.default for name, each in inspect.signature(BrokerConfig).parameters.items()}
    rows = [(f"``{name}``", f"{defaults[name] / 1000:g} s", meaning) for name, meaning in SETTINGS.items()]
    rows.insert(0, ("setting", "default", "time"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = "  ".join("=" * width for width in widths)
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])


def _rows(tests: dict[str, tuple[str, ...]]) -> Iterator[str]:
    for file, names in tests.items():
        module = ast.parse((Path(__file__).parents[1] / file).read_text(encoding="utf-8"))
        yield _titled(module)
        shown = _tests(module)
        where = "" if file.startswith("failures/") else f" (``tests/{file}``)"
        yield from (_row(name.replace("_", " "), f"{shown[name]}{where}") for name in names or shown)


def _titled(module: ast.Module) -> str:
    about = " ".join((ast.get_docstring(module) or "").split()).rstrip(".")
    return f"{about}\n{'-' * len(about)}\n"


def _tests(module: ast.Module) -> dict[str, str]:
    """Return the docstring of each test, by the name of the test without ``test_``."""
    return {
        function.name.removeprefix("test_"): ast.get_docstring(function) or ""
        for function in module.body
        if isinstance(function, (ast.AsyncFunctionDef, ast.FunctionDef)) and function.name.startswith("test_")
    }


def _row(failure: str, shown: str) -> str:
    return f"{failure}\n{_indented(shown)}\n"


def _indented(text: str) -> str:
    return textwrap.fill(
        " ".join(text.split()), WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )


if __name__ == "__main__":
    for page in PAGES:
        (Path(__file__).parents[2] / "docs" / f"{page}.rst").write_text(document(page), encoding="utf-8")
