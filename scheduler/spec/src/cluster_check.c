// Rules between the keys of a cluster, and what is legal but odd.

#include <stdlib.h>
#include <string.h>

#include "cluster_internal.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "spec_internal.h"

struct check {
    const struct dp_cluster_spec *spec;
    const struct dp_toml_node *root;
    struct dp_diags *diags;
};

static void report(const struct check *check, const struct dp_toml_node *at, const char *message)
{
    dp_diags_add(check->diags, at == NULL ? 0 : at->line, at == NULL ? 0 : at->column, NULL, "%s",
                 message);
}

static const struct dp_toml_node *level_node(const struct check *check, int32_t index,
                                             const char *key)
{
    const struct dp_toml_node *levels = dp_toml_get(check->root, "level");
    if (levels == NULL || (size_t)index >= levels->children_count) {
        return dp_toml_get(check->root, "topology");
    }
    const struct dp_toml_node *found = dp_toml_get(&levels->children[index], key);
    return found != NULL ? found : &levels->children[index];
}

static void check_sizes(const struct check *check)
{
    const struct dp_cluster_spec *spec = check->spec;
    int64_t all = (int64_t)spec->nodes * spec->ranks_per_node;
    const struct dp_toml_node *ranks = dp_toml_get(check->root, "ranks");
    if (all > DP_RANKS_MAX) {
        DP_AUTO_FREE char *text = dp_asprintf("%d hosts of %d ranks are more than %d ranks",
                                              spec->nodes, spec->ranks_per_node, DP_RANKS_MAX);
        report(check, dp_toml_get(check->root, "nodes"), text);
    } else if (spec->ranks > all ||
               (spec->ranks > 0 && spec->ranks <= all - spec->ranks_per_node)) {
        DP_AUTO_FREE char *text =
            dp_asprintf("%d ranks on %d hosts of %d; %d to %lld fill them all but the last",
                        spec->ranks, spec->nodes, spec->ranks_per_node,
                        (int32_t)(all - spec->ranks_per_node + 1), (long long)all);
        report(check, ranks, text);
    }
    const struct dp_toml_node *domain = dp_toml_get(check->root, "scale_up_ranks");
    if (spec->scale_up_ranks % spec->ranks_per_node != 0) {
        DP_AUTO_FREE char *text =
            dp_asprintf("a scale-up domain of %d ranks does not join whole hosts of %d",
                        spec->scale_up_ranks, spec->ranks_per_node);
        report(check, domain != NULL ? domain : dp_toml_get(check->root, "ranks_per_node"), text);
    }
    if (spec->scale_up_achieved > spec->scale_up_bandwidth) {
        report(check, dp_toml_get(check->root, "scale_up_achieved"),
               "more was achieved than scale_up_bandwidth is");
    }
}

