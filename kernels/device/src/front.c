// The table that callers see: on the device's own stream an operation runs at the call, on an
// opened one its arguments are copied and put into the stream's queue. An operation is one row of
// the list below.
#include "cpu.h"
#include "queue.h"

// Parameters, fields and arguments of n types.
#define PARAMS_0()
#define PARAMS_1(A) , A a
#define PARAMS_2(A, B) , A a, B b
#define PARAMS_3(A, B, C) , A a, B b, C c
#define PARAMS_4(A, B, C, D) , A a, B b, C c, D d
#define PARAMS_5(A, B, C, D, E) , A a, B b, C c, D d, E e
#define PARAMS_6(A, B, C, D, E, F) , A a, B b, C c, D d, E e, F f
#define PARAMS_7(A, B, C, D, E, F, G) , A a, B b, C c, D d, E e, F f, G g
#define FIELDS_0()
#define FIELDS_1(A) A a;
#define FIELDS_2(A, B) FIELDS_1(A) B b;
#define FIELDS_3(A, B, C) FIELDS_2(A, B) C c;
#define FIELDS_4(A, B, C, D) FIELDS_3(A, B, C) D d;
#define FIELDS_5(A, B, C, D, E) FIELDS_4(A, B, C, D) E e;
#define FIELDS_6(A, B, C, D, E, F) FIELDS_5(A, B, C, D, E) F f;
#define FIELDS_7(A, B, C, D, E, F, G) FIELDS_6(A, B, C, D, E, F) G g;
#define GIVEN_0
#define GIVEN_1 , a
#define GIVEN_2 , a, b
#define GIVEN_3 , a, b, c
#define GIVEN_4 , a, b, c, d
#define GIVEN_5 , a, b, c, d, e
#define GIVEN_6 , a, b, c, d, e, f
#define GIVEN_7 , a, b, c, d, e, f, g
#define LIST_3 a, b, c
#define LIST_4 LIST_3, d
#define LIST_5 LIST_4, e
#define LIST_6 LIST_5, f
#define LIST_7 LIST_6, g
#define KEPT_0
#define KEPT_1 , t->a
#define KEPT_2 , t->a, t->b
#define KEPT_3 , t->a, t->b, t->c
#define KEPT_4 , t->a, t->b, t->c, t->d
#define KEPT_5 , t->a, t->b, t->c, t->d, t->e
#define KEPT_6 , t->a, t->b, t->c, t->d, t->e, t->f
#define KEPT_7 , t->a, t->b, t->c, t->d, t->e, t->f, t->g

