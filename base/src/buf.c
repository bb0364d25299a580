#include "dp/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"

void dp_buf_deinit(struct dp_buf *buf)
{
    free(buf->bytes);
    *buf = (struct dp_buf){0};
}

void dp_buf_clear(struct dp_buf *buf)
{
    buf->length = 0;
    if (buf->bytes != NULL) {
        buf->bytes[0] = '\0';
    }
}

static void reserve(struct dp_buf *buf, size_t more)
{
    DP_CHECK(more < SIZE_MAX / 4 && buf->length < SIZE_MAX / 4);
    size_t needed = buf->length + more + 1;
    if (needed <= buf->capacity) {
        return;
    }
    size_t capacity = buf->capacity < 64 ? 64 : buf->capacity * 2;
    capacity = capacity < needed ? needed : capacity;
    buf->bytes = dp_realloc(buf->bytes, capacity, 1);
    buf->capacity = capacity;
}

void *dp_buf_extend(struct dp_buf *buf, size_t length)
{
    reserve(buf, length);
    void *start = buf->bytes + buf->length;
    buf->length += length;
    buf->bytes[buf->length] = '\0';
    return start;
}

void dp_buf_append(struct dp_buf *buf, const void *bytes, size_t length)
{
    void *start = dp_buf_extend(buf, length);
    if (length > 0) {
        memcpy(start, bytes, length);
    }
}

void dp_buf_puts(struct dp_buf *buf, const char *text)
{
    dp_buf_append(buf, text, strlen(text));
}

void dp_buf_vprintf(struct dp_buf *buf, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    DP_CHECK(length >= 0);
    reserve(buf, (size_t)length);
    vsnprintf(buf->bytes + buf->length, (size_t)length + 1, format, again);
    va_end(again);
    buf->length += (size_t)length;
}

void dp_buf_printf(struct dp_buf *buf, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    dp_buf_vprintf(buf, format, args);
    va_end(args);
}

void dp_buf_consume(struct dp_buf *buf, size_t length)
{
    DP_CHECK(length <= buf->length);
    if (length > 0) {
        memmove(buf->bytes, buf->bytes + length, buf->length - length + 1);
        buf->length -= length;
    }
}

char *dp_buf_take(struct dp_buf *buf)
{
    reserve(buf, 0);
    buf->bytes[buf->length] = '\0';
    char *bytes = buf->bytes;
    *buf = (struct dp_buf){0};
    return bytes;
}

dp_status dp_read_file(const char *path, size_t max_bytes, struct dp_buf *ret_buf,
                       struct dp_error *err)
{
    bool is_stdin = strcmp(path, "-") == 0;
    DP_AUTO_CLOSE int fd = is_stdin ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return dp_fail_errno(err, errno, "cannot open %s", path);
    }
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return dp_fail_errno(err, errno, "cannot stat %s", path);
    }
    if (S_ISDIR(info.st_mode)) {
        return dp_fail(err, DP_INVALID, "cannot read %s: it is a directory", path);
    }
    if (S_ISREG(info.st_mode) && (uint64_t)info.st_size > max_bytes) {
        return dp_fail(err, DP_TOO_LARGE, "%s has %lld bytes; the limit is %zu", path,
                       (long long)info.st_size, max_bytes);
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf buf = {0};
    for (;;) {
        char chunk[65536];
        ssize_t got = read(fd, chunk, sizeof chunk);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return dp_fail_errno(err, errno, "cannot read %s", path);
        }
        if (got == 0) {
            break;
        }
        if ((size_t)got > max_bytes - buf.length) {
            return dp_fail(err, DP_TOO_LARGE, "%s has more than %zu bytes", path, max_bytes);
        }
        dp_buf_append(&buf, chunk, (size_t)got);
    }
    size_t length = buf.length;
    *ret_buf =
        (struct dp_buf){.bytes = dp_buf_take(&buf), .length = length, .capacity = length + 1};
    return DP_OK;
}

