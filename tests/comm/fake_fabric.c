// How requests travel.
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"
#include "dp/cond.h"
#include "fake_internal.h"

#define RETRY_NS (200 * 1000)        // between tries to reach a queue pair that does not answer
#define TRIES_MAX 2000               // of one that may become ready yet
#define DOOMED_NS (2 * DP_NS_PER_MS) // until the retry counter is exceeded

bool fake_dice(uint32_t one_in)
{
    return one_in > 0 && dp_rand_below(&fake.rand, one_in) == 0;
}

static bool fault(uint32_t one_in)
{
    bool is_left = fake.faults.count_max == 0 || fake.faults_made < fake.faults.count_max;
    bool is_hit = is_left && fake_dice(one_in);
    fake.faults_made += is_hit;
    return is_hit;
}

struct fake_qp *fake_find_queue(const struct fake_qp *from)
{
    for (struct fake_qp *qp = fake.queues; qp != NULL; qp = qp->next) {
        const union ibv_gid *gid = &from->dest_gid;
        bool is_there = !fake.is_off[qp->device] && !fake.is_off[from->device];
        bool is_meant = !from->is_global;
        for (int i = 0; i < FAKE_GIDS && !is_meant; i++) {
            is_meant = memcmp(fake.devices[qp->device].gids[i].bytes, gid->raw, 16) == 0;
        }
        if (qp->base.qp_num == from->dest && is_there && is_meant) {
            return qp;
        }
    }
    return NULL;
}

static void finish(struct fake_qp *qp, enum ibv_wc_status status)
{
    struct fake_request *request = qp->sends;
    qp->sends = request->next;
    if (qp->sends == NULL) {
        qp->sends_tail = &qp->sends;
    }
    qp->send_count--;
    if (request->is_signalled || status != IBV_WC_SUCCESS) {
        struct ibv_wc completion = {.wr_id = request->wr_id,
                                    .status = status,
                                    .opcode = IBV_WC_RDMA_WRITE,
                                    .qp_num = qp->base.qp_num};
        fake_complete((struct fake_cq *)qp->base.send_cq, &completion);
    }
    free(request);
}

void fake_drop_requests(struct fake_qp *qp)
{
    while (qp->sends != NULL) {
        struct fake_request *request = qp->sends;
        qp->sends = request->next;
        free(request);
    }
    while (qp->writes != NULL) {
        struct fake_write *write = qp->writes;
        qp->writes = write->next;
        free(write);
    }
}

// Places one of the writes that have come in, or all of them, in any order.
static void place_writes(struct fake_qp *qp, bool is_all)
{
    while (qp->writes != NULL) {
        int count = 0;
        for (struct fake_write *at = qp->writes; at != NULL; at = at->next) {
            count++;
        }
        struct fake_write **at = &qp->writes;
        uint64_t chosen = dp_rand_below(&fake.rand, (uint64_t)count);
        for (uint64_t i = 0; i < chosen; i++) {
            at = &(*at)->next;
        }
        struct fake_write *write = *at;
        fake.counts.overtaken += chosen + 1 < (uint64_t)count; // the list has the newest first
        *at = write->next;
        memcpy((void *)(uintptr_t)write->address, write->bytes, write->length);
        free(write);
        if (!is_all) {
            return;
        }
    }
}

void fake_fail_queue(struct fake_qp *qp)
{
    qp->state = IBV_QPS_ERR;
    place_writes(qp, true); // they have been acknowledged
    while (qp->sends != NULL) {
        finish(qp, IBV_WC_WR_FLUSH_ERR);
    }
    while (qp->recv_count > 0) {
        struct ibv_wc completion = {.wr_id = qp->recvs[qp->recv_first],
                                    .status = IBV_WC_WR_FLUSH_ERR,
                                    .opcode = IBV_WC_RECV_RDMA_WITH_IMM,
                                    .qp_num = qp->base.qp_num};
        qp->recv_first = (qp->recv_first + 1) % qp->max_recv;
        qp->recv_count--;
        fake_complete((struct fake_cq *)qp->base.recv_cq, &completion);
    }
}

static void fail(struct fake_qp *qp, enum ibv_wc_status status)
{
    finish(qp, status);
    fake_fail_queue(qp);
}

