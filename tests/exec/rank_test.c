// The program dp-rank from its first order to its last word.
#include <arpa/inet.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/cleanup.h"
#include "dp/profile.h"
#include "dp_test.h"
#include "rank_fleet.h"

#define STEP DP__V1__RANK_REPORT__REPORT_STEP
#define FINISHED DP__V1__RANK_REPORT__REPORT_FINISHED
#define CHECKPOINT DP__V1__RANK_REPORT__REPORT_CHECKPOINT
#define EVAL DP__V1__RANK_REPORT__REPORT_EVAL
#define READY DP__V1__RANK_REPORT__REPORT_READY
#define PROBE DP__V1__RANK_REPORT__REPORT_PROBE
#define UTILISATION DP__V1__RANK_REPORT__REPORT_UTILISATION

static double loss_of(const struct fleet *fleet, int32_t rank, size_t step)
{
    const Dp__V1__RankReport *report = fleet_report(fleet, rank, STEP, step);
    assert_non_null(report);
    assert_int_equal(report->step->step, step);
    assert_int_equal(report->step->loss_known_case, DP__V1__STEP_DONE__LOSS_KNOWN_LOSS);
    return report->step->loss;
}

static void two_gpipe_ranks_train_report_and_finish(void **state)
{
    (void)state;
    struct fleet fleet;
    fleet_init(&fleet);
    fleet_run(&fleet);
    for (int32_t rank = 0; rank < 2; rank++) {
        for (size_t step = 1; step <= 6; step++) {
            assert_true(loss_of(&fleet, rank, step) == loss_of(&fleet, 0, step));
            const Dp__V1__StepDone *done = fleet_report(&fleet, rank, STEP, step)->step;
            assert_int_equal(done->tokens, 8 * 32);
            assert_int_equal(done->peak_chunks, 4);
            assert_true(done->peak_bytes > 0 && done->busy_ns > 0 && done->bubble_ns > 0);
            assert_true(done->busy_ns + done->bubble_ns <= done->step_ns);
        }
        assert_int_equal(fleet_report(&fleet, rank, FINISHED, 1)->finished->step, 6);
        const Dp__V1__RankReady *ready = fleet_report(&fleet, rank, READY, 1)->ready;
        assert_true(ready->corpus_bytes > 40000 && ready->unigram_entropy > 2);
        assert_true(ready->parameters > 0 && ready->train_samples > 1000);
    }
    assert_true(loss_of(&fleet, 0, 6) < loss_of(&fleet, 0, 1));
    assert_true(fabs(loss_of(&fleet, 0, 1) - log(256)) < 0.5);
    const Dp__V1__EvalDone *eval = fleet_report(&fleet, 0, EVAL, 1)->eval;
    assert_true(eval->tokens > 1000 && fabs(eval->loss - loss_of(&fleet, 0, 6)) < 1);
    const Dp__V1__CheckpointDone *saved = fleet_report(&fleet, 0, CHECKPOINT, 1)->checkpoint;
    assert_int_equal(saved->step, 6);
    DP_AUTO_FREE char *path = dp_asprintf("%s/checkpoints/step-6", fleet.directory);
    assert_string_equal(saved->path, path);
    assert_true(saved->bytes > 100000);
    fleet_deinit(&fleet);
}

static void the_last_step_brings_all_its_spans(void **state)
{
    (void)state;
    struct fleet fleet;
    fleet_init(&fleet);
    fleet_run(&fleet);
    for (int32_t rank = 0; rank < 2; rank++) {
        const Dp__V1__StepDone *done = fleet_report(&fleet, rank, STEP, 6)->step;
        // Four F, four B, then waiting for the slowest, the sum of gradients and the optimizer.
        assert_int_equal(done->n_spans, 11);
        int64_t until_ns = done->start_ns;
        for (size_t i = 0; i < done->n_spans; i++) {
            assert_int_equal(done->spans[i]->rank, rank);
            assert_true(done->spans[i]->start_ns >= until_ns);
            until_ns = done->spans[i]->start_ns + done->spans[i]->duration_ns;
        }
        assert_int_equal(done->spans[0]->kind, 0);
        assert_int_equal(done->spans[8]->kind, 18);
        assert_int_equal(done->spans[9]->kind, 16);
        assert_int_equal(done->spans[10]->kind, 17);
    }
    fleet_deinit(&fleet);
}

