// The objects of the fake, and the calls that make and use them.
#include "fake_verbs.h"

#include <endian.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "dp/cond.h"
#include "fake_internal.h"

struct fake fake = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void lock(void)
{
    pthread_mutex_lock(&fake.mutex);
}

static void unlock(void)
{
    pthread_mutex_unlock(&fake.mutex);
}

void fake_violation(const char *text)
{
    if (fake.counts.violations++ == 0) {
        DP_COPY_TEXT(fake.counts.violation, text);
    }
}

static void ring(int fd)
{
    uint64_t one = 1;
    ssize_t ignored = write(fd, &one, sizeof one);
    (void)ignored;
}

static void silence(int fd)
{
    uint64_t count;
    ssize_t ignored = read(fd, &count, sizeof count);
    (void)ignored;
}

void fake_complete(struct fake_cq *cq, const struct ibv_wc *completion)
{
    if (cq->count == cq->capacity) {
        fake_violation("a completion queue is too small for what was posted");
        return;
    }
    cq->ring[(cq->first + cq->count++) % cq->capacity] = *completion;
    if (cq->is_armed && !cq->is_ready) {
        cq->is_armed = false;
        cq->is_ready = true;
        cq->next_ready = cq->channel->ready;
        cq->channel->ready = cq;
        ring(cq->channel->base.fd);
    }
}

void fake_raise_event(struct fake_context *context, const struct ibv_async_event *event)
{
    struct fake_event *entry = dp_new(struct fake_event);
    entry->event = *event;
    struct fake_event **at = &context->events;
    while (*at != NULL) {
        at = &(*at)->next;
    }
    *at = entry;
    ring(context->base.async_fd);
}

const struct fake_mr *fake_find_region(uint32_t key, bool is_remote, uint64_t address,
                                       uint64_t length)
{
    for (const struct fake_mr *mr = fake.regions; mr != NULL; mr = mr->next) {
        uint64_t start = (uintptr_t)mr->base.addr;
        bool is_inside = address >= start && length <= mr->base.length &&
                         address - start <= mr->base.length - length;
        bool is_key = (is_remote ? mr->base.rkey : mr->base.lkey) == key;
        if (is_key && is_inside && (!is_remote || (mr->access & IBV_ACCESS_REMOTE_WRITE) != 0)) {
            return mr;
        }
    }
    return NULL;
}

static struct ibv_device **get_device_list(int *count)
{
    struct ibv_device **list = dp_new_array(struct ibv_device *, (size_t)fake.count + 1);
    for (int i = 0; i < fake.count; i++) {
        list[i] = &fake.entries[i];
    }
    *count = fake.count;
    return list;
}

static void free_device_list(struct ibv_device **list)
{
    free(list);
}

static const char *get_device_name(struct ibv_device *device)
{
    return device->name;
}

static struct ibv_context *open_device(struct ibv_device *device)
{
    struct fake_context *context = dp_new(struct fake_context);
    context->device = (int)(device - fake.entries);
    context->base.device = device;
    context->base.async_fd = eventfd(0, EFD_CLOEXEC);
    lock();
    fake.contexts[context->device] = context;
    unlock();
    return &context->base;
}

static int close_device(struct ibv_context *base)
{
    struct fake_context *context = (struct fake_context *)base;
    lock();
    if (context->objects != 0) {
        fake_violation("a device is closed before what was made of it");
    }
    if (fake.contexts[context->device] == context) {
        fake.contexts[context->device] = NULL;
    }
    while (context->events != NULL) {
        struct fake_event *event = context->events;
        context->events = event->next;
        free(event);
    }
    unlock();
    close(context->base.async_fd);
    free(context);
    return 0;
}

static const struct fake_device *device_of(struct ibv_context *base)
{
    return &fake.devices[((struct fake_context *)base)->device];
}

static int query_device(struct ibv_context *base, struct ibv_device_attr *attributes)
{
    *attributes = (struct ibv_device_attr){.max_mr_size = device_of(base)->max_mr_size,
                                           .phys_port_cnt = 1,
                                           .max_qp_wr = 16384,
                                           .max_cqe = FAKE_COMPLETIONS};
    return 0;
}

