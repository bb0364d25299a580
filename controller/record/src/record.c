#include "dp/record.h"

#define BIT(state) (1u << (state))
#define ENDED (BIT(DP_STATE_COMPLETED) | BIT(DP_STATE_FAILED) | BIT(DP_STATE_CANCELLED))

static const struct {
    const char *text;
    uint32_t moves;
} job_states[DP_STATE_COUNT] = {
    [DP_STATE_UNKNOWN] = {"UNKNOWN", BIT(DP_STATE_SUBMITTED)},
    [DP_STATE_SUBMITTED] = {"SUBMITTED",
                            BIT(DP_STATE_QUEUED) | BIT(DP_STATE_FAILED) | BIT(DP_STATE_CANCELLED)},
    [DP_STATE_QUEUED] = {"QUEUED",
                         BIT(DP_STATE_PLANNED) | BIT(DP_STATE_FAILED) | BIT(DP_STATE_CANCELLED)},
    // No rank runs before ASSIGNING, so nothing has to be stopped.
    [DP_STATE_PLANNED] = {"PLANNED", BIT(DP_STATE_QUEUED) | BIT(DP_STATE_ASSIGNING) |
                                         BIT(DP_STATE_FAILED) | BIT(DP_STATE_CANCELLED)},
    [DP_STATE_ASSIGNING] = {"ASSIGNING", BIT(DP_STATE_RUNNING) | BIT(DP_STATE_STOPPING)},
    [DP_STATE_RUNNING] = {"RUNNING", BIT(DP_STATE_REASSIGNING) | BIT(DP_STATE_STOPPING) |
                                         BIT(DP_STATE_COMPLETED) | BIT(DP_STATE_LOST)},
    [DP_STATE_REASSIGNING] = {"REASSIGNING", BIT(DP_STATE_RUNNING) | BIT(DP_STATE_STOPPING)},
    [DP_STATE_STOPPING] = {"STOPPING", BIT(DP_STATE_QUEUED) | ENDED},
    [DP_STATE_COMPLETED] = {"COMPLETED", 0},
    [DP_STATE_FAILED] = {"FAILED", 0},
    [DP_STATE_CANCELLED] = {"CANCELLED", 0},
    // Not an end: its silent node returns, or it is known that it cannot.
    [DP_STATE_LOST] = {"LOST",
                       BIT(DP_STATE_RUNNING) | BIT(DP_STATE_REASSIGNING) | BIT(DP_STATE_STOPPING)},
};

static const char *const rank_phases[DP_RANK_PHASE_COUNT] = {
    [DP_RANK_UNKNOWN] = "unknown", [DP_RANK_STARTING] = "starting", [DP_RANK_READY] = "ready",
    [DP_RANK_RUNNING] = "running", [DP_RANK_FINISHED] = "finished", [DP_RANK_DIED] = "died",
};

static const char *const decision_states[DP_DECISION_STATE_COUNT] = {
    [DP_DECISION_ADVISED] = "ADVISED",     [DP_DECISION_PREPARING] = "PREPARING",
    [DP_DECISION_SWITCHING] = "SWITCHING", [DP_DECISION_RUNNING] = "RUNNING",
    [DP_DECISION_MEASURED] = "MEASURED",   [DP_DECISION_ABANDONED] = "ABANDONED",
    [DP_DECISION_FELL_BACK] = "FELL_BACK",
};

const char *dp_decision_state_text(dp_decision_state state)
{
    return state < DP_DECISION_STATE_COUNT ? decision_states[state] : "UNKNOWN";
}

const char *dp_job_state_text(dp_job_state state)
{
    return state < DP_STATE_COUNT ? job_states[state].text : "UNKNOWN";
}

bool dp_job_state_ended(dp_job_state state)
{
    return state < DP_STATE_COUNT && (BIT(state) & ENDED) != 0;
}

bool dp_job_state_may_move(dp_job_state from, dp_job_state to)
{
    return from < DP_STATE_COUNT && to < DP_STATE_COUNT && (job_states[from].moves & BIT(to)) != 0;
}

