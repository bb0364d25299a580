// dpctl cluster: descriptions of clusters that the controller keeps by name.

#include <stdlib.h>
#include <string.h>

#include "cluster.h"
#include "connect.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/method.h"

enum { KEY_DRY_RUN = 0x200 };

static const struct argp_option options[] = {
    {"dry-run", KEY_DRY_RUN, NULL, 0, "apply: say what would change and change nothing", 0},
    {0},
};

struct request {
    const char *verb, *name;
    bool dry_run;
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case KEY_DRY_RUN:
        request->dry_run = true;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0) {
            request->verb = arg;
        } else {
            dpctl_take_argument(state, "cluster", arg, &request->name);
        }
        return 0;
    case ARGP_KEY_END:
        if (request->verb == NULL) {
            argp_error(state, "say apply FILE, show [NAME], list, or delete NAME");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void warn(const char *warnings)
{
    DP_AUTO_FREE char *copy = dp_strdup(warnings);
    for (char *rest = copy, *line; (line = strsep(&rest, "\n")) != NULL;) {
        if (line[0] != '\0') {
            fprintf(stderr, "warning: %s\n", line);
        }
    }
}

static void print_applied(struct dpctl *ctl, const Dp__V1__ApplyClusterResponse *response,
                          bool dry_run)
{
    if (ctl->json) {
        dpctl_print_json(ctl, dp_message_to_json(&response->base), "dp.cluster_applied/1");
        return;
    }
    const Dp__V1__Cluster *cluster = response->cluster;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    if (!response->changed) {
        dp_buf_printf(&text, "cluster %s: unchanged, version %llu\n", cluster->name,
                      (unsigned long long)cluster->version);
    } else {
        dp_buf_printf(&text, "cluster %s: version %llu%s\n", cluster->name,
                      (unsigned long long)cluster->version,
                      dry_run ? " it would be; nothing is stored" : " is stored");
        DP_AUTO_FREE char *changes = dp_strdup(response->changes);
        for (char *rest = changes, *line; (line = strsep(&rest, "\n")) != NULL;) {
            dp_buf_printf(&text, line[0] == '\0' ? "" : "  %s\n", line);
        }
    }
    dpctl_print(&text);
    warn(cluster->warnings);
}

// The file is read here, with the topology that it may name, and sent in its written form.
static dp_status apply(struct dpctl *ctl, const struct request *given, struct dp_error *err)
{
    DP_AUTO_FREE struct dp_cluster_spec *spec = dp_new(struct dp_cluster_spec);
    dp_status status = dp_cluster_spec_load(given->name, spec, err);
    AUTO_CLIENT struct dp_client *client = NULL;
    if (status == DP_OK) {
        status = connect_controller(ctl, &client, err);
    }
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_cluster_spec_write(spec, &text);
    Dp__V1__ApplyClusterRequest request = DP__V1__APPLY_CLUSTER_REQUEST__INIT;
    request.cluster_toml.data = (uint8_t *)text.bytes;
    request.cluster_toml.len = text.length;
    request.file = (char *)given->name;
    request.dry_run = given->dry_run;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ApplyClusterResponse *response = NULL;
    status = dp_client_apply_cluster(client, &request, &arena, &response, err);
    if (status == DP_OK) {
        print_applied(ctl, response, given->dry_run);
    }
    return status;
}

static int32_t count_domains(const struct dp_cluster_spec *spec, int32_t ret_groups[])
{
    DP_AUTO_FREE struct dp_cluster_node *nodes = NULL;
    dp_cluster_nodes(spec, &nodes);
    const struct dp_cluster_node *last = &nodes[spec->nodes - 1];
    memcpy(ret_groups, last->group, sizeof(last->group));
    return last->domain;
}

// Figures by the names of the file's keys, and what the hosts make.
static json_t *figures_json(const struct dp_cluster_spec *spec)
{
    int32_t groups[DP_CLUSTER_LEVELS_MAX];
    int32_t domains = count_domains(spec, groups);
    json_t *levels = json_array();
    for (int32_t i = 0; i < spec->levels_count; i++) {
        const struct dp_cluster_level *level = &spec->levels[i];
        json_array_append_new(
            levels,
            json_pack("{s:s, s:i, s:i, s:f, s:f, s:f}", "name", level->name, "groups", groups[i],
                      "ranks", level->ranks > 0 ? level->ranks : dp_cluster_ranks(spec),
                      "bandwidth", level->bandwidth, "latency_s", level->latency_s,
                      "oversubscription", level->oversubscription));
    }
    return json_pack(
        "{s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:s, s:o}",
        "nodes", spec->nodes, "ranks_per_node", spec->ranks_per_node, "ranks",
        dp_cluster_ranks(spec), "scale_up_ranks", dp_cluster_domain_ranks(spec), "domains", domains,
        "memory_bytes", spec->memory_bytes, "flops_peak", spec->flops_peak, "fp8_flops_peak",
        spec->fp8_flops_peak, "memory_bandwidth", spec->memory_bandwidth, "units", spec->units,
        "scale_up_bandwidth", spec->scale_up_bandwidth, "scale_up_achieved",
        spec->scale_up_achieved, "scale_up_latency_s", spec->scale_up_latency_s,
        "scale_out_bandwidth", spec->scale_out_bandwidth, "scale_out_latency_s",
        spec->scale_out_latency_s, "confidence", spec->confidence, "levels", levels);
}

static void print_cluster(struct dpctl *ctl, const struct dp_cluster_spec *spec, json_t *about,
                          const char *version, const char *warnings)
{
    if (ctl->json) {
        json_t *json = about != NULL ? about : json_object();
        json_object_set_new(json, "name", dpctl_text_json(spec->name, strlen(spec->name)));
        json_object_set_new(json, "accelerator",
                            dpctl_text_json(spec->accelerator, strlen(spec->accelerator)));
        json_object_set_new(json, "warnings", dpctl_text_json(warnings, strlen(warnings)));
        json_object_set_new(json, "figures", figures_json(spec));
        dpctl_print_json(ctl, json, "dp.cluster/1");
        return;
    }
    json_decref(about);
    int32_t groups[DP_CLUSTER_LEVELS_MAX];
    int32_t domains = count_domains(spec, groups);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    char hosts[64], ranks[64], counted[64];
    dp_buf_printf(&text, "# %s%s: %s with %s of %s in %s", spec->name, version,
                  dpctl_count(hosts, (unsigned long long)spec->nodes, "host"),
                  dpctl_count(ranks, (unsigned long long)dp_cluster_ranks(spec), "accelerator"),
                  spec->accelerator,
                  dpctl_count(counted, (unsigned long long)domains, "scale-up domain"));
    for (int32_t i = 0; i < spec->levels_count; i++) {
        dp_buf_printf(&text, ", %s of level %s",
                      dpctl_count(counted, (unsigned long long)groups[i], "group"),
                      spec->levels[i].name);
    }
    dp_buf_puts(&text, "\n");
    dp_cluster_spec_write(spec, &text);
    dpctl_print(&text);
    warn(warnings);
}

// A stored cluster, or what the connected nodes make together.
static dp_status show_stored(struct dpctl *ctl, const char *name, struct dp_error *err)
{
    AUTO_CLIENT struct dp_client *client = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Cluster *cluster = NULL;
    DP_AUTO_FREE struct dp_cluster_spec *spec = dp_new(struct dp_cluster_spec);
    status = dp_client_get_cluster(client, name, &arena, &cluster, err);
    if (status != DP_OK) {
        return status;
    }
    const char *text = (const char *)cluster->cluster_toml.data;
    DP_CLEANUP(dp_diags_deinit) struct dp_diags diags;
    dp_diags_init(&diags, name, text, cluster->cluster_toml.len);
    status = dp_cluster_spec_parse(text == NULL ? "" : text, cluster->cluster_toml.len, &diags,
                                   spec, err);
    if (status != DP_OK) {
        return status;
    }
    char version[80] = "", time[32];
    if (cluster->version > 0) {
        snprintf(version, sizeof(version), " (version %llu of %s)",
                 (unsigned long long)cluster->version,
                 dp_clock_format_utc(time, cluster->updated_ns));
    }
    print_cluster(ctl, spec, ctl->json ? dp_message_to_json(&cluster->base) : NULL, version,
                  cluster->warnings);
    return DP_OK;
}

static dp_status show(struct dpctl *ctl, const struct request *request, struct dp_error *err)
{
    const char *name = request->name == NULL ? "this" : request->name;
    if (!dpctl_cluster_is_file(name)) {
        return show_stored(ctl, name, err);
    }
    DP_AUTO_FREE struct dp_cluster_spec *spec = dp_new(struct dp_cluster_spec);
    dp_status status = dp_cluster_spec_load(name, spec, err);
    if (status == DP_OK) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf warnings = {0};
        dp_cluster_spec_warnings(spec, &warnings);
        print_cluster(ctl, spec, NULL, "", warnings.length > 0 ? warnings.bytes : "");
    }
    return status;
}

