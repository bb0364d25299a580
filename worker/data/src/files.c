// What [data] path and format mean: which files, in which order, and how each is read.
#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

void dp_token_files_deinit(struct token_files *files)
{
    for (int32_t i = 0; i < files->count; i++) {
        dp_cleanup_close(&files->items[i].fd);
        free(files->items[i].path);
    }
    free(files->items);
    *files = (struct token_files){0};
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length > end_length && strcmp(text + length - end_length, end) == 0;
}

static bool is_directory(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

// "a/b.bin", "a/b.idx" and "a/b" are the same pair: "a/b". The caller frees it.
static char *pair_stem(const char *path)
{
    bool has_ending = ends_with(path, ".bin") || ends_with(path, ".idx");
    return dp_strndup(path, strlen(path) - (has_ending ? 4 : 0));
}

// Whether a pair is meant. A file that is named without either ending, and is there, is itself.
static bool has_index(const char *path)
{
    bool has_ending = ends_with(path, ".bin") || ends_with(path, ".idx");
    if (!has_ending && access(path, F_OK) == 0) {
        return false;
    }
    DP_AUTO_FREE char *stem = pair_stem(path);
    DP_AUTO_FREE char *idx = dp_asprintf("%s.idx", stem);
    return access(idx, F_OK) == 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

struct names {
    char **items; // owned, as each is
    size_t count;
};

static void cleanup_names(struct names *names)
{
    for (size_t i = 0; i < names->count; i++) {
        free(names->items[i]);
    }
    free(names->items);
}

// Paths of the files in a directory that end so, in the order of their names.
static dp_status list_directory(const char *path, const char *ending, struct names *names,
                                struct dp_error *err)
{
    DIR *directory = opendir(path);
    if (directory == NULL) {
        return dp_fail_errno(err, errno, "cannot open the corpus %s", path);
    }
    const struct dirent *entry;
    dp_status status = DP_OK;
    while (status == DP_OK && (entry = readdir(directory)) != NULL) {
        if (entry->d_name[0] == '.' || !ends_with(entry->d_name, ending)) {
            continue;
        }
        if (names->count == DP_CORPUS_FILES_MAX) {
            status = dp_fail(err, DP_TOO_LARGE, "the corpus %s has more than %d %s files", path,
                             DP_CORPUS_FILES_MAX, ending);
            break;
        }
        names->items = dp_realloc(names->items, names->count + 1, sizeof names->items[0]);
        names->items[names->count++] = dp_asprintf("%s/%s", path, entry->d_name);
    }
    closedir(directory);
    if (names->count > 0) {
        qsort(names->items, names->count, sizeof names->items[0], by_name);
    }
    return status;
}

static dp_status add_file(struct token_files *files, const char *path, int64_t *ret_bytes,
                          struct dp_error *err)
{
    int fd = -1;
    dp_status status = dp_token_file_open(path, &fd, ret_bytes, err);
    if (status != DP_OK) {
        return status;
    }
    files->items = dp_realloc(files->items, (size_t)files->count + 1, sizeof files->items[0]);
    files->items[files->count++] = (struct token_file){
        .path = dp_strdup(path), .fd = fd, .type = TOKEN_U8, .count = *ret_bytes};
    return DP_OK;
}

static dp_status open_one(struct token_files *files, const char *path,
                          const struct dp_data_spec *data, int32_t vocabulary, struct dp_error *err)
{
    DP_AUTO_FREE char *stem = pair_stem(path);
    DP_AUTO_FREE char *bin = dp_asprintf("%s.bin", stem);
    DP_AUTO_FREE char *idx = dp_asprintf("%s.idx", stem);
    int64_t bytes;
    dp_status status = add_file(files, files->format == DP_DATA_MEGATRON ? bin : path, &bytes, err);
    if (status != DP_OK) {
        return status;
    }
    struct token_file *file = &files->items[files->count - 1];
    if (files->format == DP_DATA_GPT2) {
        status = dp_token_file_open_gpt2(file, bytes, data->token_bytes, vocabulary, err);
    } else if (files->format == DP_DATA_MEGATRON) {
        status = dp_token_file_open_megatron(file, bytes, idx, err);
    }
    if (status == DP_OK && files->tokens > (int64_t)DP_CORPUS_BYTES_MAX - file->count) {
        status = dp_fail(err, DP_TOO_LARGE, "the corpus %s has more than %llu tokens", data->path,
                         (unsigned long long)DP_CORPUS_BYTES_MAX);
    }
    if (status == DP_OK) {
        file->first = files->tokens;
        files->tokens += file->count;
    }
    return status;
}

// What "auto" means for a path.
static dp_data_format find_format(const char *path)
{
    if (is_directory(path)) {
        DP_CLEANUP(cleanup_names) struct names names = {0};
        struct dp_error ignored;
        list_directory(path, ".idx", &names, &ignored);
        return names.count > 0 ? DP_DATA_MEGATRON : DP_DATA_GPT2;
    }
    if (has_index(path)) {
        return DP_DATA_MEGATRON;
    }
    DP_AUTO_CLOSE int fd = -1;
    int64_t bytes;
    struct dp_error ignored;
    bool has_header = dp_token_file_open(path, &fd, &bytes, &ignored) == DP_OK &&
                      dp_token_file_has_header(fd, bytes);
    return has_header || ends_with(path, ".bin") ? DP_DATA_GPT2 : DP_DATA_BYTES;
}

static dp_status open_all(const struct dp_data_spec *data, int32_t vocabulary,
                          struct token_files *files, struct dp_error *err)
{
    if (files->format == DP_DATA_BYTES || !is_directory(data->path)) {
        return open_one(files, data->path, data, vocabulary, err);
    }
    DP_CLEANUP(cleanup_names) struct names names = {0};
    const char *ending = files->format == DP_DATA_MEGATRON ? ".idx" : ".bin";
    dp_status status = list_directory(data->path, ending, &names, err);
    if (status == DP_OK && names.count == 0) {
        status = dp_fail(err, DP_INVALID,
                         "the corpus %s is a directory without %s files; name a file, or a "
                         "directory of token files",
                         data->path, ending);
    }
    for (size_t i = 0; status == DP_OK && i < names.count; i++) {
        status = open_one(files, names.items[i], data, vocabulary, err);
    }
    return status;
}

dp_status dp_token_files_open(const struct dp_data_spec *data, int32_t vocabulary,
                              struct token_files *ret_files, struct dp_error *err)
{
    DP_CLEANUP(dp_token_files_deinit) struct token_files files = {0};
    dp_status status = dp_data_format_parse(data->format, &files.format, err);
    if (status == DP_OK && files.format == DP_DATA_AUTO) {
        files.format = find_format(data->path);
    }
    if (status == DP_OK && files.format == DP_DATA_BYTES && vocabulary <= UINT8_MAX) {
        status = dp_fail(err, DP_INVALID,
                         "[model] vocabulary = %d; the corpus %s is read as bytes, which need %d",
                         vocabulary, data->path, UINT8_MAX + 1);
    }
    if (status == DP_OK) {
        status = open_all(data, vocabulary, &files, err);
    }
    if (status == DP_OK) {
        *ret_files = files;
        files = (struct token_files){0};
    }
    return status;
}
