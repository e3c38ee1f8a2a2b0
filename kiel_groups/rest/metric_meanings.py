"""The meanings of the metrics in registries, for Prometheus' text format and for the pages about metrics."""

from __future__ import annotations

from typing import Final, NamedTuple


class MetricMeaning(NamedTuple):
    """
    What a metric is about.

    Attributes:
        kind: ``counter``, ``gauge`` or ``summary``.
        unit: The unit of its value, such as ``seconds`` or ``records``.
        text: What it counts or measures. Its labels follow after "By".
    """

    kind: str
    unit: str
    text: str


#: The metrics by the section of the pages, and by their names in Prometheus' text, without the ``_total`` of counters.
METRICS: Final = {
    "Members of groups": {
        "kiel_sessions_opened": MetricMeaning(
            "counter", "sessions", "Sessions with ZooKeeper that this process has begun."
        ),
        "kiel_sessions_lost": MetricMeaning(
            "counter", "sessions", "Sessions that ended without being closed; the process joins again."
        ),
        "kiel_sessions_denied": MetricMeaning(
            "counter",
            "sessions",
            "Sessions that ended because an ACL of ZooKeeper denies a right; the member tries again.",
        ),
        "kiel_joins": MetricMeaning("counter", "joins", "Assignments that arrived after a join or a rebalance."),
        "kiel_join_seconds": MetricMeaning(
            "summary", "seconds", "The time from the decision to join to the arrival of the assignment."
        ),
        "kiel_sync_seconds": MetricMeaning(
            "summary",
            "seconds",
            "The time from the arrival of an assignment until the records of all its partitions can be delivered.",
        ),
        "kiel_joins_failed": MetricMeaning("counter", "joins", "Joins that failed and are tried again."),
        "kiel_members_replaced": MetricMeaning(
            "counter", "members", "Memberships that ended because another process has the same instance id."
        ),
        "kiel_memberships_lost": MetricMeaning(
            "counter", "members", "Memberships at brokers that ended by a timeout or by fencing."
        ),
        "kiel_member_failures": MetricMeaning("counter", "failures", "Errors that ended the membership for good."),
        "kiel_heartbeat_seconds": MetricMeaning("summary", "seconds", "The time from a heartbeat to its answer."),
        "kiel_heartbeats": MetricMeaning(
            "counter", "heartbeats", "Answered heartbeats to the coordinator. By ``code`` of the answer."
        ),
        "kiel_group_requests_failed": MetricMeaning(
            "counter", "requests", "Requests to the coordinator that failed and are tried again. By ``request``."
        ),
        "kiel_zookeeper_suspensions": MetricMeaning(
            "counter", "times", "Connections to ZooKeeper that broke while the session lasted."
        ),
        "kiel_zookeeper_connections_dropped": MetricMeaning(
            "counter",
            "connections",
            "Connections that the client dropped, because the server was silent or answered wrongly.",
        ),
        "kiel_zookeeper_reads_repeated": MetricMeaning(
            "counter", "reads", "Reads that were sent again after the connection broke."
        ),
        "kiel_zookeeper_transactions_unknown": MetricMeaning(
            "counter", "writes", "Transactions whose outcome had to be looked up after the connection broke."
        ),
        "kiel_znodes_unreadable": MetricMeaning(
            "counter", "znodes", "Znodes with data that cannot be read; each is an error in the log."
        ),
        "kiel_stalls": MetricMeaning(
            "counter",
            "times",
            "Stalls of the event loop or of ZooKeeper's threads that the watchdog has noticed. By ``kind``.",
        ),
        "kiel_watchdog_exits": MetricMeaning(
            "counter", "times", "Stalls so long that the watchdog ended the process. By ``kind``."
        ),
        "kiel_elections_won": MetricMeaning("counter", "elections", "Elections that made this process the leader."),
        "kiel_candidacies_refused": MetricMeaning(
            "counter", "times", "Attempts to join the election that were refused, and are tried again."
        ),
        "kiel_generation": MetricMeaning(
            "gauge", "number", "The number of the newest plan that this leader has published."
        ),
        "kiel_generations_published": MetricMeaning("counter", "plans", "Plans that this leader has published."),
        "kiel_plans_failed": MetricMeaning("counter", "plans", "Plans that could not be made; the leader tries again."),
        "kiel_plans_withheld": MetricMeaning(
            "counter", "plans", "Plans not made, because no broker or none of the topics was found."
        ),
        "kiel_pattern_problems": MetricMeaning(
            "counter",
            "patterns",
            "Patterns for which topics are missing, as the log says. In groups of brokers, each member counts its own.",
        ),
        "kiel_publications_interrupted": MetricMeaning(
            "counter", "plans", "Plans whose publication another writer interrupted; the leader plans again."
        ),
        "kiel_allocator_seconds": MetricMeaning("summary", "seconds", "How long the allocator ran."),
        "kiel_allocator_failures": MetricMeaning(
            "counter", "failures", "Errors of the allocator; the plan is made by ``sticky``, or the join fails."
        ),
        "kiel_group_settings_refused": MetricMeaning(
            "counter", "times", "Settings in the group's ``config`` that cannot work; the previous ones stay."
        ),
        "kiel_foreign_members": MetricMeaning(
            "gauge", "members", "Members of other clients that read the same partitions."
        ),
        "kiel_foreign_members_alarms": MetricMeaning(
            "counter", "alarms", "Times at which such members were found; each is an error in the log."
        ),
        "kiel_ownership_alarms": MetricMeaning(
            "counter", "alarms", "Errors in the log about partitions that lack their planned owner."
        ),
        "kiel_partitions_unowned": MetricMeaning(
            "gauge", "partitions", "Partitions that have been without an owner for ``drain_alarm_ms`` or longer."
        ),
        "kiel_partitions_wrongly_owned": MetricMeaning(
            "gauge",
            "partitions",
            "Partitions that another member than the planned one has owned for ``drain_alarm_ms`` or longer.",
        ),
        "kiel_partitions_orphaned": MetricMeaning(
            "gauge", "partitions", "Partitions whose owner has not been a member for ``drain_alarm_ms`` or longer."
        ),
        "kiel_rounds_gathered": MetricMeaning(
            "counter", "rounds", "Rounds for which this leader has gathered the members of a group of programs."
        ),
        "kiel_rounds_incomplete": MetricMeaning(
            "counter", "rounds", "Rounds that continued without members that did not join in time."
        ),
        "kiel_assignments_of_known_topics": MetricMeaning(
            "counter", "times", "Assignments made from topics known before, because the brokers did not answer."
        ),
        "kiel_assignments_unreadable": MetricMeaning(
            "counter", "times", "Assignments that cannot be read; the member joins again."
        ),
        "kiel_subscriptions_unreadable": MetricMeaning(
            "counter", "members", "Members whose subscription the leader cannot read; they get no partitions."
        ),
        "kiel_subscribed_topics_missing": MetricMeaning("counter", "topics", "Subscribed topics that do not exist."),
        "kiel_group_folders_restored": MetricMeaning(
            "counter", "times", "Deleted folders of the group that were created again."
        ),
    },
    "Consumers": {
        "kiel_assigned_partitions": MetricMeaning("gauge", "partitions", "Partitions that the consumer has."),
        "kiel_partitions_claimed": MetricMeaning(
            "counter", "partitions", "Partitions that the consumer has become the owner of."
        ),
        "kiel_partitions_released": MetricMeaning("counter", "partitions", "Partitions that it has released."),
        "kiel_partitions_lost": MetricMeaning(
            "counter", "partitions", "Partitions that it lost with its session or membership."
        ),
        "kiel_assignments_of_unsubscribed_topics": MetricMeaning(
            "counter", "times", "Assignments with topics to which the consumer does not subscribe."
        ),
        "kiel_owner_folders_restored": MetricMeaning(
            "counter", "folders", "Deleted folders of owners that were created again."
        ),
        "kiel_drain_seconds": MetricMeaning(
            "summary", "seconds", "How long a revocation waited for records in progress."
        ),
        "kiel_drain_alarms": MetricMeaning(
            "counter", "alarms", "Warnings that a revocation waits for a record or a hook for long."
        ),
        "kiel_open_alarms": MetricMeaning(
            "counter", "alarms", "Errors in the log about partitions without a position for long."
        ),
        "kiel_claims_not_opened": MetricMeaning(
            "counter", "times", "Owned partitions for which no start position was found; it is looked up again."
        ),
        "kiel_claims_unopened": MetricMeaning("gauge", "partitions", "Such partitions at present."),
        "kiel_partitions_unopened": MetricMeaning(
            "gauge", "partitions", "Partitions whose start is still being looked up at the brokers."
        ),
        "kiel_start_lookups_failed": MetricMeaning("counter", "times", "Look-ups of start positions that failed."),
        "kiel_listener_failures": MetricMeaning("counter", "failures", "Errors of the application's rebalance hooks."),
        "kiel_records_fetched": MetricMeaning("counter", "records", "Records that arrived."),
        "kiel_bytes_fetched": MetricMeaning("counter", "bytes", "Bytes that arrived, as they were on the wire."),
        "kiel_records_handed_out": MetricMeaning("counter", "records", "Records that the application got."),
        "kiel_fetch_retries": MetricMeaning(
            "counter", "partitions", "Partitions whose fetch failed and is tried again."
        ),
        "kiel_fetch_failures": MetricMeaning(
            "counter", "failures", "Errors that the application gets, or that brokers answer and that look final."
        ),
        "kiel_fetches_unreadable": MetricMeaning("counter", "answers", "Answers to fetches that cannot be read."),
        "kiel_fetch_share_grown": MetricMeaning(
            "counter", "times", "Fetches that ask for more bytes, because not one whole message fitted."
        ),
        "kiel_deserializer_failures": MetricMeaning("counter", "records", "Records that a deserializer refused."),
        "kiel_records_damaged": MetricMeaning("counter", "records", "Records with a wrong checksum or format."),
        "kiel_bad_records_raised": MetricMeaning(
            "counter", "records", "Records that cannot be read and that the application got as errors."
        ),
        "kiel_bad_records_passed": MetricMeaning(
            "counter", "records", "Such records that ``on_bad_record`` has passed over."
        ),
        "kiel_bad_record_hooks_failed": MetricMeaning(
            "counter", "failures", "Errors of ``on_bad_record``; the record is kept."
        ),
        "kiel_values_unclaimed": MetricMeaning(
            "counter", "times", "Records that are delivered again, because no caller received them."
        ),
        "kiel_offset_resets": MetricMeaning(
            "counter", "partitions", "Positions that were out of range and have been reset."
        ),
        "kiel_records_cut_off": MetricMeaning("counter", "records", "Fetched records that a reset dropped."),
        "kiel_resets_put_off": MetricMeaning("counter", "times", "Resets that could not be stored yet."),
        "kiel_commit_seconds": MetricMeaning(
            "summary", "seconds", "The time of a commit, from its request to the answer."
        ),
        "kiel_offsets_committed": MetricMeaning("counter", "offsets", "Offsets that were stored."),
        "kiel_commits_failed": MetricMeaning("counter", "commits", "Commits that failed."),
        "kiel_commits_refused": MetricMeaning(
            "counter", "offsets", "Offsets that a broker refused to store. By ``error``."
        ),
        "kiel_commits_repeated": MetricMeaning(
            "counter", "offsets", "Offsets that were sent again to the coordinator."
        ),
        "kiel_commits_superseded": MetricMeaning(
            "counter", "offsets", "Offsets that another writer has changed; the consumer continues there."
        ),
        "kiel_commits_timed_out": MetricMeaning(
            "counter", "commits", "Commits without an answer in time; what is stored is read."
        ),
        "kiel_commit_callbacks_failed": MetricMeaning(
            "counter", "failures", "Errors of the application's commit callbacks."
        ),
        "kiel_offsets_unreadable": MetricMeaning(
            "counter", "offsets", "Stored offsets that cannot be read; they count as none."
        ),
        "kiel_offsets_missing": MetricMeaning(
            "counter", "offsets", "Partitions without a stored offset in a group that has others."
        ),
        "kiel_offsets_expired": MetricMeaning("counter", "offsets", "Offsets that brokers have deleted by age."),
        "kiel_offsets_of_deleted_topic": MetricMeaning(
            "counter", "offsets", "Offsets that were stored while their topic was created again; they are set anew."
        ),
        "kiel_offset_folders_restored": MetricMeaning(
            "counter", "folders", "Deleted folders of offsets that were created again."
        ),
        "kiel_orders_performed": MetricMeaning(
            "counter", "offsets", "Offsets that were set because an operator ordered it."
        ),
        "kiel_topics_recreated": MetricMeaning(
            "counter", "topics", "Topics that were deleted and created again; consumption restarts at their beginning."
        ),
        "kiel_recreated_topic_resets_delayed": MetricMeaning(
            "counter", "partitions", "Such restarts that could not be stored yet."
        ),
        "kiel_new_logs_unknown": MetricMeaning(
            "counter", "partitions", "Partitions that may have a new log, which cannot be proved."
        ),
        "kiel_leaders_unreadable": MetricMeaning(
            "counter", "times", "Leaders of partitions that could not be read from ZooKeeper."
        ),
        "kiel_batches_not_committed": MetricMeaning(
            "counter", "batches", "Batches of Spark whose offsets were not committed."
        ),
    },
    "Clients of brokers": {
        "kiel_connections_opened": MetricMeaning("counter", "connections", "Connections to brokers."),
        "kiel_requests": MetricMeaning("counter", "requests", "Requests to brokers. By ``api``."),
        "kiel_request_seconds": MetricMeaning(
            "summary", "seconds", "The time from a request to its answer. By ``api``."
        ),
        "kiel_request_timeouts": MetricMeaning(
            "counter", "requests", "Requests without an answer in time. By ``api``."
        ),
        "kiel_metadata_refreshes": MetricMeaning("counter", "requests", "Requests for metadata. By ``reason``."),
        "kiel_metadata_failures": MetricMeaning(
            "counter", "requests", "Requests for metadata that no broker answered."
        ),
        "kiel_metadata_unanswered": MetricMeaning(
            "gauge", "requests", "How many of them in a row no broker has answered."
        ),
        "kiel_leaders_corrected": MetricMeaning(
            "counter", "partitions", "Leaders that ZooKeeper names and the brokers do not."
        ),
        "kiel_records_produced": MetricMeaning("counter", "records", "Records that brokers have stored."),
        "kiel_bytes_produced": MetricMeaning("counter", "bytes", "Their bytes in batches, compressed."),
        "kiel_produce_retries": MetricMeaning("counter", "batches", "Batches that were sent again."),
        "kiel_produce_failures": MetricMeaning("counter", "records", "Records that are not stored."),
        "kiel_produce_unknown": MetricMeaning("counter", "records", "Records that may or may not be stored."),
        "kiel_produce_stalled": MetricMeaning(
            "gauge", "partitions", "Partitions whose next batch no broker has stored for ten seconds."
        ),
    },
    "Workers": {
        "kiel_assigned_connectors": MetricMeaning("gauge", "connectors", "Connectors that this worker has."),
        "kiel_assigned_tasks": MetricMeaning("gauge", "tasks", "Tasks that it has."),
        "kiel_work_failed": MetricMeaning("counter", "failures", "Failures of connectors and tasks."),
        "kiel_work_restarts": MetricMeaning(
            "counter", "times", "Connectors and tasks that were started again after a failure."
        ),
        "kiel_work_abandoned": MetricMeaning("counter", "times", "Connectors and tasks that did not stop in time."),
        "kiel_work_supervisors_failed": MetricMeaning(
            "counter", "failures", "Unexpected errors of the worker itself around a connector or task."
        ),
        "kiel_claims_lost": MetricMeaning(
            "counter", "claims", "Connectors and tasks whose claim another worker or an operator has removed."
        ),
        "kiel_clean_ups_denied": MetricMeaning(
            "counter", "times", "Clean-ups after deleted connectors that an ACL of ZooKeeper does not allow."
        ),
        "kiel_source_offsets_unstored": MetricMeaning(
            "counter", "offsets", "Source offsets that a task could not store at its end. Their records are repeated."
        ),
        "kiel_config_mismatches": MetricMeaning(
            "counter", "times", "Joins with another version of the configuration than the leader's."
        ),
        "kiel_config_reads_failed": MetricMeaning("counter", "times", "Reads of the configuration that failed."),
        "kiel_worker_metadata_unreadable": MetricMeaning(
            "counter", "members", "Members whose metadata the leader cannot read; they get no work."
        ),
        "kiel_workers_unsynced": MetricMeaning(
            "counter", "times", "Times at which this worker left the group, because its configuration stayed behind."
        ),
    },
    "Tasks of workers": {
        "kiel_mirror_records": MetricMeaning(
            "counter", "records", "Records that the target has stored, dead letters included. By ``topic``."
        ),
        "kiel_mirror_bytes": MetricMeaning("counter", "bytes", "The keys and values of these records. By ``topic``."),
        "kiel_mirror_records_per_second": MetricMeaning(
            "gauge",
            "records/s",
            "The rate in the last two seconds, of these records or of those that are copied back. By ``topic``.",
        ),
        "kiel_mirror_lag_records": MetricMeaning(
            "gauge",
            "records",
            "Records of the source that the target has not stored; of a topic that is copied back, offsets of the"
            " target that are left. Left out until it is known. By ``topic``.",
        ),
        "kiel_mirror_partitions": MetricMeaning(
            "gauge",
            "partitions",
            "Partitions of the source that the task mirrors, or copies back. A topic that waits, because a log was"
            " lost, has no metrics of its own. By ``topic``.",
        ),
        "kiel_mirror_checkpoint_timestamp_seconds": MetricMeaning(
            "gauge",
            "seconds",
            "When the last checkpoint was written, since 1970: the oldest one of partitions with a lag. By ``topic``.",
        ),
        "kiel_mirror_records_copied_back": MetricMeaning(
            "counter",
            "records",
            "Records of the target that were copied back to the source (``mirror reverse``). By ``topic``.",
        ),
        "kiel_mirror_transactions_aborted": MetricMeaning(
            "counter", "transactions", "Transactions that were aborted and written again."
        ),
        "kiel_mirror_dead_letters": MetricMeaning("counter", "records", "Records in the topic of dead letters."),
        "kiel_mirror_problems": MetricMeaning(
            "counter",
            "problems",
            "Problems that the status of the task has shown, such as a target that does not answer.",
        ),
    },
}

#: All metrics by their names.
MEANINGS: Final = {name: meaning for section in METRICS.values() for name, meaning in section.items()}
