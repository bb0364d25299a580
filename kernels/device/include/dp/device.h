// Devices: one table of operations over tensors, and the cpu implementation.
//
// A device is opened for an element: the type of activations, of their gradients and of the
// weights that matrix products read. Its real, float or double (dp_element_real), is the type of
// gains, logits, probabilities, routing weights, log-sum-exps, parameters' gradients, master
// weights and moments. Arithmetic is done in real; an element is rounded to once, when it is
// stored, to nearest with ties to even.
//
// Every operation takes a stream and only queues work on it; the result may be read after
// stream_sync, or by later work on the same stream. Structs of arguments are copied by the call;
// tensors, indices and host memory stay as they are until the work is done. On the cpu, work on the
// device's own stream is done when the call returns, and a stream that was opened is a thread of
// its own. Failures of queued work are kept by the stream and reported by stream_sync. A stream is
// used by one thread at a time; memory, streams and events of a device by any.
//
// Tensors are row-major and dense unless a leading dimension is given. `void *` tensors hold the
// device's elements where nothing else is said; indices are int32_t. Row and element counts are
// int64_t, and every one of them may be 0. "Accumulates" means the output is added to; otherwise
// it is overwritten and its old content, NaN included, does not matter.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/error.h"

typedef enum dp_element { DP_F32, DP_F64, DP_BF16 } dp_element;

// What a tensor that an operation takes holds.
typedef enum dp_operand {
    DP_OPERAND_ELEMENT, // the device's element
    DP_OPERAND_REAL,    // float; double on a device of doubles
    DP_OPERAND_FP8,     // E4M3 codes with one float scale per tile; where an operation says so
} dp_operand;

// What memory is for: how it is counted.
typedef enum dp_memory_tag {
    DP_MEMORY_WEIGHTS,
    DP_MEMORY_GRADIENTS,
    DP_MEMORY_MOMENTS,
    DP_MEMORY_ACTIVATIONS,
    DP_MEMORY_SCRATCH, // also what streams keep for operations
    DP_MEMORY_WINDOWS, // what peers write into
    DP_MEMORY_STAGING, // host copies of device memory on their way out
    DP_MEMORY_TAGS,
} dp_memory_tag;
const char *dp_memory_tag_text(dp_memory_tag tag); // "weights", ...

struct dp_device;
struct dp_stream;
struct dp_event; // a point in a stream's work

// Scales of a matrix of E4M3 codes [rows, cols] as it is stored: the value at (r, c) is
// code(r, c) * values[r / tile_rows, c / tile_cols], with a row of scales for each row of tiles,
// ceil(cols / tile_cols) long. DeepSeek-V3 (arXiv 2412.19437, section 3.3): tiles of 1 x 128 for
// activations, 128 x 128 for weights, 128 x 1 for activations of a product that sums over rows.
struct dp_fp8_scales {
    const float *values;
    int32_t tile_rows, tile_cols;
};

// c[m, n] (+)= op(a)[m, k] * op(b)[k, n]; a transposed operand is stored as [k, m] or [n, k]. Sums
// are formed in real, c's old content included, and rounded to c's kind once. c is no FP8.
struct dp_gemm {
    bool transpose_a, transpose_b, accumulate;
    int64_t m, n, k;
    const void *a;
    int64_t lda;
    const void *b;
    int64_t ldb;
    void *c;
    int64_t ldc;
    dp_operand a_kind, b_kind, c_kind;
    struct dp_fp8_scales a_scales, b_scales; // of FP8 operands
};

// A matrix [rows, cols] as E4M3 codes (8 bits: sign, 4 of exponent, 3 of mantissa; no infinity,
// largest 448; Micikevicius et al., arXiv 2209.05433) with scale = max(amax of the tile, 1e-4) /
// 448, rounded up to a power of two on demand. Tiles at the edges are cut.
struct dp_fp8 {
    int64_t rows, cols;
    int32_t tile_rows, tile_cols;
    bool power_of_two;
};

// Moves of rows of `cols` values; kinds are ELEMENT or REAL.
struct dp_rows {
    int64_t rows, cols;
    dp_operand from_kind, to_kind;
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
    bool bf16_moments; // m and v are stored as bfloat16, rounded to nearest; else as real
};

struct dp_device_ops {
    // Memory. 64-byte aligned, content undefined; DP_TOO_LARGE past the device's limit. free(NULL)
    // does nothing. By any thread.
    dp_status (*alloc)(struct dp_device *device, dp_memory_tag tag, size_t bytes, void **ret_memory,
                       struct dp_error *err);
    void (*free)(struct dp_device *device, void *memory);
    // Between any two of host and device memory.
    void (*copy)(struct dp_stream *stream, void *to, const void *from, size_t bytes);
    // Every byte to `value`; 0 is zero and 0xff is NaN in every type.
    void (*fill)(struct dp_stream *stream, void *to, int value, size_t bytes);

