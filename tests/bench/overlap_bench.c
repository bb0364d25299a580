// How much of the all-to-all an overlapped pair hides, on links that are slow: such that take no
// CPU time, and the kernel's, between network namespaces with a rate limit (tc tbf), by tcp.
//
// Ranks are threads. Two kinds of computing: products of matrices that take a set time (the thread
// sleeps for what the real product leaves of it, as a host that waits for its accelerator does), so
// that the figures do not depend on what else the machine does; and the cpu device as it is. The
// pairs (FB) of some steps are looked at: what they take overlapped, against the computation and
// the exchanges in the same pairs when nothing is overlapped. Each row of build/bench.json is on a
// line.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "exec_harness.h"

#define MOE_LAYERS 8
#define STEPS 2
// Waking up late is made good by the next product, up to this.
#define LATE_NS (50 * DP_NS_PER_MS)

// Multiplications and additions that the paced device does in a second.
static double pace;
static struct dp_device_ops paced_ops;
static void (*real_gemm)(struct dp_stream *stream, const struct dp_gemm *gemm);

static void paced_gemm(struct dp_stream *stream, const struct dp_gemm *gemm)
{
    static _Thread_local int64_t late_ns;
    int64_t start_ns = dp_clock_monotonic_ns();
    real_gemm(stream, gemm);
    double flops = 2.0 * (double)gemm->m * (double)gemm->n * (double)gemm->k;
    int64_t end_ns = start_ns + (int64_t)(flops / pace * (double)DP_NS_PER_S) - late_ns;
    dp_clock_sleep_until_ns(end_ns);
    late_ns = dp_clock_monotonic_ns() - end_ns;
    late_ns = late_ns < LATE_NS ? late_ns : LATE_NS;
}

static dp_status open_paced(dp_element element, struct dp_device **ret_device, struct dp_error *err)
{
    dp_status status = dp_device_open_cpu(element, ret_device, err);
    if (status == DP_OK) {
        (*ret_device)->ops = &paced_ops;
    }
    return status;
}

static void prepare_paced_ops(void)
{
    struct dp_device *device;
    struct dp_error err;
    if (dp_device_open_cpu(DP_F32, &device, &err) != DP_OK) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    paced_ops = *device->ops;
    real_gemm = paced_ops.gemm;
    paced_ops.gemm = paced_gemm;
    dp_device_close(device);
}

// Of the pairs of the last step in its steady state, the mean of the ranks.
struct pairs {
    double length, exposed; // seconds
    double put_bytes;       // of the moves in them
};

// The first pair of a step and its last have no pair beside them to share the links with.
static bool is_steady_pair(const struct trial *trial, const struct trial_rank *from, size_t index)
{
    bool is_before = false, is_behind = false;
    for (size_t i = 0; i < from->records_count; i++) {
        const struct dp_action_span *span = &from->records[i].span;
        bool is_pair = span->kind == DP_ACTION_FB && span->step == trial->steps;
        is_before |= is_pair && i < index;
        is_behind |= is_pair && i > index;
    }
    return is_before && is_behind;
}

static struct pairs measure(const struct trial *trial)
{
    struct trial_result result;
    struct pairs pairs = {0};
    trial_run(trial, &result);
    for (int32_t rank = 0; rank < result.world; rank++) {
        const struct trial_rank *from = &result.ranks[rank];
        if (from->status != DP_OK) {
            fprintf(stderr, "%s\n", from->err.message);
            exit(1);
        }
        for (size_t i = 0; i < from->records_count; i++) {
            const struct dp_action_span *span = &from->records[i].span;
            if (span->kind == DP_ACTION_FB && span->step == trial->steps &&
                is_steady_pair(trial, from, i)) {
                pairs.length += 1e-9 * (double)(span->end_ns - span->start_ns) / result.world;
                pairs.exposed += 1e-9 * (double)from->records[i].exchange_ns / result.world;
                pairs.put_bytes += (double)from->put_bytes / (double)trial->steps /
                                   result.schedule.stages / trial->microbatches / result.world;
            }
        }
    }
    trial_result_deinit(&result);
    return pairs;
}

static void row(const char *name, double value, const char *unit, const char *peer, double ratio,
                const char *goal, bool met)
{
    printf("{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", \"peer\": \"%s\", "
           "\"ratio\": %.4f, \"goal\": \"%s\", \"met\": %s}\n",
           name, value, unit, peer, ratio, goal, met ? "true" : "false");
    fflush(stdout);
}

