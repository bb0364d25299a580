#include "exec_harness.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/alltoall.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/rand.h"
#include "dp_test.h"

#define DEADLINE_NS (300 * DP_NS_PER_S)

struct dp_model_spec trial_model(const struct trial *trial)
{
    if (trial->model != NULL) {
        return *trial->model;
    }
    return (struct dp_model_spec){.name = "tiny",
                                  .layers = trial->layers,
                                  .dense_layers = 1,
                                  .hidden = 32,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .head_dim = 8,
                                  .ffn = 64,
                                  .experts = 4,
                                  .top_k = 2,
                                  .shared_experts = 1,
                                  .expert_ffn = 24,
                                  .vocabulary = 256,
                                  .rope_theta = 10000,
                                  .norm_eps = 1e-5,
                                  .aux_loss_weight = 0.001,
                                  .bias_update = trial->bias_update};
}

struct trial trial_default(void)
{
    return (struct trial){.schedule = "gpipe",
                          .layers = 8,
                          .pipeline = 1,
                          .data = 1,
                          .expert = 1,
                          .microbatches = 16,
                          .micro_batch_size = 1,
                          .element = DP_F32,
                          .steps = 20,
                          .lr = 2e-3,
                          .holdout = 7,
                          .sequential_rank = -1,
                          .cut_rank = -1};
}

int64_t trial_global_batch(const struct trial *trial)
{
    return (int64_t)trial->data * trial->microbatches * trial->micro_batch_size;
}

// Text that has something to learn: each byte follows from the one before, with some noise.
static dp_status fill(void *context, bool holdout, int64_t first, int32_t count,
                      int32_t *ret_tokens, int32_t *ret_targets, struct dp_error *err)
{
    struct trial_rank *result = context;
    (void)err;
    if (!holdout) {
        bool is_new = result->sample_end == 0;
        result->sample_first =
            is_new || first < result->sample_first ? first : result->sample_first;
        result->sample_end =
            first + count > result->sample_end ? first + count : result->sample_end;
    }
    for (int64_t i = 0; i < count; i++) {
        struct dp_rand rand;
        dp_rand_init(&rand, dp_rand_mix(holdout ? 2 : 1, (uint64_t)(first + i)));
        int32_t byte = (int32_t)dp_rand_below(&rand, 256);
        for (int64_t j = 0; j < TRIAL_SEQUENCE; j++) {
            ret_tokens[i * TRIAL_SEQUENCE + j] = byte;
            byte = dp_rand_below(&rand, 8) == 0 ? (int32_t)dp_rand_below(&rand, 256)
                                                : (byte * 5 + 3) % 256;
            ret_targets[i * TRIAL_SEQUENCE + j] = byte;
        }
    }
    return DP_OK;
}

// One thread.
struct worker {
    const struct trial *trial;
    const struct dp_schedule *schedule;
    struct dp_transport *transport;
    const char *const *addresses;
    int32_t rank;
    struct trial_rank *result;
    struct dp_alltoall *alltoall; // NULL = none
    struct dp_exchanger watched;  // the alltoall's, that tells of routings
    pthread_t thread, comm, exchange;
};

int32_t trial_layer_begin(const struct trial *trial, const struct dp_schedule *schedule,
                          int32_t stage)
{
    return stage * trial->layers / schedule->stages;
}

static void copy_tensors(struct dp_trainer *trainer, bool weights, struct trial_tensor **ret_list,
                         size_t *ret_count)
{
    struct dp_exec *exec = dp_trainer_exec(trainer);
    struct trial_tensor *list = NULL;
    size_t total = 0;
    for (int32_t i = 0; i < dp_exec_stage_count(exec); i++) {
        int32_t index, count;
        struct dp_stage *stage = dp_exec_stage(exec, i, &index);
        const struct dp_tensor *tensors = dp_stage_tensors(stage, &count);
        list = dp_realloc(list, total + (size_t)count, sizeof(*list));
        const void *values = weights ? dp_stage_weights(stage) : dp_stage_gradients(stage);
        bool wide = dp_stage_device(stage)->element == DP_F64;
        for (int32_t k = 0; k < count; k++) {
            struct trial_tensor *tensor = &list[total++];
            DP_COPY_TEXT(tensor->name, tensors[k].name);
            tensor->count = tensors[k].count;
            tensor->values = dp_new_array(double, (size_t)tensor->count);
            for (int64_t e = 0; e < tensor->count; e++) {
                int64_t at = tensors[k].offset + e;
                tensor->values[e] =
                    wide ? ((const double *)values)[at] : (double)((const float *)values)[at];
            }
        }
    }
    *ret_list = list;
    *ret_count = total;
}

