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

// Root-mean-square norm of vectors of `cols`, each by itself: y = x * rstd * gain with
// rstd = 1/sqrt(mean x^2 + eps) (Zhang and Sennrich, arXiv 1910.07467). A row is `groups` vectors
// that lie side by side and share the gain, such as the heads of a norm over queries. Strides are
// elements from row to row, of x and dx and of y and dy; so a part of wider rows can be normed. y
// may be x itself where x is not needed again, and dx may be dy under `replace`, each with the
// same stride; under `replace` dx may also be x.
struct dp_rmsnorm {
    int64_t rows, cols;
    double eps;
    const void *x;
    const void *gain;           // real [cols]
    void *rstd;                 // real [rows, groups]; written by forward, read by the rest
    int64_t groups;             // 0 = 1
    int64_t x_stride, y_stride; // 0 = groups * cols
    bool replace;               // input_grad overwrites dx; otherwise it accumulates
};

// Vectors of `width` elements, `heads` of them in each row. Strides are elements from row to row
// and from head to head; a head stride of 0 is one vector for all heads of the row.
struct dp_heads {
    int64_t rows, width;
    int32_t heads;
    int64_t from_stride, from_head_stride;
    int64_t to_stride, to_head_stride;
};

// Rotary embedding, in place, of the first `width` elements (an even number) of `heads` heads of
// each row: a pair of elements at position t turns by the angle whose cosine and sine are
// table[t, i] and table[t, width/2 + i]. Pair i is the elements (i, i + width/2), or, interleaved,
// (2i, 2i + 1) as in the paper (Su et al., arXiv 2104.09864).
struct dp_rope {
    int64_t rows, sequence; // row r has position r % sequence
    int32_t heads, width;
    int64_t stride;      // elements from row to row
    int64_t head_stride; // from head to head; 0 = width
    const void *table;   // real [sequence, width]
    bool interleaved;
    bool inverse; // turn back: the gradient
};

// Causal attention inside each sequence; query head h reads key head h / (heads / kv_heads). Rows
// are tokens, samples * sequence of them; queries, keys and values may lie in wider rows or in
// different buffers. A query sees its own key and those before it; with a window the nearest
// `window` of them, its own included. A sink is one more score per head, without a value, in the
// denominator of every query's softmax.
struct dp_attention {
    int64_t samples, sequence;
    int32_t heads, kv_heads; // kv_heads divides heads
    int32_t qk_dim, v_dim;
    double scale;                                        // of the scores; 0 = 1 / sqrt(qk_dim)
    int64_t window;                                      // 0 = the whole sequence
    const void *q, *k, *v;                               // the first row's first head
    int64_t q_stride, k_stride, v_stride;                // elements from row to row
    int64_t q_head_stride, k_head_stride, v_head_stride; // 0 = qk_dim, qk_dim, v_dim
    const void *sink;                                    // real [heads]; NULL = none
    void *output; // [rows, heads * v_dim]; read by input_grad
    void *lse;    // real [rows, heads]: log of the softmax's denominator
};

// output[r, i] = weight[r] * silu(gate[r, i]) * up[r, i]; a row of gate_up is width gate values,
// then width up values.
struct dp_swiglu {
    int64_t rows, width;
    const void *gate_up; // [rows, 2 width]
    const void *weight;  // real [rows], NULL = 1
};

typedef enum dp_router_score { DP_ROUTER_SOFTMAX, DP_ROUTER_SIGMOID } dp_router_score;

// Routing: each token's top_k experts by score, or by score + bias, and their weights: the scores
// (without bias) divided by their sum over the chosen, times route_scale. With groups of
// experts / groups neighbours, experts outside of the best top_groups groups are not eligible; a
// group counts as its best score, or with a bias as the sum of its two best biased scores
// (DeepSeek-V3, arXiv 2412.19437, section 2.1.2 and its published inference code). Ties go to the
// lowest index, of groups as well. A token's slots are in ascending expert order.
//
// Sums of scores are never divided by: weights and shares are softmaxes, of the logits or of the
// logarithms of the sigmoids. So they keep adding up where every score is too small for its type.
// A token with a logit that is NaN or +Inf gets weights that are NaN, and choices in range.
struct dp_router {
    int64_t tokens, sequence; // tokens is a multiple of sequence
    int32_t experts, top_k;   // 1 <= top_k <= experts of top_groups groups
    dp_router_score score;
    bool raw_weights;   // weights are scores * route_scale, not divided by their sum
    double route_scale; // 0 = 1
    int32_t groups;     // divides experts; 0 = no grouping
    int32_t top_groups; // <= groups
    const void *bias;   // real [experts], for the choice alone; NULL = none
};

// Next-token loss over rows of logits. A target below 0 is left out: it adds nothing to the sum,
// and its row's gradient is 0.
struct dp_cross_entropy {
    int64_t tokens, vocabulary;
    const int32_t *targets; // [tokens]
    void *lse;              // real [tokens]; written by forward, read by input_grad
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
    // dx accumulates unless `replace` is set; dgain, real [cols], accumulates.
    void (*rmsnorm_input_grad)(struct dp_stream *stream, const struct dp_rmsnorm *norm,
                               const void *dy, void *dx);
    void (*rmsnorm_weight_grad)(struct dp_stream *stream, const struct dp_rmsnorm *norm,
                                const void *dy, void *dgain);

    void (*rope)(struct dp_stream *stream, const struct dp_rope *rope, void *x);

