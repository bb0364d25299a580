// The insides of stages and chunks, shared by the components.
#pragma once

#include "dp/model.h"
#include "pool.h"

// Offsets (elements) of a layer's tensors in the stage's flat buffers. q, k, v lie one after the
// other and act as one matrix; so do gate and up.
struct dp_layer_tensors {
    bool dense;
    int64_t attention_norm, output;
    int64_t qkv; // of latent attention what makes the queries, from their latent if there is one
    int64_t q_down, q_norm, kv_down, kv_norm, kv_up; // latent attention
    int64_t k_norm;                                  // with q_norm: of each head
    int64_t qkv_bias, kv_bias, output_bias, sinks;
    int64_t ffn_norm;
    int64_t router, shared_gate;
    int64_t gate_up, down; // the dense FFN, or the shared expert
    int64_t experts;       // the first local expert: gate, up, down; the others follow
    int32_t expert_tensor; // of its gate in the table
};

// Work space inside one pass of one component, shared by the stage's chunks.
typedef enum dp_scratch {
    DP_SCRATCH_NORMED,
    DP_SCRATCH_WIDE,
    DP_SCRATCH_GRAD,
    DP_SCRATCH_SMALL,
    DP_SCRATCH_KEYS,   // of attention, where they do not lie in what is kept
    DP_SCRATCH_LATENT, // a normed latent, or its gradient
    DP_SCRATCH_ZEROS,  // indices
    DP_SCRATCH_FP8_A,
    DP_SCRATCH_FP8_B,
    DP_SCRATCH_COUNT
} dp_scratch;

// A matrix of the weights whose products take E4M3 operands.
struct dp_fp8_matrix {
    int64_t offset, rows, cols;
    int64_t scales_at; // among all scales
};

struct dp_stage {
    struct dp_stage_config config;
    struct dp_device *device;
    size_t element_bytes, real_bytes;
    int32_t layer_count; // with that of multi-token prediction, the last one
    int32_t local_experts, shared_width;
    int32_t qkv_width, q_width; // of what makes queries (keys, values); of the attended rows
    double attention_scale;     // of scores; 0 = 1 / sqrt(a key's width)
    struct dp_component *components;
    int32_t component_count;
    struct dp_tensor *tensors;
    int32_t tensor_count;
    int64_t parameter_count, expert_offset;
    struct dp_layer_tensors *layers;
    int64_t embedding, head_norm, head_output; // tied: embedding and head_output are one
    struct {
        int64_t embedding_norm, hidden_norm, projection, head_norm;
    } mtp;
    void *weights, *gradients; // reals
    void *element_weights;     // rounded by refresh; NULL where elements are reals
    void *gemm_weights;        // what products read: one of the two
    struct dp_fp8_matrix *fp8; // [fp8_count] by offset; none without the recipe
    int32_t fp8_count;
    int64_t fp8_scale_count;
    uint8_t *fp8_codes; // [parameter_count], those of other tensors unused
    float *fp8_scales;
    // Products only queue work, so what fails in them is kept until the pass of the component ends.
    dp_status failed;
    struct dp_error failure;
    void *rope_table;     // [sequence, width that turns]
    int32_t slots;        // of a layer for experts, over the EP group
    int32_t *slot_expert; // [layer_count, slots]
    int64_t *slot_counts; // [layer_count, slots], as expert_counts
    int32_t *copy_begin;  // [layer_count, experts + 1]: where an expert's slots begin in copy_slot
    int32_t *copy_slot;   // [layer_count, slots]
    int32_t *turn;        // [experts] the copy that the next token goes to
    int64_t *expert_counts; // [layer_count, experts]; zeros in dense layers
    void *router_bias;      // real [layer_count, experts]; NULL = none
    int32_t *host_index;    // room for the choices of one layer
    size_t host_index_count;
    struct dp_workspace *workspace, *own_workspace; // own: NULL when it is borrowed
    struct dp_stream *copies;                       // NULL unless something is offloaded
    int64_t live_bytes, peak_bytes;
    struct dp_exchanger local; // what config.exchanger points to when it was NULL and the EP size 1
};

struct dp_workspace {
    struct dp_device *device;
    struct dp_pool pool, host_pool;
    struct {
        void *memory;
        size_t bytes;
    } scratch[DP_SCRATCH_COUNT];
};

// A buffer that a chunk holds; empty when memory is NULL.
struct dp_slot {
    void *memory;
    int64_t bytes;
    void *host; // its copy in host memory, on the way there or back, or while memory is NULL
};

