// One transport out of rows: each peer is reached over the best one that both have. The mesh has
// the queues and windows; its rows move bytes for their peers alone, each in a thread.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/transport_ops.h"
#include "dp/verbs.h"

// Texts that tell a rank's addresses: this, then key=value each behind a ';'.
#define ADDRESS_VERSION "1"

// In the order in which they are preferred.
typedef enum mesh_row { MESH_SHM, MESH_VERBS, MESH_TCP, MESH_ROWS } mesh_row;

static const char *const row_keys[MESH_ROWS] = {
    [MESH_SHM] = "shm", [MESH_VERBS] = "verbs", [MESH_TCP] = "tcp"};

struct mesh {
    struct dp_transport base;
    struct dp_transport *rows[MESH_ROWS]; // NULL = not offered
    bool used[MESH_ROWS];                 // it has peers
    struct dp_transport **via;            // [world], NULL = this rank or not connected
    int32_t *node_of;                     // [world]
};

static struct mesh *mesh_of(const struct dp_transport *transport)
{
    return (struct mesh *)(uintptr_t)transport;
}

// The value of a key, of DP_ADDRESS_MAX bytes; false when the text has no such key.
static bool find_value(const char *address, const char *key, char *ret_value)
{
    size_t length = strlen(key);
    for (const char *at = strchr(address, ';'); at != NULL; at = strchr(at + 1, ';')) {
        if (strncmp(at + 1, key, length) == 0 && at[1 + length] == '=') {
            const char *value = at + length + 2;
            size_t bytes = strcspn(value, ";");
            if (bytes == 0 || bytes >= DP_ADDRESS_MAX) {
                return false;
            }
            memcpy(ret_value, value, bytes);
            ret_value[bytes] = '\0';
            return true;
        }
    }
    return false;
}

// Ranks of a node have the same text before the '/' of their shared memory, or in "node".
static bool find_node(const char *address, char *ret_node)
{
    if (find_value(address, "node", ret_node)) {
        return true;
    }
    bool has_shm = find_value(address, "shm", ret_node);
    if (has_shm) {
        ret_node[strcspn(ret_node, "/")] = '\0';
    }
    return has_shm;
}

static bool is_same_node(const char *a, const char *b)
{
    char node_a[DP_ADDRESS_MAX], node_b[DP_ADDRESS_MAX];
    return find_node(a, node_a) && find_node(b, node_b) && strcmp(node_a, node_b) == 0;
}

static void number_nodes(struct mesh *mesh, const char *const *addresses)
{
    int32_t count = 0;
    for (int32_t i = 0; i < mesh->base.world; i++) {
        int32_t same = 0;
        while (same < i && !is_same_node(addresses[same], addresses[i])) {
            same++;
        }
        mesh->node_of[i] = same < i ? mesh->node_of[same] : count++;
    }
}

static dp_status choose(struct mesh *mesh, const char *const *addresses, int32_t peer,
                        mesh_row *ret_row, struct dp_error *err)
{
    const char *own = addresses[mesh->base.rank], *other = addresses[peer];
    char value[DP_ADDRESS_MAX];
    for (mesh_row row = 0; row < MESH_ROWS; row++) {
        bool both = mesh->rows[row] != NULL && find_value(other, row_keys[row], value);
        if (both && (row != MESH_SHM || is_same_node(own, other))) {
            *ret_row = row;
            return DP_OK;
        }
    }
    return dp_fail(err, DP_UNSUPPORTED,
                   "rank %d (%s) and rank %d (%s) have no way to each other: set [parallel] "
                   "transport to auto or tcp",
                   mesh->base.rank, own, peer, other);
}

