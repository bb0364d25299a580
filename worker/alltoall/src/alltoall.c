#include "dp/alltoall.h"

#include <endian.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "dp/cond.h"

#include "engine.h"

#define CHUNK_BYTES (256ll << 10)
// Tags of messages, with the window's id: the last group of collectives but one, which nobody uses.
#define BYTES_TAG 0xfffffffe00000000u

static dp_status check(const struct dp_alltoall_config *config, struct dp_error *err)
{
    int32_t world = dp_transport_world(config->transport);
    bool is_member = false;
    for (int32_t i = 0; i < config->count; i++) {
        int32_t rank = config->ranks[i];
        if (rank < 0 || rank >= world || (i > 0 && rank <= config->ranks[i - 1])) {
            return dp_fail(err, DP_INVALID,
                           "all-to-all: member %d is rank %d; members are distinct ranks below %d "
                           "in ascending order",
                           i, rank, world);
        }
        is_member = is_member || rank == dp_transport_rank(config->transport);
    }
    if (!is_member) {
        return dp_fail(err, DP_INVALID, "all-to-all: rank %d is no member",
                       dp_transport_rank(config->transport));
    }
    if (config->experts < config->count || config->experts > DP_EXPERTS_MAX ||
        config->experts % config->count != 0) {
        return dp_fail(err, DP_INVALID,
                       "all-to-all: %d experts on %d ranks; each has the same number of them",
                       config->experts, config->count);
    }
    return DP_OK;
}

static void set_widths(struct dp_alltoall *alltoall)
{
    int64_t element = (int64_t)dp_element_bytes(alltoall->element);
    int64_t real = (int64_t)dp_element_bytes(dp_element_real(alltoall->element));
    int64_t scales =
        (alltoall->hidden + DP_ALLTOALL_SCALE_ELEMENTS - 1) / DP_ALLTOALL_SCALE_ELEMENTS;
    alltoall->widths = (struct dp_alltoall_widths){
        .row = alltoall->hidden * element,
        .scales = scales * (int64_t)sizeof(float),
        .index = alltoall->top_k * (int64_t)sizeof(int32_t),
        .weights = alltoall->top_k * real,
    };
}

static struct dp_alltoall *new_alltoall(const struct dp_alltoall_config *config)
{
    struct dp_alltoall *alltoall = dp_new(struct dp_alltoall);
    *alltoall = (struct dp_alltoall){
        .exchanger = dp_alltoall_calls,
        .element = config->element,
        .experts = config->experts,
        .top_k = config->top_k,
        .limited_nodes = config->limited_nodes,
        .depth = config->depth > 0 ? config->depth : 1,
        .hidden = config->hidden,
        .tokens_max = config->tokens_max,
        .blocked_ns = (config->blocked_ms > 0 ? config->blocked_ms : DP_TRANSPORT_BLOCKED_MS_MAX) *
                      DP_NS_PER_MS,
        .epoch = config->epoch,
        .transport = config->transport,
    };
    alltoall->exchanger.context = alltoall;
    alltoall->queue_end = &alltoall->queue;
    pthread_mutex_init(&alltoall->mutex, NULL);
    dp_cond_init(&alltoall->changed);
    return alltoall;
}

static void free_lane(struct lane *lane)
{
    if (lane->round != NULL) {
        struct dp_routing *routing = lane->round->routing;
        dp_round_free(lane->round);
        dp_routing_unuse(routing);
    }
    free(lane->peers);
    free(lane->arrived);
    free(lane->inbound);
    free(lane->partial);
    free(lane->returned);
    free(lane->totals);
    free(lane->total_weights);
}

void dp_alltoall_free(struct dp_alltoall *alltoall)
{
    if (alltoall == NULL) {
        return;
    }
    DP_CHECK(!alltoall->is_running);
    for (int i = 0; i < 4 * DP_ALLTOALL_DEPTH_MAX; i++) {
        free_lane(&alltoall->lanes[i / DP_ALLTOALL_DEPTH_MAX][i % DP_ALLTOALL_DEPTH_MAX]);
    }
    while (alltoall->queue != NULL) {
        struct round *round = alltoall->queue;
        struct dp_routing *routing = round->routing;
        alltoall->queue = round->next;
        dp_round_free(round);
        dp_routing_unuse(routing);
    }
    dp_window_close(alltoall->window);
    if (alltoall->device != NULL) {
        dp_device_close(alltoall->device);
    }
    dp_alltoall_topology_deinit(&alltoall->topology);
    free(alltoall->sources);
    free(alltoall->links);
    free(alltoall->staging);
    free(alltoall->terms);
    free(alltoall->cursors);
    free(alltoall->peer_bytes);
    pthread_cond_destroy(&alltoall->changed);
    pthread_mutex_destroy(&alltoall->mutex);
    free(alltoall);
}

