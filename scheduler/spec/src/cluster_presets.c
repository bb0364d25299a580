// Accelerators by name: the figures of data sheets, and hosts as they are sold.

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "cluster_internal.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"

// Dense figures; bandwidths per direction. Scale-up that was achieved: H800 arXiv 2412.19437,
// 3.2.2; B200 DeepEP's README (V2, EP8 combine). Latencies are arXiv 2505.09343, table 5 (NVLink,
// InfiniBand over one hop).
#define SCALE_UP_LATENCY_S 3.33e-6
#define SCALE_OUT_LATENCY_S 3.7e-6
#define RECALLED "medium: recalled, not from a data sheet at hand"
#define GPU(label, host, domain, bf16, fp8, memory, bandwidth, up, achieved, out, unit_count,      \
            sure)                                                                                  \
    {                                                                                              \
        .name = (label), .ranks_per_node = (host), .scale_up_ranks = (domain),                     \
        .flops_peak = (bf16), .fp8_flops_peak = (fp8), .memory_bytes = (memory),                   \
        .memory_bandwidth = (bandwidth), .scale_up_bandwidth = (up),                               \
        .scale_up_achieved = (achieved), .scale_up_latency_s = SCALE_UP_LATENCY_S,                 \
        .scale_out_bandwidth = (out), .scale_out_latency_s = SCALE_OUT_LATENCY_S,                  \
        .units = (unit_count), .confidence = (sure)                                                \
    }

static const struct dp_cluster_preset_row presets[] = {
    GPU("a100-40gb", 8, 0, 312e12, 0, 40e9, 1.555e12, 300e9, 0, 25e9, 108, ""),
    GPU("a100-80gb", 8, 0, 312e12, 0, 80e9, 2.039e12, 300e9, 0, 25e9, 108, ""),
    GPU("h100", 8, 0, 989.4e12, 1978.9e12, 80e9, 3.35e12, 450e9, 0, 50e9, 132, ""),
    GPU("h800", 8, 0, 989.4e12, 1978.9e12, 80e9, 3.35e12, 200e9, 160e9, 50e9, 132, ""),
    GPU("h20", 8, 0, 148e12, 296e12, 96e9, 4.0e12, 450e9, 0, 50e9, 78, RECALLED),
    GPU("h200", 8, 0, 989.4e12, 1978.9e12, 141e9, 4.8e12, 450e9, 0, 50e9, 132, ""),
    GPU("b200", 8, 0, 2250e12, 4500e12, 180e9, 7.7e12, 900e9, 726e9, 50e9, 148,
        "medium: memory and its bandwidth are a system's, not the chip's"),
    GPU("b300", 8, 0, 2250e12, 4500e12, 288e9, 8.0e12, 900e9, 0, 100e9, 160,
        "medium: HGX B300 sheet halved for sparsity; units as GB300"),
    GPU("gb200", 4, 72, 2500e12, 5000e12, 186e9, 8.0e12, 900e9, 0, 50e9, 148,
        "medium: network is 50 GB/s with CX7, 100 with CX8"),
    GPU("gb300", 4, 72, 2500e12, 5000e12, 288e9, 8.0e12, 900e9, 0, 100e9, 160,
        "medium: bf16 and fp8 recalled as GB200's"),
    GPU("mi300x", 8, 0, 1307e12, 2615e12, 192e9, 5.3e12, 448e9, 0, 50e9, 304, ""),
    GPU("mi325x", 8, 0, 1307e12, 2615e12, 256e9, 6.0e12, 448e9, 0, 50e9, 304, RECALLED),
    GPU("mi355x", 8, 0, 2516e12, 5033e12, 288e9, 8.0e12, 538e9, 0, 50e9, 256,
        "medium: operations are units x 8192 x 2.4 GHz; links recalled"),
    GPU("mtt-s4000", 8, 0, 100e12, 0, 48e9, 0.768e12, 120e9, 0, 25e9, 0,
        "medium: network not published, 25 GB/s assumed"),
    GPU("mtt-s5000", 8, 0, 500e12, 1000e12, 80e9, 1.6e12, 392e9, 0, 50e9, 56,
        "low: bf16 inferred as half of fp8; network not published, 50 GB/s assumed"),
    // One core of a common server: OpenBLAS sgemm and a scale-copy, loopback TCP.
    {.name = "cpu",
     .ranks_per_node = 8,
     .flops_peak = 70e9,
     .memory_bytes = 4e9,
     .memory_bandwidth = 13e9,
     .scale_up_bandwidth = 2.5e9,
     .scale_up_latency_s = 30e-6,
     .scale_out_bandwidth = 1.2e9,
     .scale_out_latency_s = 60e-6,
     .confidence = ""},
};