// What a chunk keeps for one layer between passes. T tokens, R routed rows, names of widths as in
// struct dp_model_spec. "becomes" says what INPUT leaves there for WEIGHT.
struct dp_layer_state {
    // ATTENTION
    struct dp_slot x, rstd;             // [T, hidden], [T]
    struct dp_slot normed;              // [T, hidden]; empty when computed again
    struct dp_slot qkv;                 // [T, qkv], latent: [T, heads * key]; becomes its gradient
    struct dp_slot kv;                  // latent: [T, heads * (nope + value)]; becomes its gradient
    struct dp_slot q_latent;            // latent: [T, q rank]; becomes its gradient
    struct dp_slot kv_latent;           // latent: [T, kv rank + rope]; becomes its gradient
    struct dp_slot q_normed, kv_normed; // as the latents; from INPUT on when computed again
    struct dp_slot latent_rstd;         // of the latents' norms, or of each head's
    struct dp_slot dlatent, dsink;      // INPUT: of those norms' gains, and of the sinks
    struct dp_slot attended, lse;       // [T, q], [T, heads]
    struct dp_slot dy, dgain;           // INPUT: [T, hidden], [hidden]
    // FFN, and DISPATCH with the shared expert
    struct dp_slot ffn_x, ffn_rstd;   // [T, hidden], [T]
    struct dp_slot ffn_normed;        // [T, hidden]; empty when computed again
    struct dp_slot gate_up;           // [T, 2 width]; becomes its gradient
    struct dp_slot active;            // [T, width]; from INPUT on when computed again
    struct dp_slot ffn_dy, ffn_dgain; // INPUT
    struct dp_slot dnormed;           // INPUT, from EXPERTS to DISPATCH: [T, hidden]
    // DISPATCH. Expert indices of the own tokens, int32 [T, top_k]; where each (arrived token,
    // slot) stands among the routed rows, int32 [A, top_k], -1 = an expert of another rank.
    struct dp_slot probabilities; // [T, experts], logits; becomes their gradient
    struct dp_slot index, row_of;
    // EXPERTS. Rows are sorted by (local expert, source rank, token).
    struct dp_slot rows_x, rows_weight; // [R, hidden], [R]
    struct dp_slot rows_codes;          // rows_x in E4M3, which then is there inside passes alone
    struct dp_slot rows_gate_up;        // [R, 2 expert_ffn]; becomes its gradient
    struct dp_slot rows_active;         // [R, expert_ffn]; from INPUT on when computed again
    struct dp_slot rows_dy;             // INPUT: [R, hidden]
    struct dp_slot gate_logit, gate_weight; // of the shared expert: [T]; becomes its gradient
    // On their way between ranks, from begin to end of a component: to the experts [T, hidden] and
    // [T, top_k], back [A, hidden] and [A, top_k].
    struct dp_slot sent_rows, sent_weight;
    struct dp_slot back_rows, back_weight; // inside a pass alone
    struct dp_routing *routing;
    struct dp_event *copied; // the last copy between device and host of the layer's slots
    int32_t *counts;         // host: rows of each local expert
};

// What a head keeps; its norm's gain is at `norm`.
struct dp_head_state {
    int64_t norm;
    struct dp_slot targets;         // int32 [T]
    struct dp_slot x, rstd, normed; // [T, hidden], [T], as of a layer
    struct dp_slot logits, lse;     // [T, vocabulary]; becomes its gradient; [T]
    struct dp_slot dgain;           // INPUT
};

// What MTP keeps beside its layer.
struct dp_mtp_state {
    struct dp_slot tokens;             // int32 [T], those that come next
    struct dp_slot embedded, rstd;     // [T, hidden], [2, T]
    struct dp_slot joined;             // [T, 2 hidden]
    struct dp_slot dy;                 // INPUT: of the projection
    struct dp_slot dembedded, dhidden; // INPUT: [T, hidden]; the second goes to HEAD
    struct dp_slot dgain;              // INPUT: [2, hidden]
    struct dp_head_state head;
    double loss_sum;
};

struct dp_chunk {
    struct dp_stage *stage;
    int32_t samples;
    int64_t tokens;
    double loss_scale, loss_sum;
    int64_t live_bytes;
    struct dp_slot token_ids; // int32 [T]
    struct dp_slot x, dx;     // the activation and the gradient on their way
    struct dp_head_state head;
    struct dp_mtp_state mtp;
    struct dp_slot embedding_dy;
    struct dp_layer_state *layers;
    int32_t *counts;          // what the layers' counts point into
    struct dp_routed *routed; // [layer_count]
    uint64_t tag, layer_step;
};

