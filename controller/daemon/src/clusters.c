// The methods of the Clusters service. A change is told when it is on disk; changes of one name
// that follow each other build on each other, stored or not.

#include "clusters.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "audit.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"

// A change that is on its way to the disk.
struct cluster_change {
    uint64_t token, call;
    struct dp_cluster_record row;
    char *changes, *warnings;    // owned
    struct cluster_change *next; // older ones first
};

static void change_free(struct cluster_change *change)
{
    dp_cluster_record_deinit(&change->row);
    free(change->changes);
    free(change->warnings);
    free(change);
}

void clusters_stop(struct daemon *daemon)
{
    while (daemon->cluster_changes != NULL) {
        struct cluster_change *change = daemon->cluster_changes;
        daemon->cluster_changes = change->next;
        change_free(change);
    }
}

struct cluster_rows {
    struct dp_cluster_record *items; // owned
    size_t count;
};

static void rows_deinit(struct cluster_rows *rows)
{
    for (size_t i = 0; i < rows->count; i++) {
        dp_cluster_record_deinit(&rows->items[i]);
    }
    free(rows->items);
}

// name NULL = all, without their text.
static dp_status load_rows(struct daemon *daemon, const char *name, struct cluster_rows *ret_rows,
                           struct dp_error *err)
{
    return dp_store_load_clusters(daemon->store, name, name != NULL, &ret_rows->items,
                                  &ret_rows->count, err);
}

static Dp__V1__Cluster *make_message(const struct dp_cluster_record *row, struct dp_arena *arena)
{
    Dp__V1__Cluster *message = arena_take(arena, sizeof(*message));
    dp__v1__cluster__init(message);
    message->name = (char *)row->name;
    message->version = row->version;
    message->cluster_toml.data = (uint8_t *)row->toml.bytes;
    message->cluster_toml.len = row->toml.length;
    message->updated_ns = row->updated_ns;
    message->accelerator = (char *)row->accelerator;
    message->hosts = row->hosts;
    message->accelerators = row->accelerators;
    return message;
}

// A name that can stand in a path and on a command line.
static dp_status check_name(const char *name, struct dp_error *err)
{
    bool good = isalnum((unsigned char)name[0]);
    for (const char *at = name; *at != '\0'; at++) {
        good = good && (isalnum((unsigned char)*at) || strchr("._-", *at) != NULL);
    }
    if (!good || strlen(name) >= DP_NAME_MAX) {
        return dp_fail(err, DP_INVALID,
                       "\"%s\" cannot be a cluster's name: use letters, digits, \".\", \"_\" and "
                       "\"-\", at most %d",
                       name, DP_NAME_MAX - 1);
    }
    if (strcmp(name, "this") == 0) {
        return dp_fail(err, DP_INVALID,
                       "\"this\" means the nodes that are connected: give name = another one");
    }
    return DP_OK;
}

static dp_status parse(const void *text, size_t length, const char *file,
                       struct dp_cluster_spec *ret_spec, struct dp_error *err)
{
    DP_CLEANUP(dp_diags_deinit) struct dp_diags diags;
    dp_diags_init(&diags, file[0] == '\0' ? "cluster.toml" : file, text, length);
    return dp_cluster_spec_parse(text == NULL ? "" : text, length, &diags, ret_spec, err);
}

static void fill_row(const struct dp_cluster_spec *spec, struct dp_cluster_record *row)
{
    DP_COPY_TEXT(row->name, spec->name);
    DP_COPY_TEXT(row->accelerator, spec->accelerator);
    row->hosts = (uint32_t)spec->nodes;
    row->accelerators = (uint32_t)dp_cluster_ranks(spec);
    dp_cluster_spec_write(spec, &row->toml);
}

// The newest row of a name: on its way to the disk, or stored. version 0 = there is none.
static dp_status newest(struct daemon *daemon, const char *name, struct dp_cluster_record *ret_row,
                        struct dp_error *err)
{
    const struct dp_cluster_record *found = NULL;
    for (struct cluster_change *change = daemon->cluster_changes; change != NULL;
         change = change->next) {
        found = strcmp(change->row.name, name) == 0 ? &change->row : found;
    }
    *ret_row = (struct dp_cluster_record){.version = 0};
    if (found != NULL) {
        if (!found->deleted) {
            *ret_row = *found;
            ret_row->toml = (struct dp_buf){0};
            dp_buf_append(&ret_row->toml, found->toml.bytes, found->toml.length);
        }
        return DP_OK;
    }
    DP_CLEANUP(rows_deinit) struct cluster_rows rows = {0};
    dp_status status = load_rows(daemon, name, &rows, err);
    if (status == DP_OK && rows.count == 1) {
        *ret_row = rows.items[0];
        rows.count = 0; // taken over
    }
    return status;
}