static void make_lanes(struct dp_alltoall *alltoall)
{
    size_t ranks = (size_t)alltoall->topology.ranks;
    for (int32_t i = 0; i < 4 * alltoall->depth; i++) {
        struct lane *lane = &alltoall->lanes[i / alltoall->depth][i % alltoall->depth];
        *lane = (struct lane){
            .move = (dp_move)(i / alltoall->depth),
            .index = (uint32_t)(i % alltoall->depth),
            .areas = &alltoall->regions.lanes[i / alltoall->depth][i % alltoall->depth],
            .peers = dp_new_array(struct lane_peer, ranks),
            .arrived = dp_new_array(int64_t, ranks),
            .inbound = dp_new_array(int64_t, ranks),
            .partial = dp_new_array(int64_t, ranks * (size_t)alltoall->node_ranks),
            .returned = dp_new_array(int64_t, (size_t)alltoall->topology.nodes),
        };
    }
}

static void find_members(struct dp_alltoall *alltoall, const struct dp_alltoall_config *config)
{
    const struct dp_alltoall_topology *topology = &alltoall->topology;
    for (int32_t i = 0; i < config->count; i++) {
        alltoall->self =
            config->ranks[i] == dp_transport_rank(config->transport) ? i : alltoall->self;
    }
    int32_t self = alltoall->self;
    alltoall->node = topology->node[self];
    alltoall->node_ranks = dp_alltoall_node_ranks(topology, alltoall->node);
    alltoall->served = dp_alltoall_served(topology, self);
    alltoall->sources = dp_new_array(int32_t, (size_t)alltoall->served + 1);
    alltoall->sources[0] = self;
    alltoall->links = dp_new_array(struct link, (size_t)topology->ranks);
    alltoall->terms = dp_alloc((size_t)topology->ranks, sizeof alltoall->terms[0]);
    alltoall->cursors = dp_new_array(int64_t, (size_t)alltoall->node_ranks);
    alltoall->peer_bytes = dp_new_array(uint64_t, (size_t)topology->ranks);
    for (int32_t i = 0; i < topology->ranks; i++) {
        int32_t place = dp_alltoall_served_place(topology, self, i);
        struct link *link = &alltoall->links[i];
        link->rank = config->ranks[i];
        link->is_near = topology->node[i] == alltoall->node;
        link->is_linked = link->is_near || place >= 0 ||
                          dp_alltoall_forwarder(topology, self, topology->node[i]) == i;
        if (place >= 0) {
            alltoall->sources[place + 1] = i;
        }
    }
}

// A peer's size, which must not make this rank open more than it may.
static dp_status check_bytes(int32_t peer, int64_t bytes, int64_t limit, struct dp_error *err)
{
    if (bytes <= 0) {
        return dp_fail(err, DP_INTERNAL, "rank %d tells of a window of %lld bytes", peer,
                       (long long)bytes);
    }
    if (bytes > limit) {
        return dp_fail(err, DP_TOO_LARGE,
                       "rank %d needs a window of %lld bytes where %lld may be used; smaller "
                       "micro-batches need less",
                       peer, (long long)bytes, (long long)limit);
    }
    return DP_OK;
}

// All ranks of the transport open windows of one size, also where their groups lie on nodes in
// other ways and so need less.
static dp_status agree_on_bytes(struct dp_alltoall *alltoall, uint32_t id, int64_t limit,
                                int64_t deadline_ns, int64_t *ret_bytes, struct dp_error *err)
{
    struct dp_transport *transport = alltoall->transport;
    int64_t most = alltoall->regions.bytes;
    uint64_t mine = htole64((uint64_t)most), theirs;
    dp_status status = DP_OK;
    for (int32_t i = 0; i < dp_transport_world(transport) && status == DP_OK; i++) {
        if (i != dp_transport_rank(transport)) {
            status = dp_transport_send(transport, i, BYTES_TAG | id, &mine, sizeof mine, err);
        }
    }
    for (int32_t i = 0; i < dp_transport_world(transport) && status == DP_OK; i++) {
        if (i != dp_transport_rank(transport)) {
            status = dp_transport_recv(transport, i, BYTES_TAG | id, &theirs, sizeof theirs,
                                       deadline_ns, err);
        }
        if (status == DP_OK && i != dp_transport_rank(transport)) {
            int64_t bytes = (int64_t)le64toh(theirs);
            status = check_bytes(i, bytes, limit, err);
            most = bytes > most ? bytes : most;
        }
    }
    *ret_bytes = most;
    return status;
}

