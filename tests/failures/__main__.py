"""
Print ``docs/failures.rst``: a row for each test of this folder and of ``ELSEWHERE``, made of its name and docstring.

    python -m tests.failures > docs/failures.rst
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from kiel_groups.clients import GroupedConsumer
from kiel_groups.config import BrokerConfig, ZooKeeperConfig

WIDTH = 120

HEAD = """\
What can fail, and what the group does
======================================

Each row names a failure and says what the group does, how long that takes, and whether records are repeated. A record
is not lost unless its row says so; a record in flight, or finished and not yet committed, may be delivered again.
``operating.rst`` describes how to notice a failure and what to do about it, ``ownership.rst`` why the guarantees hold,
and ``glossary.rst`` the terms.

The times are settings of the members. Two more follow from the session timeout: a member stops delivering when its
lease ends, half of the timeout after the last answered heartbeat was sent; a heartbeat is sent every sixth of it.

{settings}

A test of each name causes the failure, on real servers where the row names no file, and for most of the others. Tests
in ``tests/failures`` wait a bounded time for the group to recover. Most of them fail if a record was delivered under a
claim that was not the newest of its partition, if a value was never delivered, or if an offset was committed beyond
what was delivered. ``scripts/test -m failures`` runs them all. ``simulation.rst`` and, on real servers, ``chaos.rst``
describe random faults.
"""

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

#: Tests of other folders that have a row, by file.
ELSEWHERE = {
    "integration/test_group_lease.py": (
        "a_silence_within_the_lease",
        "a_lease_ends_before_its_session",
    ),
    "integration/test_group_watchdog.py": (
        "an_event_loop_is_blocked_for_good",
        "an_application_hangs_with_a_record_in_flight",
        "on_stalled_hangs_or_exits",
        "a_listener_hangs",
    ),
    "integration/test_group_static.py": (
        "a_rolling_restart_moves_no_partition",
        "a_process_restarts_faster_than_its_old_session_expires",
        "two_members_have_one_instance",
        "an_assignment_in_the_wrong_slot_is_repaired",
    ),
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
    "unit/members/offsets/test_topic_incarnations.py": ("a_failed_check_on_a_lost_session_is_not_repeated",),
    "unit/clients/net/test_deposed_leaders.py": (
        "a_deposed_leader_with_a_shorter_log_does_not_cause_a_reset",
        "the_bootstrap_name_of_a_deposed_leader_is_not_another_broker",
    ),
    "unit/clients/delivery/test_position_reset.py": (
        "records_that_are_still_in_the_log_are_delivered_before_a_reset",
        "a_record_in_flight_beyond_the_end_of_the_log_is_not_committed",
        "a_position_that_is_in_the_log_after_all_is_kept",
        "a_look_up_of_the_logs_range_that_fails_is_repeated",
    ),
    "sim/test_unopened_claims.py": ("another_members_claim_is_not_deleted",),
    "integration/test_group_subscription.py": (
        "a_topic_is_dropped_from_the_subscription",
        "an_assignment_names_a_topic_without_subscription",
    ),
    "integration/test_force_release.py": (
        "a_live_member_stops_before_its_claims_could_be_deleted",
        "claims_that_are_not_released_are_deleted_after_the_wait",
    ),
    "integration/test_group_delivery.py": (
        "a_broker_restarts_under_a_running_group",
        "a_leader_of_partitions_is_killed",
        "a_committed_offset_beyond_the_log",
        "zookeeper_restarts_under_a_running_group",
        "a_frozen_zookeeper_shuts_the_gate_in_time",
        "a_listener_that_raises_does_not_block_the_group",
    ),
    "integration/test_group_join_leave.py": (
        "a_member_without_its_znode_is_not_foreign",
        "a_member_leaves_while_no_broker_answers",
    ),
    "integration/test_group_membership.py": (
        "partitions_are_added_under_a_running_group",
        "a_process_is_killed",
        "a_session_expires",
        "a_shorter_session_timeout_is_granted",
        "the_parent_of_all_owner_znodes_is_deleted",
        "brokers_are_found_in_zookeeper",
    ),
    "integration/test_group_bad_input.py": (
        "no_chroot",
        "a_member_that_disagrees_with_its_group",
        "unreadable_settings_are_an_error",
        "an_allocator_that_fails",
    ),
    "integration/test_broker_offset_store.py": (
        "a_broker_that_is_down_costs_only_time",
        "a_member_with_the_other_store_is_refused",
        "brokers_that_store_no_offsets_are_refused",
    ),
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
    "integration/test_java_tools.py": (
        "a_java_consumer_that_joins_later_raises_an_alarm",
        "a_java_consumer_keeps_members_from_joining",
        "a_member_of_kiel_that_joins_later_raises_an_alarm",
    ),
    "integration/test_kiel_api_rebalance.py": (
        "a_drain_waits_for_values_in_flight_after_undelivered_ones",
        "a_drain_gives_up_undelivered_values",
    ),
    "integration/test_kiel_api_consume.py": ("a_deserializer_that_fails_on_every_value",),
    "sim/test_size_limits.py": (
        "a_thousand_members_at_once",
        "a_plan_near_the_size_limit",
        "a_subscription_beyond_the_size_limit",
    ),
}


def document() -> str:
    """Return the whole page."""
    return "\n".join([HEAD.format(settings=_settings()), *_sections(), *_elsewhere()])


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


def _sections() -> Iterator[str]:
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        yield _titled(module)
        yield from (_row(name.replace("_", " "), shown) for name, shown in _tests(module).items())


def _elsewhere() -> Iterator[str]:
    for file, names in ELSEWHERE.items():
        module = ast.parse((Path(__file__).parents[1] / file).read_text(encoding="utf-8"))
        yield _titled(module)
        tests = _tests(module)
        yield from (_row(name.replace("_", " "), f"{tests[name]} (``tests/{file}``)") for name in names)


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
    sys.stdout.write(document())
