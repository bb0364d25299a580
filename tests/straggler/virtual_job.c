#include "virtual_job.h"

#include <math.h>

void virtual_job_init(struct virtual_job *job, virtual_layout layout)
{
    *job = (struct virtual_job){.layout = layout,
                                .stages = layout == VIRTUAL_REPLICAS ? 4 : 8,
                                .replicas = layout == VIRTUAL_REPLICAS ? 2 : 1,
                                .microbatches = 16,
                                .forward_s = 0.012,
                                .backward_s = 0.024,
                                .action_sigma = 0.03,
                                .step_sigma = 0.03,
                                .spike_chance = 0.004,
                                .spike_factor = 5,
                                .hop_share = 0.1,
                                .hop_sigma = 0.1,
                                .evaluate_every = 50,
                                .per_node = 2,
                                .factor = 1};
}

uint32_t virtual_job_ranks(const struct virtual_job *job)
{
    return job->stages * job->replicas;
}

static uint32_t pipeline_of(const struct virtual_job *job)
{
    return job->stages;
}

uint32_t virtual_job_slow_peer(const struct virtual_job *job)
{
    uint32_t position = job->slow_rank % pipeline_of(job);
    return position + 1 < pipeline_of(job) ? job->slow_rank + 1 : job->slow_rank - 1;
}

struct dp_straggler *virtual_job_detector(const struct virtual_job *job)
{
    uint32_t nodes[VIRTUAL_RANKS_MAX];
    for (uint32_t r = 0; r < virtual_job_ranks(job); r++) {
        nodes[r] = r / job->per_node;
    }
    struct dp_straggler_config config;
    dp_straggler_config_init(&config);
    config.ranks = virtual_job_ranks(job);
    config.nodes = nodes;
    return dp_straggler_new(&config);
}

static bool is_on(const struct virtual_job *job, virtual_fault fault, int64_t step)
{
    return job->fault == fault && step >= job->onset_step &&
           (job->end_step == 0 || step < job->end_step);
}

static double stage_factor(const struct virtual_job *job, uint32_t stage)
{
    return job->stage_factor[stage] > 0 ? job->stage_factor[stage] : 1;
}

struct conditions { // of one rank in one step
    double factor, load;
};

static struct dp_straggler_kind kind_of(const struct virtual_job *job, int kind, uint32_t stage,
                                        uint32_t count, double seconds,
                                        const struct conditions *now, struct dp_rand *rand)
{
    double times[256], sum = 0;
    double base = seconds * stage_factor(job, stage);
    double experts = 1 - job->expert_share + job->expert_share * now->load;
    for (uint32_t i = 0; i < count; i++) {
        double noise = exp(job->action_sigma * dp_rand_normal(rand));
        if (dp_rand_double(rand) < job->spike_chance) {
            noise *= 1 + (job->spike_factor - 1) * dp_rand_double(rand);
        }
        times[i] = base * experts * now->factor * noise;
        sum += times[i];
    }
    return (struct dp_straggler_kind){
        .kind = (uint8_t)kind,
        .stage = (uint16_t)stage,
        .b_stage = (uint16_t)stage,
        .count = count,
        .total_ns = (int64_t)(sum * 1e9),
        .median_ns = (int64_t)(times[count / 2] * 1e9),
        .planned_ns = job->is_planned ? (int64_t)(base * 1e9) : 0,
        .tokens = job->expert_share > 0 ? (uint64_t)(now->load * 4096 * count) : 0,
    };
}

static size_t kinds_of(const struct virtual_job *job, uint32_t rank, const struct conditions *now,
                       struct dp_rand *rand, struct dp_straggler_kind *ret_kinds)
{
    uint32_t position = rank % pipeline_of(job);
    uint32_t stages[2] = {position, job->stages - 1 - position};
    size_t held = job->layout == VIRTUAL_MIRROR ? 2 : 1, count = 0;
    uint32_t each = job->microbatches / (uint32_t)held;
    for (size_t i = 0; i < held; i++) {
        ret_kinds[count++] = kind_of(job, DP_ACTION_F, stages[i], each, job->forward_s, now, rand);
        ret_kinds[count++] = kind_of(job, DP_ACTION_B, stages[i], each, job->backward_s, now, rand);
    }
    struct conditions update = {.factor = now->factor, .load = 1};
    ret_kinds[count++] =
        kind_of(job, DP_STRAGGLER_OPTIMIZER, position, 1, job->forward_s, &update, rand);
    return count;
}

static bool is_slow_link(const struct virtual_job *job, uint32_t a, uint32_t b)
{
    uint32_t c = job->slow_rank, d = virtual_job_slow_peer(job);
    return (a == c && b == d) || (a == d && b == c);
}

static size_t links_of(const struct virtual_job *job, uint32_t rank, int64_t step,
                       struct dp_rand *rand, struct dp_straggler_link *ret_links)
{
    uint32_t position = rank % pipeline_of(job);
    size_t count = 0;
    for (int side = -1; side <= 1; side += 2) {
        if ((side < 0 && position == 0) || (side > 0 && position + 1 == pipeline_of(job))) {
            continue;
        }
        uint32_t peer = side < 0 ? rank - 1 : rank + 1;
        bool slow = is_on(job, VIRTUAL_SLOW_LINK, step) && is_slow_link(job, rank, peer);
        double sum = 0;
        for (uint32_t i = 0; i < job->microbatches; i++) {
            sum += job->forward_s * job->hop_share * (slow ? job->factor : 1) *
                   exp(job->hop_sigma * dp_rand_normal(rand));
        }
        // Clocks of nodes are apart: one way gains what the other loses.
        double apart = ((double)(rank / job->per_node) - (double)(peer / job->per_node)) * 1e-4;
        ret_links[count++] = (struct dp_straggler_link){
            .peer = peer,
            .count = job->microbatches,
            .bytes = (uint64_t)job->microbatches << 20,
            .transfer_ns = (int64_t)((sum + apart * job->microbatches) * 1e9),
            .waiting_ns = (int64_t)(dp_rand_double(rand) * 1e8),
        };
    }
    return count;
}