// In one transaction with who wanted it.
static void submit(struct daemon *daemon, struct cluster_change *change, dp_method_id method,
                   const char *user, uint64_t before)
{
    struct dp_audit_record audit;
    audit_fill(daemon, change->call, method, user, change->row.name, &audit);
    if (before > 0) {
        snprintf(audit.before, sizeof(audit.before), "version %llu", (unsigned long long)before);
    }
    if (!change->row.deleted) {
        snprintf(audit.after, sizeof(audit.after), "version %llu",
                 (unsigned long long)change->row.version);
    }
    DP_COPY_TEXT(audit.outcome, "ok");
    change->token = UINT64_C(1) << 62 | ++daemon->last_cluster_token;
    struct cluster_change **end = &daemon->cluster_changes;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = change;
    struct dp_record records[] = {{DP_RECORD_CLUSTER, &change->row}, {DP_RECORD_AUDIT, &audit}};
    dp_store_submit(daemon->store, change->token, records, DP_ARRAY_LENGTH(records));
}

static void reply_applied(struct daemon *daemon, uint64_t call, const struct dp_cluster_record *row,
                          const char *changes, const char *warnings)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ApplyClusterResponse response = DP__V1__APPLY_CLUSTER_RESPONSE__INIT;
    response.cluster = make_message(row, &arena);
    response.cluster->warnings = (char *)warnings;
    response.changes = (char *)changes;
    response.changed = changes[0] != '\0';
    call_reply(daemon, call, &response.base);
}

void clusters_on_stored(struct daemon *daemon, uint64_t token, const struct dp_error *err)
{
    struct cluster_change **link = &daemon->cluster_changes;
    while (*link != NULL && (*link)->token != token) {
        link = &(*link)->next;
    }
    struct cluster_change *change = *link;
    if (change == NULL) {
        return;
    }
    *link = change->next;
    if (err->status != DP_OK) {
        call_fail_error(daemon, change->call, err);
    } else if (change->row.deleted) {
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        call_reply(daemon, change->call, &make_message(&change->row, &arena)->base);
    } else {
        reply_applied(daemon, change->call, &change->row, change->changes, change->warnings);
    }
    change_free(change);
}

// What the change from the stored row is, in words; none = ret stays empty.
static dp_status describe(const struct dp_cluster_record *before,
                          const struct dp_cluster_spec *spec, struct dp_buf *out,
                          struct dp_error *err)
{
    if (before->version == 0) {
        dp_buf_printf(out, "new: %d hosts, %d accelerators of %s\n", spec->nodes,
                      dp_cluster_ranks(spec), spec->accelerator);
        return DP_OK;
    }
    DP_AUTO_FREE struct dp_cluster_spec *old = dp_new(struct dp_cluster_spec);
    dp_status status = parse(before->toml.bytes, before->toml.length, "", old, err);
    if (status != DP_OK) {
        return dp_fail_in(err, "the stored cluster \"%s\"", before->name);
    }
    dp_cluster_spec_changes(old, spec, out);
    return DP_OK;
}

static dp_status check_room(struct daemon *daemon, const struct dp_cluster_record *before,
                            struct dp_error *err)
{
    if (before->version > 0) {
        return DP_OK;
    }
    DP_CLEANUP(rows_deinit) struct cluster_rows rows = {0};
    dp_status status = load_rows(daemon, NULL, &rows, err);
    size_t count = rows.count;
    for (const struct cluster_change *change = daemon->cluster_changes; change != NULL;
         change = change->next) {
        count += !change->row.deleted;
    }
    return status == DP_OK && count >= DP_CLUSTERS_MAX
               ? dp_fail(err, DP_TOO_LARGE, "%d clusters are stored; delete one first",
                         DP_CLUSTERS_MAX)
               : status;
}

