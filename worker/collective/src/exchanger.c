#include "dp/group_exchanger.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"

#include "group.h"

struct dp_group_exchanger {
    struct dp_group_exchanger_config config;
    struct dp_exchanger interface;
    size_t element_bytes, real_bytes;
};

// One tensor that travels: a part for each peer, and the calls that both ends make for it.
struct travel {
    struct group_call call;
    void *own; // packed rows of the sender, kept for the part that stays here; NULL = the load's
    const void *sent;
    bool is_open;
};

// Parts are counted in tokens: those sent stand by (peer, token), those received by (source,
// token).
struct dp_routing {
    struct dp_group_exchanger *exchanger;
    uint64_t tag;
    int64_t tokens, sent, arrived;
    int64_t *sent_to, *received_from; // [peers]
    int32_t *sent_token;              // [sent] the own token behind each sent row
    int32_t *sent_expert;             // [sent, top_k] experts of the receiver from 0, or -1
    int32_t *row_of;                  // [tokens, peers] the sent row, or -1
    int32_t *expert;                  // [arrived, top_k]
    int32_t *counts;                  // [own experts]
    uint64_t *announced;              // [peers] counts as they arrive
    struct travel count, index, rows, weights;
    void *arrived_rows, *arrived_weights;
};

static int32_t peers_of(const struct dp_routing *routing)
{
    return routing->exchanger->config.group->count;
}

static int32_t local_experts(const struct dp_routing *routing)
{
    return routing->exchanger->config.experts / peers_of(routing);
}

// Bytes of each peer's part of `tokens` rows.
static size_t *part_bytes(const struct dp_routing *routing, const int64_t *tokens, size_t row_bytes)
{
    size_t *bytes = dp_new_array(size_t, (size_t)peers_of(routing));
    for (int32_t i = 0; i < peers_of(routing); i++) {
        bytes[i] = (size_t)tokens[i] * row_bytes;
    }
    return bytes;
}

static int64_t tokens_before(const int64_t *tokens, int32_t peer)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < peer; i++) {
        sum += tokens[i];
    }
    return sum;
}

// Posts `rows`, parts of which are `tokens` rows each. `own` is freed by the end of the travel.
static dp_status depart(struct dp_routing *routing, struct travel *travel, const int64_t *tokens,
                        size_t row_bytes, const void *rows, void *own, struct dp_error *err)
{
    struct dp_group *group = routing->exchanger->config.group;
    DP_AUTO_FREE size_t *bytes = part_bytes(routing, tokens, row_bytes);
    DP_CHECK(!travel->is_open);
    *travel = (struct travel){.call = dp_group_next_call(group, GROUP_EXCHANGE, routing->tag),
                              .own = own,
                              .sent = rows,
                              .is_open = true};
    return dp_group_send_parts(group, &travel->call, rows, bytes, false, err);
}

static void close_travel(struct travel *travel)
{
    free(travel->own);
    *travel = (struct travel){0};
}

// Receives into `rows`; the own part comes from what was sent.
static dp_status land(struct dp_routing *routing, struct travel *travel, const int64_t *from,
                      const int64_t *to, size_t row_bytes, void *rows, struct dp_error *err)
{
    struct dp_group *group = routing->exchanger->config.group;
    DP_AUTO_FREE size_t *bytes = part_bytes(routing, from, row_bytes);
    DP_CHECK(travel->is_open);
    const size_t length = bytes[group->self];
    if (length > 0) {
        memcpy((char *)rows + (size_t)tokens_before(from, group->self) * row_bytes,
               (const char *)travel->sent + (size_t)tokens_before(to, group->self) * row_bytes,
               length);
    }
    dp_status status = dp_group_receive_parts(group, &travel->call, rows, bytes, err);
    close_travel(travel);
    return status;
}

// Whether one of the token's experts is the peer's; writes its own numbers of them.
static bool goes_to(const struct dp_routing *routing, const int32_t *index, int32_t peer,
                    int32_t *ret_expert)
{
    const int32_t experts = local_experts(routing), first = peer * experts;
    bool goes = false;
    for (int32_t k = 0; k < routing->exchanger->config.top_k; k++) {
        const bool is_theirs = index[k] >= first && index[k] < first + experts;
        ret_expert[k] = is_theirs ? index[k] - first : -1;
        goes = goes || is_theirs;
    }
    return goes;
}