static double load_of(const struct virtual_job *job, uint32_t rank, int64_t step,
                      struct dp_rand *rand)
{
    // Some ranks have busy experts for a while, and each step is a little different.
    double hot = rank % 4 == (uint64_t)(step / 200) % 4 ? 1 + job->skew : 1 - job->skew / 3;
    return hot * exp(0.3 * job->skew * dp_rand_normal(rand));
}

static double work_s(const struct dp_straggler_kind *kinds, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        sum += (double)kinds[i].total_ns / 1e9;
    }
    return sum;
}

double virtual_job_step(const struct virtual_job *job, int64_t step, struct dp_rand *rand,
                        struct dp_straggler *detector)
{
    uint32_t ranks = virtual_job_ranks(job);
    struct dp_straggler_kind kinds[VIRTUAL_RANKS_MAX][8];
    struct dp_straggler_link links[VIRTUAL_RANKS_MAX][2];
    struct dp_straggler_sample samples[VIRTUAL_RANKS_MAX];
    bool evaluated = job->evaluate_every > 0 && step > 1 && step % job->evaluate_every == 1;
    double common = exp(job->step_sigma * dp_rand_normal(rand)) * (evaluated ? 1.4 : 1);
    common *= step <= 3 ? 5 - (double)step : 1;
    double slowest = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        bool taken = is_on(job, VIRTUAL_TAKEN_CORES, step) && r == job->slow_rank;
        bool slow = taken || (is_on(job, VIRTUAL_SLOW_RANK, step) && r == job->slow_rank);
        struct conditions now = {.factor = common * exp(job->step_sigma * dp_rand_normal(rand)) *
                                           (slow ? job->factor : 1) *
                                           (step <= 3 ? 1 + dp_rand_double(rand) : 1),
                                 .load = load_of(job, r, step, rand)};
        samples[r] = (struct dp_straggler_sample){
            .rank = r, .step = step, .kinds = kinds[r], .links = links[r]};
        samples[r].kinds_count = kinds_of(job, r, &now, rand, kinds[r]);
        samples[r].links_count = links_of(job, r, step, rand, links[r]);
        double work = work_s(kinds[r], samples[r].kinds_count);
        double gap = 0.004 * work * (1 + dp_rand_double(rand));
        bool late = is_on(job, VIRTUAL_SLOW_HOST, step) && r == job->slow_rank;
        gap += late ? (job->factor - 1) * work : 0;
        samples[r].launch_gap_ns = (int64_t)(gap * 1e9);
        double off_core = 0.01 * work + (taken ? work * (1 - 1 / job->factor) : 0);
        samples[r].off_core_ns = (int64_t)(off_core * 1e9);
        slowest = fmax(slowest, work + gap);
    }
    double step_s = slowest * (1 + ((double)job->stages - 1) / job->microbatches);
    uint32_t first = (uint32_t)dp_rand_below(rand, ranks);
    for (uint32_t i = 0; i < ranks; i++) {
        uint32_t r = (first + i) % ranks;
        samples[r].step_ns = (int64_t)(step_s * 1e9);
        dp_straggler_take(detector, &samples[r]);
    }
    return step_s;
}

void virtual_job_probe(const struct virtual_job *job, uint64_t request, struct dp_rand *rand,
                       struct dp_straggler *detector)
{
    for (uint32_t r = 0; r < virtual_job_ranks(job); r++) {
        bool slow = r == job->slow_rank &&
                    (job->fault == VIRTUAL_SLOW_RANK || job->fault == VIRTUAL_TAKEN_CORES);
        struct dp_straggler_probe_link links[2];
        struct dp_straggler_link now[2];
        size_t count = links_of(job, r, job->onset_step, rand, now);
        for (size_t i = 0; i < count; i++) {
            bool slow_link = job->fault == VIRTUAL_SLOW_LINK && is_slow_link(job, r, now[i].peer);
            double factor = slow_link ? job->factor : 1;
            links[i] = (struct dp_straggler_probe_link){
                .peer = now[i].peer,
                .latency_ns = (int64_t)(10000 * factor),
                .bytes_per_s = 1e9 / factor * exp(0.02 * dp_rand_normal(rand))};
        }
        double gemm = 1e7 * (slow ? job->factor : 1) * exp(0.02 * dp_rand_normal(rand));
        double lacking = slow && job->fault == VIRTUAL_TAKEN_CORES ? 1 - 1 / job->factor : 0;
        struct dp_straggler_probe probe = {.request = request,
                                           .rank = r,
                                           .gemm_ns = (int64_t)gemm,
                                           .gemm_off_core_ns = (int64_t)(lacking * gemm),
                                           .gemm_flops = 1e9,
                                           .links = links,
                                           .links_count = count};
        dp_straggler_take_probe(detector, &probe);
    }
}
