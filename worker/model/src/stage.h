// The insides of stages and chunks, shared by the components.
#pragma once

#include "dp/model.h"
#include "pool.h"

// Offsets (elements) of a layer's tensors in the stage's flat buffers. q, k, v lie one after the
// other and act as one matrix; so do gate and up.
struct dp_layer_tensors {
    bool dense;
    int64_t attention_norm, qkv, output;
    int64_t ffn_norm;
    int64_t router;
    int64_t gate_up, down; // the dense FFN, or the shared expert
    int64_t experts;       // the first local expert: gate, up, down; the others follow
};

// Work space inside one pass of one component, shared by the stage's chunks.
typedef enum dp_scratch {
    DP_SCRATCH_NORMED,
    DP_SCRATCH_WIDE,
    DP_SCRATCH_GRAD,
    DP_SCRATCH_WEIGHT,
    DP_SCRATCH_SMALL,
    DP_SCRATCH_COUNT
} dp_scratch;

struct dp_stage {
    struct dp_stage_config config;
    struct dp_device *device;
    size_t element_bytes;
    int32_t layer_count;
    int32_t local_experts, shared_width, qkv_width, q_width;
    struct dp_component *components;
    int32_t component_count;
    struct dp_tensor *tensors;
    int32_t tensor_count;
    int64_t parameter_count, expert_offset;
    struct dp_layer_tensors *layers;
    int64_t embedding, head_norm, head_output;
    void *weights, *gradients;
    void *rope_table; // [sequence, head_dim]
    struct dp_pool pool;
    struct {
        void *memory;
        size_t bytes;
    } scratch[DP_SCRATCH_COUNT];
    int64_t live_bytes, peak_bytes;
};

// A buffer that a chunk holds; empty when memory is NULL.
struct dp_slot {
    void *memory;
    int64_t bytes;
};

// What a chunk keeps for one layer between passes. T tokens, R routed rows, names of widths as in
// struct dp_model_spec. "becomes" says what INPUT leaves there for WEIGHT.
struct dp_layer_state {
    // ATTENTION
    struct dp_slot x, rstd;       // [T, hidden], [T]
    struct dp_slot qkv;           // [T, qkv]; becomes its gradient
    struct dp_slot attended, lse; // [T, q], [T, heads]
    struct dp_slot dy, dgain;     // INPUT: [T, hidden], [hidden]
    // FFN, and DISPATCH with the shared expert
    struct dp_slot ffn_x, ffn_rstd;   // [T, hidden], [T]
    struct dp_slot gate_up;           // [T, 2 width]; becomes its gradient
    struct dp_slot active;            // INPUT: [T, width]
    struct dp_slot ffn_dy, ffn_dgain; // INPUT
    struct dp_slot dnormed;           // INPUT, from EXPERTS to DISPATCH: [T, hidden]
    // DISPATCH
    struct dp_slot probabilities; // [T, experts]; becomes the gradient of the logits
    struct dp_slot index, row_of; // int32 [T, top_k]
    // EXPERTS
    struct dp_slot rows_x, rows_weight;  // [R, hidden], [R]
    struct dp_slot rows_gate_up;         // [R, 2 expert_ffn]; becomes its gradient
    struct dp_slot rows_active, rows_dy; // INPUT: [R, expert_ffn], [R, hidden]
    // Between EXPERTS and the way back: forward the outputs, INPUT the gradients of rows_x and
    // rows_weight.
    struct dp_slot back_rows, back_weight;
    // Host: rows sent to each expert [experts], and received [ep_size, local experts].
    int32_t *sent, *received;
};

// The all-to-all of the component between begin and end.
struct dp_exchange_state {
    bool counts_pending, counts_received, rows_pending;
    bool to_owner; // from the tokens' rank to the experts' rank, or back
    int32_t layer; // in the stage
    int64_t row_elements;
    struct dp_slot send, recv;
    size_t *send_bytes, *recv_bytes; // [ep_size]
    int64_t *cursor;                 // [local experts]
};

struct dp_chunk {
    struct dp_stage *stage;
    int32_t samples;
    int64_t tokens;
    double loss_scale, loss_sum;
    int64_t live_bytes;
    struct dp_slot token_ids, target_ids; // int32 [T]
    struct dp_slot x, dx;                 // the activation and the gradient on their way
    struct dp_slot head_x, head_rstd, logits, lse, head_dgain;
    struct dp_slot embedding_dy;
    struct dp_layer_state *layers;
    int32_t *counts; // what the layers' sent and received point into
    int64_t *routed_rows;
    struct dp_exchange_state exchange;
};

