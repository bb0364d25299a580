#include "dp/sealed.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/rand.h"

#define HEADER_BYTES 64

static void write_header(char *header, const char *kind, const void *bytes, size_t length)
{
    memset(header, ' ', HEADER_BYTES);
    int used = snprintf(header, HEADER_BYTES, "%s %zu %016" PRIx64, kind, length,
                        dp_hash64(bytes, length, 0));
    header[used] = ' ';
    header[HEADER_BYTES - 1] = '\n';
}

dp_status dp_sealed_write(const char *path, const char *kind, const void *bytes, size_t length,
                          struct dp_error *err)
{
    char header[HEADER_BYTES];
    write_header(header, kind, bytes, length);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf file = {0};
    dp_buf_append(&file, header, sizeof header);
    dp_buf_append(&file, bytes, length);
    return dp_write_file(path, file.bytes, file.length, err);
}

dp_status dp_sealed_put_aside(const char *path, struct dp_error *err)
{
    DP_AUTO_FREE char *aside = dp_asprintf("%s.corrupt", path);
    if (rename(path, aside) != 0) {
        return dp_fail(err, DP_INVALID, "%s was damaged", path);
    }
    return dp_fail(err, DP_INVALID, "%s was damaged; it was renamed to %s", path, aside);
}

dp_status dp_sealed_check(const char *path, struct dp_error *err)
{
    struct stat info;
    bool is_other = lstat(path, &info) == 0 && !S_ISREG(info.st_mode);
    return is_other ? dp_sealed_put_aside(path, err) : DP_OK;
}

dp_status dp_sealed_read(const char *path, const char *kind, size_t bytes_max, struct dp_buf *buf,
                         struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf file = {0};
    dp_status status = dp_sealed_check(path, err);
    if (status == DP_OK) {
        status = dp_read_file(path, bytes_max + HEADER_BYTES, &file, err);
    }
    if (status == DP_TOO_LARGE) {
        return dp_sealed_put_aside(path, err);
    }
    if (status != DP_OK) {
        return status;
    }
    char header[HEADER_BYTES];
    if (file.length < HEADER_BYTES) {
        return dp_sealed_put_aside(path, err);
    }
    write_header(header, kind, file.bytes + HEADER_BYTES, file.length - HEADER_BYTES);
    if (memcmp(header, file.bytes, HEADER_BYTES) != 0) {
        return dp_sealed_put_aside(path, err);
    }
    dp_buf_append(buf, file.bytes + HEADER_BYTES, file.length - HEADER_BYTES);
    return DP_OK;
}
