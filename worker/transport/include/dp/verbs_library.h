// The calls of libibverbs that the verbs transport makes, as a table: filled from the library that
// the machine has, or by a test with hardware of its own making. Several of them are inline
// functions in infiniband/verbs.h that go through the opened device; they are in the table too.
#pragma once

#include <infiniband/verbs.h>
#include <stdint.h>

#include "dp/error.h"

// Meaning, results and threads as in the manual pages ibv_*(3).
struct dp_verbs_library {
    struct ibv_device **(*get_device_list)(int *count);
    void (*free_device_list)(struct ibv_device **list);
    const char *(*get_device_name)(struct ibv_device *device);
    struct ibv_context *(*open_device)(struct ibv_device *device);
    int (*close_device)(struct ibv_context *context);
    int (*query_device)(struct ibv_context *context, struct ibv_device_attr *attributes);
    int (*query_port)(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attributes);
    // The entry's type as well, without which a RoCE port cannot be used well.
    int (*query_gid)(struct ibv_context *context, uint32_t port, uint32_t index,
                     struct ibv_gid_entry *entry, uint32_t flags, size_t entry_size);
    struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
    int (*dealloc_pd)(struct ibv_pd *pd);
    struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *memory, size_t bytes, int access);
    int (*dereg_mr)(struct ibv_mr *mr);
    struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *context);
    int (*destroy_comp_channel)(struct ibv_comp_channel *channel);
    struct ibv_cq *(*create_cq)(struct ibv_context *context, int entries, void *cq_context,
                                struct ibv_comp_channel *channel, int vector);
    int (*destroy_cq)(struct ibv_cq *cq);
    int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **ret_cq,
                        void **ret_cq_context);
    void (*ack_cq_events)(struct ibv_cq *cq, unsigned int count);
    struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes);
    int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask);
    int (*destroy_qp)(struct ibv_qp *qp);
    int (*get_async_event)(struct ibv_context *context, struct ibv_async_event *ret_event);
    void (*ack_async_event)(struct ibv_async_event *event);
    // Inline in the header.
    int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *request, struct ibv_send_wr **ret_bad);
    int (*post_recv)(struct ibv_qp *qp, struct ibv_recv_wr *request, struct ibv_recv_wr **ret_bad);
    int (*poll_cq)(struct ibv_cq *cq, int count, struct ibv_wc *ret_completions);
    int (*req_notify_cq)(struct ibv_cq *cq, int solicited_only);
};

// libibverbs.so.1 of this machine, opened at the first call and then kept. DP_UNAVAILABLE when the
// library, or a call in it, is missing; the message says which, and the package that has it.
dp_status dp_verbs_library(const struct dp_verbs_library **ret_library, struct dp_error *err);
