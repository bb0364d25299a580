#include "dp/verbs_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "dp/check.h"

// What the header has as inline functions that go through the device, with addresses.
static int post_send(struct ibv_qp *qp, struct ibv_send_wr *request, struct ibv_send_wr **ret_bad)
{
    return ibv_post_send(qp, request, ret_bad);
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *request, struct ibv_recv_wr **ret_bad)
{
    return ibv_post_recv(qp, request, ret_bad);
}

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *ret_completions)
{
    return ibv_poll_cq(cq, count, ret_completions);
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
    return ibv_req_notify_cq(cq, solicited_only);
}

// The library's own function fills the part of the attributes that its first version had.
static int (*old_query_port)(struct ibv_context *context, uint8_t port,
                             struct _compat_ibv_port_attr *attributes);

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attributes)
{
    struct verbs_context *extended = verbs_get_ctx_op(context, query_port);
    if (extended != NULL) {
        return extended->query_port(context, port, attributes, sizeof *attributes);
    }
    memset(attributes, 0, sizeof *attributes);
    return old_query_port(context, port, (struct _compat_ibv_port_attr *)attributes);
}

static struct dp_verbs_library library = {
    .query_port = query_port,
    .post_send = post_send,
    .post_recv = post_recv,
    .poll_cq = poll_cq,
    .req_notify_cq = req_notify_cq,
};

static const struct {
    const char *name;
    void *function; // a pointer to a function pointer
} symbols[] = {
    {"ibv_get_device_list", &library.get_device_list},
    {"ibv_free_device_list", &library.free_device_list},
    {"ibv_get_device_name", &library.get_device_name},
    {"ibv_open_device", &library.open_device},
    {"ibv_close_device", &library.close_device},
    {"ibv_query_device", &library.query_device},
    {"ibv_query_port", &old_query_port},
    {"_ibv_query_gid_ex", &library.query_gid},
    {"ibv_alloc_pd", &library.alloc_pd},
    {"ibv_dealloc_pd", &library.dealloc_pd},
    {"ibv_reg_mr", &library.reg_mr},
    {"ibv_dereg_mr", &library.dereg_mr},
    {"ibv_create_comp_channel", &library.create_comp_channel},
    {"ibv_destroy_comp_channel", &library.destroy_comp_channel},
    {"ibv_create_cq", &library.create_cq},
    {"ibv_destroy_cq", &library.destroy_cq},
    {"ibv_get_cq_event", &library.get_cq_event},
    {"ibv_ack_cq_events", &library.ack_cq_events},
    {"ibv_create_qp", &library.create_qp},
    {"ibv_modify_qp", &library.modify_qp},
    {"ibv_destroy_qp", &library.destroy_qp},
    {"ibv_get_async_event", &library.get_async_event},
    {"ibv_ack_async_event", &library.ack_async_event},
};

static pthread_mutex_t load_mutex = PTHREAD_MUTEX_INITIALIZER;
static bool is_loaded;

static dp_status load(struct dp_error *err)
{
    // Never closed: drivers that it has loaded may have started threads.
    void *handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        return dp_fail(err, DP_UNAVAILABLE,
                       "cannot load libibverbs.so.1 (Debian: packages libibverbs1 and "
                       "ibverbs-providers): %s",
                       dlerror());
    }
    for (size_t i = 0; i < DP_ARRAY_LENGTH(symbols); i++) {
        void *address = dlsym(handle, symbols[i].name);
        if (address == NULL) {
            dlclose(handle);
            return dp_fail(err, DP_UNAVAILABLE,
                           "libibverbs.so.1 has no %s: rdma-core 32 or later is needed",
                           symbols[i].name);
        }
        // By its bytes, since C does not convert between pointers to data and to functions.
        memcpy(symbols[i].function, &address, sizeof address);
    }
    is_loaded = true;
    return DP_OK;
}

dp_status dp_verbs_library(const struct dp_verbs_library **ret_library, struct dp_error *err)
{
    pthread_mutex_lock(&load_mutex);
    dp_status status = is_loaded ? DP_OK : load(err);
    pthread_mutex_unlock(&load_mutex);
    if (status == DP_OK) {
        *ret_library = &library;
    }
    return status;
}