static void dualpipe_with_expert_peers_runs_as_processes(void **state)
{
    (void)state;
    struct fleet fleet;
    fleet_init(&fleet);
    fleet.spec.parallel.data = 2;
    fleet.spec.parallel.expert = 2;
    fleet.spec.parallel.micro_batch_size = 1;
    DP_COPY_TEXT(fleet.spec.parallel.schedule, "dualpipe");
    fleet_run(&fleet);
    assert_int_equal(fleet.count, 4);
    for (int32_t rank = 0; rank < 4; rank++) {
        assert_true(loss_of(&fleet, rank, 6) == loss_of(&fleet, 0, 6));
    }
    assert_true(loss_of(&fleet, 0, 6) < loss_of(&fleet, 0, 1));
    fleet_deinit(&fleet);
}

static void loads_of_experts_come_with_the_last_step(void **state)
{
    (void)state;
    struct fleet fleet;
    fleet_init(&fleet);
    fleet.spec.parallel.data = 2;
    fleet.spec.parallel.expert = 2;
    fleet.spec.parallel.micro_batch_size = 1;
    DP_COPY_TEXT(fleet.spec.parallel.schedule, "dualpipe");
    fleet_run(&fleet);
    const struct dp_model_spec *model = &fleet.spec.model;
    uint64_t tokens = 0, in_all = 0;
    double loads[4];
    for (int32_t rank = 0; rank < 4; rank++) {
        const Dp__V1__StepDone *done = fleet_report(&fleet, rank, STEP, 6)->step;
        for (size_t i = 0; i < done->n_expert_tokens; i++) {
            tokens += done->expert_tokens[i];
        }
        // Both positions hold all layers.
        int32_t layers = model->layers - model->dense_layers;
        assert_int_equal(done->n_expert_tokens, layers * model->experts / 2);
        assert_true(done->expert_skew >= 1 && done->expert_skew <= model->experts);
        assert_in_range(done->skew_layer, model->dense_layers, model->layers - 1);
        assert_in_range(done->skew_expert, 0, model->experts - 1);
        loads[rank] = done->rank_load;
        in_all = done->tokens * (uint64_t)model->top_k * (uint64_t)layers;
    }
    assert_int_equal(tokens, in_all);
    // Ranks 0 and 2 share experts, and 1 and 3 do: 1 is their mean.
    assert_true(fabs(loads[0] + loads[2] - 2) < 1e-12 && fabs(loads[1] + loads[3] - 2) < 1e-12);
    fleet_deinit(&fleet);
}

static void tokens_of_a_file_are_trained_on_and_evaluated_every_other_step(void **state)
{
    (void)state;
    struct fleet fleet;
    fleet_init(&fleet);
    uint16_t tokens[6000];
    for (int i = 0; i < 6000; i++) {
        tokens[i] = (uint16_t)(i * i % 251);
    }
    struct dp_error err = {0};
    snprintf(fleet.spec.data.path, sizeof fleet.spec.data.path, "%s/t.bin", fleet.directory);
    assert_ok(dp_write_file(fleet.spec.data.path, tokens, sizeof tokens, &err), &err);
    fleet.spec.train.evaluate_every = 2;
    DP_COPY_TEXT(fleet.spec.parallel.shard, "zero1");
    DP_COPY_TEXT(fleet.spec.optimizer.schedule, "wsd");
    fleet_run(&fleet);
    const Dp__V1__RankReady *ready = fleet_report(&fleet, 0, READY, 1)->ready;
    assert_int_equal(ready->corpus_bytes, sizeof tokens);
    for (size_t i = 1; i <= 3; i++) {
        const Dp__V1__EvalDone *eval = fleet_report(&fleet, 0, EVAL, i)->eval;
        assert_int_equal(eval->step, 2 * i);
        assert_true(eval->tokens > 0 && isfinite(eval->loss));
    }
    assert_null(fleet_report(&fleet, 0, EVAL, 4));
    fleet_deinit(&fleet);
}