static dp_status open_window(struct dp_alltoall *alltoall, uint32_t id, int64_t limit,
                             int64_t deadline_ns, struct dp_error *err)
{
    int64_t bytes = 0;
    dp_status status = agree_on_bytes(alltoall, id, limit, deadline_ns, &bytes, err);
    if (status == DP_OK) {
        status = dp_window_open(alltoall->transport, id, (size_t)bytes, deadline_ns,
                                &alltoall->window, err);
    }
    if (status != DP_OK) {
        return dp_fail_in(err, "all-to-all");
    }
    alltoall->memory = dp_window_memory(alltoall->window);
    for (int32_t i = 0; i < alltoall->topology.ranks; i++) {
        struct link *link = &alltoall->links[i];
        link->memory =
            i == alltoall->self ? alltoall->memory : dp_window_map(alltoall->window, link->rank);
    }
    return DP_OK;
}

dp_status dp_alltoall_open(const struct dp_alltoall_config *config, int64_t deadline_ns,
                           struct dp_alltoall **ret_alltoall, struct dp_error *err)
{
    dp_status status = check(config, err);
    if (status != DP_OK) {
        return status;
    }
    struct dp_alltoall *alltoall = new_alltoall(config);
    status = dp_alltoall_topology_init(&alltoall->topology, config->count, config->node_of, err);
    if (status == DP_OK) {
        struct dp_alltoall_sizes sizes = {
            .tokens_max = config->tokens_max,
            .hidden = config->hidden,
            .top_k = config->top_k,
            .element_bytes = (int32_t)dp_element_bytes(config->element),
            .real_bytes = (int32_t)dp_element_bytes(dp_element_real(config->element)),
            .depth = alltoall->depth,
        };
        status = dp_alltoall_regions_make(&alltoall->topology, &sizes, config->bytes_max,
                                          &alltoall->regions, err);
    }
    if (status == DP_OK) {
        set_widths(alltoall);
        find_members(alltoall, config);
        make_lanes(alltoall);
        int64_t chunk = config->chunk_bytes > 0 ? config->chunk_bytes : CHUNK_BYTES;
        int64_t rows = chunk / alltoall->widths.row, most = (1ll << NOTE_ROWS_BITS) - 1;
        alltoall->chunk_rows = rows < 1 ? 1 : rows > most ? most : rows;
        alltoall->stats.window_bytes = alltoall->regions.bytes;
        status = dp_device_open_cpu(config->element, &alltoall->device, err);
    }
    if (status == DP_OK) {
        int64_t limit = dp_alltoall_bytes_limit(config->bytes_max);
        status = open_window(alltoall, config->window, limit, deadline_ns, err);
    }
    if (status != DP_OK) {
        dp_alltoall_free(alltoall);
        return status;
    }
    *ret_alltoall = alltoall;
    return DP_OK;
}

dp_status dp_alltoall_close(struct dp_alltoall *alltoall, int64_t deadline_ns, struct dp_error *err)
{
    pthread_mutex_lock(&alltoall->mutex);
    alltoall->is_closing = true;
    pthread_mutex_unlock(&alltoall->mutex);
    dp_alltoall_wake(alltoall);
    bool is_late = false;
    dp_alltoall_count_waiter(alltoall, true);
    pthread_mutex_lock(&alltoall->mutex);
    // The thread that moves rows may not have come to run yet.
    while (!alltoall->has_ended && !is_late) {
        dp_cond_wait(&alltoall->changed, &alltoall->mutex, deadline_ns);
        is_late = dp_clock_monotonic_ns() >= deadline_ns;
    }
    is_late = !alltoall->has_ended;
    pthread_mutex_unlock(&alltoall->mutex);
    dp_alltoall_count_waiter(alltoall, false);
    if (!is_late) {
        return DP_OK;
    }
    static const char reason[] = "all-to-all: not all members closed in time";
    dp_alltoall_abort(alltoall, DP_TIMEOUT, reason);
    return dp_fail(err, DP_TIMEOUT, "%s", reason);
}

void dp_alltoall_abort(struct dp_alltoall *alltoall, dp_status status, const char *reason)
{
    DP_CHECK(status != DP_OK);
    struct dp_error err = {.status = status};
    DP_COPY_TEXT(err.message, reason);
    dp_alltoall_fail(alltoall, &err);
    dp_alltoall_wake(alltoall);
}

const struct dp_exchanger *dp_alltoall_exchanger(const struct dp_alltoall *alltoall)
{
    return &alltoall->exchanger;
}

void dp_alltoall_stats(struct dp_alltoall *alltoall, struct dp_alltoall_stats *ret_stats,
                       uint64_t *ret_peer_bytes)
{
    pthread_mutex_lock(&alltoall->mutex);
    *ret_stats = alltoall->stats;
    for (int32_t i = 0; i < alltoall->topology.ranks && ret_peer_bytes != NULL; i++) {
        ret_peer_bytes[i] = alltoall->peer_bytes[i];
    }
    pthread_mutex_unlock(&alltoall->mutex);
}
