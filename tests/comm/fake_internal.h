// What the two halves of the fake share: objects (fake_verbs.c) and delivery (fake_fabric.c).
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "dp/rand.h"
#include "fake_verbs.h"

#define FAKE_COMPLETIONS 65536
#define FAKE_MADE_MAX 256

struct fake_event {
    struct fake_event *next;
    struct ibv_async_event event;
};

struct fake_context {
    struct ibv_context base;
    int device;
    int objects; // protection domains, completion queues and channels
    struct fake_event *events;
};

struct fake_channel {
    struct ibv_comp_channel base;
    struct fake_cq *ready; // by next_ready
};

struct fake_cq {
    struct ibv_cq base;
    struct fake_channel *channel;
    struct fake_cq *next_ready;
    bool is_ready, is_armed;
    int queues;
    int capacity, count, first;
    struct ibv_wc *ring;
};

struct fake_pd {
    struct ibv_pd base;
    int regions, queues;
};

struct fake_mr {
    struct ibv_mr base;
    struct fake_mr *next;
    int access;
};

struct fake_request {
    struct fake_request *next;
    uint64_t wr_id;
    enum ibv_wr_opcode opcode;
    bool is_signalled, is_inline;
    struct ibv_sge source;
    unsigned char inline_bytes[256];
    uint64_t remote;
    uint32_t rkey, imm;
    int64_t due_ns;
    int tries;
    bool is_doomed; // lost: only the retries are still to be waited for
    bool is_judged; // the dice have been thrown
};

// Data that has come in and is not yet in memory.
struct fake_write {
    struct fake_write *next;
    uint64_t address;
    uint32_t length;
    unsigned char bytes[];
};

struct fake_qp {
    struct ibv_qp base;
    struct fake_qp *next;
    int device;
    enum ibv_qp_state state;
    uint32_t dest, psn_in, psn_out;
    enum ibv_mtu mtu;
    union ibv_gid dest_gid;
    bool is_global;
    int rnr_retry, retry;
    uint32_t max_send, max_recv, inline_max;
    struct fake_request *sends, **sends_tail;
    uint32_t send_count;
    uint64_t *recvs; // wr_ids, a ring
    uint32_t recv_first, recv_count;
    struct fake_write *writes;
    atomic_flag posting;
    uint64_t notes; // delivered
    bool has_late;  // a duplicate that is still to come
    uint32_t late_imm;
    bool is_dropping; // what comes is acknowledged and lost
};

struct fake {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    bool is_running, is_stopping;
    struct fake_faults faults;
    struct fake_device devices[FAKE_DEVICES_MAX];
    bool is_off[FAKE_DEVICES_MAX];
    int count;
    struct ibv_device entries[FAKE_DEVICES_MAX];
    struct fake_context *contexts[FAKE_DEVICES_MAX];
    struct dp_rand rand;
    struct fake_qp *queues;
    struct fake_mr *regions;
    uint32_t next_qpn, next_key;
    int64_t faults_made, plain_writes;
    uint64_t queues_made;
    int64_t made_at[FAKE_MADE_MAX];
    struct fake_verbs_counts counts;
};
extern struct fake fake;

// Under fake.mutex.
void fake_violation(const char *text);
void fake_complete(struct fake_cq *cq, const struct ibv_wc *completion);
void fake_raise_event(struct fake_context *context, const struct ibv_async_event *event);
void fake_fail_queue(struct fake_qp *qp); // to the error state; all that is posted is flushed
const struct fake_mr *fake_find_region(uint32_t key, bool is_remote, uint64_t address,
                                       uint64_t length);
// Where its requests go; NULL = nowhere.
struct fake_qp *fake_find_queue(const struct fake_qp *from);
void *fake_run(void *argument);
bool fake_dice(uint32_t one_in);
void fake_drop_requests(struct fake_qp *qp);
