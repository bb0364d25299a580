// Where the hosts of a cluster stand: domains and groups of every level.

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster_internal.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"

int32_t dp_cluster_ranks(const struct dp_cluster_spec *spec)
{
    return spec->ranks > 0 ? spec->ranks : spec->nodes * spec->ranks_per_node;
}

int32_t dp_cluster_domain_ranks(const struct dp_cluster_spec *spec)
{
    return spec->scale_up_ranks > 0 ? spec->scale_up_ranks : spec->ranks_per_node;
}

// A positive number no larger than DP_NODES_MAX, or 0.
static int32_t read_count(const char **at)
{
    int32_t value = 0;
    while (isdigit((unsigned char)**at) && value <= DP_NODES_MAX) {
        value = value * 10 + (**at - '0');
        (*at)++;
    }
    return value <= DP_NODES_MAX ? value : 0;
}

dp_status dp_cluster_groups_parse(const char *text, int32_t **ret_sizes, size_t *ret_count,
                                  struct dp_error *err)
{
    DP_AUTO_FREE int32_t *sizes = dp_new_array(int32_t, 1);
    size_t count = 0;
    for (const char *at = text;; at++) {
        int32_t size = read_count(&at), times = 1;
        if (*at == 'x') {
            times = size;
            at++;
            size = read_count(&at);
        }
        if (size == 0 || times == 0 || (*at != ',' && *at != '\0')) {
            return dp_fail(err, DP_INVALID,
                           "groups are sizes in hosts with commas between, \"16,16,12\", or runs, "
                           "\"2x16,12\"; column %d is not",
                           (int)(at - text) + 1);
        }
        if (count + (size_t)times > DP_NODES_MAX) {
            return dp_fail(err, DP_TOO_LARGE, "more than %d groups", DP_NODES_MAX);
        }
        sizes = dp_realloc(sizes, count + (size_t)times, sizeof(*sizes));
        for (int32_t i = 0; i < times; i++) {
            sizes[count++] = size;
        }
        if (*at == '\0') {
            *ret_sizes = dp_steal(sizes);
            *ret_count = count;
            return DP_OK;
        }
    }
}

bool dp_cluster_groups_write(const int32_t *sizes, size_t count,
                             char ret_text[DP_CLUSTER_GROUPS_MAX])
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    for (size_t i = 0; i < count;) {
        size_t run = 1;
        while (i + run < count && sizes[i + run] == sizes[i]) {
            run++;
        }
        dp_buf_puts(&text, i == 0 ? "" : ",");
        if (run > 1) {
            dp_buf_printf(&text, "%zux", run);
        }
        dp_buf_printf(&text, "%d", sizes[i]);
        i += run;
    }
    memset(ret_text, 0, DP_CLUSTER_GROUPS_MAX);
    return dp_copy_text(ret_text, DP_CLUSTER_GROUPS_MAX, text.bytes == NULL ? "" : text.bytes);
}

static void name_hosts(const struct dp_cluster_spec *spec, struct dp_cluster_node *nodes)
{
    DP_CLEANUP(dp_hosts_deinit) struct dp_hosts hosts = {0};
    if (spec->hosts[0] != '\0') {
        DP_CHECK(dp_hosts_expand(spec->hosts, &hosts, NULL, NULL) == DP_OK);
    }
    for (int32_t i = 0; i < spec->nodes; i++) {
        if ((size_t)i < hosts.count) {
            DP_COPY_TEXT(nodes[i].name, hosts.names[i]);
        } else {
            snprintf(nodes[i].name, sizeof(nodes[i].name), "node-%d", i);
        }
    }
}

// Groups of one level from its list of sizes, or all alike.
static void number_groups(const struct dp_cluster_spec *spec, int32_t index,
                          struct dp_cluster_node *nodes)
{
    const struct dp_cluster_level *level = &spec->levels[index];
    DP_AUTO_FREE int32_t *sizes = NULL;
    size_t count = 0;
    if (level->groups[0] != '\0') {
        DP_CHECK(dp_cluster_groups_parse(level->groups, &sizes, &count, NULL) == DP_OK);
    }
    int32_t alike = level->ranks > 0 ? level->ranks / spec->ranks_per_node : spec->nodes;
    int32_t group = 0, left = 0;
    for (int32_t i = 0; i < spec->nodes; i++, left--) {
        if (left == 0) {
            left = (size_t)group < count ? sizes[group] : alike;
            group++;
        }
        nodes[i].group[index] = group;
    }
}

// Domains for `count` hosts: equal ones that are full by three quarters or more, else as few as
// possible.
static int32_t count_domains(int32_t count, int32_t domain_hosts)
{
    for (int32_t hosts = domain_hosts; 4 * hosts >= 3 * domain_hosts; hosts--) {
        if (count % hosts == 0) {
            return count / hosts;
        }
    }
    return (count + domain_hosts - 1) / domain_hosts;
}

// Hosts `first` to `first + count - 1`, of one innermost group.
static void number_domains(struct dp_cluster_node *nodes, int32_t first, int32_t count,
                           int32_t domain_hosts, int32_t *domain)
{
    int32_t domains = count_domains(count, domain_hosts);
    for (int32_t d = 0, at = first; d < domains; d++) {
        int32_t hosts = count / domains + (d < count % domains);
        ++*domain;
        for (int32_t i = 0; i < hosts; i++) {
            nodes[at++].domain = *domain;
        }
    }
}

void dp_cluster_nodes(const struct dp_cluster_spec *spec, struct dp_cluster_node **ret_nodes)
{
    struct dp_cluster_node *nodes = dp_new_array(struct dp_cluster_node, (size_t)spec->nodes);
    name_hosts(spec, nodes);
    int32_t left = dp_cluster_ranks(spec);
    for (int32_t i = 0; i < spec->nodes; i++) {
        nodes[i].ranks = left < spec->ranks_per_node ? left : spec->ranks_per_node;
        left -= nodes[i].ranks;
    }
    for (int32_t level = 0; level < spec->levels_count; level++) {
        number_groups(spec, level, nodes);
    }
    int32_t domain_hosts = dp_cluster_domain_ranks(spec) / spec->ranks_per_node;
    domain_hosts = domain_hosts > 0 ? domain_hosts : 1;
    int32_t domain = 0;
    for (int32_t first = 0, i = 1; i <= spec->nodes; i++) {
        if (i == spec->nodes || nodes[i].group[0] != nodes[first].group[0]) {
            number_domains(nodes, first, i - first, domain_hosts, &domain);
            first = i;
        }
    }
    *ret_nodes = nodes;
}
