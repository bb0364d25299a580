// The common part of windows: their memory, opening them on all ranks, and waiting for what lands.
#include "dp/window.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/transport_ops.h"

// What ranks tell each other about a window that they open: magic and key u32, bytes u64, then the
// row's card.
#define CARD_MAGIC 0x43575044u // "DPWC"
#define CARD_HEAD_BYTES 16u
#define CARD_BYTES (CARD_HEAD_BYTES + DP_WINDOW_CARD_BYTES)
// With the key below: the last group of collectives, which nobody else uses.
#define CARD_TAG 0xffffffff00000000u
#define PAGE_BYTES 4096u

void dp_bell_ring(struct dp_bell *bell)
{
    atomic_fetch_add(&bell->rung, 1);
    if (atomic_load(&bell->sleepers) != 0) {
        syscall(SYS_futex, &bell->rung, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
}

void dp_bell_sleep(struct dp_bell *bell, uint32_t seen, int64_t until_ns)
{
    struct timespec until = {.tv_sec = until_ns / DP_NS_PER_S, .tv_nsec = until_ns % DP_NS_PER_S};
    atomic_fetch_add(&bell->sleepers, 1);
    // Not the private form, since peers ring from other processes; absolute, by the monotonic
    // clock.
    syscall(SYS_futex, &bell->rung, FUTEX_WAIT_BITSET, seen, &until, NULL, FUTEX_BITSET_MATCH_ANY);
    atomic_fetch_sub(&bell->sleepers, 1);
}

static uint32_t id_of(const struct dp_window *window)
{
    return window->key & 0xffff;
}

struct dp_window *dp_window_acquire(struct dp_transport *transport, uint32_t key)
{
    struct dp_transport *front = transport->front;
    uint32_t id = key & 0xffff;
    struct dp_window *window = NULL;
    if (id < DP_WINDOWS_MAX) {
        pthread_mutex_lock(front->mutex);
        window = front->windows[id];
        if (window != NULL && window->key == key) {
            atomic_fetch_add(&window->users, 1);
        } else {
            window = NULL;
        }
        pthread_mutex_unlock(front->mutex);
    }
    return window;
}

void dp_window_release(struct dp_window *window)
{
    if (window == NULL || atomic_fetch_sub(&window->users, 1) > 1) {
        return;
    }
    for (int32_t i = 0; i < window->world; i++) {
        pthread_mutex_destroy(&window->outs[i].mutex);
    }
    free(window->outs);
    munmap(window->region, window->region_bytes);
    close(window->fd);
    free(window);
}

struct dp_window_offer {
    struct dp_window_offer *next;
    struct dp_window *window; // held
    int32_t from, to;
};

void dp_window_offer_add(struct dp_window_offer **offers, struct dp_window *window, int32_t from,
                         int32_t to)
{
    struct dp_window_offer *offer = dp_new(struct dp_window_offer);
    *offer = (struct dp_window_offer){.next = *offers, .window = window, .from = from, .to = to};
    atomic_fetch_add(&window->users, 1);
    *offers = offer;
}

struct dp_window *dp_window_offer_take(struct dp_window_offer **offers, uint32_t key, int32_t from,
                                       int32_t to)
{
    while (*offers != NULL && ((*offers)->from != from || (*offers)->to != to ||
                               (*offers)->window->key != key)) {
        offers = &(*offers)->next;
    }
    struct dp_window_offer *offer = *offers;
    DP_CHECK(offer != NULL);
    struct dp_window *window = offer->window;
    *offers = offer->next;
    free(offer);
    return window;
}

void dp_window_offers_drop(struct dp_window_offer **offers)
{
    while (*offers != NULL) {
        struct dp_window_offer *offer = *offers;
        *offers = offer->next;
        dp_window_release(offer->window);
        free(offer);
    }
}

// Both in release order: who sees a note that overwrites an old one sees also that it is about to.
void dp_window_post(struct dp_window_lane *lane, struct dp_bell *bell, uint64_t number,
                    uint64_t note)
{
    atomic_store_explicit(&lane->notes[number % DP_WINDOW_NOTES_KEPT], note, memory_order_release);
    atomic_store_explicit(&lane->landed, number, memory_order_release);
    dp_bell_ring(bell);
}

bool dp_window_land(struct dp_window *window, int32_t from, uint64_t number, uint64_t note)
{
    struct dp_window_lane *lane = &window->lanes[from];
    uint64_t landed = atomic_load_explicit(&lane->landed, memory_order_relaxed);
    if (number == landed + 1) {
        dp_window_post(lane, window->transport->bell, number, note);
    }
    return number <= landed + 1;
}

size_t dp_window_memory_offset(int32_t world)
{
    size_t lanes = (size_t)world * sizeof(struct dp_window_lane);
    return (lanes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

void dp_window_gather(unsigned char *to, const struct iovec *parts, int count)
{
    for (int i = 0; i < count; i++) {
        if (parts[i].iov_len > 0) {
            memcpy(to, parts[i].iov_base, parts[i].iov_len);
            to += parts[i].iov_len;
        }
    }
}

dp_status dp_shared_memory_new(const char *name, size_t bytes, int *ret_fd, void **ret_memory,
                               struct dp_error *err)
{
    DP_AUTO_CLOSE int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *memory = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (memory == MAP_FAILED) {
        return dp_fail_errno(err, errno, "cannot map %zu bytes of shared memory", bytes);
    }
    *ret_fd = dp_steal_fd(&fd);
    *ret_memory = memory;
    return DP_OK;
}

static dp_status new_window(struct dp_transport *transport, uint32_t id, size_t bytes,
                            struct dp_window **ret_window, struct dp_error *err)
{
    int32_t world = transport->world;
    size_t at = dp_window_memory_offset(world);
    int fd;
    void *region;
    dp_status status = dp_shared_memory_new("dp-window", at + bytes, &fd, &region, err);
    if (status != DP_OK) {
        return dp_fail_in(err, "window %u", id);
    }
    struct dp_window *window = dp_new(struct dp_window);
    *window = (struct dp_window){.transport = transport,
                                 .key = id,
                                 .world = world,
                                 .fd = fd,
                                 .bytes = bytes,
                                 .region = region,
                                 .region_bytes = at + bytes,
                                 .lanes = region,
                                 .memory = (unsigned char *)region + at,
                                 .outs = dp_new_array(struct dp_window_out, (size_t)world),
                                 .users = 1};
    for (int32_t i = 0; i < world; i++) {
        pthread_mutex_init(&window->outs[i].mutex, NULL);
    }
    *ret_window = window;
    return DP_OK;
}

static dp_status publish(struct dp_transport *transport, struct dp_window *window,
                         struct dp_error *err)
{
    uint32_t id = window->key;
    dp_status status = DP_OK;
    pthread_mutex_lock(transport->mutex);
    if (transport->windows[id] != NULL) {
        status = dp_fail(err, DP_CONFLICT, "window %u is open already", id);
    } else {
        window->key |= (uint32_t)++transport->generations[id] << 16;
        transport->windows[id] = window;
    }
    pthread_mutex_unlock(transport->mutex);
    return status;
}

static dp_status offer(struct dp_window *window, int32_t peer, struct dp_error *err)
{
    struct dp_transport *transport = window->transport;
    unsigned char card[CARD_BYTES] = {0};
    uint32_t words[2] = {htole32(CARD_MAGIC), htole32(window->key)};
    uint64_t bytes = htole64(window->bytes);
    memcpy(card, words, sizeof words);
    memcpy(card + 8, &bytes, sizeof bytes);
    dp_status status = DP_OK;
    if (transport->ops->window_offer != NULL) {
        status = transport->ops->window_offer(transport, window, peer, card + CARD_HEAD_BYTES, err);
    }
    struct iovec part = {.iov_base = card, .iov_len = sizeof card};
    if (status == DP_OK) {
        status = transport->ops->send(transport, peer, CARD_TAG | id_of(window), &part, 1,
                                      sizeof card, err);
    }
    return status;
}

static dp_status accept_card(struct dp_window *window, int32_t peer, int64_t deadline_ns,
                             struct dp_error *err)
{
    struct dp_transport *transport = window->transport;
    unsigned char card[CARD_BYTES];
    uint32_t words[2];
    uint64_t bytes;
    dp_status status = dp_transport_recv(transport, peer, CARD_TAG | id_of(window), card,
                                         sizeof card, deadline_ns, err);
    if (status != DP_OK) {
        return status;
    }
    memcpy(words, card, sizeof words);
    memcpy(&bytes, card + 8, sizeof bytes);
    if (le32toh(words[0]) != CARD_MAGIC || le32toh(words[1]) != window->key ||
        le64toh(bytes) != window->bytes) {
        return dp_fail(err, DP_CONFLICT,
                       "rank %d opens it with %llu bytes for time %u, rank %d with %zu for time "
                       "%u: all ranks must open the same windows in the same order",
                       peer, (unsigned long long)le64toh(bytes), le32toh(words[1]) >> 16,
                       transport->rank, window->bytes, window->key >> 16);
    }
    if (transport->ops->window_accept != NULL) {
        status =
            transport->ops->window_accept(transport, window, peer, card + CARD_HEAD_BYTES, err);
    }
    return status;
}

static dp_status agree(struct dp_window *window, int64_t deadline_ns, struct dp_error *err)
{
    struct dp_transport *transport = window->transport;
    dp_status status = DP_OK;
    for (int32_t i = 0; i < transport->world && status == DP_OK; i++) {
        status = i == transport->rank ? DP_OK : offer(window, i, err);
    }
    for (int32_t i = 0; i < transport->world && status == DP_OK; i++) {
        status = i == transport->rank ? DP_OK : accept_card(window, i, deadline_ns, err);
    }
    return status;
}

dp_status dp_window_open(struct dp_transport *transport, uint32_t id, size_t bytes,
                         int64_t deadline_ns, struct dp_window **ret_window, struct dp_error *err)
{
    DP_CHECK(transport->front == transport);
    if (id >= DP_WINDOWS_MAX || bytes > DP_WINDOW_BYTES_MAX) {
        return dp_fail(err, DP_TOO_LARGE,
                       "window %u of %zu bytes: ids are below %d, sizes up to %llu", id, bytes,
                       DP_WINDOWS_MAX, DP_WINDOW_BYTES_MAX);
    }
    struct dp_window *window = NULL;
    dp_status status = new_window(transport, id, bytes, &window, err);
    if (status != DP_OK) {
        return status;
    }
    status = publish(transport, window, err);
    if (status != DP_OK) {
        dp_window_release(window);
        return status;
    }
    status = agree(window, deadline_ns, err);
    if (status != DP_OK) {
        dp_window_close(window);
        return dp_fail_in(err, "window %u", id);
    }
    *ret_window = window;
    return DP_OK;
}

void dp_window_close(struct dp_window *window)
{
    if (window == NULL) {
        return;
    }
    struct dp_transport *transport = window->transport;
    pthread_mutex_lock(transport->mutex);
    transport->windows[id_of(window)] = NULL;
    pthread_mutex_unlock(transport->mutex);
    for (int32_t i = 0; i < window->world && transport->ops->window_forget != NULL; i++) {
        if (i != transport->rank) {
            transport->ops->window_forget(transport, window, i);
        }
    }
    // A row that is writing into it holds the memory until it is through.
    dp_window_release(window);
}

void *dp_window_memory(struct dp_window *window)
{
    return window->memory;
}

size_t dp_window_bytes(const struct dp_window *window)
{
    return window->bytes;
}

void *dp_window_map(struct dp_window *window, int32_t peer)
{
    struct dp_transport *transport = window->transport;
    DP_CHECK(peer >= 0 && peer < window->world);
    if (peer == transport->rank) {
        return window->memory;
    }
    return transport->ops->window_map != NULL ? transport->ops->window_map(transport, window, peer)
                                              : NULL;
}

static dp_status measure(const struct dp_window *window, int32_t peer, size_t offset,
                         const struct iovec *parts, int count, size_t *ret_length,
                         struct dp_error *err)
{
    size_t room = offset <= window->bytes ? window->bytes - offset : 0;
    size_t length = 0;
    for (int i = 0; i < count; i++) {
        if (parts[i].iov_len > room - length) {
            return dp_fail(err, DP_TOO_LARGE,
                           "a put to rank %d at %zu reaches beyond the %zu bytes of window %u",
                           peer, offset, window->bytes, id_of(window));
        }
        length += parts[i].iov_len;
    }
    if (offset > window->bytes || length > DP_TRANSPORT_BYTES_MAX) {
        return dp_fail(err, DP_TOO_LARGE,
                       "a put of %zu bytes to rank %d at %zu of the %zu bytes of window %u", length,
                       peer, offset, window->bytes, id_of(window));
    }
    *ret_length = length;
    return DP_OK;
}

dp_status dp_window_put(struct dp_window *window, int32_t peer, size_t offset,
                        const struct iovec *parts, int count, uint64_t note, struct dp_error *err)
{
    struct dp_transport *transport = window->transport;
    DP_CHECK(peer >= 0 && peer < window->world && count <= DP_TRANSPORT_PARTS_MAX);
    size_t length;
    dp_status status = measure(window, peer, offset, parts, count, &length, err);
    if (status != DP_OK) {
        return status;
    }
    dp_transport_apply_fault(transport, peer);
    struct dp_window_out *out = &window->outs[peer];
    pthread_mutex_lock(&out->mutex);
    uint64_t number = out->sent + 1;
    if (transport->aborted != DP_OK) {
        pthread_mutex_lock(transport->mutex);
        status = dp_transport_fail_aborted(transport, err);
        pthread_mutex_unlock(transport->mutex);
    } else if (peer == transport->rank) {
        dp_window_gather(window->memory + offset, parts, count);
        dp_window_land(window, peer, number, note);
    } else {
        status = transport->ops->put(transport, window, peer, offset, parts, count, length, number,
                                     note, err);
    }
    if (status == DP_OK) {
        out->sent = number;
        atomic_fetch_add_explicit(&transport->put_bytes[peer], length, memory_order_relaxed);
    }
    pthread_mutex_unlock(&out->mutex);
    return status;
}

void dp_window_put_bytes(struct dp_transport *transport, uint64_t *ret_bytes)
{
    for (int32_t i = 0; i < transport->world; i++) {
        ret_bytes[i] = atomic_load_explicit(&transport->put_bytes[i], memory_order_relaxed);
    }
}

uint64_t dp_window_landed(struct dp_window *window, int32_t peer)
{
    DP_CHECK(peer >= 0 && peer < window->world);
    return atomic_load_explicit(&window->lanes[peer].landed, memory_order_acquire);
}

// The counts are a peer's to write: whatever they say, only their low bits choose a note.
static dp_status read_note(struct dp_window *window, int32_t peer, uint64_t count,
                           uint64_t *ret_note, struct dp_error *err)
{
    if (ret_note == NULL || count == 0) {
        return DP_OK;
    }
    struct dp_window_lane *lane = &window->lanes[peer];
    uint64_t note =
        atomic_load_explicit(&lane->notes[count % DP_WINDOW_NOTES_KEPT], memory_order_acquire);
    uint64_t landed = atomic_load_explicit(&lane->landed, memory_order_relaxed);
    if (landed - count >= DP_WINDOW_NOTES_KEPT - 1) {
        return dp_fail(err, DP_INTERNAL,
                       "window %u: the note of put %llu of rank %d is gone, %llu have landed since",
                       id_of(window), (unsigned long long)count, peer,
                       (unsigned long long)(landed - count));
    }
    *ret_note = note;
    return DP_OK;
}

static dp_status fail_wait(struct dp_window *window, int32_t peer, uint64_t count,
                           int64_t waited_ns, struct dp_error *err)
{
    struct dp_transport *transport = window->transport;
    uint64_t landed = dp_window_landed(window, peer);
    if (transport->aborted != DP_OK) {
        return dp_transport_fail_aborted(transport, err);
    }
    if (transport->peers[peer].closed) {
        return dp_fail(err, DP_UNAVAILABLE,
                       "window %u: put %llu of rank %d will not come, %llu have landed: %s",
                       id_of(window), (unsigned long long)count, peer, (unsigned long long)landed,
                       transport->peers[peer].reason);
    }
    return dp_fail(err, DP_TIMEOUT,
                   "window %u: put %llu of rank %d did not land in %.1f s, %llu have",
                   id_of(window), (unsigned long long)count, peer,
                   (double)waited_ns / (double)DP_NS_PER_S, (unsigned long long)landed);
}

// Sleeps until something landed; false when there is nothing to wait for any more.
static bool go_on_waiting(struct dp_window *window, int32_t peer, uint64_t count, int64_t start_ns,
                          int64_t deadline_ns)
{
    struct dp_transport *transport = window->transport;
    struct dp_transport_peer *from = &transport->peers[peer];
    uint64_t landed = dp_window_landed(window, peer);
    int64_t last_ns = start_ns;
    for (;;) {
        uint32_t seen = atomic_load(&transport->bell->rung);
        pthread_mutex_lock(transport->mutex);
        bool is_over = transport->aborted != DP_OK || from->closed;
        int64_t progress_ns = from->progress_ns;
        pthread_mutex_unlock(transport->mutex);
        // After the look at the peer: what it did before it died counts.
        uint64_t now_landed = dp_window_landed(window, peer);
        int64_t now_ns = dp_clock_monotonic_ns();
        if (now_landed >= count) {
            return true;
        }
        if (now_landed != landed) {
            landed = now_landed;
            last_ns = now_ns;
        }
        last_ns = progress_ns > last_ns ? progress_ns : last_ns;
        int64_t until_ns = last_ns + transport->blocked_ns;
        until_ns = deadline_ns > 0 && deadline_ns < until_ns ? deadline_ns : until_ns;
        if (is_over || now_ns >= until_ns) {
            return false;
        }
        dp_bell_sleep(transport->bell, seen, until_ns);
    }
}

dp_status dp_window_wait(struct dp_window *window, int32_t peer, uint64_t count,
                         int64_t deadline_ns, uint64_t *ret_note, struct dp_error *err)
{
    struct dp_transport *transport = window->transport;
    DP_CHECK(peer >= 0 && peer < window->world);
    if (transport->aborted == DP_OK && dp_window_landed(window, peer) >= count) {
        return read_note(window, peer, count, ret_note, err);
    }
    int64_t start_ns = dp_clock_monotonic_ns();
    bool waits = deadline_ns == 0 || deadline_ns > start_ns; // else it just looks
    if (waits) {
        pthread_mutex_lock(transport->mutex);
        dp_transport_wait_begin(transport);
        pthread_mutex_unlock(transport->mutex);
    }
    bool has_landed = go_on_waiting(window, peer, count, start_ns, deadline_ns);
    int64_t waited_ns = dp_clock_monotonic_ns() - start_ns;
    dp_status status = DP_OK;
    pthread_mutex_lock(transport->mutex);
    if (waits) {
        dp_transport_wait_end(transport);
    }
    transport->stats.receive_wait_ns += waited_ns;
    if (!has_landed || transport->aborted != DP_OK) {
        status = fail_wait(window, peer, count, waited_ns, err);
    }
    pthread_mutex_unlock(transport->mutex);
    return status == DP_OK ? read_note(window, peer, count, ret_note, err) : status;
}

dp_status dp_window_wait_any(struct dp_transport *transport, uint64_t *seen, int64_t deadline_ns,
                             struct dp_error *err)
{
    struct dp_bell *bell = transport->bell;
    int64_t until_ns =
        deadline_ns > 0 ? deadline_ns : dp_clock_monotonic_ns() + transport->blocked_ns;
    uint32_t rung = atomic_load(&bell->rung);
    while (rung == (uint32_t)*seen && transport->aborted == DP_OK &&
           dp_clock_monotonic_ns() < until_ns) {
        dp_bell_sleep(bell, rung, until_ns);
        rung = atomic_load(&bell->rung);
    }
    dp_status status = DP_OK;
    if (transport->aborted != DP_OK) {
        pthread_mutex_lock(transport->mutex);
        status = dp_transport_fail_aborted(transport, err);
        pthread_mutex_unlock(transport->mutex);
    }
    *seen = rung;
    return status;
}