static dp_status list(struct dpctl *ctl, const struct request *request, struct dp_error *err)
{
    (void)request;
    AUTO_CLIENT struct dp_client *client = NULL;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ListClustersResponse *response = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    if (status == DP_OK) {
        status = dp_client_list_clusters(client, &arena, &response, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        dpctl_print_json(ctl, dp_message_to_json(&response->base), "dp.clusters/1");
        return DP_OK;
    }
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 6, .right = 7u << 1};
    dpctl_heads(&table, (const char *const[]){"NAME", "VERSION", "HOSTS", "ACCELERATORS",
                                              "ACCELERATOR", "CHANGED"});
    for (size_t i = 0; i < response->n_clusters; i++) {
        const Dp__V1__Cluster *cluster = response->clusters[i];
        char time[32];
        dpctl_cell(&table, "%s", cluster->name);
        dpctl_cell(&table, "%llu", (unsigned long long)cluster->version);
        dpctl_cell(&table, "%u", cluster->hosts);
        dpctl_cell(&table, "%u", cluster->accelerators);
        dpctl_cell(&table, "%s", cluster->accelerator);
        dpctl_cell(&table, "%s", dp_clock_format_utc(time, cluster->updated_ns));
    }
    dpctl_table_print(&table);
    return DP_OK;
}