static void raise_on_queue(struct fake_qp *qp, enum ibv_event_type type)
{
    struct ibv_async_event event = {.element.qp = &qp->base, .event_type = type};
    fake_raise_event((struct fake_context *)qp->base.context, &event);
}

static void take_in(struct fake_qp *to, const struct fake_request *request)
{
    if (request->source.length > 0) {
        struct fake_write *write = dp_realloc(NULL, 1, sizeof *write + request->source.length);
        write->address = request->remote;
        write->length = request->source.length;
        const void *from = request->is_inline ? (const void *)request->inline_bytes
                                              : (const void *)(uintptr_t)request->source.addr;
        memcpy(write->bytes, from, write->length);
        write->next = to->writes;
        to->writes = write;
    }
}

static void note(struct fake_qp *to, uint32_t imm)
{
    if (to->recv_count == 0) {
        return;
    }
    struct ibv_wc completion = {.wr_id = to->recvs[to->recv_first],
                                .status = IBV_WC_SUCCESS,
                                .opcode = IBV_WC_RECV_RDMA_WITH_IMM,
                                .imm_data = imm,
                                .wc_flags = IBV_WC_WITH_IMM,
                                .qp_num = to->base.qp_num};
    to->recv_first = (to->recv_first + 1) % to->max_recv;
    to->recv_count--;
    fake_complete((struct fake_cq *)to->base.recv_cq, &completion);
}

// Retried, as the specification has it, until the counter is exceeded; then true.
static bool retry(struct fake_request *request, int tries_max)
{
    request->due_ns = dp_clock_monotonic_ns() + RETRY_NS;
    return ++request->tries > tries_max;
}

static void swap_with_next(struct fake_qp *qp)
{
    struct fake_request *first = qp->sends, *second = first->next;
    first->next = second->next;
    second->next = first;
    qp->sends = second;
    if (qp->sends_tail == &second->next) {
        qp->sends_tail = &first->next;
    }
    first->is_judged = second->is_judged = true;
    second->due_ns = 0;
    fake.counts.swapped++;
}

// What goes wrong with a request before it leaves; true when it does not leave now.
static bool misfortune(struct fake_qp *qp)
{
    struct fake_request *request = qp->sends;
    if (request->is_judged) {
        return false;
    }
    request->is_judged = true;
    if (fault(fake.faults.lose_one_in)) {
        fake.counts.lost++;
        request->is_doomed = true;
        request->due_ns = dp_clock_monotonic_ns() + DOOMED_NS;
        return true;
    }
    if (fault(fake.faults.flush_one_in)) {
        fake.counts.flushed++;
        raise_on_queue(qp, IBV_EVENT_QP_FATAL);
        fake_fail_queue(qp);
        return true;
    }
    bool is_note = request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if (is_note && request->next != NULL && fault(fake.faults.swap_one_in)) {
        swap_with_next(qp);
        return true;
    }
    if (request->opcode == IBV_WR_RDMA_WRITE && request->source.length > 0 &&
        ++fake.plain_writes == fake.faults.bad_key_after) {
        request->rkey ^= 0x5a5a5a;
    }
    return false;
}

// The receiver has nothing posted, or says so; true when that is so.
static bool is_not_ready(struct fake_qp *qp, const struct fake_qp *to)
{
    struct fake_request *request = qp->sends;
    if (request->opcode != IBV_WR_RDMA_WRITE_WITH_IMM) {
        return false;
    }
    if (request->tries == 0 && fault(fake.faults.not_ready_for_good_one_in)) {
        fake.counts.not_ready++;
        fail(qp, IBV_WC_RNR_RETRY_EXC_ERR);
        return true;
    }
    bool is_said = request->tries == 0 && fake_dice(fake.faults.not_ready_one_in);
    if (to->recv_count > 0 && !is_said) {
        return false;
    }
    fake.counts.not_ready++;
    if (retry(request, qp->rnr_retry == 7 ? INT32_MAX - 1 : qp->rnr_retry)) {
        fail(qp, IBV_WC_RNR_RETRY_EXC_ERR);
    }
    return true;
}