// One component's passes; a missing function has nothing to do. `layer` is in the stage.
struct dp_component_ops {
    const char *name;
    dp_status (*begin[3])(struct dp_chunk *chunk, int32_t layer, struct dp_error *err);
    dp_status (*end[3])(struct dp_chunk *chunk, int32_t layer, struct dp_error *err);
};
extern const struct dp_component_ops dp_component_embedding, dp_component_attention,
    dp_component_ffn, dp_component_dispatch, dp_component_experts, dp_component_combine,
    dp_component_head, dp_component_mtp;

// component_ends.c, for HEAD and MTP. input scales the loss's gradient and leaves that of the
// head's input in chunk->dx, dy [T, hidden] added unless NULL.
dp_status dp_head_forward(struct dp_chunk *chunk, struct dp_head_state *head, double *ret_sum,
                          struct dp_error *err);
dp_status dp_head_input(struct dp_chunk *chunk, struct dp_head_state *head, double scale,
                        const struct dp_slot *dy, struct dp_error *err);
dp_status dp_head_weight(struct dp_chunk *chunk, struct dp_head_state *head, struct dp_error *err);
void dp_head_drop(struct dp_chunk *chunk, struct dp_head_state *head);
// component_mtp.c: all but its head and dhidden.
void dp_mtp_drop(struct dp_chunk *chunk);

// balance.c
dp_status dp_stage_make_balance(struct dp_stage *stage, struct dp_error *err);
void dp_stage_free_balance(struct dp_stage *stage);
// After the router's forward: where the tokens go, as an exchanger takes it, valid until the next
// call. Adds the choices of a layer of the stage to its counts, unless the chunk is not trained on.
dp_status dp_chunk_take_choices(struct dp_chunk *chunk, int32_t layer, const int32_t **ret_index,
                                struct dp_error *err);

// placement.c
// Whether a layer of the whole model is one of the stage's with experts.
bool dp_stage_routes(const struct dp_stage *stage, int32_t layer);
void dp_stage_make_placement(struct dp_stage *stage); // and local_experts
void dp_stage_free_placement(struct dp_stage *stage);
// The expert in this rank's e-th slot of a layer of the stage, and whether a lower slot has it too.
int32_t dp_stage_own_expert(const struct dp_stage *stage, int32_t layer, int32_t e, bool *ret_copy);
// index[tokens, top_k] of experts, in host memory, becomes one of slots; counts them.
void dp_chunk_place(const struct dp_chunk *chunk, int32_t layer, int32_t *index);

// stage.c: whether the stage has MTP, and its layer behind the others.
bool dp_stage_predicts(const struct dp_stage_config *config);

// tensors.c: fills in the table and the offsets; draws the weights.
void dp_stage_lay_out_tensors(struct dp_stage *stage);
void dp_stage_draw_weights(struct dp_stage *stage);

// angles.c: the width of each head that is turned; the table of angles and the scale of scores.
int32_t dp_stage_turned(const struct dp_stage *stage);
dp_status dp_stage_make_angles(struct dp_stage *stage, struct dp_error *err);

// slots.c
struct dp_take {
    struct dp_slot *slot;
    int64_t bytes;
};
// Fills empty slots with memory from the pool, content undefined.
dp_status dp_chunk_take(struct dp_chunk *chunk, const struct dp_take *takes, size_t count,
                        struct dp_error *err);
void dp_chunk_drop(struct dp_chunk *chunk, struct dp_slot *slot);
// For offload.c: memory given back while a copy waits in host; memory taken anew for it; the copy
// given up.
void dp_slot_retire(struct dp_chunk *chunk, struct dp_slot *slot);
dp_status dp_slot_return(struct dp_chunk *chunk, struct dp_slot *slot, struct dp_error *err);
void dp_slot_forget_host(struct dp_chunk *chunk, struct dp_slot *slot);
// Leaves `from` empty; `to` must be.
void dp_slot_move(struct dp_slot *from, struct dp_slot *to);
int64_t dp_chunk_element_bytes(const struct dp_chunk *chunk, int64_t elements);
int64_t dp_chunk_real_bytes(const struct dp_chunk *chunk, int64_t reals);
// Undefined content (NaN when poisoned), valid until the component's begin or end returns.
dp_status dp_stage_scratch(struct dp_stage *stage, dp_scratch which, size_t bytes,
                           void **ret_memory, struct dp_error *err);
dp_status dp_stage_elements(struct dp_stage *stage, dp_scratch which, int64_t elements,
                            void **ret_memory, struct dp_error *err);

