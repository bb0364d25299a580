// Bytes on their way to the disk.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive_internal.h"
#include "dp/alloc.h"
#include "internal.h"

#define PAGE_BYTES 4096u

// Asks for it without waiting; a file system that cannot leaves it to the sync.
static void hand_over(struct dp_file_writer *writer, uint64_t end)
{
    if (end > writer->handed) {
        (void)sync_file_range(writer->fd, (off_t)writer->handed, (off_t)(end - writer->handed),
                              SYNC_FILE_RANGE_WRITE);
        writer->handed = end;
    }
}

dp_status dp_file_writer_put(struct dp_file_writer *writer, const void *bytes, size_t length,
                             struct dp_error *err)
{
    for (size_t done = 0; done < length;) {
        ssize_t put =
            pwrite(writer->fd, (const char *)bytes + done, length - done, (off_t)writer->at);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put < 0) {
            return dp_fail_errno(err, errno, "cannot write %s at %" PRIu64, writer->path,
                                 writer->at);
        }
        done += (size_t)put;
        writer->at += (uint64_t)put;
    }
    if (writer->at - writer->handed >= DP_WRITE_PIECE) {
        hand_over(writer, writer->at - writer->at % PAGE_BYTES);
    }
    return DP_OK;
}

dp_status dp_archive_read_text(const char *path, size_t bytes_max, struct dp_buf *ret_text,
                               struct dp_error *err)
{
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        return dp_fail(err, DP_INVALID, "%s is %s, not a regular file", path,
                       S_ISFIFO(info.st_mode)  ? "a pipe"
                       : S_ISDIR(info.st_mode) ? "a directory"
                                               : "a device or a socket");
    }
    return dp_read_file(path, bytes_max, ret_text, err);
}

dp_status dp_archive_put_file(const char *directory, const char *name, const struct dp_buf *text,
                              struct dp_error *err)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, name);
    DP_AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        return dp_fail_errno(err, errno, "cannot create %s", path);
    }
    struct dp_file_writer writer = {.path = path, .fd = fd};
    dp_status status = dp_file_writer_put(&writer, text->bytes, text->length, err);
    hand_over(&writer, writer.at);
    return status;
}

static dp_status sync_one(const char *path, int flags, struct dp_error *err)
{
    DP_AUTO_CLOSE int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0) {
        return dp_fail_errno(err, errno, "cannot write %s", path);
    }
    return DP_OK;
}

dp_status dp_archive_sync_directory(const char *directory, struct dp_error *err)
{
    return sync_one(directory, O_RDONLY | O_DIRECTORY, err);
}

dp_status dp_archive_sync_files(const char *directory, const char *const *names, size_t count,
                                struct dp_error *err)
{
    dp_status status = DP_OK;
    for (size_t i = 0; i < count && status == DP_OK; i++) {
        DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, names[i]);
        status = sync_one(path, O_WRONLY, err);
    }
    return status == DP_OK ? dp_archive_sync_directory(directory, err) : status;
}
