// Puts to the other members, counted and with notes.
#include "engine.h"

#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"

bool dp_link_may_put(const struct dp_alltoall *alltoall, const struct round *round, int32_t peer)
{
    if (peer == alltoall->self) {
        return true;
    }
    const struct link *link = &alltoall->links[peer];
    return round->lane->peers[peer].credits >= round->lane->over &&
           link->sent - link->acked < UNREAD_MAX;
}

uint8_t *dp_link_reserve(struct dp_alltoall *alltoall, int32_t peer, int64_t offset, int64_t bytes)
{
    DP_CHECK(offset >= 0 && bytes >= 0 && offset + bytes <= alltoall->regions.bytes);
    if (alltoall->links[peer].memory != NULL) {
        return alltoall->links[peer].memory + offset;
    }
    if (alltoall->staging_bytes < (size_t)bytes) {
        alltoall->staging_bytes = (size_t)bytes;
        alltoall->staging = dp_realloc(alltoall->staging, (size_t)bytes, 1);
    }
    return alltoall->staging;
}

static void count_bytes(struct dp_alltoall *alltoall, int32_t peer, int64_t bytes)
{
    if (peer == alltoall->self || bytes == 0) {
        return;
    }
    pthread_mutex_lock(&alltoall->mutex);
    alltoall->peer_bytes[peer] += (uint64_t)bytes;
    *(alltoall->links[peer].is_near ? &alltoall->stats.scale_up_bytes
                                    : &alltoall->stats.scale_out_bytes) += (uint64_t)bytes;
    pthread_mutex_unlock(&alltoall->mutex);
}

// Nobody counts the rows of a part, which may be all those of a source at once.
static uint64_t note_of(const struct round *round, note_kind kind, int32_t source, int64_t rows)
{
    rows = kind == NOTE_PART ? 0 : rows;
    DP_CHECK(rows >= 0 && rows < 1 << NOTE_ROWS_BITS);
    return dp_note_pack(&(struct note){
        .kind = kind,
        .move = round->move,
        .lane = round->lane->index,
        .source = (uint32_t)source,
        .rows = (uint32_t)rows,
        .round = round->number & NOTE_ROUND_MASK,
        .check = round->check,
    });
}

static dp_status put(struct dp_alltoall *alltoall, int32_t peer, int64_t offset, const void *bytes,
                     int64_t length, uint64_t note, struct dp_error *err)
{
    struct link *link = &alltoall->links[peer];
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = (size_t)length};
    link->sent += peer != alltoall->self;
    return dp_window_put(alltoall->window, link->rank, (size_t)offset, &part, length > 0, note,
                         err);
}

static dp_status add_round(const struct dp_alltoall *alltoall, const struct round *round,
                           int32_t peer, struct dp_error *err)
{
    char text[ROUND_TEXT_MAX];
    return dp_fail_in(err, "all-to-all: %s: rows to rank %d", dp_round_text(text, round),
                      alltoall->links[peer].rank);
}

dp_status dp_link_commit(struct dp_alltoall *alltoall, const struct round *round, int32_t peer,
                         int64_t offset, int64_t bytes, note_kind kind, int32_t source,
                         int64_t rows, struct dp_error *err)
{
    bool is_there = alltoall->links[peer].memory != NULL;
    count_bytes(alltoall, peer, bytes);
    if (is_there && kind == NOTE_PART) {
        return DP_OK;
    }
    if (peer == alltoall->self) {
        DP_CHECK(kind == NOTE_ARRIVAL);
        round->lane->arrived[source] += rows;
        return DP_OK;
    }
    dp_status status = put(alltoall, peer, offset, alltoall->staging, is_there ? 0 : bytes,
                           note_of(round, kind, source, rows), err);
    return status == DP_OK ? DP_OK : add_round(alltoall, round, peer, err);
}

dp_status dp_link_put(struct dp_alltoall *alltoall, const struct round *round, int32_t peer,
                      int64_t offset, const void *bytes, int64_t length, note_kind kind,
                      int32_t source, int64_t rows, struct dp_error *err)
{
    DP_CHECK(peer != alltoall->self);
    if (alltoall->links[peer].memory != NULL) {
        memcpy(dp_link_reserve(alltoall, peer, offset, length), bytes, (size_t)length);
        return dp_link_commit(alltoall, round, peer, offset, length, kind, source, rows, err);
    }
    count_bytes(alltoall, peer, length);
    dp_status status =
        put(alltoall, peer, offset, bytes, length, note_of(round, kind, source, rows), err);
    return status == DP_OK ? DP_OK : add_round(alltoall, round, peer, err);
}

dp_status dp_link_credit(struct dp_alltoall *alltoall, const struct round *round, int32_t peer,
                         struct dp_error *err)
{
    return put(alltoall, peer, 0, NULL, 0, note_of(round, NOTE_CREDIT, 0, 0), err);
}

dp_status dp_link_control(struct dp_alltoall *alltoall, int32_t peer, note_control control,
                          uint32_t value, struct dp_error *err)
{
    uint64_t note = dp_note_pack(&(struct note){
        .kind = NOTE_CONTROL,
        .move = control,
        .round = value >> 13 & NOTE_ROUND_MASK,
        .check = value & NOTE_CHECK_MASK,
    });
    return put(alltoall, peer, 0, NULL, 0, note, err);
}