static int query_port(struct ibv_context *base, uint8_t port, struct ibv_port_attr *attributes)
{
    const struct fake_device *device = device_of(base);
    if (port != 1) {
        return EINVAL;
    }
    lock();
    *attributes = (struct ibv_port_attr){
        .state = device->is_down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE,
        .max_mtu = IBV_MTU_4096,
        .active_mtu = device->mtu,
        .gid_tbl_len = FAKE_GIDS,
        .lid = (uint16_t)(((struct fake_context *)base)->device + 1),
        .link_layer = device->is_infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET};
    unlock();
    return 0;
}

static int query_gid(struct ibv_context *base, uint32_t port, uint32_t index,
                     struct ibv_gid_entry *entry, uint32_t flags, size_t entry_size)
{
    (void)flags;
    DP_CHECK(entry_size == sizeof *entry);
    const struct dp_gid *gid = &device_of(base)->gids[index];
    if (index >= FAKE_GIDS || gid->type == DP_GID_UNREADABLE) {
        return ENODATA;
    }
    *entry =
        (struct ibv_gid_entry){.gid_index = index,
                               .port_num = port,
                               .gid_type = gid->type == DP_GID_IB        ? IBV_GID_TYPE_IB
                                           : gid->type == DP_GID_ROCE_V1 ? IBV_GID_TYPE_ROCE_V1
                                                                         : IBV_GID_TYPE_ROCE_V2};
    memcpy(entry->gid.raw, gid->bytes, sizeof entry->gid.raw);
    return 0;
}

static void count_object(struct ibv_context *base, int by)
{
    lock();
    ((struct fake_context *)base)->objects += by;
    unlock();
}

static struct ibv_pd *alloc_pd(struct ibv_context *base)
{
    struct fake_pd *pd = dp_new(struct fake_pd);
    pd->base.context = base;
    count_object(base, 1);
    return &pd->base;
}

static int dealloc_pd(struct ibv_pd *base)
{
    struct fake_pd *pd = (struct fake_pd *)base;
    lock();
    if (pd->regions != 0 || pd->queues != 0) {
        fake_violation("a protection domain is freed before what is in it");
    }
    unlock();
    count_object(base->context, -1);
    free(pd);
    return 0;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *memory, size_t bytes, int access)
{
    const struct fake_device *device = device_of(pd->context);
    if (device->max_mr_size != 0 && bytes > device->max_mr_size) {
        errno = EINVAL;
        return NULL;
    }
    struct fake_mr *mr = dp_new(struct fake_mr);
    mr->base.context = pd->context;
    mr->base.pd = pd;
    mr->base.addr = memory;
    mr->base.length = bytes;
    mr->access = access;
    lock();
    if (access & IBV_ACCESS_RELAXED_ORDERING) {
        fake_violation("memory is registered with relaxed ordering");
    }
    mr->base.lkey = ++fake.next_key;
    mr->base.rkey = ++fake.next_key;
    mr->next = fake.regions;
    fake.regions = mr;
    ((struct fake_pd *)pd)->regions++;
    unlock();
    return &mr->base;
}

// Whether a request that has not been served reads there, or writes there and can still arrive.
static bool is_needed(const struct fake_mr *mr)
{
    for (const struct fake_qp *qp = fake.queues; qp != NULL; qp = qp->next) {
        for (const struct fake_request *at = qp->sends; at != NULL; at = at->next) {
            bool is_source =
                !at->is_inline && at->source.length > 0 && at->source.lkey == mr->base.lkey;
            bool is_target = at->rkey == mr->base.rkey && fake_find_queue(qp) != NULL &&
                             fake_find_queue(qp)->state != IBV_QPS_ERR;
            if (qp->state == IBV_QPS_RTS && (is_source || is_target)) {
                return true;
            }
        }
        for (const struct fake_write *at = qp->writes; at != NULL; at = at->next) {
            if (at->address >= (uintptr_t)mr->base.addr &&
                at->address < (uintptr_t)mr->base.addr + mr->base.length) {
                return true;
            }
        }
    }
    return false;
}

