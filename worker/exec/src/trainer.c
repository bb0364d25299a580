#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "trainer_internal.h"

DP_DEFINE_CLEANUP(cleanup_trainer, struct dp_trainer, dp_trainer_free)

static bool is_sim(const struct dp_trainer *trainer)
{
    return trainer->config.exec.device == NULL;
}

// Peers learn of it at once instead of waiting.
static dp_status give_up(struct dp_trainer *trainer, const struct dp_exec_failure *failure,
                         dp_status status, struct dp_error *err)
{
    trainer->failure = *failure;
    dp_transport_abort(trainer->config.exec.transport, status,
                       err != NULL ? err->message : "the rank has failed");
    return status;
}

dp_status dp_trainer_give_up(struct dp_trainer *trainer, const char *what, dp_status status,
                             struct dp_error *err)
{
    struct dp_exec_failure failure = {.not_finite = status == DP_JOB_FAILED,
                                      .peer_lost =
                                          status == DP_UNAVAILABLE || status == DP_TIMEOUT};
    dp_fail_in(err, "rank %d, step %lld, %s", dp_exec_world_rank(trainer->exec),
               (long long)trainer->step_done + 1, what);
    return give_up(trainer, &failure, status, err);
}

// Pipeline positions that hold the stage, ascending; returns how many.
static int32_t positions_of(const struct dp_schedule *schedule, int32_t stage,
                            int32_t ret_positions[2])
{
    int32_t a = schedule->placement[2 * stage];
    int32_t b = schedule->directions == 2 ? schedule->placement[2 * stage + 1] : a;
    ret_positions[0] = a < b ? a : b;
    ret_positions[1] = a < b ? b : a;
    return a == b ? 1 : 2;
}

// Positions that hold the first or the last stage, which share a tied embedding.
static int32_t tied_positions(const struct dp_schedule *schedule, int32_t ret_positions[4])
{
    int32_t count = positions_of(schedule, 0, ret_positions);
    int32_t last[2];
    int32_t last_count = positions_of(schedule, schedule->stages - 1, last);
    for (int32_t i = 0; i < last_count; i++) {
        int32_t at = 0;
        while (at < count && ret_positions[at] < last[i]) {
            at++;
        }
        if (at == count || ret_positions[at] != last[i]) {
            memmove(&ret_positions[at + 1], &ret_positions[at],
                    (size_t)(count - at) * sizeof ret_positions[0]);
            ret_positions[at] = last[i];
            count++;
        }
    }
    return count;
}

static dp_status make_optim(struct dp_trainer *trainer, struct dp_error *err)
{
    const struct dp_exec_config *config = &trainer->config.exec;
    const struct dp_schedule *schedule = config->schedule;
    struct dp_optim_world world = {.transport = config->transport,
                                   .pipeline = schedule->pipeline,
                                   .data = config->data,
                                   .expert = config->expert,
                                   .shard = trainer->config.shard};
    struct dp_optim_stage stages[DP_RANK_STAGES_MAX];
    int32_t positions[DP_RANK_STAGES_MAX][2];
    int32_t tied[4];
    int32_t tied_count = tied_positions(schedule, tied);
    int32_t count = dp_exec_stage_count(trainer->exec);
    for (int32_t i = 0; i < count; i++) {
        stages[i].tied_positions = tied;
        stages[i].tied_position_count = tied_count;
        stages[i].stage = dp_exec_stage(trainer->exec, i, &stages[i].index);
        stages[i].position_count = positions_of(schedule, stages[i].index, positions[i]);
        stages[i].positions = positions[i];
    }
    return dp_optim_new(&world, &trainer->config.optimizer, trainer->config.steps, stages, count,
                        dp_exec_group_id_end(trainer->exec), &trainer->optim, err);
}

dp_status dp_trainer_new(const struct dp_trainer_config *config, struct dp_trainer **ret_trainer,
                         struct dp_error *err)
{
    DP_CLEANUP(cleanup_trainer) struct dp_trainer *trainer = dp_new(struct dp_trainer);
    trainer->config = *config;
    dp_status status = dp_exec_new(&config->exec, &trainer->exec, err);
    if (status == DP_OK && !is_sim(trainer)) {
        status = make_optim(trainer, err);
    }
    if (status == DP_OK && !is_sim(trainer)) {
        status = dp_saver_new(config->exec.device, dp_exec_world_rank(trainer->exec),
                              &trainer->saver, err);
    }
    if (status == DP_OK) {
        *ret_trainer = dp_steal(trainer);
    }
    return status;
}

void dp_trainer_free(struct dp_trainer *trainer)
{
    if (trainer != NULL) {
        dp_saver_free(trainer->saver);
        dp_archive_unclaim(&trainer->claim);
        dp_optim_free(trainer->optim);
        dp_exec_free(trainer->exec);
        free(trainer);
    }
}

