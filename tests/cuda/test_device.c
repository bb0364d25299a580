// The cuda device where there is no GPU: it is refused in words. Where there is one, it opens,
// copies, counts its memory and runs kernels and a product.
#include "dp_test.h"

#include "dp/cuda.h"

static struct dp_device *device; // NULL = no GPU
static struct dp_error refusal;

static void doubles_are_refused(void **state)
{
    (void)state;
    struct dp_error err;
    struct dp_device *none;
    assert_refused(dp_device_open_cuda(DP_F64, 0, &none, &err), DP_UNSUPPORTED, &err, "no doubles");
}

static void a_missing_gpu_is_refused_with_cudas_reason(void **state)
{
    (void)state;
    struct dp_error err;
    struct dp_device *none;
    if (device == NULL) {
        // cudart's texts: no device, or no driver for one.
        assert_refused(refusal.status, DP_UNAVAILABLE, &refusal, "GPU 0: ");
        assert_true(strstr(refusal.message, "CUDA") != NULL);
    }
    assert_true(dp_device_open_cuda(DP_F32, 4096, &none, &err) == DP_UNAVAILABLE);
}

static void a_gpu_multiplies_and_counts_its_memory(void **state)
{
    (void)state;
    if (device == NULL) {
        skip();
    }
    enum { N = 64 };
    struct dp_error err;
    const struct dp_device_ops *ops = device->ops;
    float host[N * N], back[N * N];
    void *a, *b, *c;
    struct dp_event *event;
    for (int i = 0; i < N * N; i++) {
        host[i] = (float)(i % 7) - 3;
    }
    assert_ok(ops->alloc(device, DP_MEMORY_WEIGHTS, sizeof(host), &a, &err), &err);
    assert_ok(ops->alloc(device, DP_MEMORY_WEIGHTS, sizeof(host), &b, &err), &err);
    assert_ok(ops->alloc(device, DP_MEMORY_ACTIVATIONS, sizeof(host), &c, &err), &err);
    assert_int_equal(dp_device_memory(device).tag_live[DP_MEMORY_WEIGHTS], 2 * sizeof(host));
    ops->copy(device->stream, a, host, sizeof(host));
    ops->copy(device->stream, b, a, sizeof(host));
    const struct dp_gemm gemm = {
        .m = N, .n = N, .k = N, .a = a, .lda = N, .b = b, .ldb = N, .c = c, .ldc = N};
    ops->gemm(device->stream, &gemm);
    assert_ok(ops->event_record(device->stream, &event, &err), &err);
    ops->copy(device->stream, back, c, sizeof(back));
    ops->event_wait(device->stream, event);
    assert_ok(ops->stream_sync(device->stream, &err), &err);
    assert_true(ops->event_done(event));
    ops->event_close(event);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++) {
            float sum = 0; // small integers: exact
            for (int k = 0; k < N; k++) {
                sum += host[i * N + k] * host[k * N + j];
            }
            assert_true(back[i * N + j] == sum);
        }
    }
    ops->free(device, a);
    ops->free(device, b);
    ops->free(device, c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(doubles_are_refused),
        cmocka_unit_test(a_missing_gpu_is_refused_with_cudas_reason),
        cmocka_unit_test(a_gpu_multiplies_and_counts_its_memory),
    };
    dp_device_open_cuda(DP_F32, 0, &device, &refusal);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    dp_device_close_cuda(device);
    return failed;
}