static dp_status write_all(int fd, const char *bytes, size_t length, const char *path,
                           struct dp_error *err)
{
    while (length > 0) {
        ssize_t put = write(fd, bytes, length);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put < 0) {
            return dp_fail_errno(err, errno, "cannot write %s", path);
        }
        bytes += put;
        length -= (size_t)put;
    }
    return DP_OK;
}

// To the file itself: a device, a FIFO, or what a dangling link says.
static dp_status write_through(const char *path, const void *bytes, size_t length,
                               struct dp_error *err)
{
    DP_AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOCTTY | O_CLOEXEC, 0644);
    if (fd < 0) {
        return dp_fail_errno(err, errno, "cannot write %s", path);
    }
    dp_status status = write_all(fd, bytes, length, path, err);
    // Pipes and most devices know no fsync and say EINVAL.
    if (status == DP_OK && fsync(fd) != 0 && errno != EINVAL && errno != EROFS &&
        errno != ENOTSUP) {
        status = dp_fail_errno(err, errno, "cannot sync %s", path);
    }
    return status;
}

// Of `target`, which the caller called `path`. `mode` is that of the file that it replaces.
static dp_status replace_file(const char *path, const char *target, const mode_t *mode,
                              const void *bytes, size_t length, struct dp_error *err)
{
    DP_AUTO_FREE char *temporary = dp_asprintf("%s.tmp.%d", target, (int)getpid());
    DP_AUTO_CLOSE int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        return dp_fail_errno(err, errno, "cannot create %s", path);
    }
    dp_status status = DP_OK;
    if (mode != NULL && fchmod(fd, *mode & 0777) != 0) {
        status = dp_fail_errno(err, errno, "cannot set the mode of %s", path);
    }
    if (status == DP_OK) {
        status = write_all(fd, bytes, length, path, err);
    }
    if (status == DP_OK && fsync(fd) != 0) {
        status = dp_fail_errno(err, errno, "cannot sync %s", path);
    }
    if (status == DP_OK && rename(temporary, target) != 0) {
        status = dp_fail_errno(err, errno, "cannot replace %s", path);
    }
    if (status != DP_OK) {
        unlink(temporary);
    }
    return status;
}

dp_status dp_write_file(const char *path, const void *bytes, size_t length, struct dp_error *err)
{
    struct stat info;
    if (path[0] == '\0') {
        return dp_fail(err, DP_INVALID, "the name of the file to write is empty");
    }
    if (stat(path, &info) != 0) {
        bool is_link = errno == ENOENT && lstat(path, &info) == 0;
        return is_link ? write_through(path, bytes, length, err)
                       : replace_file(path, path, NULL, bytes, length, err);
    }
    if (S_ISDIR(info.st_mode)) {
        return dp_fail(err, DP_INVALID, "cannot write %s: it is a directory", path);
    }
    if (!S_ISREG(info.st_mode)) {
        return write_through(path, bytes, length, err);
    }
    DP_AUTO_FREE char *target = realpath(path, NULL);
    if (target == NULL) {
        return dp_fail_errno(err, errno, "cannot resolve %s", path);
    }
    return replace_file(path, target, &info.st_mode, bytes, length, err);
}

dp_status dp_make_directories(const char *path, struct dp_error *err)
{
    DP_AUTO_FREE char *copy = dp_strdup(path);
    for (char *at = copy + 1; *copy != '\0'; at++) {
        if (*at != '/' && *at != '\0') {
            continue;
        }
        char saved = *at;
        *at = '\0';
        if (mkdir(copy, 0700) != 0 && errno != EEXIST) {
            return dp_fail_errno(err, errno, "cannot make directory %s", copy);
        }
        *at = saved;
        if (saved == '\0') {
            break;
        }
    }
    struct stat info;
    if (stat(path, &info) != 0) {
        return dp_fail_errno(err, errno, "cannot make directory %s", path);
    }
    if (!S_ISDIR(info.st_mode)) {
        return dp_fail(err, DP_CONFLICT, "%s exists and is not a directory", path);
    }
    return DP_OK;
}

void dp_raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}