static void deliver(struct fake_qp *qp, struct fake_qp *to)
{
    struct fake_request *request = qp->sends;
    bool has_imm = request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    uint32_t imm = request->imm;
    to->is_dropping = to->is_dropping || (has_imm && fault(fake.faults.unkept_one_in));
    if (to->is_dropping) {
        fake.counts.unkept++;
        finish(qp, IBV_WC_SUCCESS);
        if (!has_imm) {
            return;
        }
        raise_on_queue(to, IBV_EVENT_QP_FATAL);
        fake_fail_queue(to);
        return;
    }
    if (has_imm && to->notes++ == 0 && to->recv_count > 1 && fake_dice(fake.faults.stale_one_in)) {
        fake.counts.stale++;
        request->due_ns = dp_clock_monotonic_ns() + DOOMED_NS; // long enough to be seen
        note(to, imm);
        return;
    }
    take_in(to, request);
    if (!has_imm) {
        if (fake_dice(3)) {
            place_writes(to, false);
        }
        finish(qp, IBV_WC_SUCCESS);
        return;
    }
    place_writes(to, true);
    note(to, imm);
    if (to->has_late && fake_dice(4)) {
        to->has_late = false;
        note(to, to->late_imm);
    }
    if (fake_dice(fake.faults.duplicate_one_in)) {
        fake.counts.duplicated++;
        if (fake_dice(2)) {
            note(to, imm);
        } else {
            to->has_late = true;
            to->late_imm = imm;
        }
    }
    finish(qp, IBV_WC_SUCCESS);
}

static uint32_t bytes_of(enum ibv_mtu mtu)
{
    return 128u << mtu;
}

static void serve(struct fake_qp *qp)
{
    struct fake_request *request = qp->sends;
    if (request->is_doomed) {
        fail(qp, IBV_WC_RETRY_EXC_ERR);
        return;
    }
    if (misfortune(qp)) {
        return;
    }
    uint32_t length = request->source.length;
    if (!request->is_inline && length > 0 &&
        fake_find_region(request->source.lkey, false, request->source.addr, length) == NULL) {
        fail(qp, IBV_WC_LOC_PROT_ERR);
        return;
    }
    struct fake_qp *to = fake_find_queue(qp);
    bool answers = to != NULL && (to->state == IBV_QPS_RTR || to->state == IBV_QPS_RTS) &&
                   to->dest == qp->base.qp_num && qp->psn_out == to->psn_in;
    // Packets longer than the receiver's are dropped without a word.
    bool fits = answers && (length <= bytes_of(to->mtu) || qp->mtu <= to->mtu);
    if (!fits) {
        bool may_come = to != NULL && to->state == IBV_QPS_INIT;
        if (retry(request, may_come ? TRIES_MAX : qp->retry)) {
            fail(qp, IBV_WC_RETRY_EXC_ERR);
        }
        return;
    }
    if (length > 0 && fake_find_region(request->rkey, true, request->remote, length) == NULL) {
        raise_on_queue(to, IBV_EVENT_QP_ACCESS_ERR);
        fake_fail_queue(to);
        fail(qp, IBV_WC_REM_ACCESS_ERR);
        return;
    }
    if (!is_not_ready(qp, to)) {
        deliver(qp, to);
    }
}

// One of the queue pairs whose oldest request is due; NULL = none, *ret_next_ns when.
static struct fake_qp *choose(int64_t *ret_next_ns)
{
    int64_t now_ns = dp_clock_monotonic_ns();
    struct fake_qp *chosen = NULL;
    uint64_t due = 0;
    *ret_next_ns = now_ns + DP_NS_PER_S;
    for (struct fake_qp *qp = fake.queues; qp != NULL; qp = qp->next) {
        if (qp->sends == NULL || qp->state != IBV_QPS_RTS) {
            continue;
        }
        if (qp->sends->due_ns <= now_ns) {
            due++;
            chosen = dp_rand_below(&fake.rand, due) == 0 ? qp : chosen;
        } else if (qp->sends->due_ns < *ret_next_ns) {
            *ret_next_ns = qp->sends->due_ns;
        }
    }
    return chosen;
}

void *fake_run(void *argument)
{
    (void)argument;
    pthread_mutex_lock(&fake.mutex);
    while (!fake.is_stopping) {
        int64_t next_ns;
        struct fake_qp *qp = choose(&next_ns);
        if (qp != NULL) {
            serve(qp);
            pthread_mutex_unlock(&fake.mutex); // those who post have their turn
            pthread_mutex_lock(&fake.mutex);
            continue;
        }
        dp_cond_wait(&fake.changed, &fake.mutex, next_ns);
    }
    pthread_mutex_unlock(&fake.mutex);
    return NULL;
}