// Fixes which tokens go to which peer, in which order.
static void lay_out(struct dp_routing *routing, const int32_t *index)
{
    const int32_t peers = peers_of(routing), k = routing->exchanger->config.top_k;
    for (int32_t peer = 0; peer < peers; peer++) {
        for (int64_t t = 0; t < routing->tokens; t++) {
            int32_t *expert = routing->sent_expert + routing->sent * k;
            const bool goes = goes_to(routing, index + t * k, peer, expert);
            routing->row_of[t * peers + peer] = goes ? (int32_t)routing->sent : -1;
            if (goes) {
                routing->sent_token[routing->sent++] = (int32_t)t;
                routing->sent_to[peer]++;
            }
        }
    }
}

static dp_status announce(struct dp_routing *routing, struct dp_error *err)
{
    const int32_t peers = peers_of(routing);
    uint64_t *counts = dp_new_array(uint64_t, (size_t)peers);
    DP_AUTO_FREE int64_t *ones = dp_new_array(int64_t, (size_t)peers);
    for (int32_t i = 0; i < peers; i++) {
        counts[i] = htole64((uint64_t)routing->sent_to[i]);
        ones[i] = 1;
    }
    dp_status status = depart(routing, &routing->count, ones, sizeof(*counts), counts, counts, err);
    if (status == DP_OK) {
        const size_t row_bytes = (size_t)routing->exchanger->config.top_k * sizeof(int32_t);
        status = depart(routing, &routing->index, routing->sent_to, row_bytes, routing->sent_expert,
                        NULL, err);
    }
    return status;
}

static void release(struct dp_routing *routing)
{
    if (routing == NULL) {
        return;
    }
    close_travel(&routing->count);
    close_travel(&routing->index);
    close_travel(&routing->rows);
    close_travel(&routing->weights);
    free(routing->sent_to);
    free(routing->received_from);
    free(routing->sent_token);
    free(routing->sent_expert);
    free(routing->row_of);
    free(routing->expert);
    free(routing->counts);
    free(routing->announced);
    free(routing->arrived_rows);
    free(routing->arrived_weights);
    free(routing);
}

static dp_status route(void *context, uint64_t tag, int64_t tokens, const int32_t *index,
                       struct dp_routing **ret_routing, struct dp_error *err)
{
    struct dp_group_exchanger *exchanger = context;
    const size_t peers = (size_t)exchanger->config.group->count;
    const size_t k = (size_t)exchanger->config.top_k;
    struct dp_routing *routing = dp_new(struct dp_routing);
    routing->exchanger = exchanger;
    routing->tag = tag;
    routing->tokens = tokens;
    routing->sent_to = dp_new_array(int64_t, peers);
    routing->received_from = dp_new_array(int64_t, peers);
    routing->sent_token = dp_new_array(int32_t, (size_t)tokens * peers);
    // One row more than there can be: a token's experts are written before it is known to go.
    routing->sent_expert = dp_new_array(int32_t, ((size_t)tokens * peers + 1) * k);
    routing->row_of = dp_new_array(int32_t, (size_t)tokens * peers);
    routing->counts = dp_new_array(int32_t, (size_t)local_experts(routing));
    routing->announced = dp_new_array(uint64_t, peers);
    lay_out(routing, index);
    dp_status status = announce(routing, err);
    if (status == DP_OK) {
        *ret_routing = routing;
    } else {
        release(routing);
    }
    return status;
}

static size_t row_bytes_of(const struct dp_routing *routing)
{
    return (size_t)routing->exchanger->config.hidden * routing->exchanger->element_bytes;
}

static size_t weight_bytes_of(const struct dp_routing *routing)
{
    return (size_t)routing->exchanger->config.top_k * routing->exchanger->real_bytes;
}

// The rows of the tokens that are sent, one behind the other; the caller frees them.
static void *pack(const struct dp_routing *routing, const void *from, size_t row_bytes)
{
    char *packed = dp_new_array(char, (size_t)routing->sent *row_bytes);
    for (int64_t i = 0; i < routing->sent; i++) {
        memcpy(packed + (size_t)i * row_bytes,
               (const char *)from + (size_t)routing->sent_token[i] * row_bytes, row_bytes);
    }
    return packed;
}