// VALUES(operation, n, types...): n arguments after the stream.
// STRUCT(operation, struct, n, types...): a pointer to a struct, which is copied, and n more.
#define OPERATIONS                                                                                 \
    VALUES(copy, 3, void *, const void *, size_t)                                                  \
    VALUES(fill, 3, void *, int, size_t)                                                           \
    VALUES(from_double, 4, int64_t, const double *, dp_operand, void *)                            \
    VALUES(convert, 5, int64_t, dp_operand, const void *, dp_operand, void *)                      \
    VALUES(add, 5, int64_t, dp_operand, const void *, dp_operand, void *)                          \
    VALUES(scale, 4, int64_t, double, dp_operand, void *)                                          \
    VALUES(sum_squares, 4, int64_t, dp_operand, const void *, double *)                            \
    STRUCT(adamw, struct dp_adamw, 5, int64_t, const void *, void *, void *, void *)               \
    STRUCT(quantize_fp8, struct dp_fp8, 4, dp_operand, const void *, uint8_t *, float *)           \
    STRUCT(dequantize_fp8, struct dp_fp8, 4, const uint8_t *, const float *, dp_operand, void *)   \
    STRUCT(gemm, struct dp_gemm, 0, )                                                              \
    STRUCT(rmsnorm_forward, struct dp_rmsnorm, 1, void *)                                          \
    STRUCT(rmsnorm_again, struct dp_rmsnorm, 1, void *)                                            \
    STRUCT(rmsnorm_input_grad, struct dp_rmsnorm, 2, const void *, void *)                         \
    STRUCT(rmsnorm_weight_grad, struct dp_rmsnorm, 2, const void *, void *)                        \
    STRUCT(rope, struct dp_rope, 1, void *)                                                        \
    STRUCT(attention_forward, struct dp_attention, 0, )                                            \
    STRUCT(attention_input_grad, struct dp_attention, 5, const void *, void *, void *, void *,     \
           void *)                                                                                 \
    STRUCT(swiglu_forward, struct dp_swiglu, 1, void *)                                            \
    STRUCT(swiglu_input_grad, struct dp_swiglu, 4, const void *, void *, void *, void *)           \
    STRUCT(router_forward, struct dp_router, 3, const void *, int32_t *, void *)                   \
    STRUCT(router_input_grad, struct dp_router, 4, double, const int32_t *, const void *, void *)  \
    STRUCT(router_balance, struct dp_router, 3, const int32_t *, const void *, double *)           \
    VALUES(sort_slots, 5, int64_t, int32_t, const int32_t *, int32_t *, int32_t *)                 \
    STRUCT(spread_rows, struct dp_rows, 4, int32_t, const int32_t *, const void *, void *)         \
    STRUCT(collect_rows, struct dp_rows, 5, int32_t, bool, const int32_t *, const void *, void *)  \
    STRUCT(copy_heads, struct dp_heads, 2, const void *, void *)                                   \
    STRUCT(sum_heads, struct dp_heads, 2, const void *, void *)                                    \
    STRUCT(add_rows, struct dp_rows, 3, const int32_t *, const void *, void *)                     \
    STRUCT(cross_entropy_forward, struct dp_cross_entropy, 2, const void *, double *)              \
    STRUCT(cross_entropy_input_grad, struct dp_cross_entropy, 2, double, void *)

#define VALUES(operation, n, ...)                                                                  \
    struct operation##_task {                                                                      \
        FIELDS_##n(__VA_ARGS__)                                                                    \
    };                                                                                             \
    static void operation##_later(struct dp_stream *stream, void *arguments)                       \
    {                                                                                              \
        const struct operation##_task *t = arguments;                                              \
        stream->kernels->operation(stream KEPT_##n);                                               \
    }                                                                                              \
    static void operation##_call(struct dp_stream *stream PARAMS_##n(__VA_ARGS__))                 \
    {                                                                                              \
        if (stream->queue == NULL) {                                                               \
            stream->kernels->operation(stream GIVEN_##n);                                          \
            return;                                                                                \
        }                                                                                          \
        const struct operation##_task task = {LIST_##n};                                           \
        dp_queue_put(stream->queue, operation##_later, &task, sizeof(task));                       \
    }
#define STRUCT(operation, type, n, ...)                                                            \
    struct operation##_task {                                                                      \
        type head;                                                                                 \
        FIELDS_##n(__VA_ARGS__)                                                                    \
    };                                                                                             \
    static void operation##_later(struct dp_stream *stream, void *arguments)                       \
    {                                                                                              \
        const struct operation##_task *t = arguments;                                              \
        stream->kernels->operation(stream, &t->head KEPT_##n);                                     \
    }                                                                                              \
    static void operation##_call(struct dp_stream *stream,                                         \
                                 const type *head PARAMS_##n(__VA_ARGS__))                         \
    {                                                                                              \
        if (stream->queue == NULL) {                                                               \
            stream->kernels->operation(stream, head GIVEN_##n);                                    \
            return;                                                                                \
        }                                                                                          \
        const struct operation##_task task = {*head GIVEN_##n};                                    \
        dp_queue_put(stream->queue, operation##_later, &task, sizeof(task));                       \
    }
OPERATIONS
#undef VALUES
#undef STRUCT

void dp_cpu_front(struct dp_device_ops *ops)
{
#define VALUES(operation, ...) ops->operation = operation##_call;
#define STRUCT(operation, ...) ops->operation = operation##_call;
    OPERATIONS
#undef VALUES
#undef STRUCT
}

// The rest of the table: memory, streams and events.
#define OTHERS 9
#define VALUES(...) +1
#define STRUCT(...) +1
_Static_assert(sizeof(struct dp_device_ops) / sizeof(void (*)(void)) == OTHERS + (0 OPERATIONS),
               "every operation has a row");