static void check_hosts(const struct check *check)
{
    const struct dp_cluster_spec *spec = check->spec;
    if (spec->hosts[0] == '\0') {
        return;
    }
    DP_CLEANUP(dp_hosts_deinit) struct dp_hosts hosts = {0};
    struct dp_error err = {0};
    const struct dp_toml_node *key = dp_toml_get(check->root, "hosts");
    if (dp_hosts_expand(spec->hosts, &hosts, NULL, &err) != DP_OK) {
        report(check, key, err.message);
    } else if (hosts.count != (size_t)spec->nodes) {
        DP_AUTO_FREE char *text =
            dp_asprintf("%zu hosts have names, nodes says %d", hosts.count, spec->nodes);
        report(check, key != NULL ? key : dp_toml_get(check->root, "nodes"), text);
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf twice = {0};
    if (dp_hosts_find_twice(&hosts, &twice)) {
        report(check, key, twice.bytes);
    }
}

// Whether groups of an outer level begin only where groups of the inner one do.
static bool is_nested(const int32_t *inner, size_t inner_count, const int32_t *outer,
                      size_t outer_count)
{
    size_t i = 0;
    for (size_t o = 0; o < outer_count; o++) {
        int64_t left = outer[o];
        while (left > 0 && i < inner_count) {
            left -= inner[i++];
        }
        if (left != 0) {
            return false;
        }
    }
    return i == inner_count;
}

// Hosts of each group of a level; false after a report.
static bool level_sizes(const struct check *check, int32_t index, int32_t **ret_sizes,
                        size_t *ret_count)
{
    const struct dp_cluster_spec *spec = check->spec;
    const struct dp_cluster_level *level = &spec->levels[index];
    if (level->groups[0] != '\0') {
        struct dp_error err = {0};
        const struct dp_toml_node *key = level_node(check, index, "groups");
        if (dp_cluster_groups_parse(level->groups, ret_sizes, ret_count, &err) != DP_OK) {
            report(check, key, err.message);
            return false;
        }
        int64_t hosts = 0;
        for (size_t i = 0; i < *ret_count; i++) {
            hosts += (*ret_sizes)[i];
        }
        if (hosts != spec->nodes) {
            DP_AUTO_FREE char *text = dp_asprintf("groups of %lld hosts in all; there are %d",
                                                  (long long)hosts, spec->nodes);
            report(check, key, text);
        }
        return hosts == spec->nodes;
    }
    int32_t size = level->ranks > 0 ? level->ranks / spec->ranks_per_node : spec->nodes;
    size = size > spec->nodes ? spec->nodes : size;
    *ret_count = (size_t)((spec->nodes + size - 1) / size);
    *ret_sizes = dp_new_array(int32_t, *ret_count);
    for (size_t i = 0; i < *ret_count; i++) {
        (*ret_sizes)[i] = size;
    }
    (*ret_sizes)[*ret_count - 1] = spec->nodes - size * (int32_t)(*ret_count - 1);
    return true;
}

static void check_regular_level(const struct check *check, int32_t index)
{
    const struct dp_cluster_spec *spec = check->spec;
    const struct dp_cluster_level *level = &spec->levels[index];
    DP_AUTO_FREE char *text = NULL;
    if (level->ranks % spec->ranks_per_node != 0) {
        text = dp_asprintf("level \"%s\" joins %d ranks: not whole hosts of %d", level->name,
                           level->ranks, spec->ranks_per_node);
    } else if (level->ranks > 0 && level->ranks < dp_cluster_domain_ranks(spec)) {
        text = dp_asprintf("level \"%s\" joins %d ranks, fewer than the %d of a scale-up domain",
                           level->name, level->ranks, dp_cluster_domain_ranks(spec));
    } else if (level->ranks % dp_cluster_domain_ranks(spec) != 0) {
        text = dp_asprintf("level \"%s\" joins %d ranks: not whole scale-up domains of %d",
                           level->name, level->ranks, dp_cluster_domain_ranks(spec));
    }
    if (text != NULL) {
        report(check, level_node(check, index, level->ranks > 0 ? "ranks" : "nodes"), text);
    }
}

static void check_nesting(const struct check *check, int32_t index, const int32_t *inner,
                          size_t inner_count, const int32_t *sizes, size_t count)
{
    const struct dp_cluster_level *level = &check->spec->levels[index];
    DP_AUTO_FREE char *text = NULL;
    if (count > inner_count) {
        text = dp_asprintf("level \"%s\" joins fewer than level \"%s\" inside it", level->name,
                           check->spec->levels[index - 1].name);
    } else if (!is_nested(inner, inner_count, sizes, count)) {
        text = dp_asprintf("groups of level \"%s\" do not hold whole groups of level \"%s\"",
                           level->name, check->spec->levels[index - 1].name);
    }
    if (text != NULL) {
        report(check, level_node(check, index, level->groups[0] != '\0' ? "groups" : "ranks"),
               text);
    }
}

static void check_names(const struct check *check, int32_t index)
{
    for (int32_t before = 0; before < index; before++) {
        if (strcmp(check->spec->levels[before].name, check->spec->levels[index].name) == 0) {
            report(check, level_node(check, index, "name"), "two levels have the same name");
            return;
        }
    }
}

static void check_levels(const struct check *check)
{
    const struct dp_cluster_spec *spec = check->spec;
    DP_AUTO_FREE int32_t *inner = NULL;
    size_t inner_count = 0;
    for (int32_t i = 0; i < spec->levels_count; i++) {
        DP_AUTO_FREE int32_t *sizes = NULL;
        size_t count = 0;
        check_names(check, i);
        if (spec->levels[i].groups[0] == '\0') {
            check_regular_level(check, i);
        }
        if (check->diags->count > 0 || !level_sizes(check, i, &sizes, &count)) {
            return;
        }
        if (i > 0) {
            check_nesting(check, i, inner, inner_count, sizes, count);
        }
        free(inner);
        inner = dp_steal(sizes);
        inner_count = count;
    }
    if (spec->levels_count > 0 && inner_count > 1) {
        DP_AUTO_FREE char *text = dp_asprintf(
            "the outermost level \"%s\" leaves %zu parts that nothing joins; end with a level that "
            "joins all (without \"ranks\")",
            spec->levels[spec->levels_count - 1].name, inner_count);
        report(check, level_node(check, spec->levels_count - 1, "ranks"), text);
    }
}

void dp_cluster_check(const struct dp_cluster_spec *spec, const struct dp_toml_node *root,
                      struct dp_diags *diags)
{
    struct check check = {spec, root, diags};
    check_sizes(&check);
    check_hosts(&check);
    if (diags->count == 0) {
        check_levels(&check);
    }
}

void dp_cluster_spec_warnings(const struct dp_cluster_spec *spec, struct dp_buf *out)
{
    if (spec->confidence[0] != '\0') {
        dp_buf_printf(out, "figures of %s: confidence %s\n", spec->accelerator, spec->confidence);
    }
    if (spec->fp8_flops_peak > 0 && spec->fp8_flops_peak < spec->flops_peak) {
        dp_buf_puts(out, "fp8_flops_peak is below flops_peak\n");
    }
    if (spec->scale_out_bandwidth > spec->scale_up_bandwidth) {
        dp_buf_puts(out, "scale-out is faster than scale-up\n");
    }
    double inside = spec->scale_out_bandwidth;
    const char *inner = "a rank's share of the NICs (scale_out_bandwidth)";
    for (int32_t i = 0; i < spec->levels_count; i++) {
        const struct dp_cluster_level *level = &spec->levels[i];
        if (level->bandwidth > inside) {
            dp_buf_printf(out, "level \"%s\" is faster than %s inside it: it is priced as given\n",
                          level->name, inner);
        }
        if (level->ranks == 0 && i + 1 < spec->levels_count) {
            dp_buf_printf(out, "level \"%s\" joins all: the levels outside it carry nothing\n",
                          level->name);
        }
        inside = level->bandwidth;
        inner = level->name;
    }
}