// Weights of experts that the receiver does not have are none of its business.
static void clear_foreign(const struct dp_routing *routing, char *weights)
{
    const size_t bytes = routing->exchanger->real_bytes;
    const int64_t slots = routing->sent * routing->exchanger->config.top_k;
    for (int64_t i = 0; i < slots; i++) {
        if (routing->sent_expert[i] < 0) {
            memset(weights + (size_t)i * bytes, 0, bytes);
        }
    }
}

static bool is_to_experts(dp_move move)
{
    return move == DP_MOVE_DISPATCH || move == DP_MOVE_COMBINE_INPUT;
}

static dp_status begin_to_experts(struct dp_routing *routing, const struct dp_load *load,
                                  struct dp_error *err)
{
    void *rows = pack(routing, load->rows, row_bytes_of(routing));
    dp_status status =
        depart(routing, &routing->rows, routing->sent_to, row_bytes_of(routing), rows, rows, err);
    if (status == DP_OK && load->weights != NULL) {
        void *weights = pack(routing, load->weights, weight_bytes_of(routing));
        clear_foreign(routing, weights);
        status = depart(routing, &routing->weights, routing->sent_to, weight_bytes_of(routing),
                        weights, weights, err);
    }
    return status;
}

static dp_status begin_back(struct dp_routing *routing, const struct dp_load *load,
                            struct dp_error *err)
{
    dp_status status = depart(routing, &routing->rows, routing->received_from,
                              row_bytes_of(routing), load->rows, NULL, err);
    if (status == DP_OK && load->weights != NULL) {
        status = depart(routing, &routing->weights, routing->received_from,
                        weight_bytes_of(routing), load->weights, NULL, err);
    }
    return status;
}

static dp_status begin(struct dp_routing *routing, dp_move move, const struct dp_load *load,
                       struct dp_error *err)
{
    const struct dp_device *device = routing->exchanger->config.device;
    dp_status status = device->ops->stream_sync(device->stream, err);
    if (status != DP_OK) {
        return status;
    }
    return is_to_experts(move) ? begin_to_experts(routing, load, err)
                               : begin_back(routing, load, err);
}

static bool has_landed(const struct dp_routing *routing, const struct travel *travel)
{
    if (!travel->is_open) {
        return true;
    }
    const struct dp_group_pending pending = {.tag = travel->call.tag, .call = travel->call.number};
    return dp_group_exchange_ready(routing->exchanger->config.group, &pending);
}

static bool ready(struct dp_routing *routing, dp_move move)
{
    (void)move;
    return has_landed(routing, &routing->count) && has_landed(routing, &routing->index) &&
           has_landed(routing, &routing->rows) && has_landed(routing, &routing->weights);
}

static int64_t landed_ns(struct dp_routing *routing, dp_move move)
{
    (void)routing;
    (void)move;
    return 0;
}

// Learns how many tokens come from whom.
static dp_status land_counts(struct dp_routing *routing, struct dp_error *err)
{
    const int32_t peers = peers_of(routing);
    DP_AUTO_FREE int64_t *ones = dp_new_array(int64_t, (size_t)peers);
    for (int32_t i = 0; i < peers; i++) {
        ones[i] = 1;
    }
    dp_status status = land(routing, &routing->count, ones, ones, sizeof(*routing->announced),
                            routing->announced, err);
    for (int32_t i = 0; i < peers && status == DP_OK; i++) {
        const uint64_t tokens = le64toh(routing->announced[i]);
        if (tokens > (uint64_t)INT32_MAX / (uint64_t)peers) {
            return dp_fail(err, DP_INTERNAL, "expert rank %d announces %llu tokens", i,
                           (unsigned long long)tokens);
        }
        routing->received_from[i] = (int64_t)tokens;
        routing->arrived += (int64_t)tokens;
    }
    return status;
}

static dp_status land_index(struct dp_routing *routing, struct dp_error *err)
{
    const int32_t k = routing->exchanger->config.top_k, experts = local_experts(routing);
    const int64_t slots = routing->arrived * k;
    routing->expert = dp_new_array(int32_t, (size_t)slots);
    dp_status status = land(routing, &routing->index, routing->received_from, routing->sent_to,
                            (size_t)k * sizeof(int32_t), routing->expert, err);
    for (int64_t i = 0; i < slots && status == DP_OK; i++) {
        const int32_t expert = routing->expert[i];
        if (expert < -1 || expert >= experts) {
            return dp_fail(err, DP_INTERNAL, "a token was sent to expert %d of %d here", expert,
                           experts);
        }
        routing->counts[expert < 0 ? 0 : expert] += expert < 0 ? 0 : 1;
    }
    return status;
}

