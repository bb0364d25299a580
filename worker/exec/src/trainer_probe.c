#include "dp/trainer_probe.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "exec_internal.h"
#include "trainer_internal.h"

// A quota of Linux' scheduler is given out anew every 100 ms: a rank that is throttled is seen to
// be in a window as long as that, not in a shorter one.
#define PRODUCT_NS (100 * DP_NS_PER_MS)
#define PRODUCT_SIZE 256
#define SIM_PRODUCT_NS DP_NS_PER_MS
#define SIM_PRODUCTS 16
#define PINGS 5
#define LONGS 3
#define LONG_BYTES (256u << 10)

typedef enum probe_phase {
    PHASE_PING = 1,
    PHASE_LONG,
    PHASE_FIGURES,
} probe_phase;

static uint64_t probe_tag(probe_phase phase)
{
    return dp_transport_tag(MESSAGE_PROBE, 0, 0, 0, (uint32_t)phase);
}

// Square matrices of the device's elements.
struct matrices {
    struct dp_device *device;
    void *a, *b, *c;
};

static void matrices_deinit(struct matrices *m)
{
    m->device->ops->free(m->device, m->a);
    m->device->ops->free(m->device, m->b);
    m->device->ops->free(m->device, m->c);
}

static dp_status matrices_init(struct matrices *m, struct dp_error *err)
{
    struct dp_device *device = m->device;
    size_t bytes = (size_t)PRODUCT_SIZE * PRODUCT_SIZE * dp_element_bytes(device->element);
    void **all[] = {&m->a, &m->b, &m->c};
    dp_status status = DP_OK;
    for (size_t i = 0; status == DP_OK && i < DP_ARRAY_LENGTH(all); i++) {
        status = device->ops->alloc(device, DP_MEMORY_STAGING, bytes, all[i], err);
        if (status == DP_OK) {
            device->ops->fill(device->stream, *all[i], 0, bytes);
        }
    }
    return status;
}