static double load(void)
{
    double loads[1] = {0};
    return getloadavg(loads, 1) == 1 ? loads[0] : 0;
}

static const struct dp_model_spec small = {.name = "small",
                                           .layers = MOE_LAYERS,
                                           .hidden = 32,
                                           .heads = 4,
                                           .kv_heads = 4,
                                           .head_dim = 8,
                                           .experts = 4,
                                           .top_k = 2,
                                           .expert_ffn = 24,
                                           .vocabulary = 256,
                                           .rope_theta = 10000,
                                           .norm_eps = 1e-5,
                                           .aux_loss_weight = 0.001};
// Wide rows and little computation: a move is many frames long.
static const struct dp_model_spec wide = {.name = "wide",
                                          .layers = MOE_LAYERS,
                                          .hidden = 256,
                                          .heads = 2,
                                          .kv_heads = 2,
                                          .head_dim = 8,
                                          .experts = 4,
                                          .top_k = 2,
                                          .expert_ffn = 8,
                                          .vocabulary = 256,
                                          .rope_theta = 10000,
                                          .norm_eps = 1e-5,
                                          .aux_loss_weight = 0.001};
// The shape of tests/bench/torch_moe.py, twice as many layers: each stage has some.
static const struct dp_model_spec moe_step = {.name = "moe-step",
                                              .layers = MOE_LAYERS,
                                              .hidden = 256,
                                              .heads = 4,
                                              .kv_heads = 4,
                                              .head_dim = 64,
                                              .experts = 8,
                                              .top_k = 2,
                                              .expert_ffn = 512,
                                              .vocabulary = 8192,
                                              .rope_theta = 10000,
                                              .norm_eps = 1e-5,
                                              .aux_loss_weight = 0.001};

static struct trial trial_of(const struct dp_model_spec *model)
{
    struct trial trial = trial_default();
    trial.schedule = "dualpipev";
    trial.model = model;
    trial.layers = model->layers;
    trial.pipeline = 1;
    trial.data = trial.expert = 2;
    trial.microbatches = 8;
    trial.steps = STEPS;
    trial.holdout = 0;
    trial.alltoall = true;
    return trial;
}

// What else the machine does only ever adds: the shortest of some runs counts.
#define ROUNDS 3

static void measure_again(const struct trial *trial, struct pairs *shortest)
{
    struct pairs pairs = measure(trial);
    if (shortest->length == 0 || pairs.length < shortest->length) {
        *shortest = pairs;
    }
}

struct kind {
    const char *name;
    struct trial trial;
    double compute, put_bytes; // of its pairs
    double exchange;
    double most, most_near_1; // of the longer of computation and exchanges
    bool over_wires;          // else over links that take no CPU time
};

// The exchanges take what their bytes take on the link, one after the other (on one of the kernel,
// what bare sockets take for as many bytes both ways at once); the computation takes
// what pairs take beside what they wait for, when nothing is overlapped.
static void print_rows(const struct kind *kind, double wanted, struct pairs plain,
                       struct pairs overlapped, double bytes_per_second)
{
    double compute = plain.length - plain.exposed;
    double exchange = plain.put_bytes / bytes_per_second;
    double ratio = exchange / compute;
    double bound = compute > exchange ? compute : exchange;
    double most = ratio <= 0.8 || ratio >= 1.25 ? kind->most : kind->most_near_1;
    char name[160], peer[200], goal[32];
    snprintf(name, sizeof(name), "overlapped pairs, %s, exchanges %.1f x computation", kind->name,
             wanted);
    snprintf(peer, sizeof(peer),
             "the longer of computation %.3f s and exchanges %.3f s of the same pairs; load %.1f",
             compute, exchange, load());
    snprintf(goal, sizeof(goal), "at most %.2f", most);
    row(name, overlapped.length, "s", peer, overlapped.length / bound, goal,
        overlapped.length <= most * bound);
    snprintf(name, sizeof(name), "the same pairs not overlapped, %s, %.1f x", kind->name, wanted);
    snprintf(peer, sizeof(peer), "the sum, %.3f s; overlapped %.3f s", compute + exchange,
             overlapped.length);
    row(name, plain.length, "s", peer, plain.length / (compute + exchange), "at least 1",
        plain.length >= 0.999 * (compute + exchange));
    if (wanted < 1) {
        double hidden = 1 - overlapped.exposed / exchange;
        snprintf(name, sizeof(name), "exchanges hidden, %s, %.1f x computation", kind->name,
                 wanted);
        row(name, 100 * hidden, "%", "exchanges of the same pairs", hidden, "at least 0.90",
            hidden >= 0.9);
    }
}