struct dp_exec *dp_trainer_exec(struct dp_trainer *trainer)
{
    return trainer->exec;
}

void dp_trainer_set_expert_nodes(struct dp_trainer *trainer, int32_t nodes)
{
    trainer->config.rebalance.nodes = nodes;
}

int64_t dp_trainer_step_done(const struct dp_trainer *trainer)
{
    return trainer->step_done;
}

const struct dp_optim *dp_trainer_optim(const struct dp_trainer *trainer)
{
    return trainer->optim;
}

const struct dp_exec_failure *dp_trainer_failure(const struct dp_trainer *trainer)
{
    return &trainer->failure;
}

enum { WISH_VALUES = 6 }; // that ranks sum at the end of a step: the loss, and what they wish

// Doubles as the barrier at which the slowest rank has run its last action.
static dp_status share_step(struct dp_trainer *trainer, double loss_sum,
                            const struct dp_trainer_wish *wish, struct dp_trainer_report *report,
                            struct dp_error *err)
{
    const struct dp_trainer_wish none = {0}, *own = wish != NULL ? wish : &none;
    // Requests are below 2^53, and one rank speaks for all.
    double values[WISH_VALUES + SAVING_VALUES] = {loss_sum,           own->stop,
                                                  own->checkpoint,    own->pause,
                                                  (double)own->probe, (double)own->rebalance};
    dp_trainer_saving_values(trainer, values + WISH_VALUES);
    dp_status status = dp_group_sum_scalars(dp_exec_world(trainer->exec), trainer_tag(CALL_STEP),
                                            values, WISH_VALUES + SAVING_VALUES, err);
    if (status == DP_OK) {
        status = dp_trainer_saving_next(trainer, values + WISH_VALUES, err);
    }
    if (status != DP_OK) {
        return status;
    }
    report->saved = trainer->saved;
    trainer->saved = (struct dp_trainer_saved){0};
    report->has_loss = !is_sim(trainer);
    report->loss = report->has_loss ? values[0] / (double)report->tokens : 0;
    report->agreed.stop = values[1] > 0;
    report->agreed.checkpoint = values[2] > 0;
    report->agreed.pause = values[3] > 0;
    report->agreed.probe = (uint64_t)values[4];
    report->agreed.rebalance = (uint64_t)values[5];
    return DP_OK;
}

static void sleep_s(double seconds)
{
    dp_clock_sleep_until_ns(dp_clock_monotonic_ns() + (int64_t)(seconds * (double)DP_NS_PER_S));
}

static dp_status sum_gradients(struct dp_trainer *trainer, struct dp_error *err)
{
    if (!is_sim(trainer)) {
        return dp_optim_sum_gradients(trainer->optim, err);
    }
    const struct dp_sim_costs *costs = trainer->config.exec.costs;
    sleep_s(costs->gradient_sync[trainer->config.exec.position]);
    if (!costs->barrier) {
        return DP_OK;
    }
    return dp_group_barrier(dp_exec_world(trainer->exec), trainer_tag(CALL_SYNC), err);
}

dp_status dp_trainer_gradients(struct dp_trainer *trainer, const struct dp_trainer_wish *wish,
                               struct dp_trainer_report *ret_report, struct dp_error *err)
{
    struct dp_exec *exec = trainer->exec;
    struct dp_exec_step step;
    struct dp_trainer_report report = {.step = trainer->step_done + 1};
    report.tokens = (uint64_t)(dp_exec_global_batch(exec) * trainer->config.exec.sequence);
    report.start_ns = dp_exec_now_ns(exec);
    trainer->has_gradients = false;
    dp_status status = dp_exec_run_step(exec, report.step, &step, err);
    if (status != DP_OK) {
        return give_up(trainer, dp_exec_failure(exec), status, err);
    }
    int64_t actions_ns = dp_exec_now_ns(exec);
    status = share_step(trainer, step.loss_sum, wish, &report, err);
    if (status != DP_OK) {
        return dp_trainer_give_up(trainer, "waiting for the end of the step", status, err);
    }
    dp_exec_record(exec, DP_SPAN_WAIT, report.step, actions_ns);
    int64_t sync_ns = dp_exec_now_ns(exec);
    report.busy_ns = step.busy_ns;
    report.exchange_ns = step.exchange_ns;
    memcpy(report.comm, step.comm, sizeof(report.comm));
    report.times = step.times;
    report.bubble_ns = sync_ns - report.start_ns - step.busy_ns - step.exchange_ns;
    report.peak_chunks = step.peak_chunks;
    report.peak_bytes = step.peak_bytes;
    status = sum_gradients(trainer, err);
    if (status != DP_OK) {
        return dp_trainer_give_up(trainer, "summing gradients", status, err);
    }
    dp_exec_record(exec, DP_SPAN_GRADIENT_SYNC, report.step, sync_ns);
    report.grad_sync_ns = dp_exec_now_ns(exec) - sync_ns;
    *ret_report = report;
    return DP_OK;
}