static dp_status mesh_connect(struct dp_transport *transport, const char *const *addresses,
                              int64_t deadline_ns, struct dp_error *err)
{
    struct mesh *mesh = mesh_of(transport);
    int32_t world = transport->world;
    DP_AUTO_FREE char *texts = dp_alloc((size_t)world * MESH_ROWS, DP_ADDRESS_MAX);
    DP_AUTO_FREE const char **of = dp_new_array(const char *, (size_t)world *MESH_ROWS);
    for (int32_t i = 0; i < world; i++) {
        if (strncmp(addresses[i], ADDRESS_VERSION ";", 2) != 0) {
            return dp_fail(err, DP_CONFLICT,
                           "the address of rank %d, \"%s\", is of another version of this program",
                           i, addresses[i]);
        }
    }
    number_nodes(mesh, addresses);
    for (int32_t i = 0; i < world; i++) {
        mesh_row row = 0;
        if (i == transport->rank) {
            continue;
        }
        dp_status status = choose(mesh, addresses, i, &row, err);
        if (status != DP_OK) {
            return status;
        }
        size_t at = (size_t)row * (size_t)world + (size_t)i;
        find_value(addresses[i], row_keys[row], texts + at * DP_ADDRESS_MAX);
        of[at] = texts + at * DP_ADDRESS_MAX;
        mesh->via[i] = mesh->rows[row];
        mesh->used[row] = true;
    }
    for (mesh_row row = 0; row < MESH_ROWS; row++) {
        dp_status status = DP_OK;
        if (mesh->used[row]) {
            status = mesh->rows[row]->ops->connect(
                mesh->rows[row], of + (size_t)row * (size_t)world, deadline_ns, err);
        }
        if (status != DP_OK) {
            return dp_fail_in(err, "%s", row_keys[row]);
        }
    }
    return DP_OK;
}

static dp_status mesh_send(struct dp_transport *transport, int32_t peer, uint64_t tag,
                           const struct iovec *parts, int count, size_t length,
                           struct dp_error *err)
{
    struct dp_transport *via = mesh_of(transport)->via[peer];
    return via->ops->send(via, peer, tag, parts, count, length, err);
}

static void mesh_resume(struct dp_transport *transport, int32_t peer)
{
    struct dp_transport *via = mesh_of(transport)->via[peer];
    if (via != NULL) {
        via->ops->resume(via, peer);
    }
}

static void mesh_cut(struct dp_transport *transport, int32_t peer)
{
    struct dp_transport *via = mesh_of(transport)->via[peer];
    if (via != NULL) {
        via->ops->cut(via, peer);
    }
}

static void mesh_aborted(struct dp_transport *transport)
{
    struct mesh *mesh = mesh_of(transport);
    for (mesh_row row = 0; row < MESH_ROWS; row++) {
        if (mesh->rows[row] != NULL) {
            mesh->rows[row]->ops->aborted(mesh->rows[row]);
        }
    }
}

static void *run_row(void *argument)
{
    struct dp_transport *row = argument;
    row->ops->progress(row);
    if (row->front->aborted != DP_OK) {
        mesh_aborted(row->front); // when it was this row's thread that gave up
    }
    return NULL;
}

static void mesh_progress(struct dp_transport *transport)
{
    struct mesh *mesh = mesh_of(transport);
    pthread_t threads[MESH_ROWS];
    bool started[MESH_ROWS] = {false};
    struct dp_transport *own = NULL;
    for (mesh_row row = 0; row < MESH_ROWS; row++) {
        if (mesh->used[row] && own == NULL) {
            own = mesh->rows[row];
        } else if (mesh->used[row]) {
            DP_CHECK(pthread_create(&threads[row], NULL, run_row, mesh->rows[row]) == 0);
            started[row] = true;
        }
    }
    if (own != NULL) {
        run_row(own);
    }
    for (mesh_row row = 0; row < MESH_ROWS; row++) {
        if (started[row]) {
            pthread_join(threads[row], NULL);
        }
    }
}

static dp_status window_offer(struct dp_transport *transport, struct dp_window *window,
                              int32_t peer, unsigned char card[DP_WINDOW_CARD_BYTES],
                              struct dp_error *err)
{
    struct dp_transport *via = mesh_of(transport)->via[peer];
    return via->ops->window_offer == NULL ? DP_OK
                                          : via->ops->window_offer(via, window, peer, card, err);
}