static int dereg_mr(struct ibv_mr *base)
{
    lock();
    struct fake_mr **at = &fake.regions;
    while (*at != (struct fake_mr *)base) {
        at = &(*at)->next;
    }
    struct fake_mr *mr = *at;
    if (is_needed(mr)) {
        fake_violation("memory is given back while a request needs it");
    }
    *at = mr->next;
    ((struct fake_pd *)base->pd)->regions--;
    unlock();
    free(mr);
    return 0;
}

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *base)
{
    struct fake_channel *channel = dp_new(struct fake_channel);
    channel->base.context = base;
    channel->base.fd = eventfd(0, EFD_CLOEXEC);
    count_object(base, 1);
    return &channel->base;
}

static int destroy_comp_channel(struct ibv_comp_channel *base)
{
    count_object(base->context, -1);
    close(base->fd);
    free(base);
    return 0;
}

static struct ibv_cq *create_cq(struct ibv_context *base, int entries, void *cq_context,
                                struct ibv_comp_channel *channel, int vector)
{
    (void)vector;
    struct fake_cq *cq = dp_new(struct fake_cq);
    cq->base.context = base;
    cq->base.cq_context = cq_context;
    cq->channel = (struct fake_channel *)channel;
    cq->capacity = entries;
    cq->ring = dp_new_array(struct ibv_wc, (size_t)entries);
    count_object(base, 1);
    return &cq->base;
}

static int destroy_cq(struct ibv_cq *base)
{
    struct fake_cq *cq = (struct fake_cq *)base;
    lock();
    if (cq->queues != 0) {
        fake_violation("a completion queue is freed before its queue pairs");
    }
    struct fake_cq **at = &cq->channel->ready;
    while (*at != NULL && *at != cq) {
        at = &(*at)->next_ready;
    }
    if (*at == cq) {
        *at = cq->next_ready;
    }
    unlock();
    count_object(base->context, -1);
    free(cq->ring);
    free(cq);
    return 0;
}

static int get_cq_event(struct ibv_comp_channel *base, struct ibv_cq **ret_cq,
                        void **ret_cq_context)
{
    struct fake_channel *channel = (struct fake_channel *)base;
    lock();
    struct fake_cq *cq = channel->ready;
    if (cq != NULL) {
        channel->ready = cq->next_ready;
        cq->is_ready = false;
        *ret_cq = &cq->base;
        *ret_cq_context = cq->base.cq_context;
        if (channel->ready == NULL) {
            silence(base->fd);
        }
    }
    unlock();
    errno = EAGAIN;
    return cq != NULL ? 0 : -1;
}

static void ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
    (void)cq;
    (void)count;
}

static int req_notify_cq(struct ibv_cq *base, int solicited_only)
{
    (void)solicited_only;
    lock();
    ((struct fake_cq *)base)->is_armed = true;
    unlock();
    return 0;
}

static int poll_cq(struct ibv_cq *base, int count, struct ibv_wc *ret_completions)
{
    struct fake_cq *cq = (struct fake_cq *)base;
    lock();
    int taken = 0;
    for (; taken < count && cq->count > 0; taken++) {
        ret_completions[taken] = cq->ring[cq->first];
        cq->first = (cq->first + 1) % cq->capacity;
        cq->count--;
    }
    unlock();
    return taken;
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes)
{
    const struct fake_device *device = device_of(pd->context);
    uint32_t most = device->inline_max == 0 ? 64 : device->inline_max - 1;
    if (attributes->cap.max_inline_data > most) {
        errno = EINVAL;
        return NULL;
    }
    struct fake_qp *qp = dp_new(struct fake_qp);
    qp->base.context = pd->context;
    qp->base.pd = pd;
    qp->base.send_cq = attributes->send_cq;
    qp->base.recv_cq = attributes->recv_cq;
    qp->device = ((struct fake_context *)pd->context)->device;
    qp->sends_tail = &qp->sends;
    qp->max_send = attributes->cap.max_send_wr;
    qp->max_recv = attributes->cap.max_recv_wr;
    qp->inline_max = attributes->cap.max_inline_data;
    qp->recvs = dp_new_array(uint64_t, qp->max_recv);
    lock();
    qp->base.qp_num = ++fake.next_qpn;
    qp->next = fake.queues;
    fake.queues = qp;
    fake.made_at[fake.queues_made++ % FAKE_MADE_MAX] = dp_clock_monotonic_ns();
    ((struct fake_pd *)pd)->queues++;
    ((struct fake_cq *)qp->base.send_cq)->queues++;
    ((struct fake_cq *)qp->base.recv_cq)->queues++;
    unlock();
    return &qp->base;
}