// *ret_spec is checked; *ret_before is what it would replace.
static dp_status prepare(struct daemon *daemon, const Dp__V1__ApplyClusterRequest *request,
                         struct dp_cluster_spec *ret_spec, struct dp_cluster_record *ret_before,
                         struct dp_buf *changes, struct dp_error *err)
{
    dp_status status =
        parse(request->cluster_toml.data, request->cluster_toml.len, request->file, ret_spec, err);
    if (status == DP_OK) {
        status = check_name(ret_spec->name, err);
    }
    if (status == DP_OK) {
        status = newest(daemon, ret_spec->name, ret_before, err);
    }
    if (status == DP_OK) {
        status = check_room(daemon, ret_before, err);
    }
    return status == DP_OK ? describe(ret_before, ret_spec, changes, err) : status;
}

static void refuse(struct daemon *daemon, uint64_t call, dp_method_id method, const char *user,
                   const char *name, const struct dp_error *why)
{
    struct dp_audit_record audit;
    audit_fill(daemon, call, method, user, name, &audit);
    audit_refuse(daemon, call, &audit, why);
}

static void apply_cluster(struct daemon *daemon, uint64_t call, const void *any,
                          struct dp_arena *arena)
{
    (void)arena;
    const Dp__V1__ApplyClusterRequest *request = any;
    struct dp_error err = {0};
    DP_AUTO_FREE struct dp_cluster_spec *spec = dp_new(struct dp_cluster_spec);
    DP_CLEANUP(dp_cluster_record_deinit) struct dp_cluster_record before = {.version = 0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf changes = {0}, warnings = {0};
    if (prepare(daemon, request, spec, &before, &changes, &err) != DP_OK) {
        refuse(daemon, call, DP_METHOD_APPLY_CLUSTER, request->user, spec->name, &err);
        return;
    }
    dp_cluster_spec_warnings(spec, &warnings);
    const char *warning_text = warnings.length > 0 ? warnings.bytes : "";
    if (changes.length == 0) {
        reply_applied(daemon, call, &before, "", warning_text);
        return;
    }
    struct cluster_change *change = dp_new(struct cluster_change);
    change->call = call;
    fill_row(spec, &change->row);
    change->row.version = before.version + 1;
    change->row.updated_ns = dp_clock_realtime_ns();
    change->changes = dp_buf_take(&changes);
    change->warnings = dp_strdup(warning_text);
    if (request->dry_run) {
        reply_applied(daemon, call, &change->row, change->changes, change->warnings);
        change_free(change);
    } else {
        submit(daemon, change, DP_METHOD_APPLY_CLUSTER, request->user, before.version);
    }
}

static dp_status fail_unknown(struct daemon *daemon, const char *name, struct dp_error *err)
{
    DP_CLEANUP(rows_deinit) struct cluster_rows rows = {0};
    dp_status status = load_rows(daemon, NULL, &rows, err);
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf names = {0};
    enum { NAMED = 10 };
    for (size_t i = 0; i < rows.count && i < NAMED; i++) {
        dp_buf_printf(&names, "%s%s", i == 0 ? "" : ", ", rows.items[i].name);
    }
    return dp_fail(err, DP_NOT_FOUND, "no cluster is called \"%s\"; %s%s%s", name,
                   rows.count == 0 ? "none is stored: dpctl cluster apply FILE" : "stored are ",
                   rows.count == 0 ? "" : names.bytes, rows.count > NAMED ? ", ..." : "");
}

// A row of what the connected nodes make together; version 0.
static dp_status this_row(struct daemon *daemon, struct dp_cluster_spec *ret_spec,
                          struct dp_buf *warnings, struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    size_t count = dp_core_nodes_count(daemon->core), connected = 0;
    struct dp_node_view *views = arena_take(&arena, count * sizeof(*views));
    const struct dp_node_record **nodes = arena_take(&arena, count * sizeof(void *));
    const Dp__V1__Hardware **hardware = arena_take(&arena, count * sizeof(void *));
    dp_core_node_views(daemon->core, views);
    for (size_t i = 0; i < count; i++) {
        if (views[i].state == DP_NODE_LOST) {
            continue;
        }
        nodes[connected] = views[i].node;
        hardware[connected++] = node_hardware(views[i].node, &arena);
    }
    return live_cluster(nodes, hardware, connected, ret_spec, warnings, err);
}

dp_status clusters_find(struct daemon *daemon, const char *name, struct dp_cluster_spec *ret_spec,
                        struct dp_error *err)
{
    if (strcmp(name, "this") == 0) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf ignored = {0};
        return this_row(daemon, ret_spec, &ignored, err);
    }
    DP_CLEANUP(rows_deinit) struct cluster_rows rows = {0};
    dp_status status = load_rows(daemon, name, &rows, err);
    if (status == DP_OK && rows.count == 0) {
        return fail_unknown(daemon, name, err);
    }
    return status == DP_OK
               ? parse(rows.items[0].toml.bytes, rows.items[0].toml.length, "", ret_spec, err)
               : status;
}

