"""Which tests prove which capability.

A backend that turns a flag on for which there is no proof fails the suite, as does one that leaves a
proof out. Properties of the engine, which no call asks for, have nothing to refuse.
"""

from __future__ import annotations

import msgspec


class Proof(msgspec.Struct, frozen=True):
    """Tests of a flag: `on` run where it is on; `off`, where it is off, prove that it is refused."""

    on: tuple[str, ...] = ()
    off: tuple[str, ...] = ()


PROOFS: dict[str, Proof] = {
    "atomic_ack": Proof(on=("test_an_ack_removes_message_and_lease_in_one_step",)),
    "consumer_groups": Proof(
        on=(
            "test_every_group_sees_every_message",
            "test_a_new_group_sees_all_that_is_not_processed",
            "test_groups_settle_for_themselves",
            "test_what_is_enqueued_while_a_group_comes_is_seen_by_it_once",
        ),
        off=("test_a_group_is_refused_without_consumer_groups",),
    ),
    "replay": Proof(
        on=("test_a_cursor_can_go_back_and_read_again",),
        off=("test_going_back_is_refused_without_replay",),
    ),
    "idempotent_enqueue": Proof(
        on=(
            "test_a_repeated_dedup_id_answers_with_the_first_id_and_stores_nothing",
            "test_a_dedup_id_is_free_when_its_window_has_passed",
        ),
        off=("test_a_dedup_id_is_refused_without_idempotent_enqueue",),
    ),
    "transactions": Proof(on=("test_a_message_that_changes_queues_is_in_exactly_one",)),
    "persistence": Proof(
        on=(
            "test_messages_in_every_state_are_there_after_reopening",
            "test_a_receipt_is_good_after_reopening",
        )
    ),
    "clustering": Proof(on=("test_queues_on_several_machines_are_one_store",)),
    "time_to_live": Proof(
        on=(
            "test_a_ready_message_past_its_ttl_is_not_delivered",
            "test_a_message_is_not_retried_past_its_ttl",
        ),
        off=("test_a_ttl_is_refused_without_time_to_live",),
    ),
    "prioritization": Proof(
        on=(
            "test_higher_priorities_are_delivered_first",
            "test_a_lower_priority_with_work_gets_at_least_one_in_twenty_deliveries",
        ),
        off=("test_a_priority_is_refused_without_prioritization",),
    ),
    "batch_operations": Proof(on=("test_every_batch_is_answered_item_by_item_in_one_call",)),
    "delay": Proof(
        on=("test_a_delayed_message_is_handed_out_when_its_time_has_come_and_not_before",),
        off=("test_a_delay_is_refused_without_delay",),
    ),
    "fairness": Proof(
        on=(
            "test_keys_share_by_weight",
            "test_a_newly_active_key_is_served_within_one_round",
        ),
        off=("test_a_key_or_weight_is_refused_without_fairness",),
    ),
    "throttling": Proof(
        on=(
            "test_over_hours_a_key_is_delivered_at_its_rate",
            "test_a_message_with_several_keys_takes_a_token_of_each_or_none",
            "test_a_throttled_message_blocks_no_other_of_its_own_key_either",
        ),
        off=("test_throttles_are_refused_without_throttling",),
    ),
    "journal": Proof(
        on=(
            "test_events_are_numbered_from_one_without_a_gap",
            "test_retention_never_passes_a_required_cursor",
            "test_an_entry_comes_back_with_everything_that_was_given",
        ),
        off=("test_history_is_refused_without_a_journal",),
    ),
    "fifo": Proof(
        on=(
            "test_messages_of_a_key_are_delivered_one_by_one_in_their_order",
            "test_a_message_that_waits_for_its_retry_blocks_its_key",
        ),
        off=("test_a_fifo_queue_is_refused_without_fifo",),
    ),
    "bulk_read": Proof(
        on=(
            "test_every_message_is_read_as_a_listing_shows_it",
            "test_every_event_is_read_as_the_journal_has_it",
            "test_partitions_share_no_row_and_leave_none_out",
        ),
        off=("test_a_snapshot_is_refused_without_bulk_read",),
    ),
    "bulk_write": Proof(
        on=(
            "test_staged_rows_are_seen_by_nobody_until_they_are_committed",
            "test_every_row_is_an_enqueued_event_in_order",
            "test_the_same_job_again_does_nothing_and_is_answered_the_same",
        ),
        off=("test_bulk_write_is_refused_by_name_where_there_is_none",),
    ),
    "restore": Proof(
        on=(
            "test_a_message_is_restored_with_everything_that_it_had",
            "test_restored_messages_live_on_as_others_do",
            "test_a_line_stands_as_it_stood",
        ),
        off=("test_restoring_is_refused_by_name_where_it_cannot_be_done",),
    ),
}