static void a_resumed_run_goes_on_where_the_first_ended(void **state)
{
    (void)state;
    struct fleet whole, half;
    fleet_init(&whole);
    whole.spec.checkpoint.every_steps = 3;
    fleet_run(&whole);
    fleet_init(&half);
    half.spec.data = whole.spec.data;
    snprintf(half.spec.checkpoint.resume, sizeof(half.spec.checkpoint.resume),
             "%s/checkpoints/step-3", whole.directory);
    fleet_run(&half);
    assert_int_equal(fleet_report(&half, 0, READY, 1)->ready->resumed_step, 3);
    assert_int_equal(fleet_report(&half, 0, STEP, 1)->step->step, 4);
    assert_true(fleet_report(&half, 0, STEP, 3)->step->loss == loss_of(&whole, 0, 6));
    fleet_deinit(&half);
    fleet_deinit(&whole);
}

static void a_stop_ends_all_ranks_after_the_same_step(void **state)
{
    (void)state;
    struct fleet fleet;
    fleet_init(&fleet);
    fleet.spec.train.steps = 100000;
    fleet_spawn(&fleet);
    fleet_prepare(&fleet);
    fleet_start(&fleet);
    fleet_await(&fleet, 0, STEP, 3);
    fleet_stop(&fleet, true);
    uint64_t step = fleet_await(&fleet, 0, FINISHED, 1)->finished->step;
    assert_true(step >= 3 && step < 100000);
    const Dp__V1__RankFinished *other = fleet_await(&fleet, 1, FINISHED, 1)->finished;
    assert_true(other->ok);
    assert_int_equal(other->step, step);
    assert_int_equal(fleet_report(&fleet, 0, CHECKPOINT, 1)->checkpoint->step, step);
    assert_int_equal(fleet_await_end(&fleet, 0), 0);
    assert_int_equal(fleet_await_end(&fleet, 1), 0);
    fleet_deinit(&fleet);
}

static void a_checkpoint_is_written_on_demand_and_answers_its_request(void **state)
{
    (void)state;
    struct fleet fleet;
    fleet_init(&fleet);
    fleet.spec.train.steps = 100000;
    fleet_spawn(&fleet);
    fleet_prepare(&fleet);
    fleet_start(&fleet);
    fleet_await(&fleet, 0, STEP, 2);
    Dp__V1__RankCheckpoint checkpoint = DP__V1__RANK_CHECKPOINT__INIT;
    checkpoint.fence = &fleet.fence;
    checkpoint.request = 41;
    Dp__V1__RankOrder order = DP__V1__RANK_ORDER__INIT;
    order.order_case = DP__V1__RANK_ORDER__ORDER_CHECKPOINT;
    order.checkpoint = &checkpoint;
    fleet_order(&fleet, 1, &order);
    fleet_order(&fleet, 0, &order);
    assert_int_equal(fleet_await(&fleet, 0, CHECKPOINT, 1)->checkpoint->request, 41);
    fleet_stop(&fleet, false);
    assert_int_equal(fleet_await_end(&fleet, 0), 0);
    assert_int_equal(fleet_await_end(&fleet, 1), 0);
    // One request, one checkpoint; a stop that does not ask for one writes none.
    assert_null(fleet_report(&fleet, 0, CHECKPOINT, 2));
    fleet_deinit(&fleet);
}