bool dp_job_state_reaches(dp_job_state from, dp_job_state to)
{
    if (from >= DP_STATE_COUNT || to >= DP_STATE_COUNT) {
        return false;
    }
    uint32_t reached = BIT(from), before = 0;
    while (reached != before) {
        before = reached;
        for (unsigned state = 0; state < DP_STATE_COUNT; state++) {
            if ((reached & BIT(state)) != 0) {
                reached |= job_states[state].moves;
            }
        }
    }
    return (reached & BIT(to)) != 0;
}

const char *dp_rank_comm_kind_text(dp_rank_comm_kind kind)
{
    static const char *const texts[DP_RANK_COMM_COUNT] = {
        [DP_RANK_COMM_DISPATCH_F] = "dispatch(F)", [DP_RANK_COMM_COMBINE_F] = "combine(F)",
        [DP_RANK_COMM_COMBINE_B] = "combine(B)",   [DP_RANK_COMM_DISPATCH_B] = "dispatch(B)",
        [DP_RANK_COMM_HOP_F] = "hop(F)",           [DP_RANK_COMM_HOP_B] = "hop(B)"};
    return texts[kind];
}

const char *dp_rank_record_text(const struct dp_rank_record *rank)
{
    bool over = dp_rank_phase_ended(rank->phase);
    if (over && rank->stopped) {
        return "stopped";
    }
    if (over && rank->finished && !rank->ok) {
        return "failed";
    }
    if (rank->phase == DP_RANK_DIED && rank->signal != 0) {
        return "killed";
    }
    return rank->phase < DP_RANK_PHASE_COUNT ? rank_phases[rank->phase] : "unknown";
}

void dp_job_record_deinit(struct dp_job_record *job)
{
    dp_buf_deinit(&job->job_toml);
    dp_buf_deinit(&job->plan);
    dp_buf_deinit(&job->sources);
}

void dp_node_record_deinit(struct dp_node_record *node)
{
    dp_buf_deinit(&node->profile);
    dp_buf_deinit(&node->hardware);
}

void dp_cluster_record_deinit(struct dp_cluster_record *cluster)
{
    dp_buf_deinit(&cluster->toml);
}

void dp_profile_record_deinit(struct dp_profile_record *profile)
{
    dp_buf_deinit(&profile->document);
}

void dp_lesson_record_deinit(struct dp_lesson_record *lesson)
{
    dp_buf_deinit(&lesson->document);
}

void dp_decision_record_deinit(struct dp_decision_record *decision)
{
    dp_buf_deinit(&decision->document);
}

void dp_trace_record_deinit(struct dp_trace_record *trace)
{
    dp_buf_deinit(&trace->spans);
}

void dp_node_record_copy(struct dp_node_record *ret_copy, const struct dp_node_record *node)
{
    *ret_copy = *node;
    ret_copy->profile = (struct dp_buf){0};
    dp_buf_append(&ret_copy->profile, node->profile.bytes, node->profile.length);
    ret_copy->hardware = (struct dp_buf){0};
    dp_buf_append(&ret_copy->hardware, node->hardware.bytes, node->hardware.length);
}

static void keep_peak_u32(uint32_t *peak, uint32_t value)
{
    *peak = value > *peak ? value : *peak;
}

static void keep_peak_u64(uint64_t *peak, uint64_t value)
{
    *peak = value > *peak ? value : *peak;
}

void dp_usage_add(struct dp_usage *total, const struct dp_usage *sample)
{
    total->period_ns += sample->period_ns;
    total->forward_ns += sample->forward_ns;
    total->backward_ns += sample->backward_ns;
    total->weight_ns += sample->weight_ns;
    total->pair_ns += sample->pair_ns;
    total->optimizer_ns += sample->optimizer_ns;
    total->comm_exposed_ns += sample->comm_exposed_ns;
    total->idle_ns += sample->idle_ns;
    total->cpu_ns += sample->cpu_ns;
    total->evaluation_ns += sample->evaluation_ns;
    total->step = sample->step;
    total->step_ns = sample->step_ns;
    total->tokens_per_s = sample->tokens_per_s;
    total->live_chunks = sample->live_chunks;
    total->live_bytes = sample->live_bytes;
    keep_peak_u32(&total->peak_chunks, sample->peak_chunks);
    keep_peak_u64(&total->peak_bytes, sample->peak_bytes);
}