static int to_ready_to_receive(struct fake_qp *qp, const struct ibv_qp_attr *attributes)
{
    if (attributes->path_mtu > fake.devices[qp->device].mtu || qp->state != IBV_QPS_INIT) {
        return EINVAL;
    }
    qp->mtu = attributes->path_mtu;
    qp->dest = attributes->dest_qp_num;
    qp->psn_in = attributes->rq_psn;
    qp->is_global = attributes->ah_attr.is_global != 0;
    qp->dest_gid = attributes->ah_attr.grh.dgid;
    if (!fake.devices[qp->device].is_infiniband && !qp->is_global) {
        return EINVAL;
    }
    return 0;
}

static int modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attributes, int mask)
{
    struct fake_qp *qp = (struct fake_qp *)base;
    int failed = 0;
    lock();
    switch (attributes->qp_state) {
    case IBV_QPS_INIT:
        failed = qp->state == IBV_QPS_RESET && (mask & IBV_QP_PORT) != 0 ? 0 : EINVAL;
        break;
    case IBV_QPS_RTR:
        failed = to_ready_to_receive(qp, attributes);
        break;
    case IBV_QPS_RTS:
        failed = qp->state == IBV_QPS_RTR ? 0 : EINVAL;
        qp->psn_out = attributes->sq_psn;
        qp->retry = attributes->retry_cnt;
        qp->rnr_retry = attributes->rnr_retry;
        break;
    case IBV_QPS_ERR:
        fake_fail_queue(qp);
        break;
    default:
        failed = EINVAL;
    }
    if (failed == 0) {
        qp->state = attributes->qp_state;
    }
    pthread_cond_signal(&fake.changed);
    unlock();
    return failed;
}

static int destroy_qp(struct ibv_qp *base)
{
    struct fake_qp *qp = (struct fake_qp *)base;
    lock();
    struct fake_qp **at = &fake.queues;
    while (*at != qp) {
        at = &(*at)->next;
    }
    *at = qp->next;
    ((struct fake_pd *)base->pd)->queues--;
    ((struct fake_cq *)base->send_cq)->queues--;
    ((struct fake_cq *)base->recv_cq)->queues--;
    fake_drop_requests(qp);
    unlock();
    free(qp->recvs);
    free(qp);
    return 0;
}

static int get_async_event(struct ibv_context *base, struct ibv_async_event *ret_event)
{
    struct fake_context *context = (struct fake_context *)base;
    lock();
    struct fake_event *event = context->events;
    if (event != NULL) {
        context->events = event->next;
        *ret_event = event->event;
    }
    if (context->events == NULL && event != NULL) {
        silence(base->async_fd);
    }
    unlock();
    bool is_there = event != NULL;
    free(event);
    errno = EAGAIN;
    return is_there ? 0 : -1;
}

static void ack_async_event(struct ibv_async_event *event)
{
    (void)event;
}