static bool can_be_bound(const char *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const char *port = strrchr(address, ':');
    assert_non_null(port);
    to.sin_port = htons((uint16_t)atoi(port + 1));
    int one = 1;
    DP_AUTO_CLOSE int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    // What would let a stranger in beside one that is not listening.
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), 0);
    return bind(fd, (const struct sockaddr *)&to, sizeof(to)) == 0;
}

static void ports_are_held_from_the_moment_they_are_told(void **state)
{
    (void)state;
    struct fleet fleet;
    fleet_init(&fleet);
    DP_COPY_TEXT(fleet.spec.parallel.transport, "tcp");
    fleet_spawn(&fleet);
    fleet_prepare(&fleet);
    for (int32_t rank = 0; rank < 2; rank++) {
        assert_false(can_be_bound(fleet_await(&fleet, rank, READY, 1)->ready->address));
    }
    fleet_start(&fleet);
    assert_true(fleet_await(&fleet, 0, FINISHED, 1)->finished->ok);
    fleet_deinit(&fleet);
}

static void order_probe(struct fleet *fleet, int32_t rank, uint64_t request)
{
    Dp__V1__RankProbe probe = DP__V1__RANK_PROBE__INIT;
    Dp__V1__RankOrder order = DP__V1__RANK_ORDER__INIT;
    probe.fence = &fleet->fence;
    probe.request = request;
    order.order_case = DP__V1__RANK_ORDER__ORDER_PROBE;
    order.probe = &probe;
    fleet_order(fleet, rank, &order);
}

static void all_ranks_probe_after_one_step_and_train_on(void **state)
{
    (void)state;
    struct fleet fleet;
    fleet_init(&fleet);
    fleet.spec.train.steps = 100000;
    fleet_spawn(&fleet);
    fleet_prepare(&fleet);
    fleet_start(&fleet);
    fleet_await(&fleet, 0, STEP, 2);
    for (uint64_t request = 7; request <= 8; request++) {
        // Whichever has its order first: all answer, once.
        order_probe(&fleet, request == 7, request);
        order_probe(&fleet, request != 7, request);
        const Dp__V1__ProbeDone *done[2];
        for (int32_t rank = 0; rank < 2; rank++) {
            done[rank] = fleet_await(&fleet, rank, PROBE, request - 6)->probe;
            assert_int_equal(done[rank]->request, request);
            assert_int_equal(done[rank]->step, done[0]->step);
            assert_true(done[rank]->gemm_ns > 0 && done[rank]->gemm_flops > 0);
            assert_int_equal(done[rank]->n_links, 1);
            assert_int_equal(done[rank]->links[0]->peer, 1 - rank);
        }
        assert_true(done[1]->links[0]->bytes_per_s == done[0]->links[0]->bytes_per_s);
        fleet_await(&fleet, 1, STEP, done[0]->step + 2);
    }
    fleet_stop(&fleet, false);
    assert_int_equal(fleet_await_end(&fleet, 0), 0);
    assert_int_equal(fleet_await_end(&fleet, 1), 0);
    assert_null(fleet_report(&fleet, 0, PROBE, 3));
    fleet_deinit(&fleet);
}

static void an_order_of_another_epoch_is_not_obeyed(void **state)
{
    (void)state;
    struct fleet fleet;
    fleet_init(&fleet);
    fleet.spec.train.steps = 40;
    fleet_spawn(&fleet);
    fleet_prepare(&fleet);
    fleet_start(&fleet);
    fleet_await(&fleet, 0, STEP, 1);
    fleet.fence.epoch = 2;
    fleet_stop(&fleet, false);
    for (int32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(fleet_await(&fleet, rank, FINISHED, 1)->finished->step, 40);
        assert_int_equal(fleet_await_end(&fleet, rank), 0);
    }
    fleet_deinit(&fleet);
}

// Four ranks that share experts.
static void share_experts(struct fleet *fleet)
{
    fleet->spec.parallel.pipeline = 1;
    fleet->spec.parallel.data = fleet->spec.parallel.expert = 4;
    fleet->spec.parallel.microbatches = 2;
    fleet->spec.parallel.micro_batch_size = 1;
}