// First how long the pairs compute and what they send, with links that take no time.
static void get_to_know(struct kind *kind)
{
    kind->trial.slow = NULL;
    kind->trial.wires = NULL;
    kind->trial.no_overlap = true;
    struct pairs known = {0};
    for (int round = 0; round < ROUNDS; round++) {
        measure_again(&kind->trial, &known);
    }
    kind->compute = known.length - known.exposed;
    kind->put_bytes = known.put_bytes;
}

// Both ends of a link send and receive at once, by sockets with nothing around them.
struct link_end {
    int fd;
    bool sends;
    size_t bytes;
    pthread_t thread;
};

static void *use_link(void *argument)
{
    struct link_end *end = argument;
    static const char zeros[1 << 16];
    char taken[1 << 16];
    for (size_t done = 0; done < end->bytes;) {
        const size_t left = end->bytes - done;
        const size_t most = left < sizeof zeros ? left : sizeof zeros;
        const ssize_t part =
            end->sends ? send(end->fd, zeros, most, MSG_NOSIGNAL) : recv(end->fd, taken, most, 0);
        DP_CHECK(part > 0);
        done += (size_t)part;
    }
    return NULL;
}

static void connect_link(const struct wires *wires, int *ret_fds)
{
    struct sockaddr_in name = {.sin_family = AF_INET};
    char host[WIRES_HOST_MAX];
    socklen_t length = sizeof name;
    DP_CHECK(inet_pton(AF_INET, wires_host(1, host), &name.sin_addr) == 1);
    wires_enter(wires, 1);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    DP_CHECK(bind(listener, (struct sockaddr *)&name, sizeof name) == 0 &&
             listen(listener, 1) == 0 &&
             getsockname(listener, (struct sockaddr *)&name, &length) == 0);
    wires_enter(wires, 0);
    ret_fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    DP_CHECK(connect(ret_fds[0], (struct sockaddr *)&name, sizeof name) == 0);
    wires_go_home(wires);
    ret_fds[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    DP_CHECK(ret_fds[1] >= 0);
    close(listener);
}

// Bytes per second, each way.
static double rate_of_link(const struct wires *wires, double bytes)
{
    int fds[2];
    struct link_end ends[4];
    connect_link(wires, fds);
    int64_t start_ns = dp_clock_monotonic_ns();
    for (int i = 0; i < 4; i++) {
        ends[i] = (struct link_end){.fd = fds[i / 2], .sends = i % 2 == 0, .bytes = (size_t)bytes};
        DP_CHECK(pthread_create(&ends[i].thread, NULL, use_link, &ends[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(ends[i].thread, NULL);
    }
    double seconds = 1e-9 * (double)(dp_clock_monotonic_ns() - start_ns);
    close(fds[0]);
    close(fds[1]);
    return (double)(size_t)bytes / seconds;
}

static void must_open(struct wires *wires, int32_t ranks, double bytes_per_second)
{
    const char *why = wires_open(wires, ranks, bytes_per_second);
    if (why != NULL) {
        fprintf(stderr, "%s\n", why);
        exit(1);
    }
}

// Exchanges of `wanted` times the computation. Overlapped and plain runs take turns, so that a
// busy machine slows both.
static void at_ratio(struct kind *kind, double wanted)
{
    struct slow_link link = {.bytes_per_second = kind->put_bytes / (wanted * kind->compute)};
    struct wires wires;
    if (kind->over_wires) {
        must_open(&wires, kind->trial.data, link.bytes_per_second);
        kind->trial.wires = &wires;
        link.bytes_per_second = rate_of_link(&wires, kind->put_bytes);
    } else {
        kind->trial.slow = &link;
    }
    struct pairs plain = {0}, overlapped = {0};
    for (int round = 0; round < ROUNDS; round++) {
        kind->trial.no_overlap = true;
        measure_again(&kind->trial, &plain);
        kind->trial.no_overlap = false;
        measure_again(&kind->trial, &overlapped);
    }
    print_rows(kind, wanted, plain, overlapped, link.bytes_per_second);
    if (kind->over_wires) {
        wires_close(&wires);
    }
}

static size_t cell_of(const struct dp_schedule *schedule, bool backward, int32_t stage,
                      uint32_t microbatch)
{
    size_t row = (size_t)(backward ? schedule->stages : 0) + (size_t)stage;
    return row * (size_t)schedule->microbatches + microbatch;
}

// A forward needs that of the stage before, a backward that of the stage behind.
static bool is_made(const struct dp_schedule *schedule, bool backward, int32_t stage,
                    uint32_t microbatch, const double *made, double *start)
{
    int32_t from = backward ? stage + 1 : stage - 1;
    if (from < 0 || from == schedule->stages) {
        return true;
    }
    double at = made[cell_of(schedule, backward, from, microbatch)];
    *start = at > *start ? at : *start;
    return at > 0;
}

static bool inputs_are_made(const struct dp_schedule *schedule, const struct dp_action *action,
                            const double *made, double *start)
{
    switch (action->kind) {
    case DP_ACTION_W:
        return true;
    case DP_ACTION_FB:
        return is_made(schedule, false, action->stage, action->microbatch, made, start) &&
               is_made(schedule, true, action->b_stage, action->b_microbatch, made, start);
    default:
        return is_made(schedule, action->kind != DP_ACTION_F, action->stage, action->microbatch,
                       made, start);
    }
}

static void mark_made(const struct dp_schedule *schedule, const struct dp_action *action,
                      double *made, double end)
{
    if (action->kind != DP_ACTION_W) {
        bool backward = action->kind == DP_ACTION_B || action->kind == DP_ACTION_I;
        made[cell_of(schedule, backward, action->stage, action->microbatch)] = end;
    }
    if (action->kind == DP_ACTION_FB) {
        made[cell_of(schedule, true, action->b_stage, action->b_microbatch)] = end;
    }
}

// A step as it follows from the durations of its actions alone: an action starts when its rank is
// free and its input has been made. Seconds until the last one ends.
static double replayed(const struct dp_schedule *schedule, const double *durations)
{
    size_t cells = (size_t)schedule->stages * (size_t)schedule->microbatches;
    double *made = dp_new_array(double, 2 * cells); // [F, B][stage][micro-batch], 0 = not yet
    size_t *next = dp_new_array(size_t, (size_t)schedule->pipeline);
    double *free_at = dp_new_array(double, (size_t)schedule->pipeline);
    double last = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
            size_t at = schedule->rank_begin[rank] + next[rank];
            if (at == schedule->rank_begin[rank + 1]) {
                continue;
            }
            const struct dp_action *action = &schedule->actions[at];
            double start = free_at[rank];
            if (!inputs_are_made(schedule, action, made, &start)) {
                continue;
            }
            free_at[rank] = start + durations[at];
            mark_made(schedule, action, made, free_at[rank]);
            last = free_at[rank] > last ? free_at[rank] : last;
            next[rank]++;
            moved = true;
        }
    }
    free(made);
    free(next);
    free(free_at);
    return last;
}

// The actions of the last step, parallel to the schedule's actions: what they lasted, and what of
// it was their own. Returns the seconds from the first start to the last end.
static double durations_of(const struct trial_result *result, int64_t step, double *ret_durations,
                           double *ret_own)
{
    int64_t first_ns = INT64_MAX, last_ns = 0;
    for (int32_t rank = 0; rank < result->schedule.pipeline; rank++) {
        size_t at = result->schedule.rank_begin[rank];
        const struct trial_rank *from = &result->ranks[rank];
        int64_t step_ns = from->reports[step].start_ns;
        first_ns = step_ns < first_ns ? step_ns : first_ns;
        for (size_t i = 0; i < from->records_count; i++) {
            const struct dp_action_span *span = &from->records[i].span;
            if (span->step == step && span->kind < DP_ACTION_KIND_COUNT) {
                ret_own[at] = 1e-9 * (double)span->own_ns;
                ret_durations[at++] = 1e-9 * (double)(span->end_ns - span->start_ns);
                last_ns = span->end_ns > last_ns ? span->end_ns : last_ns;
            }
        }
    }
    return 1e-9 * (double)(last_ns - first_ns);
}

// Each duration becomes the mean of the rank's actions of that kind and stage.
static void take_means(const struct dp_schedule *schedule, double *durations)
{
    size_t total = dp_schedule_action_count(schedule);
    double *means = dp_new_array(double, total);
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            const struct dp_action *mine = &schedule->actions[i];
            double sum = 0;
            int32_t count = 0;
            for (size_t j = schedule->rank_begin[rank]; j < schedule->rank_begin[rank + 1]; j++) {
                const struct dp_action *other = &schedule->actions[j];
                if (other->kind == mine->kind && other->stage == mine->stage) {
                    sum += durations[j];
                    count++;
                }
            }
            means[i] = sum / count;
        }
    }
    memcpy(durations, means, total * sizeof(*durations));
    free(means);
}

