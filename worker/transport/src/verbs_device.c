// Which device and port of this machine, and the address that others reach it by.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "verbs.h"

static void read_gid(const struct verbs_device *device, int index, struct dp_gid *ret_gid)
{
    struct ibv_gid_entry entry = {0};
    *ret_gid = (struct dp_gid){.type = DP_GID_UNREADABLE};
    // Entries that are empty, or whose type this container may not read, fail one by one.
    if (device->library->query_gid(device->context, device->port, (uint32_t)index, &entry, 0,
                                   sizeof entry) == 0) {
        memcpy(ret_gid->bytes, entry.gid.raw, sizeof ret_gid->bytes);
        ret_gid->type = entry.gid_type == IBV_GID_TYPE_IB        ? DP_GID_IB
                        : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? DP_GID_ROCE_V1
                        : entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? DP_GID_ROCE_V2
                                                                 : DP_GID_UNREADABLE;
    }
}

static dp_status choose_gid(struct verbs_device *device, int count, struct dp_error *err)
{
    DP_AUTO_FREE struct dp_gid *gids = dp_new_array(struct dp_gid, (size_t)count);
    for (int i = 0; i < count; i++) {
        read_gid(device, i, &gids[i]);
    }
    int index = device->gid_wanted - 1;
    if (device->gid_wanted == 0) {
        index = dp_verbs_choose_gid(device->is_ethernet, gids, count);
    } else if (index >= count || gids[index].type == DP_GID_UNREADABLE) {
        return dp_fail(err, DP_UNAVAILABLE, "GID %d of %s port %u cannot be read", index,
                       device->name, device->port);
    }
    if (index < 0) {
        return dp_fail(err, DP_UNAVAILABLE,
                       "none of the %d GIDs of %s port %u can be used: its network interface needs "
                       "an address",
                       count, device->name, device->port);
    }
    device->gid_index = index;
    memcpy(device->gid.raw, gids[index].bytes, sizeof device->gid.raw);
    return DP_OK;
}

dp_status dp_verbs_device_probe(struct verbs_device *device, struct dp_error *err)
{
    struct ibv_port_attr port = {0};
    int failed = device->library->query_port(device->context, device->port, &port);
    if (failed != 0) {
        return dp_fail_errno(err, failed, "cannot ask %s port %u for its state", device->name,
                             device->port);
    }
    if (port.state != IBV_PORT_ACTIVE) {
        return dp_fail(err, DP_UNAVAILABLE, "%s port %u is not active", device->name, device->port);
    }
    device->is_ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
    device->lid = port.lid;
    device->mtu = port.active_mtu;
    return choose_gid(device, port.gid_tbl_len, err);
}

static bool is_active(const struct verbs_device *device, int port)
{
    struct ibv_port_attr attributes = {0};
    return device->library->query_port(device->context, (uint8_t)port, &attributes) == 0 &&
           attributes.state == IBV_PORT_ACTIVE;
}

// Opens the device and chooses the port; false = it has none that is wanted.
static bool try_device(const struct dp_verbs_config *config, struct ibv_device *entry,
                       struct verbs_device *device)
{
    DP_COPY_TEXT(device->name, device->library->get_device_name(entry));
    device->context = device->library->open_device(entry);
    if (device->context == NULL) {
        return false;
    }
    if (device->library->query_device(device->context, &device->attributes) == 0) {
        int last = config->port != 0 ? config->port : device->attributes.phys_port_cnt;
        for (int port = config->port != 0 ? config->port : 1; port <= last; port++) {
            if (is_active(device, port)) {
                device->port = (uint8_t)port;
                return true;
            }
        }
    }
    device->library->close_device(device->context);
    device->context = NULL;
    return false;
}

static dp_status fail_choice(const struct dp_verbs_config *config, int count, bool is_found,
                             struct dp_error *err)
{
    if (count == 0) {
        return dp_fail(err, DP_UNAVAILABLE,
                       "this machine has no RDMA device (ibv_devices lists them); is the driver's "
                       "module loaded?");
    }
    if (config->device != NULL && !is_found) {
        return dp_fail(err, DP_UNAVAILABLE, "this machine has no RDMA device %s among its %d",
                       config->device, count);
    }
    return dp_fail(err, DP_UNAVAILABLE, "%s has no active port",
                   config->device != NULL ? config->device : "no RDMA device of this machine");
}