static void get_cluster(struct daemon *daemon, uint64_t call, const void *any,
                        struct dp_arena *arena)
{
    const Dp__V1__GetClusterRequest *request = any;
    struct dp_error err = {0};
    DP_CLEANUP(dp_cluster_record_deinit) struct dp_cluster_record row = {.version = 0};
    DP_AUTO_FREE struct dp_cluster_spec *spec = dp_new(struct dp_cluster_spec);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf warnings = {0};
    dp_status status;
    if (strcmp(request->name, "this") == 0) {
        status = this_row(daemon, spec, &warnings, &err);
        if (status == DP_OK) {
            fill_row(spec, &row);
        }
    } else {
        DP_CLEANUP(rows_deinit) struct cluster_rows rows = {0};
        status = load_rows(daemon, request->name, &rows, &err);
        if (status == DP_OK && rows.count == 0) {
            status = fail_unknown(daemon, request->name, &err);
        } else if (status == DP_OK) {
            row = rows.items[0];
            rows.count = 0; // taken over
            status = parse(row.toml.bytes, row.toml.length, "", spec, &err);
        }
    }
    if (status != DP_OK) {
        call_fail_error(daemon, call, &err);
        return;
    }
    dp_cluster_spec_warnings(spec, &warnings);
    Dp__V1__Cluster *message = make_message(&row, arena);
    message->warnings = warnings.length > 0 ? warnings.bytes : (char *)"";
    call_reply(daemon, call, &message->base);
}

static void list_clusters(struct daemon *daemon, uint64_t call, const void *any,
                          struct dp_arena *arena)
{
    (void)any;
    struct dp_error err = {0};
    DP_CLEANUP(rows_deinit) struct cluster_rows rows = {0};
    if (load_rows(daemon, NULL, &rows, &err) != DP_OK) {
        call_fail_error(daemon, call, &err);
        return;
    }
    Dp__V1__ListClustersResponse response = DP__V1__LIST_CLUSTERS_RESPONSE__INIT;
    response.clusters = arena_take(arena, rows.count * sizeof(void *));
    for (size_t i = 0; i < rows.count && i < DP_CLUSTERS_MAX; i++) {
        response.clusters[response.n_clusters++] = make_message(&rows.items[i], arena);
    }
    call_reply(daemon, call, &response.base);
}

static void delete_cluster(struct daemon *daemon, uint64_t call, const void *any,
                           struct dp_arena *arena)
{
    (void)arena;
    const Dp__V1__DeleteClusterRequest *request = any;
    struct dp_error err = {0};
    DP_CLEANUP(dp_cluster_record_deinit) struct dp_cluster_record row = {.version = 0};
    dp_status status = newest(daemon, request->name, &row, &err);
    if (status == DP_OK && row.version == 0) {
        status = fail_unknown(daemon, request->name, &err);
    }
    if (status != DP_OK) {
        refuse(daemon, call, DP_METHOD_DELETE_CLUSTER, request->user, request->name, &err);
        return;
    }
    struct cluster_change *change = dp_new(struct cluster_change);
    change->call = call;
    change->row = row;
    row.toml = (struct dp_buf){0}; // taken over
    change->row.deleted = true;
    change->row.updated_ns = dp_clock_realtime_ns();
    submit(daemon, change, DP_METHOD_DELETE_CLUSTER, request->user, change->row.version);
}

SERVICE_HANDLER(apply_cluster, APPLY_CLUSTER)
SERVICE_HANDLER(get_cluster, GET_CLUSTER)
SERVICE_HANDLER(list_clusters, LIST_CLUSTERS)
SERVICE_HANDLER(delete_cluster, DELETE_CLUSTER)

const struct dp_rpc_handler cluster_handlers[] = {
    {.method = DP_METHOD_APPLY_CLUSTER, .on_message = on_apply_cluster},
    {.method = DP_METHOD_GET_CLUSTER, .on_message = on_get_cluster},
    {.method = DP_METHOD_LIST_CLUSTERS, .on_message = on_list_clusters},
    {.method = DP_METHOD_DELETE_CLUSTER, .on_message = on_delete_cluster},
};
const size_t cluster_handlers_count = DP_ARRAY_LENGTH(cluster_handlers);