// All of it counts, also what the first product needs beyond others: a rank that has next to no
// core is waited for no longer than that, and however little it computes, what it lacked shows.
static dp_status time_products(struct dp_device *device, struct dp_probe *probe,
                               struct dp_error *err)
{
    int64_t begin_ns = dp_clock_monotonic_ns(), begin_cpu_ns = dp_clock_thread_cpu_ns();
    DP_CLEANUP(matrices_deinit) struct matrices m = {.device = device};
    dp_status status = matrices_init(&m, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_gemm product = {.m = PRODUCT_SIZE,
                                    .n = PRODUCT_SIZE,
                                    .k = PRODUCT_SIZE,
                                    .a = m.a,
                                    .lda = PRODUCT_SIZE,
                                    .b = m.b,
                                    .ldb = PRODUCT_SIZE,
                                    .c = m.c,
                                    .ldc = PRODUCT_SIZE};
    int64_t took_ns = 0, count = 0;
    while (status == DP_OK && took_ns < PRODUCT_NS) {
        device->ops->gemm(device->stream, &product);
        status = device->ops->stream_sync(device->stream, err);
        took_ns = dp_clock_monotonic_ns() - begin_ns;
        count++;
    }
    if (status == DP_OK) {
        int64_t cpu_ns = dp_clock_thread_cpu_ns() - begin_cpu_ns;
        probe->product_ns = took_ns / count;
        probe->product_off_core_ns = dp_exec_off_core_ns(device, took_ns, cpu_ns) / count;
    }
    return status;
}

// The mean of some, whose noise is that of actions which no step has.
static int64_t sim_product_ns(const struct dp_exec_config *config, int64_t step)
{
    double factors = 0;
    for (uint64_t i = 0; i < SIM_PRODUCTS; i++) {
        factors += dp_sim_pace_action(config->pace, step, UINT32_MAX + i);
    }
    return (int64_t)((double)SIM_PRODUCT_NS * factors / SIM_PRODUCTS);
}

// Neighbours of one round; every rank finds the same rounds.
struct pair {
    int32_t a, b; // positions
    int32_t round;
};

static bool are_neighbours(const struct dp_schedule *schedule, int32_t a, int32_t b)
{
    for (int32_t s = 0; s + 1 < schedule->stages; s++) {
        for (int32_t d = 0; d < schedule->directions; d++) {
            int32_t from = schedule->placement[2 * s + d];
            int32_t to = schedule->placement[2 * (s + 1) + d];
            if ((from == a && to == b) || (from == b && to == a)) {
                return true;
            }
        }
    }
    return false;
}

// Each pair gets the first round in which both are free. The pairs of `position`, by round.
static int32_t plan_rounds(const struct dp_schedule *schedule, int32_t position,
                           struct pair ret_pairs[DP_PROBE_LINKS_MAX], int32_t *ret_rounds)
{
    uint64_t taken[DP_PIPELINE_MAX] = {0};
    int32_t count = 0, rounds = 0;
    for (int32_t a = 0; a < schedule->pipeline; a++) {
        for (int32_t b = a + 1; b < schedule->pipeline; b++) {
            uint64_t open = ~(taken[a] | taken[b]);
            if (open == 0 || !are_neighbours(schedule, a, b)) {
                continue;
            }
            int32_t round = __builtin_ctzll(open);
            taken[a] |= UINT64_C(1) << round;
            taken[b] |= UINT64_C(1) << round;
            rounds = round >= rounds ? round + 1 : rounds;
            if (position == a || position == b) {
                ret_pairs[count++] = (struct pair){.a = a, .b = b, .round = round};
            }
        }
    }
    *ret_rounds = rounds;
    return count;
}

// What one end does of a round trip.
static dp_status round_trip(struct dp_transport *transport, int32_t peer, bool begins,
                            probe_phase phase, void *bytes, size_t length, int64_t *ret_ns,
                            struct dp_error *err)
{
    int64_t start_ns = dp_clock_monotonic_ns();
    dp_status status = DP_OK;
    for (int half = 0; status == DP_OK && half < 2; half++) {
        status = (half == 0) == begins
                     ? dp_transport_send(transport, peer, probe_tag(phase), bytes, length, err)
                     : dp_transport_recv(transport, peer, probe_tag(phase), bytes, length, 0, err);
    }
    *ret_ns = dp_clock_monotonic_ns() - start_ns;
    return status;
}

// The least of some: on a machine that others use, too, a single one may have waited for a core.
static dp_status time_trips(struct dp_transport *transport, int32_t peer, bool begins,
                            probe_phase phase, void *bytes, size_t length, int64_t *ret_least_ns,
                            struct dp_error *err)
{
    int count = phase == PHASE_PING ? PINGS : LONGS;
    int64_t least_ns = INT64_MAX, took_ns = 0;
    dp_status status = DP_OK;
    for (int i = 0; status == DP_OK && i < count; i++) {
        status = round_trip(transport, peer, begins, phase, bytes, length, &took_ns, err);
        least_ns = took_ns < least_ns ? took_ns : least_ns;
    }
    *ret_least_ns = least_ns;
    return status;
}

static dp_status time_link(struct dp_transport *transport, int32_t peer, bool begins,
                           struct dp_probe_link *ret_link, struct dp_error *err)
{
    DP_AUTO_FREE char *bytes = dp_new_array(char, LONG_BYTES);
    int64_t least_ns = 0, took_ns = 0;
    dp_status status = time_trips(transport, peer, begins, PHASE_PING, bytes, 1, &least_ns, err);
    if (status == DP_OK) {
        status = time_trips(transport, peer, begins, PHASE_LONG, bytes, LONG_BYTES, &took_ns, err);
    }
    // What a long message takes beyond a short one.
    int64_t beyond_ns = took_ns > least_ns ? took_ns - least_ns : 1;
    *ret_link = (struct dp_probe_link){.peer = peer,
                                       .latency_ns = least_ns / 2,
                                       .bytes_per_s = 2.0 * LONG_BYTES * (double)DP_NS_PER_S /
                                                      (double)beyond_ns};
    if (status != DP_OK) {
        return status;
    }
    // The figures of the end that began are those of both.
    double figures[2] = {(double)ret_link->latency_ns, ret_link->bytes_per_s};
    status = begins ? dp_transport_send(transport, peer, probe_tag(PHASE_FIGURES), figures,
                                        sizeof(figures), err)
                    : dp_transport_recv(transport, peer, probe_tag(PHASE_FIGURES), figures,
                                        sizeof(figures), 0, err);
    ret_link->latency_ns = (int64_t)figures[0];
    ret_link->bytes_per_s = figures[1];
    return status;
}

// A hop of a sim rank is longer than the message that is really sent.
static void add_planned(const struct dp_exec *exec, int32_t position, int64_t step,
                        struct dp_probe_link *link)
{
    const struct dp_exec_config *config = &exec->config;
    double factor = dp_sim_pace_link(config->pace, step, link->peer);
    double hop_s = dp_sim_hop_at(config->costs, config->position, position)->latency * factor;
    link->latency_ns += (int64_t)(hop_s * (double)DP_NS_PER_S);
    link->bytes_per_s /= factor;
}

static dp_status probe_links(struct dp_exec *exec, int64_t step, struct dp_probe *probe,
                             struct dp_error *err)
{
    const struct dp_exec_config *config = &exec->config;
    struct pair pairs[DP_PROBE_LINKS_MAX];
    int32_t rounds = 0;
    int32_t count = plan_rounds(config->schedule, config->position, pairs, &rounds);
    dp_status status = DP_OK;
    // Rounds keep apart what a rank would do at once; ranks of other pairs need no waiting for.
    for (int32_t round = 0; status == DP_OK && round < rounds; round++) {
        for (int32_t i = 0; status == DP_OK && i < count; i++) {
            if (pairs[i].round != round) {
                continue;
            }
            bool begins = pairs[i].a == config->position;
            int32_t position = begins ? pairs[i].b : pairs[i].a;
            struct dp_probe_link *link = &probe->links[probe->links_count++];
            status = time_link(config->transport, exec_rank_of(exec, position), begins, link, err);
            if (status == DP_OK && config->device == NULL) {
                add_planned(exec, position, step, link);
            }
        }
    }
    return status;
}

dp_status dp_trainer_probe(struct dp_trainer *trainer, int64_t step, struct dp_probe *ret_probe,
                           struct dp_error *err)
{
    struct dp_exec *exec = trainer->exec;
    const struct dp_exec_config *config = &exec->config;
    struct dp_probe probe = {.product_flops = 2.0 * PRODUCT_SIZE * PRODUCT_SIZE * PRODUCT_SIZE};
    dp_status status = dp_group_barrier(dp_exec_world(exec), trainer_tag(CALL_PROBE), err);
    if (status == DP_OK && config->device == NULL) {
        probe.product_ns = sim_product_ns(config, step);
    } else if (status == DP_OK) {
        status = time_products(config->device, &probe, err);
    }
    if (status == DP_OK) {
        status = dp_group_barrier(dp_exec_world(exec), trainer_tag(CALL_PROBE), err);
    }
    if (status == DP_OK) {
        status = probe_links(exec, step, &probe, err);
    }
    if (status != DP_OK) {
        return dp_trainer_give_up(trainer, "the probe", status, err);
    }
    *ret_probe = probe;
    return DP_OK;
}
