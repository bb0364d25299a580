// Kernels by what libraries call them.
#include <ctype.h>
#include <string.h>

#include "dp/trace_read.h"

static const char *const texts[DP_KERNEL_KIND_COUNT] = {
    [DP_KERNEL_GEMM] = "gemm",           [DP_KERNEL_GROUPED_GEMM] = "grouped_gemm",
    [DP_KERNEL_ATTENTION] = "attention", [DP_KERNEL_ATTENTION_GRADIENT] = "attention_gradient",
    [DP_KERNEL_OTHER] = "other",         [DP_KERNEL_DISPATCH] = "dispatch",
    [DP_KERNEL_COMBINE] = "combine",     [DP_KERNEL_EXCHANGE] = "exchange",
    [DP_KERNEL_NOTIFY] = "notify",       [DP_KERNEL_COLLECTIVE] = "collective",
    [DP_KERNEL_COPY] = "copy",
};

const char *dp_kernel_kind_text(dp_kernel_kind kind)
{
    return texts[kind];
}

static bool has(const char *text, const char *const *words)
{
    for (; *words != NULL; words++) {
        if (strstr(text, *words) != NULL) {
            return true;
        }
    }
    return false;
}

#define HAS(text, ...) has(text, (const char *const[]){__VA_ARGS__, NULL})

// The function's own name: template arguments and parameters name other things ("Dispatch" of a
// sort's policy). `lower` is cut there.
static void cut_arguments(char *lower)
{
    char *at = lower;
    static const char anonymous[] = "(anonymous namespace)";
    while (*at != '\0' && *at != '<') {
        if (strncmp(at, anonymous, sizeof anonymous - 1) == 0) {
            at += sizeof anonymous - 1;
        } else if (*at == '(') {
            break;
        } else {
            at++;
        }
    }
    *at = '\0';
}

static dp_kernel_kind compute_kind(const char *full)
{
    // CPU operators and libraries' kernels alike.
    if (HAS(full, "flash", "fmha", "attention", "attn_", "mha_", "_mha")) {
        return HAS(full, "bwd", "backward", "grad") ? DP_KERNEL_ATTENTION_GRADIENT
                                                    : DP_KERNEL_ATTENTION;
    }
    if (HAS(full, "gemm", "cutlass", "cublas", "xmma", "nvjet", "matmul", "wgmma", "aten::mm",
            "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "mmbackward")) {
        return HAS(full, "group", "moe", "expert") ? DP_KERNEL_GROUPED_GEMM : DP_KERNEL_GEMM;
    }
    return DP_KERNEL_OTHER;
}

dp_kernel_kind dp_kernel_kind_of(const char *name)
{
    char full[DP_TRACE_TEXT_MAX + 8], own[DP_TRACE_TEXT_MAX + 8];
    size_t length = 0;
    for (; name[length] != '\0' && length < DP_TRACE_TEXT_MAX; length++) {
        full[length] = (char)tolower((unsigned char)name[length]);
    }
    full[length] = '\0';
    memcpy(own, full, length + 1);
    cut_arguments(own);
    if (HAS(own, "nccl", "rccl", "mccl", "c10d::", "oneccl")) {
        return HAS(own, "alltoall", "all_to_all", "sendrecv") ? DP_KERNEL_EXCHANGE
                                                              : DP_KERNEL_COLLECTIVE;
    }
    if (HAS(full, "memcpy")) {
        return HAS(full, "ptop", "p2p", "peer") ? DP_KERNEL_COPY : DP_KERNEL_OTHER;
    }
    bool is_attention = HAS(full, "flash", "fmha", "attention");
    if (!is_attention && HAS(own, "notify", "nvshmem", "dispatch_layout", "barrier_")) {
        return DP_KERNEL_NOTIFY;
    }
    if (!is_attention && HAS(own, "dispatch")) {
        return DP_KERNEL_DISPATCH;
    }
    if (!is_attention && HAS(own, "combine")) {
        return DP_KERNEL_COMBINE;
    }
    if (HAS(own, "alltoall", "all_to_all", "all2all")) {
        return DP_KERNEL_EXCHANGE;
    }
    if (HAS(own, "allreduce", "all_reduce", "allgather", "all_gather", "reducescatter",
            "reduce_scatter")) {
        return DP_KERNEL_COLLECTIVE;
    }
    return compute_kind(full);
}
