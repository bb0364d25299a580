// The connected nodes as one cluster: figures of their accelerator, completed by what they report.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clusters.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/profile.h"
#include "dp/topology.h"

// What one node contributes.
struct host {
    const struct dp_node_record *node;
    const Dp__V1__Hardware *hardware; // NULL = not reported
    const char *accelerator;          // a preset; NULL = none is meant
    int32_t ranks;
};

static bool has_gpus(const struct host *host)
{
    return host->hardware != NULL && host->hardware->n_gpus > 0;
}

static void describe_host(struct host *host)
{
    host->accelerator = "cpu";
    host->ranks = (int32_t)host->node->slots;
    if (has_gpus(host)) {
        host->accelerator = dp_cluster_preset_of_device(host->hardware->gpus[0]->name);
        host->ranks = (int32_t)host->hardware->n_gpus;
    }
}

static bool is_alike(const struct host *a, const struct host *b)
{
    return a->ranks == b->ranks && a->accelerator != NULL && b->accelerator != NULL &&
           strcmp(a->accelerator, b->accelerator) == 0;
}

static int compare_hosts(const void *a, const void *b)
{
    const struct host *one = a, *two = b;
    return strverscmp(one->node->name, two->node->name);
}

// Keeps the hosts that are like most; says which were left out.
static size_t keep_alike(struct host *hosts, size_t count, struct dp_buf *warnings)
{
    size_t best = 0, most = 0;
    for (size_t i = 0; i < count; i++) {
        size_t alike = 0;
        for (size_t j = 0; j < count; j++) {
            alike += is_alike(&hosts[i], &hosts[j]);
        }
        best = alike > most ? i : best;
        most = alike > most ? alike : most;
    }
    struct host model = hosts[best];
    size_t kept = 0;
    for (size_t i = 0; most > 0 && i < count; i++) {
        if (is_alike(&model, &hosts[i])) {
            hosts[kept++] = hosts[i];
        } else {
            dp_buf_printf(warnings, "node \"%s\" is left out: it is unlike most\n",
                          hosts[i].node->name);
        }
    }
    return kept;
}