static void free_tensors(struct trial_tensor *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(list[i].values);
    }
    free(list);
}

// The fullest expert over the mean.
static double skew_of(const struct dp_trainer *trainer)
{
    double most = 0;
    const struct dp_optim *optim = dp_trainer_optim(trainer);
    for (int32_t i = 0; optim != NULL && i < dp_optim_load_count(optim); i++) {
        struct dp_expert_load load;
        dp_optim_load_at(optim, i, &load);
        int64_t sum = 0, fullest = 0;
        for (int32_t e = 0; e < load.experts; e++) {
            sum += load.tokens[e];
            fullest = load.tokens[e] > fullest ? load.tokens[e] : fullest;
        }
        double skew = (double)fullest * load.experts / (double)sum;
        most = skew > most ? skew : most;
    }
    return most;
}

static double load_of(const struct dp_trainer *trainer)
{
    double own = 0, mean = 0;
    const struct dp_optim *optim = dp_trainer_optim(trainer);
    for (int32_t i = 0; optim != NULL && i < dp_optim_load_count(optim); i++) {
        struct dp_expert_load load;
        dp_optim_load_at(optim, i, &load);
        for (int32_t e = 0; e < load.count; e++) {
            own += (double)load.own[e];
        }
        mean += (double)load.group / load.group_ranks;
    }
    return mean > 0 ? own / mean : 0;
}

// Over the ranks of an EP group.
static int32_t slots_of(const struct trial *trial)
{
    return trial_model(trial).experts + trial->expert_copies * trial->expert;
}

static dp_status run_steps(struct worker *self, struct dp_trainer *trainer)
{
    struct trial_rank *result = self->result;
    const struct trial *trial = self->trial;
    result->step_first = dp_trainer_step_done(trainer) + 1;
    int64_t last = trial->stop_after > 0 ? trial->stop_after : trial->steps;
    dp_status status = DP_OK;
    for (int64_t step = result->step_first; status == DP_OK && step <= last; step++) {
        if (step == 2 && self->rank == trial->cut_rank) {
            dp_transport_abort(self->transport, DP_INTERRUPTED, "cut by the test");
        }
        struct dp_trainer_report *report = &result->reports[step];
        status = dp_trainer_gradients(trainer, NULL, report, &result->err);
        if (status == DP_OK && step == result->step_first) {
            copy_tensors(trainer, false, &result->gradients, &result->gradients_count);
        }
        if (status == DP_OK) {
            status = dp_trainer_update(trainer, report, &result->err);
        }
        if (status == DP_OK && step == trial->probe_after) {
            status = dp_trainer_probe(trainer, step, &result->probe, &result->err);
        }
        result->step_done = dp_trainer_step_done(trainer);
        result->skews[step] = skew_of(trainer);
        result->rank_loads[step] = load_of(trainer);
    }
    return status;
}

static void tilt_routers(struct dp_trainer *trainer, float tilt)
{
    struct dp_exec *exec = dp_trainer_exec(trainer);
    for (int32_t i = 0; i < dp_exec_stage_count(exec); i++) {
        int32_t index;
        struct dp_stage *stage = dp_exec_stage(exec, i, &index);
        const struct dp_stage_config *config = dp_stage_config(stage);
        for (int32_t layer = config->layer_begin; layer < config->layer_end; layer++) {
            void *bias = dp_stage_router_bias(stage, layer);
            const bool is_wide = dp_stage_device(stage)->element == DP_F64;
            if (bias != NULL && is_wide) {
                *(double *)bias = tilt;
            } else if (bias != NULL) {
                *(float *)bias = tilt;
            }
        }
    }
}

