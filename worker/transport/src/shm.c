// Ranks that are processes of one node. Messages go over local sockets, or, when they are long,
// through memory of the sender (shm_arena.c); a window is a memfd that
// its owner passes to every peer over them, so that a put is one copy by the sender, a count and,
// when somebody sleeps, a wake. Sockets have abstract names: nothing is left when a rank is killed,
// and its peers see the hang-up at once.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/rand.h"
#include "stream.h"

#define OFFERS_MAX (2 * DP_WINDOWS_MAX) // of one peer that have not been accepted

// A peer's window as mapped here.
struct mapping {
    void *region;
    size_t bytes;
};

// What two ranks must have in common: one kernel, since they share memory, one network namespace,
// where abstract names live, and one user. 0 = it cannot be told.
static uint64_t node_identity(void)
{
    char boot[64] = {0};
    DP_AUTO_CLOSE int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    struct stat space;
    if (fd < 0 || read(fd, boot, sizeof boot - 1) < 32 || stat("/proc/self/ns/net", &space) != 0) {
        return 0;
    }
    uint64_t identity = dp_rand_mix((uint64_t)space.st_ino, (uint64_t)geteuid());
    for (size_t i = 0; boot[i] != '\0'; i++) {
        identity = dp_rand_mix(identity, (uint64_t)(unsigned char)boot[i]);
    }
    return identity | 1;
}

static void name_socket(uint64_t name, struct sockaddr_un *ret_address, socklen_t *ret_length)
{
    *ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int used = snprintf(ret_address->sun_path + 1, sizeof ret_address->sun_path - 1,
                        "dp-rank-%016llx", (unsigned long long)name);
    *ret_length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)used);
}

// "identity/name", both 16 hexadecimal digits.
dp_status dp_shm_resolve(const struct stream *stream, const char *address,
                         struct sockaddr_storage *ret_address, socklen_t *ret_length,
                         struct dp_error *err)
{
    unsigned long long identity, name;
    int used = 0;
    if (sscanf(address, "%16llx/%16llx%n", &identity, &name, &used) != 2 || address[used] != '\0') {
        return dp_fail(err, DP_INVALID, "\"%s\" is no address of shared memory", address);
    }
    if (identity != stream->identity) {
        return dp_fail(err, DP_UNSUPPORTED,
                       "it is on another node, in another network namespace or of another user: "
                       "set [parallel] transport to auto or tcp");
    }
    name_socket(name, (struct sockaddr_un *)(void *)ret_address, ret_length);
    return DP_OK;
}