// linear.c: y[rows, out] = x[rows, in] * w^T with w[out, in] at `offset` of the weights.
struct dp_linear {
    int64_t offset, rows, in, out;
    dp_operand weight_kind; // REAL: the master weights themselves
    dp_operand y_kind;      // of y and its gradient; x and its gradient are elements
};
void *dp_stage_weight_at(const struct dp_stage *stage, int64_t offset); // what products read
void *dp_stage_master_at(const struct dp_stage *stage, int64_t offset); // reals
void *dp_stage_gradient_at(const struct dp_stage *stage, int64_t offset);
void *dp_element_at(const struct dp_stage *stage, void *base, int64_t elements);
void *dp_real_at(const struct dp_stage *stage, void *base, int64_t reals);
void dp_linear_forward(struct dp_stage *stage, const struct dp_linear *linear, const void *x,
                       void *y, bool accumulate);
void dp_linear_input_grad(struct dp_stage *stage, const struct dp_linear *linear, const void *dy,
                          void *dx, bool accumulate);
void dp_linear_weight_grad(struct dp_stage *stage, const struct dp_linear *linear, const void *dy,
                           const void *x);

// fp8.c
dp_status dp_stage_make_fp8(struct dp_stage *stage, struct dp_error *err);
void dp_stage_free_fp8(struct dp_stage *stage);
void dp_stage_refresh_fp8(struct dp_stage *stage);
// The linear's matrix when its products take E4M3 operands, else NULL.
const struct dp_fp8_matrix *dp_linear_fp8(const struct dp_stage *stage,
                                          const struct dp_linear *linear);
dp_status dp_fp8_forward(struct dp_stage *stage, const struct dp_linear *linear,
                         const struct dp_fp8_matrix *matrix, const void *x, void *y,
                         bool accumulate, struct dp_error *err);
dp_status dp_fp8_input_grad(struct dp_stage *stage, const struct dp_linear *linear,
                            const struct dp_fp8_matrix *matrix, const void *dy, void *dx,
                            bool accumulate, struct dp_error *err);
dp_status dp_fp8_weight_grad(struct dp_stage *stage, const struct dp_linear *linear, const void *dy,
                             const void *x, struct dp_error *err);

// Rows of elements to and from E4M3 with a scale for each 128 of a row: dp_fp8_row_bytes a row.
// pack drops `from`; both fill the empty slot `to`.
int64_t dp_fp8_row_bytes(int64_t cols);
dp_status dp_fp8_pack(struct dp_chunk *chunk, int64_t rows, int64_t cols, struct dp_slot *from,
                      struct dp_slot *to, struct dp_error *err);
dp_status dp_fp8_unpack(struct dp_chunk *chunk, int64_t rows, int64_t cols,
                        const struct dp_slot *from, struct dp_slot *to, struct dp_error *err);

// linear.c: a SwiGLU FFN of `rows` rows, y (+)= down(weight * silu(gate(x)) * up(x)), with gate and
// up at `gate_up` and down at `down`.
struct dp_gated {
    int64_t gate_up, down, rows, width;
};
// weight [rows] may be NULL. gate_up [rows, 2 width] is saved for input_grad, which leaves its
// gradient there and `active` [rows, width], the input of down, for weight_grad. Forward leaves
// `active` as well, unless it is NULL.
dp_status dp_gated_forward(struct dp_stage *stage, const struct dp_gated *gated, const void *x,
                           const void *weight, void *gate_up, void *active, void *y,
                           bool accumulate, struct dp_error *err);
// gate_up again, as forward gave it.
void dp_gated_again(struct dp_stage *stage, const struct dp_gated *gated, const void *x,
                    void *gate_up);
dp_status dp_gated_input_grad(struct dp_stage *stage, const struct dp_gated *gated, const void *dy,
                              const void *weight, void *gate_up, void *dweight, void *active,
                              void *dx, struct dp_error *err);
void dp_gated_weight_grad(struct dp_stage *stage, const struct dp_gated *gated, const void *dy,
                          const void *x, const void *dgate_up, const void *active);

// A norm with its gain at `offset`.
struct dp_rmsnorm dp_chunk_norm(const struct dp_chunk *chunk, int64_t offset,
                                const struct dp_slot *x, const struct dp_slot *rstd);
// Whether what the bit (DP_RECOMPUTE_*) stands for is kept from FORWARD on.
bool dp_stage_keeps(const struct dp_stage *stage, uint32_t bit);
// Runs the norm's forward into the empty slot when norms are kept, else into scratch.
dp_status dp_chunk_norm_forward(struct dp_chunk *chunk, const struct dp_rmsnorm *norm,
                                struct dp_slot *slot, void **ret_normed, struct dp_error *err);