static dp_status run_trainer(struct worker *self, struct dp_trainer *trainer)
{
    struct trial_rank *result = self->result;
    const struct trial *trial = self->trial;
    dp_status status = DP_OK;
    if (trial->resume != NULL) {
        status = dp_trainer_resume(trainer, trial->resume, &result->err);
    }
    if (status == DP_OK && trial->begin != NULL) {
        status = trial->begin(trial->hooks, self->rank, trainer, &result->err);
    }
    if (trial->tilt > 0) {
        tilt_routers(trainer, (float)trial->tilt);
    }
    if (status == DP_OK) {
        status = run_steps(self, trainer);
    }
    if (trial->end != NULL) {
        status = trial->end(trial->hooks, self->rank, trainer, status, &result->err);
    }
    uint64_t bytes;
    if (status == DP_OK && trial->save != NULL) {
        status = dp_trainer_checkpoint(trainer, trial->save, &bytes, &result->err);
    }
    if (status == DP_OK && trial->evaluate) {
        status = dp_trainer_evaluate(trainer, &result->evaluated_loss, &result->evaluated_tokens,
                                     &result->err);
    }
    result->failure = *dp_trainer_failure(trainer);
    if (status == DP_OK && !trial->sim) {
        copy_tensors(trainer, true, &result->weights, &result->weights_count);
    }
    return status;
}

static void *progress(void *argument)
{
    dp_transport_progress(argument);
    return NULL;
}

static void connect_worker(struct worker *self)
{
    if (self->addresses != NULL) {
        struct dp_error err = {0};
        if (dp_transport_connect(self->transport, self->addresses,
                                 dp_clock_monotonic_ns() + DEADLINE_NS, &err) != DP_OK) {
            fprintf(stderr, "rank %d: %s\n", self->rank, err.message);
            abort();
        }
    }
    DP_CHECK(pthread_create(&self->comm, NULL, progress, self->transport) == 0);
    if (self->trial->fault != NULL && self->rank == self->trial->fault_rank) {
        dp_transport_set_fault(self->transport, self->trial->fault);
    }
    if (self->trial->delay_us > 0) {
        struct dp_transport_fault fault = {.seed = (uint64_t)self->rank,
                                           .delay_us_max = self->trial->delay_us};
        dp_transport_set_fault(self->transport, &fault);
    }
}

static void *exchange(void *argument)
{
    dp_alltoall_progress(argument);
    return NULL;
}

static dp_status route(void *context, uint64_t tag, int64_t tokens, const int32_t *index,
                       struct dp_routing **ret_routing, struct dp_error *err)
{
    struct worker *self = context;
    const struct dp_exchanger *exchanger = dp_alltoall_exchanger(self->alltoall);
    self->trial->routed(self->trial->routed_context, self->rank, tokens, index);
    return exchanger->route(exchanger->context, tag, tokens, index, ret_routing, err);
}

static void set_exchanger(struct worker *self, struct dp_exec *exec)
{
    const struct dp_exchanger *exchanger = dp_alltoall_exchanger(self->alltoall);
    if (self->trial->routed != NULL) {
        self->watched = *exchanger;
        self->watched.context = self;
        self->watched.route = route;
        exchanger = &self->watched;
    }
    dp_exec_set_exchanger(exec, exchanger);
}

