// What the node has inside, asked for once on a thread of libuv's pool: a driver may take its time.

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/arena.h"
#include "dp/check.h"
#include "dp/inventory.h"
#include "dp/log.h"
#include "worker.h"

// Lives until the work has ended, whichever is later: that, or the agent.
struct hardware {
    uv_work_t work;
    struct worker *worker;
    char *root; // owned
    char *nvml; // owned, NULL = the usual one
    struct dp_inventory inventory;
    bool known;
};

static void read_all(uv_work_t *work)
{
    struct hardware *hardware = work->data;
    dp_inventory_read(hardware->root, hardware->nvml, &hardware->inventory);
}

static void on_read(uv_work_t *work, int status)
{
    struct hardware *hardware = work->data;
    const struct dp_inventory *inventory = &hardware->inventory;
    if (status != 0) {
        return; // the agent ends
    }
    hardware->known = true;
    char quoted[2 * DP_INVENTORY_TEXT_MAX];
    dp_log_info("hardware.known", "gpus=%zu ports=%zu numa=%zu driver=%s problem=%s",
                inventory->gpus_count, inventory->ports_count, inventory->numa_count,
                inventory->driver_version[0] == '\0' ? "-" : inventory->driver_version,
                dp_log_quote(quoted, sizeof(quoted), inventory->error));
    if (hardware->worker->session != NULL) {
        session_send_inventory(hardware->worker->session);
    }
}

struct hardware *hardware_new(struct worker *worker)
{
    struct hardware *hardware = dp_new(struct hardware);
    const char *root = worker->options.hardware_root;
    hardware->work.data = hardware;
    hardware->worker = worker;
    hardware->root = dp_strdup(root == NULL ? "" : root);
    hardware->nvml =
        worker->options.nvml_library == NULL ? NULL : dp_strdup(worker->options.nvml_library);
    uv_queue_work(&worker->loop, &hardware->work, read_all, on_read);
    return hardware;
}

void hardware_cancel(struct hardware *hardware)
{
    uv_cancel((uv_req_t *)&hardware->work);
}

void hardware_free(struct hardware *hardware)
{
    dp_inventory_deinit(&hardware->inventory);
    free(hardware->root);
    free(hardware->nvml);
    free(hardware);
}

static void *take(struct dp_arena *arena, size_t bytes)
{
    void *memory = dp_arena_alloc(arena, bytes);
    DP_CHECK(memory != NULL); // it has no limit
    return memory;
}

static Dp__V1__Gpu *gpu_message(const struct dp_inventory_gpu *gpu, struct dp_arena *arena)
{
    Dp__V1__Gpu *message = take(arena, sizeof(*message));
    dp__v1__gpu__init(message);
    message->index = gpu->index;
    message->name = (char *)gpu->name;
    message->uuid = (char *)gpu->uuid;
    message->memory_bytes = gpu->memory_bytes;
    message->bus_id = (char *)gpu->bus_id;
    message->numa_node = gpu->numa_node;
    message->compute_capability = (char *)gpu->compute_capability;
    message->mig = gpu->mig;
    message->mig_instances = gpu->mig_instances;
    message->links = gpu->links;
    message->fabric = (char *)gpu->fabric;
    message->clique = gpu->clique;
    message->error = (char *)gpu->error;
    return message;
}

static Dp__V1__NetworkPort *port_message(const struct dp_inventory_port *port,
                                         struct dp_arena *arena)
{
    Dp__V1__NetworkPort *message = take(arena, sizeof(*message));
    dp__v1__network_port__init(message);
    message->adapter = (char *)port->adapter;
    message->port = port->port;
    message->link_state = (char *)port->state;
    message->physical_state = (char *)port->physical_state;
    message->bytes_per_s = port->bytes_per_s;
    message->link_layer = (char *)port->link_layer;
    message->numa_node = port->numa_node;
    message->rate = (char *)port->rate;
    return message;
}

Dp__V1__Hardware *hardware_message(const struct hardware *hardware, struct dp_arena *arena)
{
    if (!hardware->known) {
        return NULL;
    }
    const struct dp_inventory *from = &hardware->inventory;
    Dp__V1__Hardware *message = take(arena, sizeof(*message));
    dp__v1__hardware__init(message);
    message->driver_version = (char *)from->driver_version;
    message->error = (char *)from->error;
    message->gpus = take(arena, from->gpus_count * sizeof(void *));
    for (size_t i = 0; i < from->gpus_count; i++) {
        message->gpus[message->n_gpus++] = gpu_message(&from->gpus[i], arena);
    }
    message->ports = take(arena, from->ports_count * sizeof(void *));
    for (size_t i = 0; i < from->ports_count; i++) {
        message->ports[message->n_ports++] = port_message(&from->ports[i], arena);
    }
    message->numa = take(arena, from->numa_count * sizeof(void *));
    for (size_t i = 0; i < from->numa_count; i++) {
        Dp__V1__NumaNode *node = take(arena, sizeof(*node));
        dp__v1__numa_node__init(node);
        node->id = from->numa[i].id;
        node->cpus = (char *)from->numa[i].cpus;
        node->memory_bytes = from->numa[i].memory_bytes;
        message->numa[message->n_numa++] = node;
    }
    return message;
}
