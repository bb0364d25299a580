#include "pipeline.h"

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"

static int32_t count_of(const struct pipeline *pipeline)
{
    return pipeline->chunks * pipeline->microbatches;
}

static int32_t name_of(const struct pipeline *pipeline, int32_t stage, dp_replay_kind kind,
                       int32_t seq)
{
    return (stage * DP_REPLAY_KIND_COUNT + (int32_t)kind) * count_of(pipeline) + seq;
}

static void add(struct plan *plan, struct planned op)
{
    plan->ops = dp_realloc(plan->ops, plan->count + 1, sizeof(*plan->ops));
    plan->ops[plan->count++] = op;
}

// The n-th forward or backward of a stage: all micro-batches of one chunk, then the next.
static void add_compute(struct plan *plan, struct planned op, dp_replay_kind kind, int32_t n)
{
    int32_t chunk = n / plan->pipeline.microbatches;
    op.kind = kind;
    op.seq = n;
    op.chunk = kind == DP_REPLAY_FORWARD_COMPUTE ? chunk : plan->pipeline.chunks - 1 - chunk;
    op.microbatch = n % plan->pipeline.microbatches;
    add(plan, op);
}

static void add_computes(struct plan *plan, struct planned op)
{
    int32_t total = count_of(&plan->pipeline);
    int32_t before = plan->pipeline.eagerness * (plan->pipeline.stages - 1 - op.stage);
    int32_t warmup = plan->pipeline.eagerness > 0 ? 1 + before : total;
    warmup = warmup > total ? total : warmup;
    for (int32_t f = 0, b = 0; b < total;) {
        if (f < total && f < warmup + b) {
            add_compute(plan, op, DP_REPLAY_FORWARD_COMPUTE, f++);
        } else {
            add_compute(plan, op, DP_REPLAY_BACKWARD_COMPUTE, b++);
        }
    }
}

// A recorder of one chunk lists no transfer at the ends of the pipeline; with several chunks it
// lists them all, also those that never happen.
static void add_transfers(struct plan *plan, struct planned op, dp_replay_kind kind, bool at_end)
{
    for (int32_t n = 0; n < count_of(&plan->pipeline); n++) {
        op.kind = kind;
        op.seq = n;
        if (plan->pipeline.chunks > 1 || !at_end) {
            add(plan, op);
        }
    }
}

static void add_stage(struct plan *plan, struct planned op)
{
    int32_t last = plan->pipeline.stages - 1;
    op.kind = DP_REPLAY_PARAMS_ALL_GATHER;
    for (op.seq = 0; op.seq < plan->pipeline.chunks; op.seq++) {
        op.chunk = op.seq;
        add(plan, op);
    }
    op.seq = op.chunk = 0;
    add_computes(plan, op);
    if (last > 0) {
        add_transfers(plan, op, DP_REPLAY_FORWARD_SEND, op.stage == last);
        add_transfers(plan, op, DP_REPLAY_FORWARD_RECV, op.stage == 0);
        add_transfers(plan, op, DP_REPLAY_BACKWARD_SEND, op.stage == 0);
        add_transfers(plan, op, DP_REPLAY_BACKWARD_RECV, op.stage == last);
    }
    op.kind = DP_REPLAY_GRADS_REDUCE_SCATTER;
    for (op.seq = 0; op.seq < (plan->pipeline.overlap ? plan->pipeline.chunks : 1); op.seq++) {
        op.chunk = plan->pipeline.overlap ? plan->pipeline.chunks - 1 - op.seq : 0;
        add(plan, op);
    }
    op.seq = op.chunk = 0;
    static const dp_replay_kind ends[] = {DP_REPLAY_GC,
                                          DP_REPLAY_LAYERNORM_GRADS_ALL_REDUCE,
                                          DP_REPLAY_EMBEDDING_GRADS_ALL_REDUCE,
                                          DP_REPLAY_OPTIMIZER_CLIP,
                                          DP_REPLAY_OPTIMIZER,
                                          DP_REPLAY_SEPARATE_GRADS_ALL_REDUCE};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(ends) - !plan->pipeline.overlap; i++) {
        op.kind = ends[i];
        if (op.kind != DP_REPLAY_EMBEDDING_GRADS_ALL_REDUCE || op.stage == 0 || op.stage == last) {
            add(plan, op);
        }
    }
}