    void (*attention_forward)(struct dp_stream *stream, const struct dp_attention *attention);
    // From doutput, as output. dq, dk and dv lie as q, k and v do, or are q, k and v themselves;
    // they are overwritten, dk and dv with sums over the query heads that read them in ascending
    // order, and what lies between heads and rows is left alone. dsink, real [heads], accumulates;
    // NULL = not wanted.
    void (*attention_input_grad)(struct dp_stream *stream, const struct dp_attention *attention,
                                 const void *doutput, void *dq, void *dk, void *dv, void *dsink);

    void (*swiglu_forward)(struct dp_stream *stream, const struct dp_swiglu *swiglu, void *output);
    // From doutput [rows, width]: dgate_up [rows, 2 width] (may be gate_up itself), dweight [rows]
    // (NULL when there is no weight) and output [rows, width], the forward result again.
    void (*swiglu_input_grad)(struct dp_stream *stream, const struct dp_swiglu *swiglu,
                              const void *doutput, void *dgate_up, void *dweight, void *output);

    // From logits, real [tokens, experts]: index and weight, int32 and real [tokens, top_k].
    void (*router_forward)(struct dp_stream *stream, const struct dp_router *router,
                           const void *logits, int32_t *index, void *weight);
    // logits become their gradient in place, from dweight, real [tokens, top_k], and from the
    // balance loss times aux_scale: sum_i f_i P_i for each sequence of n tokens, with
    // f_i = experts / (top_k n) * (slots of expert i) and P_i the mean over tokens of score i as a
    // share of the token's scores; the gradient flows through P alone (DeepSeek-V3,
    // arXiv 2412.19437, equations 17 to 20).
    void (*router_input_grad)(struct dp_stream *stream, const struct dp_router *router,
                              double aux_scale, const int32_t *index, const void *dweight,
                              void *logits);
    // *ret_sum = that balance loss without a scale, summed over the sequences: 1 for each when the
    // load is even.
    void (*router_balance)(struct dp_stream *stream, const struct dp_router *router,
                           const int32_t *index, const void *logits, double *ret_sum);
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
    // to[r, h] = from[r, h] of every head of every row.
    void (*copy_heads)(struct dp_stream *stream, const struct dp_heads *heads, const void *from,
                       void *to);
    // to[r] = sum over h of from[r, h], h ascending; summed in real and rounded once.
    void (*sum_heads)(struct dp_stream *stream, const struct dp_heads *heads, const void *from,
                      void *to);
    // to[index[i]] += from[i], i ascending; indices may repeat.
    void (*add_rows)(struct dp_stream *stream, const struct dp_rows *rows, const int32_t *index,
                     const void *from, void *to);

    // logits: real [tokens, vocabulary]; *ret_sum = sum over tokens of lse - logits[target].
    void (*cross_entropy_forward)(struct dp_stream *stream, const struct dp_cross_entropy *loss,
                                  const void *logits, double *ret_sum);
    // logits become scale * (softmax - one-hot) in place.
    void (*cross_entropy_input_grad)(struct dp_stream *stream, const struct dp_cross_entropy *loss,
                                     double scale, void *logits);
};

struct dp_memory_account; // of one device

struct dp_device {
    const struct dp_device_ops *ops;
    dp_element element;
    bool on_host;             // the caller's thread computes: it does not wait for an accelerator
    struct dp_stream *stream; // the device's own; its work is done when the call returns
    struct dp_memory_account *account;
};

size_t dp_element_bytes(dp_element element);
// The element type of a device's reals: DP_F64 for DP_F64, else DP_F32.
dp_element dp_element_real(dp_element element);
size_t dp_device_real_bytes(const struct dp_device *device);
size_t dp_operand_bytes(const struct dp_device *device, dp_operand kind);

// Bytes of one device: allocated now, and at most since the device was opened or the peak reset.
// The sum over tags of peaks may exceed the peak of the sum, whose parts are at_peak. Staging is
// host memory: counted by its tag, and neither live nor under the limit.
struct dp_device_memory {
    uint64_t live, peak;
    uint64_t tag_live[DP_MEMORY_TAGS], tag_peak[DP_MEMORY_TAGS];
    uint64_t at_peak[DP_MEMORY_TAGS]; // what each tag had when all together had most
    uint64_t limit;                   // 0 = none
};
struct dp_device_memory dp_device_memory(const struct dp_device *device); // by any thread
void dp_device_reset_peak(struct dp_device *device);                      // to what is live
// Allocations that would pass the limit fail. What streams keep for operations is counted and, past
// the limit, a failure of the stream.
void dp_device_set_limit(struct dp_device *device, uint64_t bytes);
// Counts memory that others took for the device's work, or (negative) gave back: windows. By any
// thread.
void dp_device_count(struct dp_device *device, dp_memory_tag tag, int64_t bytes);

// The reference device: matrix products by a BLAS, everything else plain C, compiled for every
// element from one source. Uses AVX2 or AVX-512 where the machine has it. The caller closes it,
// after freeing what it allocated and closing what it opened. Any thread may open a device.
dp_status dp_device_open_cpu(dp_element element, struct dp_device **ret_device,
                             struct dp_error *err);
void dp_device_close(struct dp_device *device);
// Threads, the caller's own among them, that work on the device's own stream; >= 1, and 1 at first.
// Results of the same number of threads are the same bits. Call it while nothing runs there.
// DP_IO, and one thread, where the host has no more.
dp_status dp_device_set_threads(struct dp_device *device, int32_t threads, struct dp_error *err);