// A peer that could not begin has closed by now.
static dp_status open_alltoall(struct worker *self, struct dp_device *device,
                               struct dp_trainer *trainer)
{
    const struct trial *trial = self->trial;
    if (!trial->alltoall || trial->expert == 1) {
        return DP_OK;
    }
    int32_t ranks[TRIAL_RANKS_MAX], node_of[TRIAL_RANKS_MAX];
    int32_t block = self->rank / trial->pipeline / trial->expert;
    int32_t nodes = trial->nodes > 0 ? trial->nodes : 1;
    for (int32_t i = 0; i < trial->expert; i++) {
        ranks[i] = (block * trial->expert + i) * trial->pipeline + self->rank % trial->pipeline;
        node_of[i] = i * nodes / trial->expert;
    }
    struct dp_model_spec model = trial_model(trial);
    struct dp_alltoall_config config = {.transport = self->transport,
                                        .ranks = ranks,
                                        .count = trial->expert,
                                        .node_of = node_of,
                                        .element = device->element,
                                        .experts = slots_of(trial),
                                        .top_k = model.top_k,
                                        .hidden = model.hidden,
                                        .tokens_max =
                                            (int64_t)trial->micro_batch_size * TRIAL_SEQUENCE,
                                        .limited_nodes = trial->limited_nodes};
    dp_status status = dp_alltoall_open(&config, dp_clock_monotonic_ns() + DEADLINE_NS,
                                        &self->alltoall, &self->result->err);
    if (status != DP_OK) {
        return status;
    }
    DP_CHECK(pthread_create(&self->exchange, NULL, exchange, self->alltoall) == 0);
    struct dp_alltoall_stats stats;
    dp_alltoall_stats(self->alltoall, &stats, NULL);
    dp_device_count(device, DP_MEMORY_WINDOWS, (int64_t)stats.window_bytes);
    set_exchanger(self, dp_trainer_exec(trainer));
    return DP_OK;
}

// The result of closing counts where nothing failed before.
static struct dp_error *own_err(struct worker *self)
{
    return self->result->status == DP_OK ? &self->result->err : NULL;
}

static void note_closed(struct worker *self, dp_status closed)
{
    self->result->status = self->result->status == DP_OK ? closed : self->result->status;
}

static void close_alltoall(struct worker *self)
{
    if (self->alltoall != NULL) {
        if (self->result->status != DP_OK) {
            dp_alltoall_abort(self->alltoall, self->result->status, self->result->err.message);
        }
        note_closed(self, dp_alltoall_close(self->alltoall, dp_clock_monotonic_ns() + DEADLINE_NS,
                                            own_err(self)));
        pthread_join(self->exchange, NULL);
        struct dp_alltoall_stats stats;
        dp_alltoall_stats(self->alltoall, &stats, self->result->peer_bytes);
        self->result->put_bytes = stats.scale_up_bytes + stats.scale_out_bytes;
    }
}

// Micro-batches of the replicas before this one.
static int64_t first_of(const struct trial *trial, int32_t replica)
{
    int64_t first = 0;
    for (int32_t d = 0; d < replica; d++) {
        first += trial->replica_microbatches != NULL ? trial->replica_microbatches[d]
                                                     : trial->microbatches;
    }
    return first;
}

static struct dp_trainer_config config_of(const struct worker *self, struct dp_device *device,
                                          struct dp_exec_meter *meter, const int32_t *begin)
{
    const struct trial *trial = self->trial;
    return (struct dp_trainer_config){
        .exec = {.schedule = self->schedule,
                 .position = self->rank % trial->pipeline,
                 .replica = self->rank / trial->pipeline,
                 .data = trial->data,
                 .expert = trial->expert,
                 .first_microbatch = first_of(trial, self->rank / trial->pipeline),
                 .step_microbatches = (int64_t)trial->data * trial->microbatches,
                 .transport = self->transport,
                 .meter = meter,
                 .device = device,
                 .model = trial_model(trial),
                 .layer_begin = begin,
                 .micro_batch_size = trial->micro_batch_size,
                 .sequence = TRIAL_SEQUENCE,
                 .seed = 11,
                 .source = {.fill = fill,
                            .context = self->result,
                            .holdout_samples = trial->holdout},
                 .expert_slots = slots_of(trial),
                 .recompute = trial->recompute,
                 .offload = trial->offload,
                 .fp8 = trial->fp8,
                 .save_fp8 = trial->save_fp8,
                 .poison = true,
                 .no_overlap = trial->no_overlap || self->rank == trial->sequential_rank,
                 .costs = trial->costs,
                 .pace = trial->paces == NULL ? NULL : trial->paces[self->rank]},
        .optimizer = {.lr = trial->lr,
                      .lr_min = trial->lr / 10,
                      .warmup_steps = 2,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .eps = 1e-8,
                      .weight_decay = 0.1,
                      .grad_clip = trial->clip > 0 ? trial->clip : 1},
        .shard = trial->shard,
        .rebalance_every = trial->rebalance_every,
        .rebalance = {.apply = !trial->advise, .nodes = trial->nodes},
        .steps = trial->steps};
}