static void name_hosts(const struct host *hosts, size_t count, struct dp_cluster_spec *spec,
                       struct dp_buf *warnings)
{
    DP_CLEANUP(dp_hosts_deinit) struct dp_hosts names = {0}, again = {0};
    names.names = dp_new_array(char *, count);
    for (size_t i = 0; i < count; i++) {
        names.names[names.count++] = dp_strdup(hosts[i].node->name);
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_hosts_write(&names, &text);
    bool same = dp_hosts_expand(text.bytes, &again, NULL, NULL) == DP_OK && again.count == count;
    for (size_t i = 0; same && i < count; i++) {
        same = strcmp(again.names[i], names.names[i]) == 0;
    }
    if (!same || !DP_COPY_TEXT(spec->hosts, text.bytes)) {
        memset(spec->hosts, 0, sizeof(spec->hosts));
        dp_buf_puts(warnings, "the nodes' names cannot be written as a host list\n");
    }
}

// The least of what the ports that are up give each accelerator; 0 = no port is up somewhere.
static double scale_out(const struct host *hosts, size_t count)
{
    double least = INFINITY;
    for (size_t i = 0; i < count; i++) {
        double sum = 0;
        for (size_t p = 0; hosts[i].hardware != NULL && p < hosts[i].hardware->n_ports; p++) {
            const Dp__V1__NetworkPort *port = hosts[i].hardware->ports[p];
            sum += strcmp(port->link_state, "ACTIVE") == 0 ? port->bytes_per_s : 0;
        }
        least = fmin(least, sum / hosts[i].ranks);
    }
    return isfinite(least) ? least : 0;
}

// Accelerators that share the first host's scale-up fabric; 0 = not reported.
static int32_t fabric_ranks(const struct host *hosts, size_t count)
{
    if (!has_gpus(&hosts[0]) || hosts[0].hardware->gpus[0]->fabric[0] == '\0') {
        return 0;
    }
    const Dp__V1__Gpu *first = hosts[0].hardware->gpus[0];
    int32_t ranks = 0;
    for (size_t i = 0; i < count; i++) {
        for (size_t g = 0; has_gpus(&hosts[i]) && g < hosts[i].hardware->n_gpus; g++) {
            const Dp__V1__Gpu *gpu = hosts[i].hardware->gpus[g];
            ranks += strcmp(gpu->fabric, first->fabric) == 0 && gpu->clique == first->clique;
        }
    }
    return ranks;
}

static void complete_gpus(const struct host *hosts, size_t count, struct dp_cluster_spec *spec,
                          struct dp_buf *warnings)
{
    double memory = INFINITY;
    size_t split = 0;
    for (size_t i = 0; i < count; i++) {
        for (size_t g = 0; g < hosts[i].hardware->n_gpus; g++) {
            double bytes = (double)hosts[i].hardware->gpus[g]->memory_bytes;
            memory = bytes > 0 ? fmin(memory, bytes) : memory;
            split += hosts[i].hardware->gpus[g]->mig;
        }
    }
    if (split > 0) {
        dp_buf_printf(warnings, "accelerators split into instances count as whole: %zu\n", split);
    }
    spec->memory_bytes = isfinite(memory) ? memory : spec->memory_bytes;
    double out = scale_out(hosts, count);
    spec->scale_out_bandwidth = out >= 1 ? out : spec->scale_out_bandwidth;
    int32_t joined = fabric_ranks(hosts, count);
    if (joined > spec->ranks_per_node && joined % spec->ranks_per_node == 0) {
        spec->scale_up_ranks = joined;
    } else if (spec->scale_up_ranks % spec->ranks_per_node != 0) {
        spec->scale_up_ranks = 0;
    }
}

// Agents of one machine share its memory and cores.
static uint32_t agents_of_machine(const struct host *hosts, size_t count, const struct host *one)
{
    uint32_t agents = 0;
    for (size_t i = 0; i < count; i++) {
        agents +=
            hosts[i].node == one->node || (one->node->boot_id[0] != '\0' &&
                                           strcmp(hosts[i].node->boot_id, one->node->boot_id) == 0);
    }
    return agents;
}

static void complete_cpus(const struct host *hosts, size_t count, struct dp_cluster_spec *spec)
{
    const struct dp_node_record *node = hosts[0].node;
    uint32_t agents = agents_of_machine(hosts, count, &hosts[0]);
    if (node->memory_bytes > 0) {
        spec->memory_bytes = (double)node->memory_bytes / agents / hosts[0].ranks;
    }
    spec->cores_per_node = (int32_t)(node->cores / agents);
    DP_AUTO_FREE struct dp_profile *profile = dp_new(struct dp_profile);
    json_t *json = json_loadb(node->profile.bytes == NULL ? "" : node->profile.bytes,
                              node->profile.length, 0, NULL);
    if (json != NULL && dp_profile_from_json(json, profile, NULL) == DP_OK) {
        spec->flops_peak = profile->gemm_flops_per_s;
        spec->memory_bandwidth = profile->memory_bytes_per_s;
        spec->scale_up_bandwidth = profile->local.bytes_per_s;
        spec->scale_up_latency_s = profile->local.latency_s;
        spec->scale_out_bandwidth = profile->network.bytes_per_s;
        spec->scale_out_latency_s = profile->network.latency_s;
    }
    json_decref(json);
}

static dp_status fail_unknown(const struct host *hosts, size_t count, struct dp_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (hosts[i].accelerator == NULL) {
            return dp_fail(err, DP_UNSUPPORTED,
                           "node \"%s\" has %d x \"%s\", which is no built-in accelerator: write "
                           "its figures into a cluster file (docs/cluster-file.md)",
                           hosts[i].node->name, hosts[i].ranks, hosts[i].hardware->gpus[0]->name);
        }
    }
    return dp_fail(err, DP_NOT_FOUND, "no node is connected that takes ranks");
}

dp_status live_cluster(const struct dp_node_record *const *nodes,
                       const Dp__V1__Hardware *const *hardware, size_t count,
                       struct dp_cluster_spec *ret_spec, struct dp_buf *warnings,
                       struct dp_error *err)
{
    DP_AUTO_FREE struct host *hosts = dp_new_array(struct host, count);
    size_t usable = 0;
    for (size_t i = 0; i < count; i++) {
        struct host host = {.node = nodes[i], .hardware = hardware[i]};
        describe_host(&host);
        if (host.ranks > 0) {
            hosts[usable++] = host;
        }
    }
    size_t kept = usable == 0 ? 0 : keep_alike(hosts, usable, warnings);
    if (kept == 0) {
        return fail_unknown(hosts, usable, err);
    }
    qsort(hosts, kept, sizeof(*hosts), compare_hosts);
    dp_status status = dp_cluster_preset(hosts[0].accelerator, 1, ret_spec, err);
    if (status != DP_OK) {
        return status;
    }
    memset(ret_spec->name, 0, sizeof(ret_spec->name));
    DP_COPY_TEXT(ret_spec->name, "this");
    ret_spec->nodes = (int32_t)kept;
    ret_spec->ranks_per_node = hosts[0].ranks;
    ret_spec->ranks = 0;
    name_hosts(hosts, kept, ret_spec, warnings);
    if (has_gpus(&hosts[0])) {
        complete_gpus(hosts, kept, ret_spec, warnings);
    } else {
        complete_cpus(hosts, kept, ret_spec);
    }
    return DP_OK;
}