struct plan plan_make(struct pipeline pipeline)
{
    struct plan plan = {.pipeline = pipeline};
    for (int32_t step = 0; step < pipeline.steps; step++) {
        for (int32_t replica = 0; replica < pipeline.replicas; replica++) {
            for (int32_t stage = 0; stage < pipeline.stages; stage++) {
                add_stage(&plan,
                          (struct planned){.step = step, .dp_rank = replica, .stage = stage});
            }
        }
    }
    plan.per_lane = plan.count / (size_t)(pipeline.steps * pipeline.replicas);
    size_t names = (size_t)(pipeline.stages * DP_REPLAY_KIND_COUNT * count_of(&pipeline));
    plan.index = dp_new_array(int32_t, names);
    memset(plan.index, 0xff, names * sizeof(*plan.index));
    for (size_t i = 0; i < plan.per_lane; i++) {
        const struct planned *op = &plan.ops[i];
        plan.index[name_of(&pipeline, op->stage, op->kind, op->seq)] = (int32_t)i;
    }
    return plan;
}

void plan_deinit(struct plan *plan)
{
    free(plan->ops);
    free(plan->index);
}

struct times {
    double *start, *end; // [count]
};

// The operation in the same step, or -1.
static long find(const struct plan *plan, size_t lane, int32_t stage, dp_replay_kind kind,
                 int32_t seq)
{
    if (seq < 0 || seq >= count_of(&plan->pipeline)) {
        return -1;
    }
    int32_t i = plan->index[name_of(&plan->pipeline, stage, kind, seq)];
    return i < 0 ? -1 : (long)(lane * plan->per_lane) + i;
}

// When the operation may start: the latest end of what it comes after.
struct after {
    const struct plan *plan;
    const struct times *times;
    size_t lane;
    int32_t stage;
    double at;
};

static void come_after(struct after *after, dp_replay_kind kind, int32_t seq)
{
    long i = find(after->plan, after->lane, after->stage, kind, seq);
    if (i >= 0 && after->times->end[i] > after->at) {
        after->at = after->times->end[i];
    }
}

// The compute before this one in the stage's order; for a first backward two before when `two`.
static void come_after_compute(struct after *after, size_t i, bool two)
{
    int skip = two ? 1 : 0;
    for (size_t j = i; j-- > after->lane * after->plan->per_lane;) {
        const struct planned *op = &after->plan->ops[j];
        bool compute =
            op->kind == DP_REPLAY_FORWARD_COMPUTE || op->kind == DP_REPLAY_BACKWARD_COMPUTE;
        if (op->stage == after->stage && compute && skip-- == 0) {
            come_after(after, op->kind, op->seq);
            return;
        }
    }
}

// Compute and transfers.
static void come_after_work(struct after *after, const struct planned *op, size_t i)
{
    bool is_forward = op->kind == DP_REPLAY_FORWARD_SEND || op->kind == DP_REPLAY_FORWARD_RECV ||
                      op->kind == DP_REPLAY_FORWARD_COMPUTE;
    dp_replay_kind compute = is_forward ? DP_REPLAY_FORWARD_COMPUTE : DP_REPLAY_BACKWARD_COMPUTE;
    if (op->kind == compute) {
        come_after_compute(after, i, false);
        come_after(after, is_forward ? DP_REPLAY_FORWARD_RECV : DP_REPLAY_BACKWARD_RECV, op->seq);
        if (is_forward && op->microbatch == 0) {
            come_after(after, DP_REPLAY_PARAMS_ALL_GATHER, op->chunk);
        }
        return;
    }
    bool is_send = op->kind == DP_REPLAY_FORWARD_SEND || op->kind == DP_REPLAY_BACKWARD_SEND;
    come_after(after, compute, is_send ? op->seq : op->seq - 1);
    come_after(after, op->kind, op->seq - 1);
    if (op->seq == 0 && !is_forward) {
        long first = find(after->plan, after->lane, op->stage, DP_REPLAY_BACKWARD_COMPUTE, 0);
        come_after_compute(after, (size_t)first, true);
    }
}

