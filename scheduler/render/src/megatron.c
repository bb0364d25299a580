// Megatron-Core runs two orders: 1F1B, and interleaved 1F1B with stage s on rank s mod P. Its flags
// name no order at all; so a schedule is compared with the one that would run. See its
// schedules.py (warm-up counts, the table of groups), pipeline_parallel_layer_layout.py (layout).
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/render.h"

#define NEAREST                                                                                    \
    "Nearest there: interleaved with 2 virtual stages (loop placement), which overlaps exchanges " \
    "of experts and delays weight gradients by --overlap-moe-expert-parallel-comm "                \
    "--delay-wgrad-compute"

static dp_status refuse(const struct dp_schedule *schedule, const char *why, struct dp_error *err)
{
    return dp_fail(err, DP_UNSUPPORTED,
                   "%s: Megatron-Core runs 1F1B and interleaved 1F1B alone; %s. " NEAREST,
                   schedule->name, why);
}

// Megatron's order of one rank: forwards and backwards by number, and what chunk and micro-batch a
// number stands for.
struct order {
    int32_t pipeline, chunks, microbatches;
    int32_t group; // micro-batches that go through one chunk before the next
};

static struct dp_action numbered(const struct order *order, int32_t rank, bool forward, int64_t k)
{
    int64_t whole = (int64_t)order->group * order->chunks;
    int64_t first = k / whole * order->group;
    int64_t left = order->microbatches - first;
    int64_t size = left < order->group ? left : order->group;
    int64_t chunk = k % whole / size;
    chunk = forward ? chunk : order->chunks - 1 - chunk;
    return (struct dp_action){.kind = forward ? DP_ACTION_F : DP_ACTION_B,
                              .stage = (uint16_t)(chunk * order->pipeline + rank),
                              .microbatch = (uint32_t)(first + k % whole % size)};
}

static struct dp_action expected(const struct order *order, int32_t rank, int64_t position)
{
    int64_t total = (int64_t)order->chunks * order->microbatches;
    int64_t behind = order->pipeline - 1 - rank;
    int64_t ahead =
        order->chunks == 1 ? behind : 2 * behind + (order->chunks - 1) * (int64_t)order->group;
    ahead = ahead < total ? ahead : total;
    if (position < ahead) {
        return numbered(order, rank, true, position);
    }
    if (position >= 2 * total - ahead) {
        return numbered(order, rank, false, position - total);
    }
    int64_t pair = (position - ahead) / 2;
    bool forward = (position - ahead) % 2 == 0;
    return numbered(order, rank, forward, forward ? ahead + pair : pair);
}

static bool is_same(const struct dp_action *a, const struct dp_action *b)
{
    return a->kind == b->kind && a->stage == b->stage && a->microbatch == b->microbatch;
}

// What Megatron has no word for.
static dp_status check_features(const struct dp_schedule *schedule, struct dp_error *err)
{
    if (schedule->directions == 2) {
        return refuse(schedule,
                      "this one is bidirectional, each stage on two ranks, and there every stage "
                      "has one",
                      err);
    }
    bool pairs = false;
    bool splits = false;
    size_t count = dp_schedule_action_count(schedule);
    for (size_t i = 0; i < count; i++) {
        dp_action_kind kind = schedule->actions[i].kind;
        pairs = pairs || kind == DP_ACTION_FB;
        splits = splits || kind == DP_ACTION_I || kind == DP_ACTION_W;
    }
    for (int32_t stage = 0; stage < schedule->stages; stage++) {
        if (schedule->placement[2 * stage] == stage % schedule->pipeline) {
            continue;
        }
        return refuse(schedule,
                      pairs ? "this one places stages in a V and pairs a forward with a backward, "
                              "and there stage s is on rank s mod P. Forks have DualPipeV: "
                              "FlagScale's Megatron-LM-FL, MindSpeed (--schedules-method dualpipev)"
                            : "this one turns back at the last rank (a V or waves), and there "
                              "stage s is on rank s mod P",
                      err);
    }
    if (pairs || splits) {
        return refuse(schedule,
                      pairs ? "this one pairs forwards with backwards in an order of its own"
                            : "this one splits backwards and orders weight gradients by itself, a "
                              "zero-bubble schedule, and there is none in its main branch",
                      err);
    }
    return DP_OK;
}

static dp_status check_order(const struct dp_schedule *schedule, const struct order *order,
                             struct dp_error *err)
{
    int64_t total = (int64_t)order->chunks * order->microbatches;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        size_t begin = schedule->rank_begin[rank];
        int64_t count = (int64_t)(schedule->rank_begin[rank + 1] - begin);
        for (int64_t i = 0; i < 2 * total && i < count; i++) {
            const struct dp_action *action = &schedule->actions[begin + (size_t)i];
            struct dp_action wanted = expected(order, rank, i);
            if (is_same(action, &wanted)) {
                continue;
            }
            DP_CLEANUP(dp_buf_deinit) struct dp_buf why = {0};
            dp_buf_printf(&why, "at rank %d, position %lld it would run ", rank, (long long)i);
            dp_action_format(&wanted, &why);
            dp_buf_puts(&why, ", and this schedule has ");
            dp_action_format(action, &why);
            return refuse(schedule, why.bytes, err);
        }
        if (count != 2 * total) {
            return refuse(schedule, "its ranks would run another number of actions", err);
        }
    }
    return DP_OK;
}

