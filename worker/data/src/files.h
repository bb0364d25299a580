// Files of tokens, and how they are read.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "dp/error.h"
#include "dp/spec.h"

typedef enum token_type {
    TOKEN_U8,
    TOKEN_I8,
    TOKEN_U16,
    TOKEN_I16,
    TOKEN_U32,
    TOKEN_I32,
    TOKEN_I64,
} token_type;
int32_t dp_token_bytes(token_type type);

// One file whose tokens lie one behind the other.
struct token_file {
    char *path; // owned
    int fd;     // -1 = not open
    token_type type;
    int64_t offset; // of the first token, bytes
    int64_t count;
    int64_t first; // tokens in the files before
};

struct token_files {
    dp_data_format format; // never AUTO
    struct token_file *items;
    int32_t count;
    int64_t tokens;
};

// Opens what [data] says and checks everything but the tokens.
dp_status dp_token_files_open(const struct dp_data_spec *data, int32_t vocabulary,
                              struct token_files *ret_files, struct dp_error *err);
// Accepts a zeroed one.
void dp_token_files_deinit(struct token_files *files);

// A regular file that is not empty, with its size.
dp_status dp_token_file_open(const char *path, int *ret_fd, int64_t *ret_bytes,
                             struct dp_error *err);
// `length` bytes at `offset`, all of them.
dp_status dp_token_file_pread(int fd, const char *path, int64_t offset, void *bytes, size_t length,
                              struct dp_error *err);

// The two formats with a say of their own. `file` has path and fd; they fill in the rest.
dp_status dp_token_file_open_gpt2(struct token_file *file, int64_t bytes, int32_t token_bytes,
                                  int32_t vocabulary, struct dp_error *err);
// idx is the path of the index.
dp_status dp_token_file_open_megatron(struct token_file *file, int64_t bytes, const char *idx,
                                      struct dp_error *err);
// Whether a file starts with llm.c's header.
bool dp_token_file_has_header(int fd, int64_t bytes);

// Tokens [at, at + count) of one file as int32; each in [0, vocabulary).
dp_status dp_token_file_read(const struct token_file *file, int64_t at, int64_t count,
                             int32_t vocabulary, int32_t *ret_tokens, struct dp_error *err);
// The same over all files.
dp_status dp_token_files_read(const struct token_files *files, int64_t at, int64_t count,
                              int32_t vocabulary, int32_t *ret_tokens, struct dp_error *err);
// Values of `type` as int32, each in [0, vocabulary): returns how many are, `count` when all.
int64_t dp_tokens_decode(token_type type, const void *from, int64_t count, int32_t vocabulary,
                         int32_t *ret_tokens, int64_t *ret_bad);