static void *map_passed(int fd, size_t bytes)
{
    struct stat is;
    int seals = fcntl(fd, F_GET_SEALS);
    // Memory that could shrink would end this process when it is touched.
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &is) != 0 ||
        (uint64_t)is.st_size != bytes) {
        return NULL;
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

bool dp_shm_passed(struct stream *stream, int32_t peer, uint32_t key, int fd)
{
    DP_AUTO_CLOSE int passed = fd;
    struct stream_link *link = &stream->links[peer];
    if (key == BELL_KEY) {
        if (link->bell == NULL) {
            link->bell = map_passed(passed, BELL_BYTES);
        }
        return link->bell != NULL;
    }
    if (key == ARENA_KEY) {
        if (link->arena == NULL) {
            link->arena = map_passed(passed, ARENA_BYTES);
        }
        return link->arena != NULL;
    }
    if (link->offer_count == OFFERS_MAX) {
        return false;
    }
    link->offers = dp_realloc(link->offers, link->offer_count + 1, sizeof *link->offers);
    link->offers[link->offer_count++] =
        (struct stream_offer){.key = key, .fd = dp_steal_fd(&passed)};
    return true;
}

// The descriptor offered under that key, -1 = none.
static int take_offer(struct dp_transport *transport, int32_t peer, uint32_t key)
{
    struct stream_link *link = &stream_of(transport)->links[peer];
    int fd = -1;
    pthread_mutex_lock(transport->mutex);
    for (size_t i = 0; i < link->offer_count && fd < 0; i++) {
        if (link->offers[i].key == key) {
            fd = link->offers[i].fd;
            link->offers[i] = link->offers[--link->offer_count];
        }
    }
    pthread_mutex_unlock(transport->mutex);
    return fd;
}

void dp_shm_forget_peer(struct stream_link *link)
{
    if (link->bell != NULL) {
        munmap(link->bell, BELL_BYTES);
        link->bell = NULL;
    }
    if (link->arena != NULL) {
        munmap((void *)(uintptr_t)link->arena, ARENA_BYTES);
        link->arena = NULL;
    }
    for (size_t i = 0; i < link->offer_count; i++) {
        close(link->offers[i].fd);
    }
    free(dp_steal(link->offers));
    link->offer_count = 0;
}

static dp_status shm_connect(struct dp_transport *transport, const char *const *addresses,
                             int64_t deadline_ns, struct dp_error *err)
{
    struct stream *stream = stream_of(transport);
    dp_status status = dp_socket_connect(transport, addresses, deadline_ns, err);
    for (int32_t i = 0; i < transport->world && status == DP_OK; i++) {
        if (stream->links[i].fd >= 0) {
            status = dp_socket_pass(stream, i, BELL_KEY, stream->bell_fd, err);
        }
        if (stream->links[i].fd >= 0 && status == DP_OK) {
            status = dp_socket_pass(stream, i, ARENA_KEY, dp_shm_arena_fd(stream->arena), err);
        }
    }
    return status;
}

static dp_status window_offer(struct dp_transport *transport, struct dp_window *window,
                              int32_t peer, unsigned char card[DP_WINDOW_CARD_BYTES],
                              struct dp_error *err)
{
    (void)card;
    return dp_socket_pass(stream_of(transport), peer, window->key, window->fd, err);
}

static dp_status window_accept(struct dp_transport *transport, struct dp_window *window,
                               int32_t peer, const unsigned char card[DP_WINDOW_CARD_BYTES],
                               struct dp_error *err)
{
    (void)card;
    struct stream_link *link = &stream_of(transport)->links[peer];
    DP_AUTO_CLOSE int fd = take_offer(transport, peer, window->key);
    pthread_mutex_lock(transport->mutex);
    bool has_bell = link->bell != NULL;
    pthread_mutex_unlock(transport->mutex);
    void *region = fd >= 0 && has_bell ? map_passed(fd, window->region_bytes) : NULL;
    if (region == NULL) {
        return dp_fail(err, DP_INTERNAL, "the memory that rank %d passed is not its window", peer);
    }
    struct mapping *mapping = dp_new(struct mapping);
    *mapping = (struct mapping){.region = region, .bytes = window->region_bytes};
    window->outs[peer].row = mapping;
    return DP_OK;
}

static void window_forget(struct dp_transport *transport, struct dp_window *window, int32_t peer)
{
    struct mapping *mapping = dp_steal(window->outs[peer].row);
    if (mapping != NULL) {
        munmap(mapping->region, mapping->bytes);
        free(mapping);
    } else {
        DP_AUTO_CLOSE int fd = take_offer(transport, peer, window->key);
    }
}

static void *window_map(struct dp_transport *transport, struct dp_window *window, int32_t peer)
{
    (void)transport;
    unsigned char *region = ((struct mapping *)window->outs[peer].row)->region;
    return region + dp_window_memory_offset(window->world);
}

static dp_status shm_put(struct dp_transport *transport, struct dp_window *window, int32_t peer,
                         size_t offset, const struct iovec *parts, int count, size_t length,
                         uint64_t number, uint64_t note, struct dp_error *err)
{
    (void)length;
    struct stream_link *link = &stream_of(transport)->links[peer];
    struct dp_transport *front = transport->front;
    if (link->broken) {
        pthread_mutex_lock(front->mutex);
        dp_status status = dp_fail(err, DP_UNAVAILABLE, "cannot put to rank %d (window %u): %s",
                                   peer, window->key & 0xffff, front->peers[peer].reason);
        pthread_mutex_unlock(front->mutex);
        return status;
    }
    void *region = ((struct mapping *)window->outs[peer].row)->region;
    unsigned char *memory = window_map(transport, window, peer);
    dp_window_gather(memory + offset, parts, count);
    dp_window_post((struct dp_window_lane *)region + transport->rank, link->bell, number, note);
    return DP_OK;
}

const struct dp_transport_ops dp_shm_ops = {
    .attributes = {.name = "shm",
                   .bandwidth = 1.2e10,
                   .latency_s = 3e-6,
                   .message_bytes_max = DP_TRANSPORT_BYTES_MAX,
                   .is_one_sided = true,
                   .shares_node = true},
    .connect = shm_connect,
    .send = dp_shm_send,
    .resume = dp_socket_resume,
    .cut = dp_socket_cut,
    .aborted = dp_socket_aborted,
    .progress = dp_socket_progress,
    .window_offer = window_offer,
    .window_accept = window_accept,
    .window_forget = window_forget,
    .window_map = window_map,
    .put = shm_put,
    .close = dp_socket_close,
    .free = dp_socket_free,
};

static dp_status listen_locally(uint64_t *ret_name, int *ret_fd, struct dp_error *err)
{
    DP_AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_un address;
    socklen_t length;
    uint64_t name = 0;
    if (getrandom(&name, sizeof name, 0) == (ssize_t)sizeof name) {
        name_socket(name, &address, &length);
    }
    if (fd < 0 || name == 0 || bind(fd, (struct sockaddr *)&address, length) != 0 ||
        listen(fd, SOMAXCONN) != 0) {
        return dp_fail_errno(err, errno, "cannot listen on a local socket");
    }
    *ret_name = name;
    *ret_fd = dp_steal_fd(&fd);
    return DP_OK;
}

dp_status dp_transport_shm_listen(int32_t rank, int32_t world, uint64_t token, char *ret_address,
                                  struct dp_transport **ret_transport, struct dp_error *err)
{
    uint64_t identity = node_identity(), name = 0;
    int listen_fd = -1, bell_fd = -1;
    struct stream *stream = NULL;
    void *bell = NULL;
    dp_status status = dp_transport_check_world(rank, world, err);
    if (status == DP_OK && identity == 0) {
        status = dp_fail(err, DP_UNSUPPORTED,
                         "/proc does not tell which node this is, so memory cannot be shared");
    }
    if (status == DP_OK) {
        status = dp_shared_memory_new("dp-bell", BELL_BYTES, &bell_fd, &bell, err);
    }
    if (status != DP_OK) {
        return status;
    }
    struct stream_arena *arena = NULL;
    status = dp_shm_arena_new(&arena, err);
    if (status == DP_OK) {
        status = listen_locally(&name, &listen_fd, err);
    }
    if (status == DP_OK) {
        status = dp_socket_new(&dp_shm_ops, rank, world, token, listen_fd, &stream, err);
    }
    if (status != DP_OK) {
        dp_shm_arena_free(arena);
    }
    if (status != DP_OK) {
        munmap(bell, BELL_BYTES);
        close(bell_fd);
        return status;
    }
    stream->is_local = true;
    stream->identity = identity;
    stream->arena = arena;
    stream->bell_fd = bell_fd;
    stream->base.bell = bell;
    snprintf(ret_address, DP_ADDRESS_MAX, "%016llx/%016llx", (unsigned long long)identity,
             (unsigned long long)name);
    *ret_transport = &stream->base;
    return DP_OK;
}