// The group is as large as the first rank's first run of one chunk.
static dp_status find_order(const struct dp_schedule *schedule, struct order *ret_order,
                            struct dp_error *err)
{
    struct order order = {.pipeline = schedule->pipeline,
                          .chunks = schedule->stages / schedule->pipeline,
                          .microbatches = schedule->microbatches,
                          .group = schedule->microbatches};
    if (order.chunks > 1) {
        int32_t run = 0;
        while (run < order.microbatches && (size_t)run < schedule->rank_begin[1] &&
               schedule->actions[run].kind == DP_ACTION_F && schedule->actions[run].stage == 0) {
            run++;
        }
        order.group = run;
        int32_t rest = run == 0 ? 0 : order.microbatches % run;
        if (schedule->pipeline == 1) {
            return refuse(schedule, "it wants more than one rank for virtual stages", err);
        }
        if (run < schedule->pipeline || (rest != 0 && rest < schedule->pipeline)) {
            return refuse(schedule,
                          "it wants groups of at least P micro-batches, the last one too: choose "
                          "M as a multiple of P",
                          err);
        }
    }
    *ret_order = order;
    return DP_OK;
}

static void add_layers(int32_t count, char symbol, struct dp_buf *out)
{
    if (count > 2) {
        dp_buf_printf(out, "%c*%d", symbol, count);
    }
    for (int32_t i = 0; i < count && count <= 2; i++) {
        dp_buf_append(out, &symbol, 1);
    }
}

// E embedding, t decoder layer, m layer of multi-token prediction, L loss; "|" between stages. Like
// stages in a row are written once: "(tt|)*29,".
static void add_layout(const int32_t *layers, int32_t stages, int32_t mtp, struct dp_buf *out)
{
    dp_buf_puts(out, "E");
    for (int32_t stage = 0; stage < stages; stage++) {
        bool inner = stage > 0 && stage < stages - 1;
        int32_t run = 1;
        while (inner && stage + run < stages - 1 && layers[stage + run] == layers[stage]) {
            run++;
        }
        run = run > 2 ? run : 1;
        dp_buf_puts(out, run > 1 ? "(" : "");
        add_layers(layers[stage], 't', out);
        dp_buf_puts(out, stage < stages - 1 ? "|" : "");
        if (run > 1) {
            dp_buf_printf(out, ")*%d,", run);
        }
        stage += run - 1;
    }
    add_layers(mtp, 'm', out);
    dp_buf_puts(out, "L");
}

// Decoder layers of each stage; *ret_total of them. ret_layers holds `stages`.
static dp_status spread_layers(const struct dp_render_megatron_options *options, int32_t stages,
                               int32_t *ret_layers, int32_t *ret_total, struct dp_error *err)
{
    int64_t total = 0;
    for (int32_t stage = 0; stage < stages; stage++) {
        int32_t extra = stage > 0 && stage <= options->layers % stages;
        ret_layers[stage] = options->stage_layers != NULL ? options->stage_layers[stage]
                                                          : options->layers / stages + extra;
        if (ret_layers[stage] < 0) {
            return dp_fail(err, DP_INVALID, "stage %d has %d layers; give 0 or more", stage,
                           ret_layers[stage]);
        }
        total += ret_layers[stage];
    }
    if (options->layers < 0 || options->mtp_layers < 0 || total < 1 || total > DP_LAYERS_MAX ||
        options->mtp_layers > DP_LAYERS_MAX) {
        return dp_fail(err, DP_INVALID,
                       "%lld decoder and %d prediction layers; Megatron's layout needs the number "
                       "of decoder layers, 1 to %d: give a model or the layers of each stage",
                       (long long)(options->stage_layers == NULL ? options->layers : total),
                       options->mtp_layers, DP_LAYERS_MAX);
    }
    if (options->stage_layers != NULL && options->layers > 0 && total != options->layers) {
        return dp_fail(err, DP_INVALID, "the stages have %lld decoder layers, the model has %d",
                       (long long)total, options->layers);
    }
    *ret_total = (int32_t)total;
    return DP_OK;
}

static void add_flags(const struct dp_schedule *schedule, const struct order *order,
                      const struct dp_render_megatron_options *options, const int32_t *layers,
                      int32_t total, struct dp_buf *out)
{
    dp_buf_printf(out, "--pipeline-model-parallel-size %d", schedule->pipeline);
    dp_buf_printf(out, " \\\n--num-layers %d", total);
    if (options->mtp_layers > 0) {
        dp_buf_printf(out, " \\\n--mtp-num-layers %d", options->mtp_layers);
    }
    if (schedule->stages > 1) {
        dp_buf_puts(out, " \\\n--pipeline-model-parallel-layout '");
        add_layout(layers, schedule->stages, options->mtp_layers, out);
        dp_buf_puts(out, "'");
    }
    if (order->chunks > 1) {
        dp_buf_printf(out, " \\\n--microbatch-group-size-per-virtual-pipeline-stage %d",
                      order->group);
    }
    if (options->micro_batch_size > 0) {
        int64_t samples = (int64_t)options->micro_batch_size * schedule->microbatches;
        samples *= options->data > 1 ? options->data : 1;
        dp_buf_printf(out, " \\\n--micro-batch-size %d \\\n--global-batch-size %lld",
                      options->micro_batch_size, (long long)samples);
    }
    dp_buf_puts(out, "\n");
}

dp_status dp_render_megatron(const struct dp_schedule *schedule,
                             const struct dp_render_megatron_options *options, struct dp_buf *out,
                             struct dp_error *err)
{
    struct order order = {0};
    dp_status status = check_features(schedule, err);
    if (status == DP_OK) {
        status = find_order(schedule, &order, err);
    }
    if (status == DP_OK) {
        status = check_order(schedule, &order, err);
    }
    if (status != DP_OK) {
        return status;
    }
    int32_t total = 0;
    DP_AUTO_FREE int32_t *layers = dp_new_array(int32_t, (size_t)schedule->stages);
    status = spread_layers(options, schedule->stages, layers, &total, err);
    if (status == DP_OK) {
        add_flags(schedule, &order, options, layers, total, out);
    }
    return status;
}