enum { PRESETS = DP_ARRAY_LENGTH(presets) };

// Names of data sheets, systems and instance types.
static const struct {
    const char *alias, *preset;
} aliases[] = {
    {"a100", "a100-80gb"},        {"a100-sxm-80", "a100-80gb"}, {"a100-sxm", "a100-80gb"},
    {"a100-sxm-40", "a100-40gb"}, {"dgx-a100", "a100-80gb"},    {"h100-sxm", "h100"},
    {"h100-sxm5", "h100"},        {"h100-80gb", "h100"},        {"dgx-h100", "h100"},
    {"hgx-h100", "h100"},         {"h800-sxm", "h800"},         {"h20-sxm", "h20"},
    {"h200-sxm", "h200"},         {"dgx-h200", "h200"},         {"b200-hgx", "b200"},
    {"hgx-b200", "b200"},         {"dgx-b200", "b200"},         {"b200-sxm", "b200"},
    {"b300-hgx", "b300"},         {"hgx-b300", "b300"},         {"dgx-b300", "b300"},
    {"gb200-nvl72", "gb200"},     {"dgx-gb200", "gb200"},       {"gb300-nvl72", "gb300"},
    {"dgx-gb300", "gb300"},       {"mi300", "mi300x"},          {"mi325", "mi325x"},
    {"mi355", "mi355x"},          {"s4000", "mtt-s4000"},       {"s5000", "mtt-s5000"},
};

const char *const *dp_cluster_preset_names(void)
{
    // Written with the same values by whoever comes first.
    static const char *names[PRESETS + 1];
    for (size_t i = 0; i < PRESETS; i++) {
        __atomic_store_n(&names[i], presets[i].name, __ATOMIC_RELAXED);
    }
    return names;
}

const char *dp_cluster_preset_name(const char *name)
{
    for (size_t i = 0; i < PRESETS; i++) {
        if (strcasecmp(presets[i].name, name) == 0) {
            return presets[i].name;
        }
    }
    for (size_t i = 0; i < DP_ARRAY_LENGTH(aliases); i++) {
        if (strcasecmp(aliases[i].alias, name) == 0) {
            return aliases[i].preset;
        }
    }
    return NULL;
}

const char *dp_cluster_preset_near(const char *name)
{
    char lower[DP_NAME_MAX];
    if (!DP_COPY_TEXT(lower, name)) {
        return NULL;
    }
    for (char *at = lower; *at != '\0'; at++) {
        *at = (char)tolower((unsigned char)*at);
    }
    const char *near = dp_suggest(lower, dp_cluster_preset_names());
    const char *names[DP_ARRAY_LENGTH(aliases) + 1] = {0};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(aliases); i++) {
        names[i] = aliases[i].alias;
    }
    return near != NULL ? near : dp_suggest(lower, names);
}

const struct dp_cluster_preset_row *dp_cluster_preset_find(const char *name)
{
    const char *preset = dp_cluster_preset_name(name);
    for (size_t i = 0; preset != NULL && i < PRESETS; i++) {
        if (presets[i].name == preset || strcmp(presets[i].name, preset) == 0) {
            return &presets[i];
        }
    }
    return NULL;
}

