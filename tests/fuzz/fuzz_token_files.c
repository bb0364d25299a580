// Token files: a header of llm.c or an index of Megatron that is accepted fits its file, and every
// sample can be read.
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "files.h"
#include "fuzz.h"

#define VOCABULARY (1 << 24)

static int file_of(const void *bytes, size_t length, char ret_path[DP_NAME_MAX])
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    DP_CHECK(fd >= 0 && write(fd, bytes, length) == (ssize_t)length);
    snprintf(ret_path, DP_NAME_MAX, "/proc/self/fd/%d", fd);
    return fd;
}

static void check_file(struct token_file *file, int64_t bytes)
{
    int64_t width = dp_token_bytes(file->type);
    DP_CHECK(file->offset >= 0 && file->count >= 0 && file->offset + file->count * width == bytes);
    // Read in pieces, or refused for a token.
    int32_t tokens[16];
    for (int64_t at = 0; at < file->count; at += 16) {
        int64_t left = file->count - at;
        if (dp_token_file_read(file, at, left < 16 ? left : 16, VOCABULARY, tokens, NULL) !=
            DP_OK) {
            return;
        }
        for (int64_t i = 0; i < left && i < 16; i++) {
            DP_CHECK(tokens[i] >= 0 && tokens[i] < VOCABULARY);
        }
    }
}

// The first byte says what the rest is: a file of tokens, or an index for so many bytes of them.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3) {
        return 0;
    }
    char path[DP_NAME_MAX];
    DP_AUTO_CLOSE int fd = file_of(data + 3, size - 3, path);
    if (data[0] % 2 == 0) {
        struct token_file file = {.path = path, .fd = fd};
        int64_t bytes = (int64_t)size - 3;
        if (dp_token_file_open_gpt2(&file, bytes, data[1] % 2 == 0 ? 2 : 4, VOCABULARY, NULL) ==
            DP_OK) {
            check_file(&file, bytes);
        }
        return 0;
    }
    int64_t bytes = data[1] | data[2] << 8;
    DP_AUTO_FREE char *zeros = dp_alloc((size_t)bytes + 1, 1);
    char bin[DP_NAME_MAX];
    DP_AUTO_CLOSE int bin_fd = file_of(zeros, (size_t)bytes, bin);
    struct token_file file = {.path = bin, .fd = bin_fd};
    if (dp_token_file_open_megatron(&file, bytes, path, NULL) == DP_OK) {
        check_file(&file, bytes);
    }
    return 0;
}