static dp_status window_accept(struct dp_transport *transport, struct dp_window *window,
                               int32_t peer, const unsigned char card[DP_WINDOW_CARD_BYTES],
                               struct dp_error *err)
{
    struct dp_transport *via = mesh_of(transport)->via[peer];
    return via->ops->window_accept == NULL ? DP_OK
                                           : via->ops->window_accept(via, window, peer, card, err);
}

static void window_forget(struct dp_transport *transport, struct dp_window *window, int32_t peer)
{
    struct dp_transport *via = mesh_of(transport)->via[peer];
    if (via->ops->window_forget != NULL) {
        via->ops->window_forget(via, window, peer);
    }
}

static void *window_map(struct dp_transport *transport, struct dp_window *window, int32_t peer)
{
    struct dp_transport *via = mesh_of(transport)->via[peer];
    return via->ops->window_map == NULL ? NULL : via->ops->window_map(via, window, peer);
}

static dp_status mesh_put(struct dp_transport *transport, struct dp_window *window, int32_t peer,
                          size_t offset, const struct iovec *parts, int count, size_t length,
                          uint64_t number, uint64_t note, struct dp_error *err)
{
    struct dp_transport *via = mesh_of(transport)->via[peer];
    return via->ops->put(via, window, peer, offset, parts, count, length, number, note, err);
}

// Rows say goodbye one after the other, in the same order on all ranks.
static dp_status mesh_close(struct dp_transport *transport, int64_t deadline_ns,
                            struct dp_error *err)
{
    struct mesh *mesh = mesh_of(transport);
    dp_status first = DP_OK;
    for (mesh_row row = 0; row < MESH_ROWS; row++) {
        if (mesh->used[row]) {
            struct dp_transport *via = mesh->rows[row];
            dp_status status = via->ops->close(via, deadline_ns, first == DP_OK ? err : NULL);
            first = first == DP_OK ? status : first;
        }
    }
    return first;
}

static void mesh_free(struct dp_transport *transport)
{
    struct mesh *mesh = mesh_of(transport);
    for (mesh_row row = 0; row < MESH_ROWS; row++) {
        dp_transport_free(mesh->rows[row]);
    }
    free(mesh->via);
    free(mesh->node_of);
    dp_transport_deinit(transport);
    free(mesh);
}

static const struct dp_transport_attributes *peer_attributes(const struct dp_transport *transport,
                                                             int32_t peer)
{
    const struct dp_transport *via = mesh_of(transport)->via[peer];
    return via == NULL ? &transport->ops->attributes : &via->ops->attributes;
}

static void nodes(const struct dp_transport *transport, int32_t *ret_node_of)
{
    memcpy(ret_node_of, mesh_of(transport)->node_of,
           (size_t)transport->world * sizeof *ret_node_of);
}

static const struct dp_transport_ops mesh_ops = {
    // Of the slowest of its rows; peer_attributes tells more.
    .attributes = {.name = "mesh",
                   .bandwidth = 2e9,
                   .latency_s = 3e-5,
                   .message_bytes_max = DP_TRANSPORT_BYTES_MAX},
    .peer_attributes = peer_attributes,
    .nodes = nodes,
    .connect = mesh_connect,
    .send = mesh_send,
    .resume = mesh_resume,
    .cut = mesh_cut,
    .aborted = mesh_aborted,
    .progress = mesh_progress,
    .window_offer = window_offer,
    .window_accept = window_accept,
    .window_forget = window_forget,
    .window_map = window_map,
    .put = mesh_put,
    .close = mesh_close,
    .free = mesh_free,
};

static const char *const kind_names[DP_TRANSPORT_KINDS] = {"auto", "shm", "tcp", "verbs"};

dp_status dp_transport_kind_parse(const char *text, dp_transport_kind *ret_kind,
                                  struct dp_error *err)
{
    for (dp_transport_kind kind = 0; kind < DP_TRANSPORT_KINDS; kind++) {
        if (strcmp(text, kind_names[kind]) == 0 || text[0] == '\0') {
            *ret_kind = kind;
            return DP_OK;
        }
    }
    return dp_fail(err, DP_UNSUPPORTED, "[parallel] transport = \"%s\": this program has none such",
                   text);
}

