// .bin files as GPT-2's reproductions have them: tokens of 2 or 4 bytes, with llm.c's header or
// without one. The header is 256 int32: magic, version, number of tokens (karpathy/llm.c,
// llmc/dataloader.h and dev/data/data_common.py).
#include "files.h"

#define HEADER_WORDS 256
#define HEADER_BYTES ((int64_t)(HEADER_WORDS * sizeof(int32_t)))

static const struct header_kind {
    int32_t magic, version;
    token_type type;
} header_kinds[] = {
    {20240520, 1, TOKEN_U16},
    {20240801, 7, TOKEN_U32},
};

static const struct header_kind *kind_of(int32_t magic)
{
    for (size_t i = 0; i < sizeof(header_kinds) / sizeof(header_kinds[0]); i++) {
        if (header_kinds[i].magic == magic) {
            return &header_kinds[i];
        }
    }
    return NULL;
}

static const struct header_kind *read_kind(int fd, int64_t bytes)
{
    int32_t magic = 0;
    struct dp_error ignored;
    if (bytes < (int64_t)sizeof magic ||
        dp_token_file_pread(fd, "", 0, &magic, sizeof magic, &ignored) != DP_OK) {
        return NULL;
    }
    return kind_of(magic);
}

bool dp_token_file_has_header(int fd, int64_t bytes)
{
    return read_kind(fd, bytes) != NULL;
}

static dp_status open_with_header(struct token_file *file, int64_t bytes,
                                  const struct header_kind *kind, struct dp_error *err)
{
    int32_t words[3];
    if (bytes < HEADER_BYTES) {
        return dp_fail(err, DP_INVALID,
                       "%s starts as a token file of llm.c, but ends at offset %lld inside its "
                       "header of %lld bytes",
                       file->path, (long long)bytes, (long long)HEADER_BYTES);
    }
    dp_status status = dp_token_file_pread(file->fd, file->path, 0, words, sizeof words, err);
    if (status != DP_OK) {
        return status;
    }
    if (words[1] != kind->version) {
        return dp_fail(err, DP_INVALID,
                       "%s, offset 4: version %d of a file with magic %d; only %d is known",
                       file->path, words[1], kind->magic, kind->version);
    }
    int64_t width = dp_token_bytes(kind->type);
    if (words[2] < 1 || HEADER_BYTES + words[2] * width != bytes) {
        return dp_fail(err, DP_INVALID,
                       "%s, offset 8: the header says %d tokens of %lld bytes behind %lld of its "
                       "own, which makes %lld; the file has %lld bytes",
                       file->path, words[2], (long long)width, (long long)HEADER_BYTES,
                       (long long)(HEADER_BYTES + words[2] * width), (long long)bytes);
    }
    file->type = kind->type;
    file->offset = HEADER_BYTES;
    file->count = words[2];
    return DP_OK;
}

dp_status dp_token_file_open_gpt2(struct token_file *file, int64_t bytes, int32_t token_bytes,
                                  int32_t vocabulary, struct dp_error *err)
{
    const struct header_kind *kind = read_kind(file->fd, bytes);
    if (kind != NULL) {
        return open_with_header(file, bytes, kind, err);
    }
    if (token_bytes == 0) {
        token_bytes = vocabulary <= UINT16_MAX + 1 ? 2 : 4;
    }
    file->type = token_bytes == 2 ? TOKEN_U16 : TOKEN_U32;
    file->offset = 0;
    file->count = bytes / token_bytes;
    if (bytes % token_bytes != 0) {
        return dp_fail(err, DP_INVALID,
                       "%s has %lld bytes, no multiple of the %d of a token: the last one, at "
                       "offset %lld, is torn, or [data] token_bytes is another",
                       file->path, (long long)bytes, token_bytes,
                       (long long)(bytes - bytes % token_bytes));
    }
    return DP_OK;
}