static void rows_of_an_earlier_attempt_end_the_job(void **state)
{
    (void)state;
    struct fleet fleet;
    fleet_init(&fleet);
    share_experts(&fleet);
    fleet.has_stale_rank = true;
    fleet.fence.attempt = 2;
    fleet_spawn(&fleet);
    fleet_prepare(&fleet);
    fleet_start(&fleet);
    bool is_told = false;
    for (int32_t rank = 0; rank < 4; rank++) {
        const Dp__V1__RankFinished *last = fleet_await(&fleet, rank, FINISHED, 1)->finished;
        assert_false(last->ok);
        is_told = is_told || strstr(last->error, "of other routings, formats or attempts") != NULL;
        assert_int_equal(WEXITSTATUS(fleet_await_end(&fleet, rank)), 1);
    }
    assert_true(is_told);
    fleet_deinit(&fleet);
}

// Two groups of experts, each on a node: a token's experts, from one group, are on one node. Ranks
// check what the router promises.
static void group_limited_experts_on_two_nodes_train_as_on_one(void **state)
{
    (void)state;
    double losses[2];
    for (int32_t nodes = 1; nodes <= 2; nodes++) {
        struct fleet fleet;
        fleet_init(&fleet);
        share_experts(&fleet);
        fleet.nodes = nodes;
        fleet.spec.model.experts = 8;
        fleet.spec.model.expert_groups = 2;
        fleet.spec.model.top_groups = 1;
        fleet_run(&fleet);
        losses[nodes - 1] = loss_of(&fleet, 3, 6);
        fleet_deinit(&fleet);
    }
    assert_true(losses[0] == losses[1]);
}

static void a_killed_rank_ends_the_others_who_say_that_a_peer_was_lost(void **state)
{
    (void)state;
    struct fleet fleet;
    fleet_init(&fleet);
    fleet.spec.train.steps = 100000;
    fleet_spawn(&fleet);
    fleet_prepare(&fleet);
    fleet_start(&fleet);
    fleet_await(&fleet, 1, STEP, 2);
    kill(fleet.ranks[1].pid, SIGKILL);
    const Dp__V1__RankFinished *last = fleet_await(&fleet, 0, FINISHED, 1)->finished;
    assert_false(last->ok);
    assert_true(last->peer_lost);
    assert_false(last->not_finite);
    assert_non_null(strstr(last->error, "rank 1"));
    assert_int_equal(WEXITSTATUS(fleet_await_end(&fleet, 0)), 1);
    assert_int_equal(WTERMSIG(fleet_await_end(&fleet, 1)), SIGKILL);
    fleet_deinit(&fleet);
}

static void weights_that_explode_are_named_with_their_action(void **state)
{
    (void)state;
    struct fleet fleet;
    fleet_init(&fleet);
    // Every step multiplies the weights by about -1000.
    fleet.spec.optimizer.lr = 1000;
    fleet.spec.optimizer.lr_min = 1000;
    fleet.spec.optimizer.weight_decay = 1;
    fleet.spec.train.steps = 100;
    fleet_spawn(&fleet);
    fleet_prepare(&fleet);
    fleet_start(&fleet);
    const Dp__V1__RankFinished *last[2];
    for (int32_t rank = 0; rank < 2; rank++) {
        last[rank] = fleet_await(&fleet, rank, FINISHED, 1)->finished;
        assert_false(last[rank]->ok);
    }
    int32_t cause = last[0]->not_finite ? 0 : 1;
    assert_true(last[cause]->not_finite && !last[cause]->peer_lost);
    assert_true(!last[1 - cause]->not_finite && last[1 - cause]->peer_lost);
    // "rank 1, step 2, B0@1: ..."
    char where[64];
    snprintf(where, sizeof(where), "rank %d, step ", cause);
    assert_memory_equal(last[cause]->error, where, strlen(where));
    assert_non_null(strstr(last[cause]->error, last[cause]->action));
    assert_true(strchr("FBIW", last[cause]->action[0]) != NULL);
    assert_non_null(strchr(last[cause]->action, '@'));
    assert_int_equal(WEXITSTATUS(fleet_await_end(&fleet, 0)), 1);
    assert_int_equal(WEXITSTATUS(fleet_await_end(&fleet, 1)), 1);
    fleet_deinit(&fleet);
}