// What it gave: from the slot, or once more into scratch when that is empty.
dp_status dp_chunk_norm_again(struct dp_chunk *chunk, const struct dp_rmsnorm *norm,
                              const struct dp_slot *slot, void **ret_normed, struct dp_error *err);
// The end of INPUT of a component y = x + f(norm(x)): dx = dy + norm's gradient of dnormed, and the
// gain's gradient in the empty slot dgain. chunk->dx must be empty and gets dx.
dp_status dp_chunk_residual_grad(struct dp_chunk *chunk, const struct dp_rmsnorm *norm,
                                 const struct dp_slot *dy, const void *dnormed,
                                 struct dp_slot *dgain, struct dp_error *err);

// The gain's gradient is added to the parameters' at `offset`.
void dp_chunk_gain_grad(const struct dp_chunk *chunk, const struct dp_slot *dgain, int64_t offset);

// The vector's gradient at `offset` += `count` reals of dvector from its `from`.
void dp_chunk_vector_grad(const struct dp_chunk *chunk, const struct dp_slot *dvector, int64_t from,
                          int64_t count, int64_t offset);

// component_attention.c: with DP_RECOMPUTE_FULL, what ATTENTION's FORWARD had saved of the layer,
// from its input, and the layer's ffn_x.
dp_status dp_attention_restore(struct dp_chunk *chunk, int32_t layer, struct dp_error *err);

// exchange.c: the moves of one MoE layer through the stage's exchanger. Each begin posts, each end
// waits, and what was posted stays in sent_rows and sent_weight between them.

// DISPATCH forward: sent_rows and sent_weight go to the experts and arrive as rows_x and
// rows_weight, with row_of, counts and routed.
dp_status dp_exchange_dispatch_begin(struct dp_chunk *chunk, int32_t layer, const int32_t *index,
                                     struct dp_error *err);
dp_status dp_exchange_dispatch_end(struct dp_chunk *chunk, int32_t layer, struct dp_error *err);
// Sums rows [R, hidden], and the gradients of their weights [R] unless NULL, into sent_rows [A,
// hidden] and sent_weight [A, top_k]: the owner's part of a way back.
dp_status dp_exchange_fold(struct dp_chunk *chunk, int32_t layer, const void *rows,
                           const void *weight, struct dp_error *err);
// Whether the rows that FORWARD received are still there, in either form.
bool dp_exchange_has_rows(const struct dp_chunk *chunk, int32_t layer);
// The ways back (DP_MOVE_COMBINE, DP_MOVE_DISPATCH_INPUT): end leaves the sums over all ranks in
// ret_rows [T, hidden] and ret_weight [T, top_k] (NULL for COMBINE), empty slots before.
dp_status dp_exchange_back_begin(struct dp_chunk *chunk, int32_t layer, dp_move move,
                                 struct dp_error *err);
dp_status dp_exchange_back_end(struct dp_chunk *chunk, int32_t layer, dp_move move,
                               struct dp_slot *ret_rows, struct dp_slot *ret_weight,
                               struct dp_error *err);
// COMBINE's INPUT: ffn_dy goes to the experts and arrives as rows_dy.
dp_status dp_exchange_gradient_begin(struct dp_chunk *chunk, int32_t layer, struct dp_error *err);
dp_status dp_exchange_gradient_end(struct dp_chunk *chunk, int32_t layer, struct dp_error *err);
// With DP_RECOMPUTE_FULL: sent_rows go to the experts once more, along the routing that there is,
// and arrive as rows_x.
dp_status dp_exchange_restore_begin(struct dp_chunk *chunk, int32_t layer, struct dp_error *err);
dp_status dp_exchange_restore_end(struct dp_chunk *chunk, int32_t layer, struct dp_error *err);
// The routing is used no more.
void dp_exchange_release(struct dp_chunk *chunk, int32_t layer);

// offload.c: after FORWARD of a component (is_last: of the stage's last one), before INPUT of one,
// and before a chunk's slots are dropped. Layers are in the stage, below 0 for the ends.
dp_status dp_offload_forward_end(struct dp_chunk *chunk, dp_component_kind kind, int32_t layer,
                                 bool is_last, struct dp_error *err);
dp_status dp_offload_input_begin(struct dp_chunk *chunk, int32_t layer, struct dp_error *err);
void dp_offload_settle(struct dp_chunk *chunk);

// local.c: the exchanger of a stage that has all experts. Nothing is copied: what arrives is what
// was posted, and the caller's own buffers serve for what it collects.
struct dp_exchanger dp_local_exchanger(struct dp_stage *stage);