// Sums of gradients and what comes after them.
static void come_after_sums(struct after *after, const struct planned *op)
{
    const struct pipeline *pipeline = &after->plan->pipeline;
    switch (op->kind) {
    case DP_REPLAY_GC:
        come_after(after, DP_REPLAY_BACKWARD_COMPUTE, count_of(pipeline) - 1);
        break;
    case DP_REPLAY_LAYERNORM_GRADS_ALL_REDUCE:
        come_after(after, DP_REPLAY_GC, 0);
        if (pipeline->overlap) {
            come_after(after, DP_REPLAY_GRADS_REDUCE_SCATTER, pipeline->chunks - 1);
        }
        break;
    case DP_REPLAY_EMBEDDING_GRADS_ALL_REDUCE:
        come_after(after, DP_REPLAY_LAYERNORM_GRADS_ALL_REDUCE, 0);
        break;
    case DP_REPLAY_OPTIMIZER_CLIP:
        come_after(after,
                   pipeline->overlap ? DP_REPLAY_SEPARATE_GRADS_ALL_REDUCE
                                     : DP_REPLAY_GRADS_REDUCE_SCATTER,
                   0);
        break;
    case DP_REPLAY_OPTIMIZER:
        come_after(after, DP_REPLAY_OPTIMIZER_CLIP, 0);
        break;
    default:
        come_after(after, DP_REPLAY_EMBEDDING_GRADS_ALL_REDUCE, 0);
        come_after(after, DP_REPLAY_LAYERNORM_GRADS_ALL_REDUCE, 0);
        break;
    }
}

static double start_of(const struct plan *plan, const struct times *times, size_t i)
{
    const struct planned *op = &plan->ops[i];
    struct after after = {plan, times, i / plan->per_lane, op->stage, 0};
    bool sum = op->kind == DP_REPLAY_GRADS_REDUCE_SCATTER;
    if (op->kind <= DP_REPLAY_BACKWARD_RECV) {
        come_after_work(&after, op, i);
    } else if (op->kind == DP_REPLAY_PARAMS_ALL_GATHER) {
        come_after(&after, op->kind, op->seq - 1);
    } else if (sum && plan->pipeline.overlap) {
        come_after(&after, op->kind, op->seq - 1);
        come_after(&after, DP_REPLAY_BACKWARD_COMPUTE,
                   (op->seq + 1) * plan->pipeline.microbatches - 1);
    } else {
        come_after_sums(&after, op);
    }
    if (sum) {
        come_after(&after, DP_REPLAY_PARAMS_ALL_GATHER, plan->pipeline.chunks - 1);
    }
    return after.at;
}

// The other end of a transfer, or -1 when there is none: chunk g of the model hands to g + 1.
static long peer_of(const struct plan *plan, size_t i)
{
    const struct planned *op = &plan->ops[i];
    const struct pipeline *pipeline = &plan->pipeline;
    bool is_forward = op->kind == DP_REPLAY_FORWARD_SEND || op->kind == DP_REPLAY_FORWARD_RECV;
    bool is_send = op->kind == DP_REPLAY_FORWARD_SEND || op->kind == DP_REPLAY_BACKWARD_SEND;
    int32_t up = is_forward == is_send ? 1 : -1;
    int32_t chunk = op->seq / pipeline->microbatches;
    chunk = is_forward ? chunk : pipeline->chunks - 1 - chunk;
    int32_t model_chunk = chunk * pipeline->stages + op->stage + up;
    if (model_chunk < 0 || model_chunk >= pipeline->chunks * pipeline->stages) {
        return -1;
    }
    int32_t peer_chunk = model_chunk / pipeline->stages;
    int32_t turn = is_forward ? peer_chunk : pipeline->chunks - 1 - peer_chunk;
    dp_replay_kind kind = is_forward
                              ? (is_send ? DP_REPLAY_FORWARD_RECV : DP_REPLAY_FORWARD_SEND)
                              : (is_send ? DP_REPLAY_BACKWARD_RECV : DP_REPLAY_BACKWARD_SEND);
    return find(plan, i / plan->per_lane, model_chunk % pipeline->stages, kind,
                turn * pipeline->microbatches + op->seq % pipeline->microbatches);
}

static void gather(const struct plan *plan, const struct times *times, size_t lane, int32_t stage,
                   size_t i, double *at)
{
    long j = find(plan, lane, stage, plan->ops[i].kind, plan->ops[i].seq);
    if (j >= 0 && times->start[j] > *at) {
        *at = times->start[j];
    }
}