static void a_term_signal_ends_it_at_once(void **state)
{
    (void)state;
    struct fleet fleet;
    fleet_init(&fleet);
    fleet_spawn(&fleet);
    fleet_prepare(&fleet);
    fleet_await(&fleet, 0, READY, 1);
    kill(fleet.ranks[0].pid, SIGTERM);
    assert_int_equal(WEXITSTATUS(fleet_await_end(&fleet, 0)), 143);
    fleet_deinit(&fleet);
}

static void a_rank_whose_keeper_is_gone_ends(void **state)
{
    (void)state;
    struct fleet fleet;
    fleet_init(&fleet);
    fleet_spawn(&fleet);
    fleet_prepare(&fleet);
    fleet_await(&fleet, 0, READY, 1);
    struct fleet_rank *rank = &fleet.ranks[0];
    dp_link_deinit(&rank->link);
    dp_link_init(&rank->link, -1, DP_LINK_OUT_BYTES_MAX);
    assert_int_equal(waitpid(rank->pid, &rank->status, 0), rank->pid);
    rank->ended = true;
    assert_int_equal(WEXITSTATUS(rank->status), 8);
    fleet_deinit(&fleet);
}

// Prepares a job that cannot run; rank 0's last word must contain `part`.
static void expect_refused(struct fleet *fleet, const char *part)
{
    fleet_spawn(fleet);
    fleet_prepare(fleet);
    const Dp__V1__RankFinished *last = fleet_await(fleet, 0, FINISHED, 1)->finished;
    assert_false(last->ok);
    assert_part(last->error, part);
    assert_false(last->peer_lost);
    assert_int_equal(WEXITSTATUS(fleet_await_end(fleet, 0)), 1);
}

static void what_cannot_run_is_refused_before_the_start(void **state)
{
    (void)state;
    struct fleet fleet;
    fleet_init(&fleet);
    DP_COPY_TEXT(fleet.spec.data.path, "/nonexistent/text");
    expect_refused(&fleet, "/nonexistent/text");
    fleet_deinit(&fleet);
    fleet_init(&fleet);
    DP_COPY_TEXT(fleet.spec.checkpoint.resume, "/nonexistent/step-1");
    expect_refused(&fleet, "/nonexistent/step-1");
    fleet_deinit(&fleet);
    fleet_init(&fleet);
    DP_COPY_TEXT(fleet.spec.checkpoint.directory, fleet.spec.data.path); // a file
    expect_refused(&fleet, "[checkpoint] directory");
    fleet_deinit(&fleet);
}

static void a_directory_with_another_run_s_checkpoints_is_refused_before_the_start(void **state)
{
    (void)state;
    struct fleet first, other;
    fleet_init(&first);
    fleet_run(&first);
    for (int i = 0; i < 2; i++) {
        fleet_init(&other);
        other.spec.data = first.spec.data;
        DP_COPY_TEXT(other.spec.checkpoint.directory, first.spec.checkpoint.directory);
        if (i == 0) {
            other.spec.train.seed = 6;
            expect_refused(&other, "step-6 is of another run: its seed is 5, this job's is 6");
        } else {
            fleet_run(&other); // the same once more
        }
        fleet_deinit(&other);
    }
    fleet_deinit(&first);
}

static void a_schedule_that_this_build_orders_otherwise_is_refused(void **state)
{
    (void)state;
    struct fleet fleet;
    fleet_init(&fleet);
    fleet_spawn(&fleet);
    fleet.plan.schedule_hash ^= 1;
    fleet_prepare(&fleet);
    assert_non_null(strstr(fleet_await(&fleet, 0, FINISHED, 1)->finished->error, "gpipe"));
    fleet_deinit(&fleet);
}

