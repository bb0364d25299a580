#include <string.h>

#include "dp/check.h"
#include "stage.h"

int64_t dp_chunk_sent_rows(const struct dp_chunk *chunk)
{
    return chunk->tokens * chunk->stage->config.model.top_k;
}

// Rows that go to, or come from, one peer; counts are [ep_size, local experts].
static int64_t peer_rows(const struct dp_stage *stage, const int32_t *counts, int32_t peer)
{
    int64_t rows = 0;
    for (int32_t e = 0; e < stage->local_experts; e++) {
        rows += counts[peer * stage->local_experts + e];
    }
    return rows;
}

// Counts of the side that sends or receives: the tokens' side knows what it sent, the owner's what
// it received.
static const int32_t *counts_of(const struct dp_chunk *chunk, bool owner)
{
    const struct dp_layer_state *state = &chunk->layers[chunk->exchange.layer];
    return owner ? state->received : state->sent;
}

// A side's arrays beside the buffer that travels. A peer's part of the buffer is its rows, then
// their scalars.
struct layout {
    struct dp_chunk *chunk;
    bool owner, to_buffer;
    void *rows, *scalars, *buffer;
};

static void move(const struct layout *l, int64_t array_at, int64_t buffer_at, void *array,
                 int64_t elements)
{
    struct dp_stage *stage = l->chunk->stage;
    void *a = dp_element_at(stage, array, array_at);
    void *b = dp_element_at(stage, l->buffer, buffer_at);
    stage->device->ops->copy(stage->device->stream, l->to_buffer ? b : a, l->to_buffer ? a : b,
                             (size_t)elements * stage->element_bytes);
}

// A run of rows: at array_row of the arrays, at row `at` of the part that starts at `part` and has
// part_rows rows.
static void move_run(const struct layout *l, int64_t array_row, int64_t part, int64_t part_rows,
                     int64_t at, int64_t rows)
{
    const int64_t hidden = l->chunk->stage->config.model.hidden;
    move(l, array_row * hidden, part + at * hidden, l->rows, rows * hidden);
    if (l->scalars != NULL) {
        move(l, array_row, part + part_rows * hidden + at, l->scalars, rows);
    }
}

static void set_cursor(const struct layout *l, const int32_t *counts)
{
    const struct dp_stage *stage = l->chunk->stage;
    int64_t row = 0;
    for (int32_t e = 0; e < stage->local_experts; e++) {
        l->chunk->exchange.cursor[e] = row;
        for (int32_t peer = 0; peer < stage->config.ep_size; peer++) {
            row += counts[peer * stage->local_experts + e];
        }
    }
}

static void move_all(const struct layout *l)
{
    const struct dp_stage *stage = l->chunk->stage;
    const int32_t *counts = counts_of(l->chunk, l->owner);
    int64_t *cursor = l->chunk->exchange.cursor;
    int64_t part = 0, token_row = 0;
    set_cursor(l, counts);
    for (int32_t peer = 0; peer < stage->config.ep_size; peer++) {
        const int64_t part_rows = peer_rows(stage, counts, peer);
        if (l->owner) {
            int64_t at = 0;
            for (int32_t e = 0; e < stage->local_experts; e++) {
                const int64_t rows = counts[peer * stage->local_experts + e];
                move_run(l, cursor[e], part, part_rows, at, rows);
                cursor[e] += rows;
                at += rows;
            }
        } else {
            move_run(l, token_row, part, part_rows, 0, part_rows);
        }
        token_row += part_rows;
        part += part_rows * l->chunk->exchange.row_elements;
    }
}

static int64_t side_rows(const struct dp_chunk *chunk, bool owner)
{
    return owner ? chunk->routed_rows[chunk->exchange.layer] : dp_chunk_sent_rows(chunk);
}

static void set_bytes(const struct dp_chunk *chunk, bool owner, size_t *bytes)
{
    const struct dp_stage *stage = chunk->stage;
    for (int32_t peer = 0; peer < stage->config.ep_size; peer++) {
        int64_t rows = peer_rows(stage, counts_of(chunk, owner), peer);
        bytes[peer] = (size_t)(rows * chunk->exchange.row_elements) * stage->element_bytes;
    }
}

dp_status dp_exchange_begin(struct dp_chunk *chunk, int32_t layer, bool to_owner,
                            struct dp_slot *rows, struct dp_slot *scalars, struct dp_error *err)
{
    struct dp_exchange_state *x = &chunk->exchange;
    if (chunk->stage->config.ep_size == 1) {
        return DP_OK;
    }
    x->layer = layer;
    x->to_owner = to_owner;
    x->rows_pending = true;
    x->row_elements = chunk->stage->config.model.hidden + (scalars != NULL ? 1 : 0);
    const struct dp_take take = {
        &x->send, dp_chunk_real_bytes(chunk, side_rows(chunk, !to_owner) * x->row_elements)};
    dp_status status = dp_chunk_take(chunk, &take, 1, err);
    if (status != DP_OK) {
        return status;
    }
    const struct layout layout = {.chunk = chunk,
                                  .owner = !to_owner,
                                  .to_buffer = true,
                                  .rows = rows->memory,
                                  .scalars = scalars != NULL ? scalars->memory : NULL,
                                  .buffer = x->send.memory};
    move_all(&layout);
    set_bytes(chunk, !to_owner, x->send_bytes);
    dp_chunk_drop(chunk, rows);
    if (scalars != NULL) {
        dp_chunk_drop(chunk, scalars);
    }
    return DP_OK;
}