// When everybody who takes part has arrived.
static double gathered(const struct plan *plan, const struct times *times, size_t i)
{
    const struct planned *op = &plan->ops[i];
    double at = times->start[i];
    size_t lane = i / plan->per_lane;
    size_t replicas = (size_t)plan->pipeline.replicas;
    if (op->kind >= DP_REPLAY_FORWARD_SEND && op->kind <= DP_REPLAY_BACKWARD_RECV) {
        long peer = peer_of(plan, i);
        return peer >= 0 && times->start[peer] > at ? times->start[peer] : at;
    }
    bool all_stages =
        op->kind == DP_REPLAY_EMBEDDING_GRADS_ALL_REDUCE || op->kind == DP_REPLAY_OPTIMIZER_CLIP;
    bool all_replicas =
        op->kind == DP_REPLAY_PARAMS_ALL_GATHER || op->kind == DP_REPLAY_GRADS_REDUCE_SCATTER ||
        op->kind == DP_REPLAY_SEPARATE_GRADS_ALL_REDUCE || op->kind == DP_REPLAY_OPTIMIZER_CLIP;
    size_t first = all_replicas ? lane / replicas * replicas : lane;
    for (size_t other = first; other < first + (all_replicas ? replicas : 1); other++) {
        for (int32_t stage = 0; stage < plan->pipeline.stages; stage++) {
            if (all_stages || stage == op->stage) {
                gather(plan, times, other, stage, i, &at);
            }
        }
    }
    return at;
}

static void relax(const struct plan *plan, const double *own, struct times *times)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t i = 0; i < plan->count; i++) {
            times->start[i] = start_of(plan, times, i);
        }
        for (size_t i = 0; i < plan->count; i++) {
            double end = gathered(plan, times, i) + own[i];
            moved = moved || end != times->end[i];
            times->end[i] = end;
        }
    }
}

static double *own_times(const struct plan *plan)
{
    double *own = dp_new_array(double, plan->count);
    for (size_t i = 0; i < plan->count; i++) {
        own[i] = plan->ops[i].own;
    }
    return own;
}

static struct times times_make(const struct plan *plan)
{
    return (struct times){dp_new_array(double, plan->count), dp_new_array(double, plan->count)};
}

static double step_end(const struct plan *plan, const struct times *times, size_t step)
{
    double last = 0;
    size_t per_step = plan->per_lane * (size_t)plan->pipeline.replicas;
    for (size_t i = step * per_step; i < (step + 1) * per_step; i++) {
        last = times->end[i] > last ? times->end[i] : last;
    }
    return last;
}

struct dp_replay_op *plan_run(const struct plan *plan, double *ret_step_s)
{
    DP_AUTO_FREE double *own = own_times(plan);
    struct times times = times_make(plan);
    relax(plan, own, &times);
    struct dp_replay_op *ops = dp_new_array(struct dp_replay_op, plan->count);
    for (size_t i = 0; i < plan->count; i++) {
        const struct planned *op = &plan->ops[i];
        bool compute = op->kind <= DP_REPLAY_BACKWARD_COMPUTE;
        bool chunked = compute || op->kind == DP_REPLAY_PARAMS_ALL_GATHER ||
                       op->kind == DP_REPLAY_GRADS_REDUCE_SCATTER;
        ops[i] = (struct dp_replay_op){
            .start = times.start[i],
            .duration = times.end[i] - times.start[i],
            .dp_rank = op->dp_rank,
            .stage = op->stage,
            .rank = op->dp_rank * plan->pipeline.stages + op->stage,
            .step = op->step,
            .seq = op->seq,
            .mc = chunked ? op->chunk : -1,
            .microbatch = compute ? op->microbatch : -1,
            .gmc = compute ? op->chunk * plan->pipeline.stages + op->stage : -1,
            .kind = op->kind};
    }
    for (int32_t step = 0; ret_step_s != NULL && step < plan->pipeline.steps; step++) {
        ret_step_s[step] = step_end(plan, &times, (size_t)step);
    }
    free(times.start);
    free(times.end);
    return ops;
}

double plan_step(const struct plan *plan, const double *own)
{
    struct times times = times_make(plan);
    relax(plan, own, &times);
    double sum = 0;
    for (int32_t step = 0; step < plan->pipeline.steps; step++) {
        sum += step_end(plan, &times, (size_t)step);
    }
    free(times.start);
    free(times.end);
    return sum / plan->pipeline.steps;
}