    // Streams and events. Work on an opened stream runs beside that of others.
    dp_status (*stream_open)(struct dp_device *device, struct dp_stream **ret_stream,
                             struct dp_error *err);
    void (*stream_close)(struct dp_stream *stream); // waits for its work; NULL does nothing
    // Waits for the stream's work. The first failure since the last call, which forgets it.
    dp_status (*stream_sync)(struct dp_stream *stream, struct dp_error *err);
    // Marks what has been queued so far; another stream's later work waits for it, and so does a
    // thread that calls event_wait with the device's own stream. The caller closes the event, at
    // any time.
    dp_status (*event_record)(struct dp_stream *stream, struct dp_event **ret_event,
                              struct dp_error *err);
    void (*event_wait)(struct dp_stream *stream, struct dp_event *event);
    bool (*event_done)(struct dp_event *event);
    void (*event_close)(struct dp_event *event);

    // Plain arithmetic over `count` values; kinds are ELEMENT or REAL.
    void (*from_double)(struct dp_stream *stream, int64_t count, const double *from,
                        dp_operand to_kind, void *to);
    // from and to are the same memory only where their kinds take the same bytes.
    void (*convert)(struct dp_stream *stream, int64_t count, dp_operand from_kind, const void *from,
                    dp_operand to_kind, void *to);
    // y += x
    void (*add)(struct dp_stream *stream, int64_t count, dp_operand x_kind, const void *x,
                dp_operand y_kind, void *y);
    void (*scale)(struct dp_stream *stream, int64_t count, double factor, dp_operand kind, void *x);
    // *ret_sum = sum of squares, summed in double. It is finite exactly when every value is
    // (doubles above 1e150 apart), so it also answers "is anything NaN or Inf".
    void (*sum_squares)(struct dp_stream *stream, int64_t count, dp_operand kind, const void *x,
                        double *ret_sum);
    // grad and weight are reals; moments m and v start as zeros.
    void (*adamw)(struct dp_stream *stream, const struct dp_adamw *adamw, int64_t count,
                  const void *grad, void *weight, void *m, void *v);

    // Dense matrices to codes [rows, cols] and scales, and back. Values are rounded to the nearest
    // code, ties to even, and saturate. An infinity or NaN is a failure of the stream: the former
    // saturates, the latter stays NaN, and neither enters its tile's scale.
    void (*quantize_fp8)(struct dp_stream *stream, const struct dp_fp8 *fp8, dp_operand from_kind,
                         const void *from, uint8_t *codes, float *scales);
    void (*dequantize_fp8)(struct dp_stream *stream, const struct dp_fp8 *fp8, const uint8_t *codes,
                           const float *scales, dp_operand to_kind, void *to);

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

    // Moves of rows; an index of -1 is no row.
    // to[index[i]] = from[i / repeat] for i < rows; indices are distinct.
    void (*spread_rows)(struct dp_stream *stream, const struct dp_rows *rows, int32_t repeat,
                        const int32_t *index, const void *from, void *to);
    // to[t] = (accumulate ? to[t] : 0) + sum of from[index[t * terms + j]], j ascending, t < rows;
    // summed in real and rounded once.
    void (*collect_rows)(struct dp_stream *stream, const struct dp_rows *rows, int32_t terms,
                         bool accumulate, const int32_t *index, const void *from, void *to);
    // to[index[i]] += from[i], i ascending; indices may repeat.
    void (*add_rows)(struct dp_stream *stream, const struct dp_rows *rows, const int32_t *index,
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

struct dp_memory_account; // of one device

struct dp_device {
    const struct dp_device_ops *ops;
    dp_element element;
    struct dp_stream *stream; // the device's own; its work is done when the call returns
    struct dp_memory_account *account;
};

size_t dp_element_bytes(dp_element element);
// The element type of a device's reals: DP_F64 for DP_F64, else DP_F32.
dp_element dp_element_real(dp_element element);
size_t dp_device_real_bytes(const struct dp_device *device);
size_t dp_operand_bytes(const struct dp_device *device, dp_operand kind);

// Bytes of one device: allocated now, and at most since the device was opened or the peak reset.
// The sum over tags of peaks may exceed the peak of the sum.
struct dp_device_memory {
    uint64_t live, peak;
    uint64_t tag_live[DP_MEMORY_TAGS], tag_peak[DP_MEMORY_TAGS];
    uint64_t limit; // 0 = none
};
struct dp_device_memory dp_device_memory(const struct dp_device *device); // by any thread
void dp_device_reset_peak(struct dp_device *device);                      // to what is live
// Allocations that would pass the limit fail. What streams keep for operations is counted and, past
// the limit, a failure of the stream.
void dp_device_set_limit(struct dp_device *device, uint64_t bytes);

// The reference device: matrix products by a BLAS, everything else plain C, compiled for every
// element from one source. Uses AVX2 where the machine has it. The caller closes it, after freeing
// what it allocated and closing what it opened. Any thread may open a device.
dp_status dp_device_open_cpu(dp_element element, struct dp_device **ret_device,
                             struct dp_error *err);
void dp_device_close(struct dp_device *device);
// Threads, the caller's own among them, that work on the device's own stream; >= 1, and 1 at first.
// Results of the same number of threads are the same bits. Call it while nothing runs there.
void dp_device_set_threads(struct dp_device *device, int32_t threads);