static void count_routed(struct dp_chunk *chunk, int32_t layer)
{
    const struct dp_stage *stage = chunk->stage;
    const struct dp_layer_state *state = &chunk->layers[layer];
    chunk->routed_rows[layer] = 0;
    for (int32_t i = 0; i < stage->config.model.experts; i++) {
        DP_CHECK(state->received[i] >= 0);
        chunk->routed_rows[layer] += state->received[i];
    }
}

void dp_exchange_counts_first(struct dp_chunk *chunk, int32_t layer)
{
    struct dp_layer_state *state = &chunk->layers[layer];
    if (chunk->stage->config.ep_size > 1) {
        chunk->exchange.counts_pending = true;
        return;
    }
    memcpy(state->received, state->sent,
           (size_t)chunk->stage->config.model.experts * sizeof(int32_t));
    count_routed(chunk, layer);
}

dp_status dp_exchange_end(struct dp_chunk *chunk, struct dp_slot *rows, struct dp_slot *scalars,
                          struct dp_error *err)
{
    struct dp_exchange_state *x = &chunk->exchange;
    if (chunk->stage->config.ep_size == 1) {
        return DP_OK;
    }
    DP_CHECK(!x->counts_pending && !x->rows_pending);
    const int64_t count = side_rows(chunk, x->to_owner);
    const int64_t hidden = chunk->stage->config.model.hidden;
    const struct dp_take takes[] = {{rows, dp_chunk_real_bytes(chunk, count * hidden)},
                                    {scalars, dp_chunk_real_bytes(chunk, count)}};
    dp_status status = dp_chunk_take(chunk, takes, scalars != NULL ? 2 : 1, err);
    if (status != DP_OK) {
        return status;
    }
    const struct layout layout = {.chunk = chunk,
                                  .owner = x->to_owner,
                                  .rows = rows->memory,
                                  .scalars = scalars != NULL ? scalars->memory : NULL,
                                  .buffer = x->recv.memory};
    move_all(&layout);
    dp_chunk_drop(chunk, &x->send);
    dp_chunk_drop(chunk, &x->recv);
    return DP_OK;
}

static void hand_out_counts(struct dp_chunk *chunk, struct dp_exchange *ret_exchange)
{
    struct dp_exchange_state *x = &chunk->exchange;
    const struct dp_layer_state *state = &chunk->layers[x->layer];
    // The bytes of the counts are lent from the receive side's array, which is set again later.
    for (int32_t peer = 0; peer < chunk->stage->config.ep_size; peer++) {
        x->recv_bytes[peer] = (size_t)chunk->stage->local_experts * sizeof(int32_t);
    }
    ret_exchange->host = true;
    ret_exchange->send = state->sent;
    ret_exchange->send_bytes = x->recv_bytes;
    ret_exchange->recv = state->received;
    ret_exchange->recv_bytes = x->recv_bytes;
    x->counts_pending = false;
}

dp_status dp_chunk_exchange(struct dp_chunk *chunk, struct dp_exchange *ret_exchange,
                            bool *ret_more, struct dp_error *err)
{
    struct dp_exchange_state *x = &chunk->exchange;
    struct dp_exchange exchange = {.peers = chunk->stage->config.ep_size,
                                   .self = chunk->stage->config.ep_rank};
    *ret_more = x->counts_pending || x->rows_pending;
    if (x->counts_pending) {
        hand_out_counts(chunk, &exchange);
        x->counts_received = true;
    } else if (x->rows_pending) {
        if (x->counts_received) {
            count_routed(chunk, x->layer);
            x->counts_received = false;
        }
        const struct dp_take take = {
            &x->recv, dp_chunk_real_bytes(chunk, side_rows(chunk, x->to_owner) * x->row_elements)};
        dp_status status = dp_chunk_take(chunk, &take, 1, err);
        if (status != DP_OK) {
            return status;
        }
        set_bytes(chunk, x->to_owner, x->recv_bytes);
        exchange.send = x->send.memory;
        exchange.send_bytes = x->send_bytes;
        exchange.recv = x->recv.memory;
        exchange.recv_bytes = x->recv_bytes;
        x->rows_pending = false;
    }
    *ret_exchange = exchange;
    return DP_OK;
}