// Two ranks that compute for themselves, beside what their own durations allow.
static void replay_rows(const char *family)
{
    struct trial trial = trial_of(&moe_step);
    trial.schedule = family;
    trial.pipeline = 2;
    trial.data = trial.expert = 1;
    trial.micro_batch_size = 8;
    struct trial_result result;
    trial_run(&trial, &result);
    double *durations = dp_new_array(double, dp_schedule_action_count(&result.schedule));
    double *owns = dp_new_array(double, dp_schedule_action_count(&result.schedule));
    double measured = durations_of(&result, trial.steps, durations, owns);
    double own = replayed(&result.schedule, durations);
    take_means(&result.schedule, owns);
    double mean = replayed(&result.schedule, owns);
    char name[120], peer[120];
    snprintf(name, sizeof(name), "%s on 2 ranks beside a replay of its own durations", family);
    snprintf(peer, sizeof(peer), "%.4f s replayed; load %.1f", own, load());
    row(name, measured, "s", peer, own / measured, "at least 0.97", own >= 0.97 * measured);
    snprintf(name, sizeof(name), "%s on 2 ranks beside the prediction from means", family);
    snprintf(peer, sizeof(peer), "%.4f s predicted", mean);
    row(name, measured, "s", peer, mean / measured, "at least 0.90", mean >= 0.9 * measured);
    free(durations);
    free(owns);
    trial_result_deinit(&result);
}