// Memory for what arrives, which `land` fills.
static dp_status land_arrivals(struct dp_routing *routing, struct travel *travel, size_t row_bytes,
                               void **ret_rows, struct dp_error *err)
{
    DP_CHECK(*ret_rows == NULL);
    *ret_rows = dp_new_array(char, (size_t)routing->arrived *row_bytes);
    return land(routing, travel, routing->received_from, routing->sent_to, row_bytes, *ret_rows,
                err);
}

static dp_status arrive(struct dp_routing *routing, dp_move move, struct dp_arrivals *ret_arrivals,
                        struct dp_error *err)
{
    dp_status status = DP_OK;
    if (move == DP_MOVE_DISPATCH) {
        status = land_counts(routing, err);
        status = status == DP_OK ? land_index(routing, err) : status;
    }
    if (status == DP_OK) {
        status = land_arrivals(routing, &routing->rows, row_bytes_of(routing),
                               &routing->arrived_rows, err);
    }
    if (status == DP_OK && move == DP_MOVE_DISPATCH) {
        status = land_arrivals(routing, &routing->weights, weight_bytes_of(routing),
                               &routing->arrived_weights, err);
    }
    if (status == DP_OK) {
        *ret_arrivals = (struct dp_arrivals){.tokens = routing->arrived,
                                             .rows = routing->arrived_rows,
                                             .weights = routing->arrived_weights,
                                             .expert = routing->expert,
                                             .counts = routing->counts};
    }
    return status;
}

static void finish(struct dp_routing *routing, dp_move move)
{
    (void)move;
    free(routing->arrived_rows);
    free(routing->arrived_weights);
    routing->arrived_rows = NULL;
    routing->arrived_weights = NULL;
}

// Receives the partial rows and adds them up, ranks ascending.
static dp_status collect_sums(struct dp_routing *routing, struct travel *travel,
                              const struct dp_rows *rows, size_t row_bytes, void *sums,
                              struct dp_error *err)
{
    const struct dp_device *device = routing->exchanger->config.device;
    DP_AUTO_FREE char *parts = dp_new_array(char, (size_t)routing->sent *row_bytes);
    dp_status status =
        land(routing, travel, routing->sent_to, routing->received_from, row_bytes, parts, err);
    if (status != DP_OK) {
        return status;
    }
    device->ops->collect_rows(device->stream, rows, peers_of(routing), false, routing->row_of,
                              parts, sums);
    return device->ops->stream_sync(device->stream, err);
}

static dp_status collect(struct dp_routing *routing, dp_move move, void *rows, void *weights,
                         struct dp_error *err)
{
    const struct dp_rows hidden = {.rows = routing->tokens,
                                   .cols = routing->exchanger->config.hidden};
    const struct dp_rows slots = {.rows = routing->tokens,
                                  .cols = routing->exchanger->config.top_k,
                                  .from_kind = DP_OPERAND_REAL,
                                  .to_kind = DP_OPERAND_REAL};
    dp_status status =
        collect_sums(routing, &routing->rows, &hidden, row_bytes_of(routing), rows, err);
    if (status == DP_OK && move == DP_MOVE_DISPATCH_INPUT) {
        status = collect_sums(routing, &routing->weights, &slots, weight_bytes_of(routing), weights,
                              err);
    }
    return status;
}

struct dp_group_exchanger *dp_group_exchanger_new(const struct dp_group_exchanger_config *config)
{
    DP_CHECK(config->hidden > 0 && config->experts % config->group->count == 0);
    struct dp_group_exchanger *exchanger = dp_new(struct dp_group_exchanger);
    exchanger->config = *config;
    exchanger->element_bytes = dp_element_bytes(config->device->element);
    exchanger->real_bytes = dp_device_real_bytes(config->device);
    exchanger->interface = (struct dp_exchanger){.context = exchanger,
                                                 .route = route,
                                                 .release = release,
                                                 .begin = begin,
                                                 .ready = ready,
                                                 .landed_ns = landed_ns,
                                                 .arrive = arrive,
                                                 .finish = finish,
                                                 .collect = collect};
    return exchanger;
}

void dp_group_exchanger_free(struct dp_group_exchanger *exchanger)
{
    free(exchanger);
}

struct dp_exchanger *dp_group_exchanger_interface(struct dp_group_exchanger *exchanger)
{
    return &exchanger->interface;
}