#define EVALUATED_MAX 1024 // chunks of all evaluations of one rank

static void keep_records(struct trial_rank *result, struct dp_exec_meter *meter, size_t capacity)
{
    result->records = dp_new_array(struct dp_exec_record, capacity);
    result->records_count = dp_exec_meter_pop(meter, result->records, capacity);
    DP_CHECK(dp_exec_meter_dropped(meter) == 0);
}

static void *run_worker(void *argument)
{
    struct worker *self = argument;
    struct trial_rank *result = self->result;
    int32_t stages = self->schedule->stages;
    if (self->trial->wires != NULL) {
        wires_enter(self->trial->wires, self->rank);
    }
    DP_AUTO_FREE int32_t *begin = dp_new_array(int32_t, (size_t)stages + 1);
    for (int32_t i = 0; i <= stages; i++) {
        begin[i] = trial_layer_begin(self->trial, self->schedule, i);
    }
    struct dp_device *device = NULL;
    if (!self->trial->sim) {
        const struct trial *trial = self->trial;
        dp_status opened = trial->open_device != NULL
                               ? trial->open_device(trial->element, &device, &result->err)
                               : dp_device_open_cpu(trial->element, &device, &result->err);
        DP_CHECK(opened == DP_OK);
        const int32_t threads = self->trial->threads > 0 ? self->trial->threads : 1;
        DP_CHECK(dp_device_set_threads(device, threads, &result->err) == DP_OK);
    }
    size_t records = (size_t)self->trial->steps * (dp_schedule_action_count(self->schedule) + 4) +
                     (self->trial->evaluate ? EVALUATED_MAX : 0);
    struct dp_exec_meter *meter = dp_exec_meter_new(records);
    connect_worker(self);
    struct dp_trainer_config config = config_of(self, device, meter, begin);
    DP_COPY_TEXT(config.optimizer.moments, self->trial->bf16_moments ? "bf16" : "fp32");
    struct dp_trainer *trainer = NULL;
    result->status = dp_trainer_new(&config, &trainer, &result->err);
    if (result->status == DP_OK) {
        result->status = open_alltoall(self, device, trainer);
    }
    if (result->status == DP_OK) {
        result->status = run_trainer(self, trainer);
    }
    keep_records(result, meter, records);
    close_alltoall(self);
    dp_trainer_free(trainer);
    dp_alltoall_free(self->alltoall);
    note_closed(self, dp_transport_close(self->transport, dp_clock_monotonic_ns() + DEADLINE_NS,
                                         own_err(self)));
    pthread_join(self->comm, NULL);
    dp_exec_meter_free(meter);
    if (device != NULL) {
        result->memory = dp_device_memory(device);
        dp_device_close(device);
    }
    return NULL;
}

static void open_transports(const struct trial *trial, int32_t world,
                            struct dp_transport **transports, char (*addresses)[DP_ADDRESS_MAX])
{
    if (trial->slow != NULL) {
        slow_open(trial->slow, world, transports);
        return;
    }
    if (!trial->tcp && !trial->verbs) {
        dp_transport_loopback(world, transports);
        return;
    }
    const struct wires *wires = trial->wires;
    for (int32_t i = 0; i < world; i++) {
        char host[WIRES_HOST_MAX];
        struct dp_transport_config config = {
            .kind = trial->verbs ? DP_TRANSPORT_VERBS : DP_TRANSPORT_TCP,
            .host = wires == NULL ? "127.0.0.1" : wires_host(i, host),
            .rank = i,
            .world = world,
            .token = 77};
        struct dp_error err = {0};
        if (wires != NULL) {
            wires_enter(wires, i);
        }
        dp_status status = dp_transport_open(&config, addresses[i], &transports[i], &err);
        if (wires != NULL) {
            wires_go_home(wires);
        }
        assert_ok(status, &err);
    }
}