void dp_cluster_preset_fill(const struct dp_cluster_preset_row *row, struct dp_cluster_spec *spec)
{
    memset(spec->name, 0, sizeof(spec->name)); // equal specs have equal bytes
    memset(spec->accelerator, 0, sizeof(spec->accelerator));
    memset(spec->confidence, 0, sizeof(spec->confidence));
    DP_COPY_TEXT(spec->name, row->name);
    DP_COPY_TEXT(spec->accelerator, row->name);
    DP_COPY_TEXT(spec->confidence, row->confidence);
    spec->ranks_per_node = row->ranks_per_node;
    spec->scale_up_ranks = row->scale_up_ranks;
    spec->memory_bytes = row->memory_bytes;
    spec->flops_peak = row->flops_peak;
    spec->fp8_flops_peak = row->fp8_flops_peak;
    spec->memory_bandwidth = row->memory_bandwidth;
    spec->scale_up_bandwidth = row->scale_up_bandwidth;
    spec->scale_up_achieved = row->scale_up_achieved;
    spec->scale_up_latency_s = row->scale_up_latency_s;
    spec->scale_out_bandwidth = row->scale_out_bandwidth;
    spec->scale_out_latency_s = row->scale_out_latency_s;
    spec->units = row->units;
}

static dp_status fail_unknown(const char *name, struct dp_error *err)
{
    const char *near = dp_cluster_preset_near(name);
    if (near != NULL) {
        return dp_fail(err, DP_NOT_FOUND, "no accelerator is called \"%s\"; did you mean \"%s\"?",
                       name, near);
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf names = {0};
    for (size_t i = 0; i < PRESETS; i++) {
        dp_buf_printf(&names, "%s%s", i == 0 ? "" : ", ", presets[i].name);
    }
    return dp_fail(err, DP_NOT_FOUND, "no accelerator is called \"%s\"; the built-in ones are %s",
                   name, names.bytes);
}

dp_status dp_cluster_preset(const char *accelerator, int32_t ranks, struct dp_cluster_spec *ret,
                            struct dp_error *err)
{
    const struct dp_cluster_preset_row *row = dp_cluster_preset_find(accelerator);
    if (row == NULL) {
        return fail_unknown(accelerator, err);
    }
    if (ranks < 1 || ranks > DP_RANKS_MAX) {
        return dp_fail(err, DP_INVALID, "a cluster of %d ranks; it must be 1 to %d", ranks,
                       DP_RANKS_MAX);
    }
    memset(ret, 0, sizeof(*ret));
    dp_cluster_preset_fill(row, ret);
    ret->ranks_per_node = ranks < row->ranks_per_node ? ranks : row->ranks_per_node;
    ret->nodes = (ranks + ret->ranks_per_node - 1) / ret->ranks_per_node;
    ret->ranks = ranks % ret->ranks_per_node == 0 ? 0 : ranks;
    return DP_OK;
}

// Whether `word` stands in `text` between characters that are no letters or digits.
static bool has_word(const char *text, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = strcasestr(text, word); at != NULL; at = strcasestr(at + 1, word)) {
        bool begins = at == text || !isalnum((unsigned char)at[-1]);
        if (begins && !isalnum((unsigned char)at[length])) {
            return true;
        }
    }
    return false;
}

const char *dp_cluster_preset_of_device(const char *device)
{
    static const struct {
        const char *words[2]; // all of them
        const char *preset;
    } devices[] = {
        {{"A100", "40GB"}, "a100-40gb"}, {{"A100", "80GB"}, "a100-80gb"},
        {{"H100", NULL}, "h100"},        {{"H800", NULL}, "h800"},
        {{"H20", NULL}, "h20"},          {{"H200", NULL}, "h200"},
        {{"B200", NULL}, "b200"},        {{"B300", NULL}, "b300"},
        {{"GB200", NULL}, "gb200"},      {{"GB300", NULL}, "gb300"},
        {{"MI300X", NULL}, "mi300x"},    {{"MI325X", NULL}, "mi325x"},
        {{"MI355X", NULL}, "mi355x"},    {{"S4000", NULL}, "mtt-s4000"},
        {{"S5000", NULL}, "mtt-s5000"},
    };
    if (has_word(device, "PCIe") || has_word(device, "NVL")) {
        return NULL; // cards have other clocks and links
    }
    for (size_t i = 0; i < DP_ARRAY_LENGTH(devices); i++) {
        const char *const *words = devices[i].words;
        if (has_word(device, words[0]) && (words[1] == NULL || has_word(device, words[1]))) {
            return devices[i].preset;
        }
    }
    return NULL;
}