static dp_status rebalance(struct dp_trainer *trainer, struct dp_trainer_report *report,
                           struct dp_error *err)
{
    const int64_t every = trainer->config.rebalance_every;
    const bool ordered = report->agreed.rebalance > 0;
    if (!ordered && (every == 0 || report->step % every != 0)) {
        return DP_OK;
    }
    struct dp_rebalance how = trainer->config.rebalance;
    how.apply = how.apply || ordered;
    report->has_rebalanced = true;
    return dp_optim_rebalance(trainer->optim, &how, &report->rebalance, err);
}

// Up to here nothing has changed that is kept. All gradients of this rank are whole; once it knows
// the norm, so are those of all others.
static dp_status agree_on_update(struct dp_trainer *trainer, int64_t step, double *ret_norm,
                                 struct dp_error *err)
{
    dp_status status = dp_optim_sum_loads(trainer->optim, err);
    trainer->has_gradients = status == DP_OK;
    return status == DP_OK ? dp_optim_norm(trainer->optim, step, ret_norm, err) : status;
}

static dp_status update(struct dp_trainer *trainer, struct dp_trainer_report *report,
                        struct dp_error *err)
{
    struct dp_optim_report optim;
    double norm;
    dp_saver_settle(trainer->saver);
    dp_status status = agree_on_update(trainer, report->step, &norm, err);
    if (status != DP_OK) {
        return status;
    }
    int64_t start_ns = dp_exec_now_ns(trainer->exec);
    dp_trainer_apply(trainer, report->step, norm, &optim);
    report->apply_ns = dp_exec_now_ns(trainer->exec) - start_ns;
    report->grad_norm = optim.grad_norm;
    report->lr = optim.lr;
    status = dp_optim_spread(trainer->optim, err);
    trainer->is_in_parts = status != DP_OK && trainer->config.shard == DP_SHARD_ZERO1;
    return status == DP_OK ? rebalance(trainer, report, err) : status;
}

dp_status dp_trainer_update(struct dp_trainer *trainer, struct dp_trainer_report *report,
                            struct dp_error *err)
{
    int64_t start_ns = dp_exec_now_ns(trainer->exec);
    if (is_sim(trainer)) {
        double planned = trainer->config.exec.costs->optimizer[trainer->config.exec.position];
        double seconds = planned * dp_sim_pace_slowness(trainer->config.exec.pace, report->step);
        sleep_s(seconds);
        report->apply_planned_ns = (int64_t)(planned * (double)DP_NS_PER_S);
        report->apply_ns = (int64_t)(seconds * (double)DP_NS_PER_S);
        dp_trainer_count_step(trainer, report->step);
    } else {
        dp_status status = update(trainer, report, err);
        if (status != DP_OK) {
            return dp_trainer_give_up(trainer, "updating weights", status, err);
        }
    }
    dp_exec_record(trainer->exec, DP_SPAN_OPTIMIZER, report->step, start_ns);
    int64_t end_ns = dp_exec_now_ns(trainer->exec);
    report->step_ns = end_ns - report->start_ns;
    if (trainer->config.exec.device != NULL) {
        report->memory = dp_device_memory(trainer->config.exec.device);
    }
    // What lies between the sums and the update (nothing, unless the caller takes its time) is the
    // update's.
    report->optimizer_ns = report->step_ns - report->busy_ns - report->exchange_ns -
                           report->bubble_ns - report->grad_sync_ns;
    return DP_OK;
}

dp_status dp_trainer_step(struct dp_trainer *trainer, const struct dp_trainer_wish *wish,
                          struct dp_trainer_report *ret_report, struct dp_error *err)
{
    dp_status status = dp_trainer_gradients(trainer, wish, ret_report, err);
    return status != DP_OK ? status : dp_trainer_update(trainer, ret_report, err);
}

dp_status dp_trainer_evaluate(struct dp_trainer *trainer, double *ret_loss, uint64_t *ret_tokens,
                              struct dp_error *err)
{
    double loss_sum = 0;
    uint64_t tokens = 0;
    dp_status status = dp_exec_evaluate(trainer->exec, &loss_sum, &tokens, err);
    if (status != DP_OK) {
        return give_up(trainer, dp_exec_failure(trainer->exec), status, err);
    }
    status = dp_group_sum_scalars(dp_exec_world(trainer->exec), trainer_tag(CALL_EVALUATE),
                                  &loss_sum, 1, err);
    if (status != DP_OK) {
        return dp_trainer_give_up(trainer, "evaluation", status, err);
    }
    *ret_loss = tokens > 0 ? loss_sum / (double)tokens : 0;
    *ret_tokens = tokens;
    return DP_OK;
}