static void sim_ranks_take_their_time_and_report_no_loss(void **state)
{
    (void)state;
    struct fleet fleet;
    fleet_init(&fleet);
    fleet.spec.resources.device = DP_DEVICE_SIM;
    fleet.spec.data.path[0] = '\0';
    fleet.spec.data.holdout = 0;
    fleet.spec.parallel.pipeline = 4;
    fleet.spec.parallel.microbatches = 8;
    fleet.spec.parallel.micro_batch_size = 1;
    DP_COPY_TEXT(fleet.spec.parallel.schedule, "dualpipe");
    fleet.spec.sim = (struct dp_sim_spec){.forward_s = 0.004,
                                          .input_grad_s = 0.004,
                                          .weight_grad_s = 0.002,
                                          .pair_s = 0.006,
                                          .hop_s = 0.001,
                                          .scale = 1};
    fleet_run(&fleet);
    struct dp_schedule schedule;
    struct dp_error err;
    assert_ok(dp_plan_schedule(&fleet.plan, &schedule, &err), &err);
    assert_int_equal(fleet.count, 4);
    for (int32_t rank = 0; rank < 4; rank++) {
        const Dp__V1__StepDone *done = fleet_report(&fleet, rank, STEP, 6)->step;
        assert_int_equal(done->n_spans,
                         schedule.rank_begin[rank + 1] - schedule.rank_begin[rank] + 3);
        assert_int_equal(done->loss_known_case, DP__V1__STEP_DONE__LOSS_KNOWN__NOT_SET);
        assert_true(done->peak_chunks >= 4);
        assert_null(fleet_report(&fleet, rank, EVAL, 1));
    }
    dp_schedule_deinit(&schedule);
    fleet_deinit(&fleet);
}

static void utilisation_is_streamed_and_adds_up(void **state)
{
    (void)state;
    struct fleet fleet;
    fleet_init(&fleet);
    fleet.spec.train.steps = 100000;
    fleet.spec.train.evaluate_every = 1;
    DP_COPY_TEXT(fleet.spec.parallel.schedule, "dualpipe");
    fleet_spawn(&fleet);
    fleet_prepare(&fleet);
    fleet_start(&fleet);
    // On a slow machine a period may have part of a step only.
    const Dp__V1__Utilisation *use;
    bool has_forward = false, has_backward = false, has_pair = false, has_optimizer = false;
    bool has_evaluation = false;
    size_t number = 2;
    do {
        use = fleet_await(&fleet, 0, UTILISATION, number++)->utilisation;
        int64_t sum = use->forward_ns + use->backward_ns + use->weight_ns + use->pair_ns +
                      use->optimizer_ns + use->evaluation_ns + use->comm_exposed_ns + use->idle_ns;
        assert_true(use->period_ns > 0);
        assert_true(llabs(sum - use->period_ns) <= use->period_ns / 20);
        has_forward = has_forward || use->forward_ns > 0;
        has_backward = has_backward || use->backward_ns > 0;
        has_pair = has_pair || use->pair_ns > 0;
        has_optimizer = has_optimizer || use->optimizer_ns > 0;
        has_evaluation = has_evaluation || use->evaluation_ns > 0;
    } while (!has_forward || !has_backward || !has_pair || !has_optimizer || !has_evaluation ||
             use->step_ns == 0);
    assert_true(use->step > 0 && use->cpu_ns > 0 && use->tokens_per_s > 0);
    assert_int_equal(use->peak_chunks, 3);
    fleet_stop(&fleet, false);
    fleet_await_end(&fleet, 0);
    fleet_await_end(&fleet, 1);
    fleet_deinit(&fleet);
}