static dp_status delete (struct dpctl *ctl, const struct request *request, struct dp_error *err)
{
    AUTO_CLIENT struct dp_client *client = NULL;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Cluster *cluster = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    if (status == DP_OK) {
        status = dp_client_delete_cluster(client, request->name, &arena, &cluster, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        dpctl_print_json(ctl, dp_message_to_json(&cluster->base), "dp.cluster/1");
        return DP_OK;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_buf_printf(&text, "cluster %s: version %llu is deleted\n", cluster->name,
                  (unsigned long long)cluster->version);
    dpctl_print(&text);
    return DP_OK;
}

static const struct verb {
    const char *name;
    bool needs_name, takes_name;
    dp_status (*run)(struct dpctl *ctl, const struct request *request, struct dp_error *err);
} verbs[] = {
    {"apply", true, true, apply},
    {"show", false, true, show},
    {"list", false, false, list},
    {"delete", true, true, delete},
};

dp_status dpctl_cmd_cluster(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "VERB [FILE|NAME]",
        .doc = "Keeps descriptions of clusters on the controller, by name: `dpctl plan --cluster "
               "NAME` plans for them. `apply` stores what a file describes (again: only what "
               "changed); `show` prints a stored one, a file, or `this`, which is what the "
               "connected nodes report.\v"
               "docs/cluster-file.md describes the file.\n\nExamples:\n"
               "  dpctl cluster apply lab.toml\n"
               "  dpctl cluster show this > lab.toml\n",
        .exits = "0 ok, 3 the file is wrong, 4 no such file or cluster, 8 no controller",
        .options = options,
        .handle = handle,
    };
    struct request request = {0};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(verbs); i++) {
        const struct verb *verb = &verbs[i];
        if (strcmp(verb->name, request.verb) != 0) {
            continue;
        }
        if (verb->needs_name && request.name == NULL) {
            return dp_fail(err, DP_USAGE, "`dpctl cluster %s` needs a %s", verb->name,
                           verb->run == apply ? "file" : "name");
        }
        if (!verb->takes_name && request.name != NULL) {
            return dp_fail(err, DP_USAGE, "unexpected argument \"%s\" after %s", request.name,
                           verb->name);
        }
        if (request.dry_run && verb->run != apply) {
            return dp_fail(err, DP_USAGE, "--dry-run belongs to `dpctl cluster apply`");
        }
        return verb->run(ctl, &request, err);
    }
    return dp_fail(err, DP_USAGE, "unknown verb \"%s\"; there are apply, show, list, delete",
                   request.verb);
}
