#include "dp/rank_log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "dp/cleanup.h"
#include "dp/clock.h"

#define NAME_BYTES 64

static void name_of(char *buffer, uint32_t rank, uint64_t start)
{
    snprintf(buffer, NAME_BYTES, "rank-%" PRIu32 ".%" PRIu64 ".log", rank, start);
}

void dp_rank_log_init(struct dp_rank_log *log, int directory_fd, uint32_t rank, uint64_t bytes_max)
{
    *log = (struct dp_rank_log){
        .directory_fd = directory_fd,
        .rank = rank,
        .bytes_max = bytes_max,
        .fd = -1,
        .budget = DP_RANK_LOG_BURST_BYTES,
    };
}

void dp_rank_log_deinit(struct dp_rank_log *log)
{
    if (log->fd >= 0) {
        close(log->fd);
    }
    log->fd = -1;
}

static void open_segment(struct dp_rank_log *log)
{
    char name[NAME_BYTES];
    name_of(name, log->rank, log->end);
    int fd =
        openat(log->directory_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) {
        return;
    }
    if (log->fd >= 0) {
        close(log->fd);
        if (log->start > 0) {
            name_of(name, log->rank, log->previous);
            (void)unlinkat(log->directory_fd, name, 0);
            log->dropped += log->start - log->previous;
        }
        log->previous = log->start;
    }
    log->fd = fd;
    log->start = log->end;
}

static void drop(struct dp_rank_log *log, size_t length)
{
    log->dropped += length;
    log->unsaid += length;
}

// Writes into the newest file, starting new ones as they fill up.
static void keep(struct dp_rank_log *log, const char *bytes, size_t length)
{
    uint64_t segment_bytes = log->bytes_max / 2;
    while (length > 0) {
        if (log->fd < 0 || log->end - log->start >= segment_bytes) {
            open_segment(log);
        }
        uint64_t room = log->start + segment_bytes - log->end;
        if (log->fd < 0 || room == 0) {
            drop(log, length);
            return;
        }
        ssize_t put = write(log->fd, bytes, room < length ? (size_t)room : length);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            drop(log, length);
            return;
        }
        log->end += (uint64_t)put;
        bytes += put;
        length -= (size_t)put;
    }
}

static void refill(struct dp_rank_log *log, int64_t now_ns)
{
    int64_t passed_ns = now_ns - log->budget_ns;
    log->budget_ns = now_ns;
    if (passed_ns >= DP_NS_PER_S) {
        log->budget = DP_RANK_LOG_BURST_BYTES;
        return;
    }
    log->budget += passed_ns * DP_RANK_LOG_BYTES_PER_S / DP_NS_PER_S;
    if (log->budget > DP_RANK_LOG_BURST_BYTES) {
        log->budget = DP_RANK_LOG_BURST_BYTES;
    }
}

void dp_rank_log_write(struct dp_rank_log *log, const void *bytes, size_t length, int64_t now_ns)
{
    refill(log, now_ns);
    if ((int64_t)length > log->budget) {
        drop(log, length);
        return;
    }
    log->budget -= (int64_t)length;
    if (log->unsaid > 0) {
        char line[96];
        int used = snprintf(line, sizeof line, "[dp-keeper: %" PRIu64 " bytes of output dropped]\n",
                            log->unsaid);
        log->unsaid = 0;
        keep(log, line, (size_t)used);
    }
    keep(log, bytes, length);
}

// The file that holds `offset`, or the oldest one after it.
static bool find_segment(DIR *directory, uint32_t rank, uint64_t offset, uint64_t *ret_start)
{
    bool below = false, above = false;
    uint64_t best_below = 0, best_above = 0;
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        uint32_t of_rank;
        uint64_t start;
        char wanted[NAME_BYTES];
        if (sscanf(entry->d_name, "rank-%" SCNu32 ".%" SCNu64 ".log", &of_rank, &start) != 2) {
            continue;
        }
        name_of(wanted, of_rank, start);
        if (of_rank != rank || strcmp(wanted, entry->d_name) != 0) {
            continue;
        }
        if (start <= offset && (!below || start > best_below)) {
            below = true;
            best_below = start;
        }
        if (start > offset && (!above || start < best_above)) {
            above = true;
            best_above = start;
        }
    }
    *ret_start = below ? best_below : best_above;
    return below || above;
}

static dp_status read_segment(int directory_fd, uint32_t rank, uint64_t start, uint64_t offset,
                              size_t bytes_max, struct dp_buf *buf, struct dp_error *err)
{
    char name[NAME_BYTES];
    name_of(name, rank, start);
    DP_AUTO_CLOSE int fd = openat(directory_fd, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        // Rotated away since it was listed: the caller looks again.
        return errno == ENOENT ? DP_OK : dp_fail_errno(err, errno, "cannot open %s", name);
    }
    char chunk[4096];
    while (bytes_max > 0) {
        size_t want = bytes_max < sizeof chunk ? bytes_max : sizeof chunk;
        ssize_t got = pread(fd, chunk, want, (off_t)(offset - start));
        if (got < 0 && errno != EINTR) {
            return dp_fail_errno(err, errno, "cannot read %s", name);
        }
        if (got == 0) {
            break;
        }
        if (got > 0) {
            dp_buf_append(buf, chunk, (size_t)got);
            offset += (uint64_t)got;
            bytes_max -= (size_t)got;
        }
    }
    return DP_OK;
}

dp_status dp_rank_log_read(const char *directory, uint32_t rank, uint64_t offset, size_t bytes_max,
                           uint64_t *ret_offset, struct dp_buf *buf, struct dp_error *err)
{
    DIR *listing = opendir(directory);
    if (listing == NULL) {
        return dp_fail_errno(err, errno, "cannot open directory %s", directory);
    }
    uint64_t at = offset;
    size_t before = buf->length;
    dp_status status = DP_OK;
    // The second turn reads the file that follows when `offset` is just past the end of one.
    for (int turn = 0; turn < 3 && status == DP_OK && buf->length == before; turn++) {
        uint64_t start;
        rewinddir(listing);
        if (!find_segment(listing, rank, at, &start)) {
            break;
        }
        at = start > at ? start : at;
        status = read_segment(dirfd(listing), rank, start, at, bytes_max, buf, err);
    }
    closedir(listing);
    if (status == DP_OK) {
        *ret_offset = at;
    }
    return status;
}