static dp_status listen_row(mesh_row row, const struct dp_transport_config *config,
                            char *ret_address, struct dp_transport **ret_row, struct dp_error *err)
{
    int32_t rank = config->rank, world = config->world;
    switch (row) {
    case MESH_SHM:
        return dp_transport_shm_listen(rank, world, config->token, ret_address, ret_row, err);
    case MESH_VERBS:
        return dp_transport_verbs_listen(config->host, rank, world, config->token, config->verbs,
                                         ret_address, ret_row, err);
    default:
        return dp_transport_tcp_listen(config->host, rank, world, config->token, ret_address,
                                       ret_row, err);
    }
}

static dp_status add_row(struct mesh *mesh, mesh_row row, const struct dp_transport_config *config,
                         char *address, struct dp_error *err)
{
    char value[DP_ADDRESS_MAX];
    struct dp_transport *made = NULL;
    dp_status status = listen_row(row, config, value, &made, err);
    if (status != DP_OK) {
        return status;
    }
    size_t used = strlen(address);
    int more = snprintf(address + used, DP_ADDRESS_MAX - used, ";%s=%s", row_keys[row], value);
    if (more >= (int)(DP_ADDRESS_MAX - used)) {
        address[used] = '\0';
        dp_transport_free(made);
        return dp_fail(err, DP_TOO_LARGE, "the data host %s is too long a name", config->host);
    }
    dp_transport_join(made, &mesh->base);
    mesh->rows[row] = made;
    if (row == MESH_SHM) {
        mesh->base.bell = made->bell; // which peers map
    }
    return DP_OK;
}

// A machine that does not have the one row that is wanted: a choice to change, and no lost peer.
static dp_status fail_wanted(const struct dp_transport_config *config, dp_status status,
                             struct dp_error *err)
{
    const struct dp_error why = err != NULL ? *err : (struct dp_error){0};
    return dp_fail(err, status == DP_UNAVAILABLE ? DP_UNSUPPORTED : status,
                   "[parallel] transport = \"%s\": %s; set it to auto or tcp",
                   kind_names[config->kind], why.message);
}

// The rows that are wanted. Of several, this rank does without those that its machine does not
// have, or whose address has no room any more, but not without tcp.
static dp_status add_rows(struct mesh *mesh, const struct dp_transport_config *config,
                          char *address, struct dp_error *err)
{
    static const struct {
        mesh_row row;
        dp_transport_kind kind;
    } rows[MESH_ROWS] = {{MESH_TCP, DP_TRANSPORT_TCP},
                         {MESH_SHM, DP_TRANSPORT_SHM},
                         {MESH_VERBS, DP_TRANSPORT_VERBS}};
    for (int i = 0; i < MESH_ROWS; i++) {
        bool is_all = config->kind == DP_TRANSPORT_AUTO;
        if (is_all || config->kind == rows[i].kind) {
            dp_status status = add_row(mesh, rows[i].row, config, address, err);
            if (status != DP_OK && !is_all && rows[i].row != MESH_TCP) {
                return fail_wanted(config, status, err);
            }
            if (status != DP_OK && rows[i].row == MESH_TCP) {
                return status;
            }
        }
    }
    return DP_OK;
}

dp_status dp_transport_open(const struct dp_transport_config *config, char *ret_address,
                            struct dp_transport **ret_transport, struct dp_error *err)
{
    dp_status status = dp_transport_check_world(config->rank, config->world, err);
    if (status != DP_OK) {
        return status;
    }
    struct mesh *mesh = dp_new(struct mesh);
    dp_transport_init(&mesh->base, &mesh_ops, config->rank, config->world, NULL);
    mesh->via = dp_new_array(struct dp_transport *, (size_t)config->world);
    mesh->node_of = dp_new_array(int32_t, (size_t)config->world);
    char address[DP_ADDRESS_MAX] = ADDRESS_VERSION;
    status = add_rows(mesh, config, address, err);
    if (status != DP_OK) {
        dp_transport_free(&mesh->base);
        return status;
    }
    memcpy(ret_address, address, sizeof address);
    *ret_transport = &mesh->base;
    return DP_OK;
}
