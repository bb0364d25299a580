// Messages of shm: their bytes lie in memory of the sender that peers map, and only a frame that
// says where goes over the socket. The receiver copies them from there to where they are wanted and
// then tells the sender that the place is free. When the memory is full, messages take the socket.
//
// What is taken is known to the sender alone, so nothing that a peer writes can confuse it.
#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "stream.h"

#define GRANULES (ARENA_BYTES / ARENA_GRANULE)

struct stream_arena {
    pthread_mutex_t mutex;
    unsigned char *memory;
    int fd;
    bool taken[GRANULES];
    uint32_t runs[GRANULES]; // granules of the message that begins there; 0 = none does
    int32_t peers[GRANULES]; // whom that message is for
};

// What a received message needs to give its place back; in its bytes.
struct place {
    struct stream *stream;
    int32_t peer;
    uint64_t offset;
};

dp_status dp_shm_arena_new(struct stream_arena **ret_arena, struct dp_error *err)
{
    int fd;
    void *memory;
    dp_status status = dp_shared_memory_new("dp-messages", ARENA_BYTES, &fd, &memory, err);
    if (status != DP_OK) {
        return status;
    }
    struct stream_arena *arena = dp_new(struct stream_arena);
    pthread_mutex_init(&arena->mutex, NULL);
    arena->memory = memory;
    arena->fd = fd;
    *ret_arena = arena;
    return DP_OK;
}

void dp_shm_arena_free(struct stream_arena *arena)
{
    if (arena != NULL) {
        munmap(arena->memory, ARENA_BYTES);
        close(arena->fd);
        pthread_mutex_destroy(&arena->mutex);
        free(arena);
    }
}

int dp_shm_arena_fd(const struct stream_arena *arena)
{
    return arena->fd;
}

// The first place of so many granules, so that what was used last and is still in the caches is
// used again; GRANULES = none.
static size_t take(struct stream_arena *arena, int32_t peer, size_t count)
{
    size_t run = 0;
    for (size_t i = 0; i < GRANULES; i++) {
        run = arena->taken[i] ? 0 : run + 1;
        if (run == count) {
            size_t first = i + 1 - count;
            memset(arena->taken + first, true, count * sizeof arena->taken[0]);
            arena->runs[first] = (uint32_t)count;
            arena->peers[first] = peer;
            return first;
        }
    }
    return GRANULES;
}

static bool give_back(struct stream_arena *arena, int32_t peer, uint64_t offset)
{
    size_t first = (size_t)(offset / ARENA_GRANULE);
    if (offset % ARENA_GRANULE != 0 || first >= GRANULES || arena->runs[first] == 0 ||
        arena->peers[first] != peer) {
        return false;
    }
    memset(arena->taken + first, false, arena->runs[first] * sizeof arena->taken[0]);
    arena->runs[first] = 0;
    return true;
}

bool dp_shm_arena_release(struct stream *stream, int32_t peer, uint64_t offset)
{
    pthread_mutex_lock(&stream->arena->mutex);
    bool is_good = give_back(stream->arena, peer, offset);
    pthread_mutex_unlock(&stream->arena->mutex);
    return is_good;
}

void dp_shm_arena_release_all(struct stream *stream, int32_t peer)
{
    struct stream_arena *arena = stream->arena;
    pthread_mutex_lock(&arena->mutex);
    for (size_t i = 0; i < GRANULES; i++) {
        if (arena->runs[i] != 0 && arena->peers[i] == peer) {
            give_back(arena, peer, i * ARENA_GRANULE);
        }
    }
    pthread_mutex_unlock(&arena->mutex);
}

dp_status dp_shm_send(struct dp_transport *transport, int32_t peer, uint64_t tag,
                      const struct iovec *parts, int count, size_t length, struct dp_error *err)
{
    struct stream *stream = stream_of(transport);
    struct stream_arena *arena = stream->arena;
    size_t first = GRANULES;
    if (length >= ARENA_MESSAGE_MIN && length <= ARENA_BYTES) {
        pthread_mutex_lock(&arena->mutex);
        first = take(arena, peer, (length + ARENA_GRANULE - 1) / ARENA_GRANULE);
        pthread_mutex_unlock(&arena->mutex);
    }
    if (first == GRANULES) {
        return dp_socket_send(transport, peer, tag, parts, count, length, err);
    }
    uint64_t offset = first * ARENA_GRANULE;
    dp_window_gather(arena->memory + offset, parts, count);
    dp_status status = dp_socket_tell(stream, peer, FRAME_SHARED, tag, length, offset, err);
    if (status != DP_OK) {
        dp_shm_arena_release(stream, peer, offset);
    }
    return status;
}

static void release(struct dp_message *message)
{
    struct place place;
    memcpy(&place, message->bytes, sizeof place);
    // When the peer is gone its memory is of no use to anybody.
    dp_socket_tell(place.stream, place.peer, FRAME_FREE, 0, 0, place.offset, NULL);
}

struct dp_message *dp_shm_arena_message(struct stream *stream, int32_t peer, uint64_t tag,
                                        uint64_t length, uint64_t offset)
{
    const struct stream_link *link = &stream->links[peer];
    if (link->arena == NULL || offset > ARENA_BYTES || length > ARENA_BYTES - offset) {
        return NULL;
    }
    struct place place = {.stream = stream, .peer = peer, .offset = offset};
    struct dp_message *message = dp_message_new(tag, sizeof place);
    memcpy(message->bytes, &place, sizeof place);
    message->length = (size_t)length;
    message->data = link->arena + offset;
    message->release = release;
    return message;
}