static struct fake_request *new_request(const struct ibv_send_wr *send)
{
    struct fake_request *request = dp_new(struct fake_request);
    request->wr_id = send->wr_id;
    request->opcode = send->opcode;
    request->is_signalled = (send->send_flags & IBV_SEND_SIGNALED) != 0;
    request->is_inline = (send->send_flags & IBV_SEND_INLINE) != 0;
    if (send->num_sge > 0) {
        request->source = send->sg_list[0];
    }
    request->remote = send->wr.rdma.remote_addr;
    request->rkey = send->wr.rdma.rkey;
    request->imm = send->imm_data;
    if (request->is_inline) {
        memcpy(request->inline_bytes, (const void *)(uintptr_t)request->source.addr,
               request->source.length);
    }
    return request;
}

static int add_request(struct fake_qp *qp, const struct ibv_send_wr *send)
{
    if (qp->send_count == qp->max_send) {
        fake_violation("more was posted than the send queue holds");
        return ENOMEM;
    }
    if ((send->send_flags & IBV_SEND_INLINE) != 0 && send->sg_list[0].length > qp->inline_max) {
        return EINVAL;
    }
    struct fake_request *request = new_request(send);
    if (fake.faults.delay_us_max > 0) {
        uint64_t most = (uint64_t)fake.faults.delay_us_max;
        request->due_ns = dp_clock_monotonic_ns() + (int64_t)dp_rand_below(&fake.rand, most) * 1000;
    }
    *qp->sends_tail = request;
    qp->sends_tail = &request->next;
    qp->send_count++;
    if (qp->state == IBV_QPS_ERR) {
        fake_fail_queue(qp);
    }
    return 0;
}

static int post_send(struct ibv_qp *base, struct ibv_send_wr *send, struct ibv_send_wr **ret_bad)
{
    struct fake_qp *qp = (struct fake_qp *)base;
    bool is_taken = atomic_flag_test_and_set(&qp->posting);
    sched_yield(); // a second poster would be seen
    lock();
    if (is_taken) {
        fake_violation("two threads post to one queue pair");
    }
    int failed = qp->state == IBV_QPS_RTS || qp->state == IBV_QPS_ERR ? 0 : EINVAL;
    for (; failed == 0 && send != NULL; send = send->next) {
        failed = add_request(qp, send);
        *ret_bad = send;
    }
    pthread_cond_signal(&fake.changed);
    unlock();
    atomic_flag_clear(&qp->posting);
    return failed;
}

static int post_recv(struct ibv_qp *base, struct ibv_recv_wr *recv, struct ibv_recv_wr **ret_bad)
{
    struct fake_qp *qp = (struct fake_qp *)base;
    int failed = 0;
    lock();
    if (qp->state == IBV_QPS_RESET || qp->recv_count == qp->max_recv) {
        *ret_bad = recv;
        failed = ENOMEM;
    } else {
        qp->recvs[(qp->recv_first + qp->recv_count++) % qp->max_recv] = recv->wr_id;
        if (qp->state == IBV_QPS_ERR) {
            fake_fail_queue(qp);
        }
    }
    unlock();
    return failed;
}

const struct dp_verbs_library fake_verbs_library = {
    .get_device_list = get_device_list,
    .free_device_list = free_device_list,
    .get_device_name = get_device_name,
    .open_device = open_device,
    .close_device = close_device,
    .query_device = query_device,
    .query_port = query_port,
    .query_gid = query_gid,
    .alloc_pd = alloc_pd,
    .dealloc_pd = dealloc_pd,
    .reg_mr = reg_mr,
    .dereg_mr = dereg_mr,
    .create_comp_channel = create_comp_channel,
    .destroy_comp_channel = destroy_comp_channel,
    .create_cq = create_cq,
    .destroy_cq = destroy_cq,
    .get_cq_event = get_cq_event,
    .ack_cq_events = ack_cq_events,
    .create_qp = create_qp,
    .modify_qp = modify_qp,
    .destroy_qp = destroy_qp,
    .get_async_event = get_async_event,
    .ack_async_event = ack_async_event,
    .post_send = post_send,
    .post_recv = post_recv,
    .poll_cq = poll_cq,
    .req_notify_cq = req_notify_cq,
};