// One component's passes; a missing function has nothing to do. `layer` is in the stage.
struct dp_component_ops {
    const char *name;
    dp_status (*begin[3])(struct dp_chunk *chunk, int32_t layer, struct dp_error *err);
    dp_status (*end[3])(struct dp_chunk *chunk, int32_t layer, struct dp_error *err);
};
extern const struct dp_component_ops dp_component_embedding, dp_component_attention,
    dp_component_ffn, dp_component_dispatch, dp_component_experts, dp_component_combine,
    dp_component_head;

// tensors.c: fills in the table and the offsets; draws the weights.
void dp_stage_lay_out_tensors(struct dp_stage *stage);
void dp_stage_draw_weights(struct dp_stage *stage);

// slots.c
struct dp_take {
    struct dp_slot *slot;
    int64_t bytes;
};
// Fills empty slots with memory from the pool, content undefined.
dp_status dp_chunk_take(struct dp_chunk *chunk, const struct dp_take *takes, size_t count,
                        struct dp_error *err);
void dp_chunk_drop(struct dp_chunk *chunk, struct dp_slot *slot);
// Leaves `from` empty; `to` must be.
void dp_slot_move(struct dp_slot *from, struct dp_slot *to);
int64_t dp_chunk_real_bytes(const struct dp_chunk *chunk, int64_t elements);
// Undefined content (NaN when poisoned), valid until the component's pass ends.
dp_status dp_stage_scratch(struct dp_stage *stage, dp_scratch which, int64_t elements,
                           void **ret_memory, struct dp_error *err);

// linear.c: y[rows, out] = x[rows, in] * w^T with w[out, in] at `offset` of the weights.
struct dp_linear {
    int64_t offset, rows, in, out;
};
void *dp_stage_weight_at(const struct dp_stage *stage, int64_t offset);
void *dp_stage_gradient_at(const struct dp_stage *stage, int64_t offset);
void *dp_element_at(const struct dp_stage *stage, void *base, int64_t elements);
void dp_linear_forward(struct dp_stage *stage, const struct dp_linear *linear, const void *x,
                       void *y, bool accumulate);
void dp_linear_input_grad(struct dp_stage *stage, const struct dp_linear *linear, const void *dy,
                          void *dx, bool accumulate);
void dp_linear_weight_grad(struct dp_stage *stage, const struct dp_linear *linear, const void *dy,
                           const void *x);

// linear.c: a SwiGLU FFN of `rows` rows, y (+)= down(weight * silu(gate(x)) * up(x)), with gate and
// up at `gate_up` and down at `down`.
struct dp_gated {
    int64_t gate_up, down, rows, width;
};
// weight [rows] may be NULL. gate_up [rows, 2 width] is saved for input_grad, which leaves its
// gradient there and `active` [rows, width] for weight_grad.
dp_status dp_gated_forward(struct dp_stage *stage, const struct dp_gated *gated, const void *x,
                           const void *weight, void *gate_up, void *y, bool accumulate,
                           struct dp_error *err);
dp_status dp_gated_input_grad(struct dp_stage *stage, const struct dp_gated *gated, const void *dy,
                              const void *weight, void *gate_up, void *dweight, void *active,
                              void *dx, struct dp_error *err);
void dp_gated_weight_grad(struct dp_stage *stage, const struct dp_gated *gated, const void *dy,
                          const void *x, const void *dgate_up, const void *active);

// A norm with its gain at `offset`.
struct dp_rmsnorm dp_chunk_norm(const struct dp_chunk *chunk, int64_t offset,
                                const struct dp_slot *x, const struct dp_slot *rstd);
// The end of INPUT of a component y = x + f(norm(x)): dx = dy + norm's gradient of dnormed, and the
// gain's gradient in the empty slot dgain. chunk->dx must be empty and gets dx.
dp_status dp_chunk_residual_grad(struct dp_chunk *chunk, const struct dp_rmsnorm *norm,
                                 const struct dp_slot *dy, const void *dnormed,
                                 struct dp_slot *dgain, struct dp_error *err);

// exchange.c: rows (and one scalar a row, where `scalars` is not NULL) change sides between the
// rank of their tokens and the rank that owns their expert. The token side has them in the order
// (expert, slot), the owner in the order (local expert, source rank, slot). begin empties the
// slots, end fills them again. With one peer both orders are the same and the slots stay as they
// are.
dp_status dp_exchange_begin(struct dp_chunk *chunk, int32_t layer, bool to_owner,
                            struct dp_slot *rows, struct dp_slot *scalars, struct dp_error *err);
// Asks for the counts to be exchanged before the rows.
void dp_exchange_counts_first(struct dp_chunk *chunk, int32_t layer);
dp_status dp_exchange_end(struct dp_chunk *chunk, struct dp_slot *rows, struct dp_slot *scalars,
                          struct dp_error *err);
int64_t dp_chunk_sent_rows(const struct dp_chunk *chunk); // by every MoE layer: T * top_k
