// Devices: one table of operations over float or double tensors, and the cpu implementation.
//
// Every operation takes a stream and only queues work on it; the result may be read after
// stream_sync, or by later work on the same stream. On the cpu the work is done when the call
// returns. Failures of queued work are kept by the stream and reported by stream_sync. A stream
// holds the scratch memory that operations need, so it is used by one thread at a time.
//
// Tensors are row-major and dense unless a leading dimension is given. `void *` tensors hold the
// device's element type; indices are int32_t. Row and element counts are int64_t, and every one
// of them may be 0. "Accumulates" means the output is added to; otherwise it is overwritten and
// its old content, NaN included, does not matter.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/error.h"

typedef enum dp_element { DP_F32, DP_F64 } dp_element;

struct dp_device;
struct dp_stream;
struct dp_event; // a point in a stream's work; NULL on devices that work synchronously

// c[m, n] (+)= op(a)[m, k] * op(b)[k, n]; a transposed operand is stored as [k, m] or [n, k].
struct dp_gemm {
    bool transpose_a, transpose_b, accumulate;
    int64_t m, n, k;
    const void *a;
    int64_t lda;
    const void *b;
    int64_t ldb;
    void *c;
    int64_t ldc;
};

// Root-mean-square norm of `rows` rows of `cols`: y = x * rstd * gain with
// rstd = 1/sqrt(mean x^2 + eps) (Zhang and Sennrich, arXiv 1910.07467).
struct dp_rmsnorm {
    int64_t rows, cols;
    double eps;
    const void *x, *gain; // [rows, cols], [cols]
    void *rstd;           // [rows]; written by forward, read by the rest
};

// Rotary embedding of the first `heads` heads of each row, in place: the pair (i, i + head_dim/2)
// of position t turns by the angle whose cosine and sine are table[t, i] and
// table[t, head_dim/2 + i] (Su et al., arXiv 2104.09864, in the half-split layout).
struct dp_rope {
    int64_t rows, sequence; // row r has position r % sequence
    int32_t heads, head_dim;
    int64_t stride;    // elements from row to row
    const void *table; // [sequence, head_dim]
    bool inverse;      // turn back: the gradient
};

// Causal attention inside each sequence; query head h reads key head h / (heads / kv_heads).
// A row of qkv is heads query vectors, then kv_heads key vectors, then kv_heads value vectors.
struct dp_attention {
    int64_t samples, sequence;
    int32_t heads, kv_heads, head_dim;
    const void *qkv; // [samples * sequence, (heads + 2 kv_heads) * head_dim]
    void *output;    // [samples * sequence, heads * head_dim]; read by input_grad
    void *lse;       // [samples * sequence, heads] log-sum-exp of the scaled scores
};

// output[r, i] = weight[r] * silu(gate[r, i]) * up[r, i]; a row of gate_up is width gate values,
// then width up values.
struct dp_swiglu {
    int64_t rows, width;
    const void *gate_up; // [rows, 2 width]
    const void *weight;  // [rows], NULL = 1
};

// Softmax routing: the top_k experts of each token by probability (ties go to the lowest index),
// weights renormalised over them. A token's slots are in ascending expert order.
struct dp_router {
    int64_t tokens, sequence;
    int32_t experts, top_k;
};

// Decoupled weight decay as in Loshchilov and Hutter, arXiv 1711.05101, algorithm 2, with the
// learning rate multiplying the decay:
// w -= lr * weight_decay * w; w -= lr * mhat / (sqrt(vhat) + eps).
struct dp_adamw {
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step;      // counts from 1: bias correction
    double grad_scale; // multiplies the gradient first (clipping)
};

struct dp_device_ops {
    // Memory. 64-byte aligned, content undefined. free(NULL) does nothing.
    dp_status (*alloc)(struct dp_device *device, size_t bytes, void **ret_memory,
                       struct dp_error *err);
    void (*free)(struct dp_device *device, void *memory);
    // Between any two of host and device memory.
    void (*copy)(struct dp_stream *stream, void *to, const void *from, size_t bytes);
    // Every byte to `value`; 0 is zero and 0xff is NaN in both element types.
    void (*fill)(struct dp_stream *stream, void *to, int value, size_t bytes);

    // Streams and events.
    dp_status (*stream_open)(struct dp_device *device, struct dp_stream **ret_stream,
                             struct dp_error *err);
    void (*stream_close)(struct dp_stream *stream);
    dp_status (*stream_sync)(struct dp_stream *stream, struct dp_error *err);
    // Marks what has been queued so far; another stream's later work waits for it. The caller
    // closes the event.
    dp_status (*event_record)(struct dp_stream *stream, struct dp_event **ret_event,
                              struct dp_error *err);
    void (*event_wait)(struct dp_stream *stream, struct dp_event *event);
    void (*event_close)(struct dp_event *event);