// As a Linux host has it: a link-local address first, then the interface's.
static void number_gids(struct fake_device *device, int index)
{
    bool is_given = false;
    for (int i = 0; i < FAKE_GIDS; i++) {
        is_given = is_given || device->gids[i].type != DP_GID_UNREADABLE;
    }
    if (!is_given) {
        dp_gid_type type = device->is_infiniband ? DP_GID_IB : DP_GID_ROCE_V2;
        device->gids[0] =
            (struct dp_gid){.bytes = {0xfe, 0x80, [15] = (unsigned char)(index + 1)}, .type = type};
        if (!device->is_infiniband) {
            device->gids[1] = (struct dp_gid){
                .bytes = {[10] = 0xff, 0xff, 10, 0, 0, (unsigned char)(index + 1)}, .type = type};
        }
    }
}

void fake_verbs_start(const struct fake_faults *faults, const struct fake_device *devices,
                      int count)
{
    DP_CHECK(!fake.is_running && count <= FAKE_DEVICES_MAX);
    fake = (struct fake){.mutex = PTHREAD_MUTEX_INITIALIZER,
                         .is_running = true,
                         .faults = faults != NULL ? *faults : (struct fake_faults){0},
                         .count = count};
    dp_cond_init(&fake.changed);
    dp_rand_init(&fake.rand, fake.faults.seed);
    for (int i = 0; i < count; i++) {
        fake.devices[i] = devices != NULL ? devices[i] : (struct fake_device){0};
        fake.devices[i].mtu = fake.devices[i].mtu == 0 ? IBV_MTU_1024 : fake.devices[i].mtu;
        number_gids(&fake.devices[i], i);
        snprintf(fake.entries[i].name, sizeof fake.entries[i].name, "fake%d", i);
    }
    pthread_create(&fake.thread, NULL, fake_run, NULL);
}

void fake_verbs_stop(struct fake_verbs_counts *ret_counts)
{
    lock();
    fake.is_stopping = true;
    pthread_cond_signal(&fake.changed);
    unlock();
    pthread_join(fake.thread, NULL);
    if (fake.queues != NULL || fake.regions != NULL) {
        fake_violation("queue pairs or regions are left over");
    }
    for (int i = 0; i < fake.count; i++) {
        if (fake.contexts[i] != NULL) {
            fake_violation("a device is left open");
        }
    }
    pthread_cond_destroy(&fake.changed);
    fake.is_running = false;
    *ret_counts = fake.counts;
}

void fake_verbs_counts(struct fake_verbs_counts *ret_counts)
{
    lock();
    *ret_counts = fake.counts;
    unlock();
}

bool fake_verbs_is_running(void)
{
    return fake.is_running;
}

void fake_verbs_set_faults(const struct fake_faults *faults)
{
    lock();
    fake.faults = *faults;
    dp_rand_init(&fake.rand, faults->seed);
    fake.faults_made = fake.plain_writes = 0;
    unlock();
}

void fake_verbs_unplug(int device, bool is_off)
{
    lock();
    fake.is_off[device] = is_off;
    pthread_cond_signal(&fake.changed);
    unlock();
}

void fake_verbs_raise(int device, enum ibv_event_type type)
{
    struct ibv_async_event event = {.element.port_num = 1, .event_type = type};
    lock();
    fake_raise_event(fake.contexts[device], &event);
    unlock();
}

uint64_t fake_verbs_queues_made(void)
{
    lock();
    uint64_t made = fake.queues_made;
    unlock();
    return made;
}

int fake_verbs_made_at(int64_t *ret_times, int most)
{
    lock();
    int have = fake.queues_made < FAKE_MADE_MAX ? (int)fake.queues_made : FAKE_MADE_MAX;
    int count = have < most ? have : most;
    for (int i = 0; i < count; i++) {
        uint64_t at = fake.queues_made - (uint64_t)count + (uint64_t)i;
        ret_times[i] = fake.made_at[at % FAKE_MADE_MAX];
    }
    unlock();
    return count;
}