static dp_status choose_device(const struct dp_verbs_config *config, struct verbs_device *device,
                               struct dp_error *err)
{
    int count = 0;
    bool is_found = false;
    struct ibv_device **list = device->library->get_device_list(&count);
    if (list == NULL) {
        return errno == ENOSYS || errno == ENOENT || errno == 0
                   ? fail_choice(config, 0, false, err)
                   : dp_fail_errno(err, errno, "cannot list the RDMA devices");
    }
    for (int i = 0; i < count && device->context == NULL; i++) {
        if (config->device == NULL ||
            strcmp(device->library->get_device_name(list[i]), config->device) == 0) {
            is_found = true;
            try_device(config, list[i], device);
        }
    }
    device->library->free_device_list(list);
    return device->context != NULL ? DP_OK : fail_choice(config, count, is_found, err);
}

static void do_not_block(int fd)
{
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static dp_status set_up(const struct dp_verbs_config *config, struct verbs_device *device,
                        struct dp_error *err)
{
    dp_status status = choose_device(config, device, err);
    if (status == DP_OK) {
        status = dp_verbs_device_probe(device, err);
    }
    if (status != DP_OK) {
        return status;
    }
    device->pd = device->library->alloc_pd(device->context);
    device->events = device->library->create_comp_channel(device->context);
    if (device->pd == NULL || device->events == NULL) {
        return dp_fail_errno(err, errno, "cannot set up %s", device->name);
    }
    do_not_block(device->events->fd);
    do_not_block(device->context->async_fd);
    return DP_OK;
}

dp_status dp_verbs_device_open(const struct dp_verbs_config *config, struct verbs_device *device,
                               struct dp_error *err)
{
    *device = (struct verbs_device){.library = config->library, .gid_wanted = config->gid_index};
    dp_status status = DP_OK;
    if (device->library == NULL) {
        status = dp_verbs_library(&device->library, err);
    }
    if (status == DP_OK) {
        status = set_up(config, device, err);
    }
    if (status != DP_OK) {
        dp_verbs_device_close(device);
        return dp_fail_in(err, "verbs");
    }
    return DP_OK;
}

void dp_verbs_device_close(struct verbs_device *device)
{
    if (device->events != NULL) {
        device->library->destroy_comp_channel(device->events);
    }
    if (device->pd != NULL) {
        device->library->dealloc_pd(device->pd);
    }
    if (device->context != NULL) {
        device->library->close_device(device->context);
    }
    *device = (struct verbs_device){0};
}

const char *dp_verbs_status_text(enum ibv_wc_status status)
{
    static const char *const texts[] = {
        [IBV_WC_SUCCESS] = "success",
        [IBV_WC_LOC_LEN_ERR] = "local length error",
        [IBV_WC_LOC_QP_OP_ERR] = "local queue pair operation error",
        [IBV_WC_LOC_PROT_ERR] = "local protection error: the source is not registered",
        [IBV_WC_WR_FLUSH_ERR] = "work request flushed: the queue pair had failed before",
        [IBV_WC_REM_INV_REQ_ERR] = "remote invalid request error",
        [IBV_WC_REM_ACCESS_ERR] =
            "remote access error: the peer's memory is not registered under this key",
        [IBV_WC_REM_OP_ERR] = "remote operation error",
        [IBV_WC_RETRY_EXC_ERR] = "transport retry counter exceeded: the peer has ended, the way to "
                                 "it is blocked, or the GID is wrong",
        [IBV_WC_RNR_RETRY_EXC_ERR] = "receiver-not-ready retry counter exceeded",
        [IBV_WC_REM_ABORT_ERR] = "remote abort",
        [IBV_WC_FATAL_ERR] = "fatal error of the device",
        [IBV_WC_RESP_TIMEOUT_ERR] = "response timeout",
        [IBV_WC_GENERAL_ERR] = "general error",
    };
    const char *text = NULL;
    if ((size_t)status < sizeof texts / sizeof texts[0]) {
        text = texts[status];
    }
    return text != NULL ? text : "unknown completion status";
}