void trial_make_schedule(const struct trial *trial, struct dp_schedule *ret_schedule)
{
    struct dp_error err;
    if (trial->given != NULL) {
        // By the way that orders of no family take to the ranks.
        DP_AUTO_JSON json_t *json = NULL;
        DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
        dp_schedule_write_json(trial->given, &text);
        assert_ok(dp_json_parse(text.bytes, text.length, text.length, "order", &json, &err), &err);
        assert_ok(dp_schedule_from_json(json, ret_schedule, &err), &err);
        return;
    }
    if (trial->made != NULL) {
        struct made made = *trial->made;
        made.pipeline = trial->pipeline;
        made.microbatches = trial->microbatches;
        made_schedule(&made, ret_schedule);
        assert_ok(dp_schedule_validate(ret_schedule, &err), &err);
        return;
    }
    struct dp_schedule_params params = {.pipeline = trial->pipeline,
                                        .microbatches = trial->microbatches,
                                        .virtual_stages = trial->virtual_stages};
    if (dp_schedule_generate(trial->schedule, &params, ret_schedule, &err) != DP_OK) {
        fail_msg("%s", err.message);
    }
}

static void make_schedules(const struct trial *trial, struct dp_schedule *ret_schedules)
{
    for (int32_t d = 0; d < trial->data; d++) {
        struct trial own = *trial;
        if (trial->replica_microbatches != NULL) {
            own.microbatches = trial->replica_microbatches[d];
        }
        trial_make_schedule(&own, &ret_schedules[d]);
    }
}

void trial_run(const struct trial *trial, struct trial_result *ret_result)
{
    struct trial_result result = {.world = trial->pipeline * trial->data};
    DP_CHECK(result.world <= TRIAL_RANKS_MAX && trial->steps < TRIAL_STEPS_MAX);
    trial_make_schedule(trial, &result.schedule);
    struct dp_schedule schedules[TRIAL_RANKS_MAX];
    make_schedules(trial, schedules);
    result.ranks = dp_new_array(struct trial_rank, (size_t)result.world);
    struct dp_transport *transports[TRIAL_RANKS_MAX];
    char addresses[TRIAL_RANKS_MAX][DP_ADDRESS_MAX];
    const char *pointers[TRIAL_RANKS_MAX];
    open_transports(trial, result.world, transports, addresses);
    struct worker workers[TRIAL_RANKS_MAX] = {0};
    for (int32_t i = 0; i < result.world; i++) {
        pointers[i] = addresses[i];
    }
    for (int32_t i = 0; i < result.world; i++) {
        workers[i] = (struct worker){.trial = trial,
                                     .schedule = &schedules[i / trial->pipeline],
                                     .transport = transports[i],
                                     .addresses = trial->tcp || trial->verbs ? pointers : NULL,
                                     .rank = i,
                                     .result = &result.ranks[i]};
        DP_CHECK(pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) == 0);
    }
    for (int32_t i = 0; i < result.world; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    for (int32_t i = 0; i < result.world; i++) {
        dp_transport_free(transports[i]);
    }
    for (int32_t d = 0; d < trial->data; d++) {
        dp_schedule_deinit(&schedules[d]);
    }
    *ret_result = result;
}

void trial_result_deinit(struct trial_result *result)
{
    for (int32_t i = 0; i < result->world; i++) {
        struct trial_rank *rank = &result->ranks[i];
        free_tensors(rank->gradients, rank->gradients_count);
        free_tensors(rank->weights, rank->weights_count);
        free(rank->records);
    }
    free(result->ranks);
    dp_schedule_deinit(&result->schedule);
}

void trial_expect_ok(const struct trial_result *result)
{
    // The cause before its consequences.
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < result->world; i++) {
            if (pass == 1 || !result->ranks[i].failure.peer_lost) {
                assert_ok(result->ranks[i].status, &result->ranks[i].err);
            }
        }
    }
}

const struct trial_tensor *trial_find(const struct trial_tensor *tensors, size_t count,
                                      const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(tensors[i].name, name) == 0) {
            return &tensors[i];
        }
    }
    fail_msg("no tensor is called %s", name);
    return NULL;
}

double trial_distance(const struct trial_tensor *a, const struct trial_tensor *b)
{
    double difference = 0, norm = 0;
    assert_int_equal(a->count, b->count);
    for (int64_t i = 0; i < a->count; i++) {
        difference += (a->values[i] - b->values[i]) * (a->values[i] - b->values[i]);
        norm += b->values[i] * b->values[i];
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}
