#include "dp/device.h"

#include <stdlib.h>

#include "cpu.h"
#include "crew.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "memory.h"

struct cpu_device {
    struct dp_device device;
    struct dp_device_ops ops, kernels; // what callers see, and what does the work
    struct dp_crew *crew;
};

typedef void (*installer)(struct dp_device_ops *ops);

#define INSTALLERS(variant)                                                                        \
    {                                                                                              \
        dp_cpu_install_arithmetic_##variant, dp_cpu_install_attention_##variant,                   \
            dp_cpu_install_fp8_##variant, dp_cpu_install_gemm_##variant,                           \
            dp_cpu_install_loss_##variant, dp_cpu_install_norm_##variant,                          \
            dp_cpu_install_router_##variant, dp_cpu_install_rows_##variant,                        \
            dp_cpu_install_swiglu_##variant                                                        \
    }
#define INSTALLER_COUNT 9

static const installer plain[][INSTALLER_COUNT] = {
    [DP_F32] = INSTALLERS(f32), [DP_F64] = INSTALLERS(f64), [DP_BF16] = INSTALLERS(bf16)};
#ifdef DP_CPU_HAS_AVX
static const installer avx2[][INSTALLER_COUNT] = {
    [DP_F32] = INSTALLERS(f32_avx2), [DP_F64] = INSTALLERS(f64), [DP_BF16] = INSTALLERS(bf16_avx2)};
static const installer avx512[][INSTALLER_COUNT] = {[DP_F32] = INSTALLERS(f32_avx512),
                                                    [DP_F64] = INSTALLERS(f64),
                                                    [DP_BF16] = INSTALLERS(bf16_avx512)};
#endif

static const installer *installers_for(dp_element element)
{
#ifdef DP_CPU_HAS_AVX
    if (dp_cpu_runs_avx512()) {
        return avx512[element];
    }
    if (dp_cpu_runs_avx2()) {
        return avx2[element];
    }
#endif
    return plain[element];
}

size_t dp_element_bytes(dp_element element)
{
    static const size_t bytes[] = {[DP_F32] = 4, [DP_F64] = 8, [DP_BF16] = 2};
    DP_CHECK(element >= 0 && element <= DP_BF16);
    return bytes[element];
}

dp_element dp_element_real(dp_element element)
{
    return element == DP_F64 ? DP_F64 : DP_F32;
}

size_t dp_device_real_bytes(const struct dp_device *device)
{
    return dp_element_bytes(dp_element_real(device->element));
}

size_t dp_operand_bytes(const struct dp_device *device, dp_operand kind)
{
    switch (kind) {
    case DP_OPERAND_REAL:
        return dp_device_real_bytes(device);
    case DP_OPERAND_FP8:
        return 1;
    case DP_OPERAND_ELEMENT:
        break;
    }
    return dp_element_bytes(device->element);
}

// What stands before memory that was given out, so that free knows what it was.
struct block {
    size_t bytes;
    dp_memory_tag tag;
};
#define ALIGN 64
_Static_assert(sizeof(struct block) <= ALIGN, "a block's memory is aligned");

static dp_status cpu_alloc(struct dp_device *device, dp_memory_tag tag, size_t bytes,
                           void **ret_memory, struct dp_error *err)
{
    if (!dp_account_add(device, tag, bytes, false)) {
        return dp_account_fail(device, tag, bytes, err);
    }
    void *memory = NULL;
    if (bytes > SIZE_MAX - 2 * ALIGN || posix_memalign(&memory, ALIGN, bytes + ALIGN) != 0) {
        dp_account_remove(device, tag, bytes);
        return dp_fail(err, DP_UNSCHEDULABLE,
                       "no host memory for %zu bytes of %s; use fewer ranks per node or a smaller "
                       "micro-batch",
                       bytes, dp_memory_tag_text(tag));
    }
    *(struct block *)memory = (struct block){bytes, tag};
    *ret_memory = (char *)memory + ALIGN;
    return DP_OK;
}

static void cpu_free(struct dp_device *device, void *memory)
{
    if (memory == NULL) {
        return;
    }
    struct block *block = (struct block *)((char *)memory - ALIGN);
    dp_account_remove(device, block->tag, block->bytes);
    free(block);
}

dp_status dp_device_set_threads(struct dp_device *device, int32_t threads, struct dp_error *err)
{
    struct cpu_device *cpu = (struct cpu_device *)device;
    DP_CHECK(threads >= 1);
    dp_crew_free(cpu->crew);
    cpu->crew = NULL;
    const dp_status status = threads > 1 ? dp_crew_new(threads, &cpu->crew, err) : DP_OK;
    device->stream->crew = cpu->crew;
    return status;
}

dp_status dp_device_open_cpu(dp_element element, struct dp_device **ret_device,
                             struct dp_error *err)
{
    (void)err;
    DP_CHECK(element >= 0 && element <= DP_BF16);
    struct cpu_device *cpu = dp_new(struct cpu_device);
    const installer *install = installers_for(element);
    for (size_t i = 0; i < INSTALLER_COUNT; i++) {
        install[i](&cpu->kernels);
    }
    dp_cpu_install_streams(&cpu->kernels);
    cpu->ops = cpu->kernels;
    cpu->ops.alloc = cpu_alloc;
    cpu->ops.free = cpu_free;
    dp_cpu_front(&cpu->ops);
    cpu->device = (struct dp_device){
        .ops = &cpu->ops, .element = element, .on_host = true, .account = dp_account_new()};
    cpu->device.stream = dp_stream_new(&cpu->device, &cpu->kernels);
    *ret_device = &cpu->device;
    return DP_OK;
}

void dp_device_close(struct dp_device *device)
{
    if (device == NULL) {
        return;
    }
    device->ops->stream_close(device->stream);
    dp_crew_free(((struct cpu_device *)device)->crew);
    dp_account_free(device->account);
    free(device);
}