    // Plain arithmetic over `count` elements.
    void (*from_double)(struct dp_stream *stream, int64_t count, const double *from, void *to);
    void (*add)(struct dp_stream *stream, int64_t count, const void *x, void *y); // y += x
    void (*scale)(struct dp_stream *stream, int64_t count, double factor, void *x);
    // *ret_sum = sum of squares, summed in double. It is finite exactly when every element is
    // (doubles above 1e150 apart), so it also answers "is anything NaN or Inf".
    void (*sum_squares)(struct dp_stream *stream, int64_t count, const void *x, double *ret_sum);
    // Moments m and v start as zeros.
    void (*adamw)(struct dp_stream *stream, const struct dp_adamw *adamw, int64_t count,
                  const void *grad, void *weight, void *m, void *v);

    void (*gemm)(struct dp_stream *stream, const struct dp_gemm *gemm);

    void (*rmsnorm_forward)(struct dp_stream *stream, const struct dp_rmsnorm *norm, void *y);
    // y again from x and rstd, bitwise as forward gave it.
    void (*rmsnorm_again)(struct dp_stream *stream, const struct dp_rmsnorm *norm, void *y);
    // dx accumulates; dgain [cols] accumulates.
    void (*rmsnorm_input_grad)(struct dp_stream *stream, const struct dp_rmsnorm *norm,
                               const void *dy, void *dx);
    void (*rmsnorm_weight_grad)(struct dp_stream *stream, const struct dp_rmsnorm *norm,
                                const void *dy, void *dgain);

    void (*rope)(struct dp_stream *stream, const struct dp_rope *rope, void *x);

    void (*attention_forward)(struct dp_stream *stream, const struct dp_attention *attention);
    void (*attention_input_grad)(struct dp_stream *stream, const struct dp_attention *attention,
                                 const void *doutput, void *dqkv);

    void (*swiglu_forward)(struct dp_stream *stream, const struct dp_swiglu *swiglu, void *output);
    // From doutput [rows, width]: dgate_up [rows, 2 width] (may be gate_up itself), dweight [rows]
    // (NULL when there is no weight) and output [rows, width], the forward result again.
    void (*swiglu_input_grad)(struct dp_stream *stream, const struct dp_swiglu *swiglu,
                              const void *doutput, void *dgate_up, void *dweight, void *output);

    // logits [tokens, experts] become probabilities in place; index and weight are
    // [tokens, top_k].
    void (*router_forward)(struct dp_stream *stream, const struct dp_router *router, void *logits,
                           int32_t *index, void *weight);
    // probabilities become the gradient of the logits in place, from dweight [tokens, top_k] and
    // the balance loss: aux_scale * sum_i f_i P_i for each sequence of n tokens, with
    // f_i = experts / (top_k n) * (slots of expert i) and P_i the mean probability; the gradient
    // flows through P alone (DeepSeek-V3, arXiv 2412.19437, equations 17 to 20).
    void (*router_input_grad)(struct dp_stream *stream, const struct dp_router *router,
                              double aux_scale, const int32_t *index, const void *dweight,
                              void *probabilities);
    // Stable counting sort of `slots` expert indices: counts [experts], and row_of[s], the place of
    // slot s in (expert, slot) order. Slots of expert -1 are left out: their row_of is -1.
    void (*sort_slots)(struct dp_stream *stream, int64_t slots, int32_t experts,
                       const int32_t *index, int32_t *counts, int32_t *row_of);

    // Rows of `cols` elements.
    // to[index[i]] = from[i / repeat] for i < rows; indices are distinct, -1 is left out.
    void (*spread_rows)(struct dp_stream *stream, int64_t rows, int64_t cols, int32_t repeat,
                        const int32_t *index, const void *from, void *to);
    // to[t] = (accumulate ? to[t] : 0) + sum of from[index[t * terms + j]], j ascending, t < rows;
    // terms of index -1 are left out.
    void (*collect_rows)(struct dp_stream *stream, int64_t rows, int64_t cols, int32_t terms,
                         bool accumulate, const int32_t *index, const void *from, void *to);
    // to[index[i]] += from[i], i ascending; indices may repeat.
    void (*add_rows)(struct dp_stream *stream, int64_t rows, int64_t cols, const int32_t *index,
                     const void *from, void *to);

    // lse [tokens]; *ret_sum = sum over tokens of lse - logits[target].
    void (*cross_entropy_forward)(struct dp_stream *stream, int64_t tokens, int64_t vocabulary,
                                  const void *logits, const int32_t *targets, void *lse,
                                  double *ret_sum);
    // logits become scale * (softmax - one-hot) in place.
    void (*cross_entropy_input_grad)(struct dp_stream *stream, int64_t tokens, int64_t vocabulary,
                                     double scale, const int32_t *targets, const void *lse,
                                     void *logits);
};

struct dp_device {
    const struct dp_device_ops *ops;
    dp_element element;
    struct dp_stream *stream; // the default one
};

size_t dp_element_bytes(dp_element element);

// The reference device: GEMMs by OpenBLAS, everything else plain C, compiled for float and double
// from one source. Uses AVX2 where the machine has it. BLAS threads are a setting of the whole
// process: its first open puts them to one, so that ranks share a host's cores without fighting.
// The caller closes it, after freeing what it allocated. Any thread may open a device; each device
// is then used by one thread at a time.
dp_status dp_device_open_cpu(dp_element element, struct dp_device **ret_device,
                             struct dp_error *err);
void dp_device_close(struct dp_device *device);
// BLAS threads of the process, >= 1.
void dp_device_set_threads(int32_t threads);