// Runs dp-rank with one argument; its output goes to `path`. Returns waitpid's status.
static int run_alone(const char *argument, const char *path)
{
    DP_AUTO_FREE char *program = fleet_program();
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (freopen(path, "w", stdout) == NULL || freopen("/dev/null", "w", stderr) == NULL) {
            _exit(126);
        }
        execl(program, program, argument, (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void calibration_writes_a_profile_that_can_be_read(void **state)
{
    (void)state;
    char directory[TEMPORARY_MAX];
    temporary_make(directory);
    DP_AUTO_FREE char *path = dp_asprintf("%s/profile.json", directory);
    assert_int_equal(run_alone("--calibrate", path), 0);
    struct dp_profile profile;
    struct dp_error err;
    assert_ok(dp_profile_load(path, &profile, &err), &err);
    assert_true(profile.measured_at_s > 0 && profile.cores >= 1);
    assert_true(profile.gemms_count >= 3 * 3 * 4);
    assert_true(profile.gemm_flops_per_s > 1e8 && profile.gemm_flops_per_s < 1e13);
    assert_true(profile.local.latency_s > 0 && profile.local.latency_s < 1);
    assert_true(profile.op_overhead_s > 0 && profile.op_overhead_s < 1e-3);
    assert_true(profile.local.sum_bytes_per_s > 1e5 && profile.local.sum_bytes_per_s < 1e12);
    assert_true(profile.activation_elements_per_s > 1e6 &&
                profile.activation_gradient_elements_per_s > 1e6);
    temporary_remove(directory);
}

static void wrong_usage_ends_with_2(void **state)
{
    (void)state;
    assert_int_equal(WEXITSTATUS(run_alone("--rank=99999999", "/dev/null")), 2);
    assert_int_equal(WEXITSTATUS(run_alone("--unknown", "/dev/null")), 2);
    assert_int_equal(WEXITSTATUS(run_alone("--rank=0", "/dev/null")), 2);
    assert_int_equal(run_alone("--help", "/dev/null"), 0);
    assert_int_equal(run_alone("--version", "/dev/null"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_gpipe_ranks_train_report_and_finish),
        cmocka_unit_test(the_last_step_brings_all_its_spans),
        cmocka_unit_test(dualpipe_with_expert_peers_runs_as_processes),
        cmocka_unit_test(loads_of_experts_come_with_the_last_step),
        cmocka_unit_test(tokens_of_a_file_are_trained_on_and_evaluated_every_other_step),
        cmocka_unit_test(a_resumed_run_goes_on_where_the_first_ended),
        cmocka_unit_test(a_stop_ends_all_ranks_after_the_same_step),
        cmocka_unit_test(a_checkpoint_is_written_on_demand_and_answers_its_request),
        cmocka_unit_test(ports_are_held_from_the_moment_they_are_told),
        cmocka_unit_test(all_ranks_probe_after_one_step_and_train_on),
        cmocka_unit_test(an_order_of_another_epoch_is_not_obeyed),
        cmocka_unit_test(rows_of_an_earlier_attempt_end_the_job),
        cmocka_unit_test(group_limited_experts_on_two_nodes_train_as_on_one),
        cmocka_unit_test(a_killed_rank_ends_the_others_who_say_that_a_peer_was_lost),
        cmocka_unit_test(weights_that_explode_are_named_with_their_action),
        cmocka_unit_test(a_term_signal_ends_it_at_once),
        cmocka_unit_test(a_rank_whose_keeper_is_gone_ends),
        cmocka_unit_test(what_cannot_run_is_refused_before_the_start),
        cmocka_unit_test(a_directory_with_another_run_s_checkpoints_is_refused_before_the_start),
        cmocka_unit_test(a_schedule_that_this_build_orders_otherwise_is_refused),
        cmocka_unit_test(sim_ranks_take_their_time_and_report_no_loss),
        cmocka_unit_test(utilisation_is_streamed_and_adds_up),
        cmocka_unit_test(calibration_writes_a_profile_that_can_be_read),
        cmocka_unit_test(wrong_usage_ends_with_2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
