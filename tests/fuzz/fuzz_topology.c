// Slurm's topology.conf and host lists: what is accepted is whole, and its hosts read back.
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/topology.h"
#include "fuzz.h"

static void check_hosts(const struct dp_hosts *hosts)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    DP_CLEANUP(dp_hosts_deinit) struct dp_hosts again = {0};
    dp_hosts_write(hosts, &text);
    DP_CHECK(dp_hosts_expand(text.bytes, &again, NULL, NULL) == DP_OK);
    DP_CHECK(again.count == hosts->count);
    for (size_t i = 0; i < hosts->count; i++) {
        DP_CHECK(strcmp(again.names[i], hosts->names[i]) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    DP_AUTO_FREE char *list = dp_strndup((const char *)data, size < 4096 ? size : 4096);
    DP_CLEANUP(dp_hosts_deinit) struct dp_hosts hosts = {0};
    if (dp_hosts_expand(list, &hosts, NULL, NULL) == DP_OK) {
        check_hosts(&hosts);
    }
    DP_CLEANUP(dp_diags_deinit) struct dp_diags diags;
    DP_CLEANUP(dp_topology_deinit) struct dp_topology topology = {0};
    dp_diags_init(&diags, "topology.conf", (const char *)data, size);
    if (dp_topology_parse((const char *)data, size, NULL, &diags, &topology, NULL) != DP_OK) {
        return 0;
    }
    check_hosts(&topology.hosts);
    for (int32_t i = 0; i < topology.levels_count; i++) {
        size_t sum = 0;
        for (size_t g = 0; g < topology.levels[i].count; g++) {
            sum += (size_t)topology.levels[i].sizes[g];
        }
        DP_CHECK(sum == topology.hosts.count);
    }
    DP_CHECK(topology.levels_count == 0 || topology.levels[topology.levels_count - 1].count == 1);
    return 0;
}
