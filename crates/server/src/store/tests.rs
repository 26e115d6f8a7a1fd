//! One suite for all stores: the model in memory, SQLite, PostgreSQL. See [`suite`] for what must hold, and
//! [`random`] for sequences nobody thought of.

mod ahead;
mod claims;
mod guesses;
mod lanes;
mod machines;
mod random;
mod runs;
mod shown;
mod subject;
mod world;

/// Each function of a suite becomes a test of each store.
macro_rules! on_every_store {
    ($($suite:ident::$name:ident),* $(,)?) => {
        mod on_memory {
            $(#[tokio::test]
            async fn $name() {
                super::$suite::$name(super::world::memory()).await;
            })*
        }
        mod on_sqlite {
            $(#[tokio::test]
            async fn $name() {
                let dir = tempfile::tempdir().unwrap();
                super::$suite::$name(super::world::sqlite(dir.path()).await).await;
            })*
        }
        mod on_postgres {
            $(#[tokio::test]
            async fn $name() {
                if let Some(world) = super::world::postgres(stringify!($name)).await {
                    super::$suite::$name(world).await;
                }
            })*
        }
    };
}

on_every_store!(
    claims::f_026_a_claim_without_work_gives_nothing,
    claims::the_order_is_priority_then_age_and_age_beats_priority,
    claims::f_033_a_limit_holds_and_a_saturated_agent_is_passed_over,
    claims::f_031_a_hundred_claims_at_once_give_each_task_once_and_keep_limits,
    claims::a_claim_is_not_passed_over_because_of_many_agents_of_others,
    claims::f_095_a_waiting_task_counts_against_no_limit,
    claims::only_the_agents_runtime_or_any_of_its_provider_is_given_a_task,
    claims::paused_and_archived_agents_get_nothing,
    claims::a_claim_repeated_with_its_word_gives_the_same_task_and_lease,
    claims::two_claims_with_one_word_at_once_give_one_task,
    claims::f_004_other_workspaces_see_nothing,
    claims::a_parked_task_can_be_claimed_when_its_time_came_also_if_the_clock_goes_back,
    runs::f_066_f_075_repeats_of_start_and_ends_give_the_first_answer,
    runs::f_060_f_062_wrong_and_old_leases_change_nothing,
    runs::f_068_f_069_lines_are_stored_once_gaps_and_repeats_included,
    runs::f_068_a_batch_may_hold_several_calls_of_one_task,
    runs::f_071_an_attempt_begins_its_numbers_anew,
    runs::f_035_f_074_f_076_a_session_is_carried_to_the_next_run,
    runs::f_078_usage_that_was_not_reported_is_not_zero,
    runs::f_079_f_090_a_summary_becomes_a_comment_and_a_failure_none,
    runs::f_080_time_is_spent_once_and_without_waiting,
    runs::f_085_a_delivery_reported_again_is_the_same_one,
    runs::f_086_f_087_a_pull_request_moves_an_issue_only_from_before_review,
    runs::f_088_f_089_failures_requeue_until_attempts_are_used_up,
    runs::f_091_f_092_f_101_cancelling,
    runs::f_098_f_099_f_100_resume_is_for_the_machine_that_ran,
    runs::f_097_a_decision_waits_until_the_run_resumes,
    runs::f_109_f_064_the_sweeper_takes_what_ran_out_and_nothing_else,
    runs::f_110_after_a_clock_went_back_a_lease_lasts_no_longer_than_else,
    runs::f_096_the_sweeper_leaves_waiting_tasks_alone,
    runs::a_late_start_and_hand_backs_cost_no_attempt_until_they_are_too_many,
    machines::f_018_f_019_f_021_runtimes_keep_their_ids,
    machines::f_019_many_registrations_at_once_make_one_machine,
    machines::f_023_f_025_offline_and_online_again,
    machines::f_023_a_sign_of_life_counts_although_the_clock_went_back,
    machines::f_025_after_a_clock_went_back_a_silent_machine_goes_offline,
    machines::f_102_to_f_106_actors,
    machines::f_106_machines_that_register_one_name_at_once_get_different_ones,
);