// Ranks in network namespaces, where there may be some.
static void wires_rows(void)
{
    struct wires wires;
    const char *why = wires_open(&wires, 2, 1e6);
    if (why != NULL) {
        fprintf(stderr, "no rows over links of the kernel: %s\n", why);
        return;
    }
    wires_close(&wires);
    pace = 300e6;
    struct kind kind = {.name = "products of set times, tcp over tbf",
                        .trial = trial_of(&wide),
                        .most = 1.05,
                        .most_near_1 = 1.12,
                        .over_wires = true};
    kind.trial.open_device = open_paced;
    kind.trial.microbatches = 6;
    kind.trial.micro_batch_size = 2;
    kind.trial.tcp = true;
    get_to_know(&kind);
    static const double ratios[] = {0.3, 0.7, 1.0, 1.5};
    for (size_t i = 0; i < sizeof(ratios) / sizeof(ratios[0]); i++) {
        at_ratio(&kind, ratios[i]);
    }
}

int main(int count, char **arguments)
{
    prepare_paced_ops();
    if (count > 1 && strcmp(arguments[1], "wires") == 0) {
        wires_rows();
        return 0;
    }
    pace = 80e6;
    struct kind paced = {.name = "products of set times",
                         .trial = trial_of(&small),
                         .most = 1.05,
                         .most_near_1 = 1.12};
    paced.trial.open_device = open_paced;
    get_to_know(&paced);
    static const double ratios[] = {0.3, 0.7, 1.0, 1.5};
    for (size_t i = 0; i < sizeof(ratios) / sizeof(ratios[0]); i++) {
        at_ratio(&paced, ratios[i]);
    }
    wires_rows();
    struct kind real = {.name = "the layers of the MoE step on the cpu device",
                        .trial = trial_of(&moe_step),
                        .most = 1.1,
                        .most_near_1 = 1.1};
    real.trial.micro_batch_size = 8;
    get_to_know(&real);
    at_ratio(&real, 0.3);
    replay_rows("1f1b");
    replay_rows("dualpipev");
    return 0;
}
