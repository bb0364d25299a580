// Opening: the files, and which tensor lies where.
#include "dp/archive.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "archive_internal.h"
#include "dp/alloc.h"

void dp_archive_close(struct dp_archive *archive)
{
    for (int32_t i = 0; i < archive->file_count; i++) {
        dp_safetensors_close(&archive->files[i]);
    }
    for (int64_t i = 0; i < archive->unknown_count; i++) {
        free(archive->unknown[i]);
    }
    free(archive->files);
    free(archive->tensors);
    free(archive->unknown);
    free(archive->path);
    *archive = (struct dp_archive){0};
}

// A name "HF-NAME.m[begin:end]"; false where it is none.
static bool parse_moment(const char *name, struct dp_archive_tensor *tensor)
{
    const char *open = strrchr(name, '[');
    char weight[DP_TENSOR_NAME_MAX];
    if (open == NULL || open - name < 3 || open[-2] != '.' ||
        (open[-1] != 'm' && open[-1] != 'v') || (size_t)(open - name) - 2 >= sizeof weight) {
        return false;
    }
    size_t length = (size_t)(open - name) - 2;
    memcpy(weight, name, length);
    weight[length] = '\0';
    int used = 0;
    if (sscanf(open, "[%15" SCNd64 ":%15" SCNd64 "]%n", &tensor->begin, &tensor->end, &used) != 2 ||
        used == 0 || open[used] != '\0' || tensor->begin < 0 || tensor->end < tensor->begin) {
        return false;
    }
    tensor->kind = open[-1] == 'm' ? DP_ARCHIVE_M : DP_ARCHIVE_V;
    return dp_hf_own_name(weight, tensor->own);
}

// Of block-quantized weights: "HF-NAME_scale_inv".
static bool parse_scale(const char *name, struct dp_archive_tensor *tensor)
{
    static const char end[] = "_scale_inv";
    size_t length = strlen(name);
    if (length < sizeof end || strcmp(name + length - (sizeof end - 1), end) != 0) {
        return false;
    }
    DP_AUTO_FREE char *weight = dp_strndup(name, length - (sizeof end - 1));
    tensor->kind = DP_ARCHIVE_SCALE;
    return dp_hf_own_name(weight, tensor->own);
}

static bool parse_name(const char *name, struct dp_archive_tensor *tensor)
{
    tensor->kind = DP_ARCHIVE_WEIGHT;
    return parse_moment(name, tensor) || parse_scale(name, tensor) ||
           (tensor->kind = DP_ARCHIVE_WEIGHT, dp_hf_own_name(name, tensor->own));
}

static int by_name(const void *a, const void *b)
{
    const struct dp_archive_tensor *left = a, *right = b;
    int order = strcmp(left->own, right->own);
    if (order == 0) {
        order = (left->kind > right->kind) - (left->kind < right->kind);
    }
    return order != 0 ? order : (left->begin > right->begin) - (left->begin < right->begin);
}

static dp_status fail_twice(const struct dp_archive *archive, const struct dp_archive_tensor *a,
                            const struct dp_archive_tensor *b, struct dp_error *err)
{
    return dp_fail(err, DP_INVALID, "the checkpoint %s holds %s of %s and %s of %s at once",
                   archive->path, a->saved->name, strrchr(archive->files[a->file].path, '/') + 1,
                   b->saved->name, strrchr(archive->files[b->file].path, '/') + 1);
}

static dp_status check_sorted(const struct dp_archive *archive, struct dp_error *err)
{
    for (int64_t i = 0; i < archive->count; i++) {
        const struct dp_archive_tensor *tensor = &archive->tensors[i];
        if (tensor->kind >= DP_ARCHIVE_M &&
            dp_saved_tensor_count(tensor->saved) != tensor->end - tensor->begin) {
            return dp_fail(err, DP_INVALID, "%s: %s does not have as many values as its name says",
                           archive->files[tensor->file].path, tensor->saved->name);
        }
        if (i == 0) {
            continue;
        }
        const struct dp_archive_tensor *before = &archive->tensors[i - 1];
        bool is_same = before->kind == tensor->kind && strcmp(before->own, tensor->own) == 0;
        if (is_same && (tensor->kind < DP_ARCHIVE_M || before->end > tensor->begin)) {
            return fail_twice(archive, before, tensor, err);
        }
    }
    return DP_OK;
}

// What others save although config.json says it: angles of positions.
static bool follows(const char *name)
{
    static const char end[] = ".rotary_emb.inv_freq";
    size_t length = strlen(name);
    return length >= sizeof end && strcmp(name + length - (sizeof end - 1), end) == 0;
}

dp_status dp_archive_index(struct dp_archive *archive, struct dp_error *err)
{
    int64_t count = 0;
    for (int32_t i = 0; i < archive->file_count; i++) {
        count += archive->files[i].count;
    }
    if (count > DP_CHECKPOINT_TENSORS_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "the checkpoint %s holds %" PRId64 " tensors",
                       archive->path, count);
    }
    archive->tensors = dp_new_array(struct dp_archive_tensor, (size_t)count);
    archive->unknown = dp_new_array(char *, (size_t)count);
    for (int32_t i = 0; i < archive->file_count; i++) {
        for (int64_t t = 0; t < archive->files[i].count; t++) {
            struct dp_archive_tensor *tensor = &archive->tensors[archive->count];
            *tensor = (struct dp_archive_tensor){.file = i, .saved = &archive->files[i].tensors[t]};
            if (parse_name(tensor->saved->name, tensor)) {
                archive->count++;
            } else if (!follows(tensor->saved->name)) {
                archive->unknown[archive->unknown_count++] = dp_strdup(tensor->saved->name);
            }
        }
    }
    qsort(archive->tensors, (size_t)archive->count, sizeof archive->tensors[0], by_name);
    return check_sorted(archive, err);
}

bool dp_archive_counts(const struct dp_archive *archive, const struct dp_archive_tensor *tensor)
{
    static const char balance[] = "router.bias";
    size_t length = strlen(tensor->own);
    bool is_balance = length > sizeof balance &&
                      strcmp(tensor->own + length - (sizeof balance - 1), balance) == 0;
    return !is_balance && strncmp(tensor->own, "mtp.", strlen("mtp.")) != 0 &&
           dp_hf_layer(tensor->own) < archive->meta.model.layers;
}

int64_t dp_archive_parameters(const struct dp_archive *archive)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < archive->count; i++) {
        const struct dp_archive_tensor *tensor = &archive->tensors[i];
        if (tensor->kind == DP_ARCHIVE_WEIGHT && dp_archive_counts(archive, tensor)) {
            sum += dp_saved_tensor_count(tensor->saved);
        }
    }
    return sum;
}

int64_t dp_archive_parameters_wanted(const struct dp_model_spec *model)
{
    struct dp_model_spec without = *model;
    without.biases &= ~DP_BIAS_ROUTER;
    return dp_model_parameters(&without);
}

static bool has_file(const char *path, const char *name)
{
    DP_AUTO_FREE char *whole = dp_asprintf("%s/%s", path, name);
    return access(whole, F_OK) == 0;
}

// The step of a directory called step-N, or -1.
int64_t dp_archive_step_of(const char *name)
{
    char *end;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') {
        return -1;
    }
    errno = 0;
    long long step = strtoll(name + 5, &end, 10);
    return errno == 0 && *end == '\0' ? step : -1;
}

bool dp_archive_look(const char *path, int64_t *ret_step, int64_t *ret_sealed)
{
    DIR *directory = opendir(path);
    if (directory == NULL) {
        return false;
    }
    int64_t newest = -1, last = 0, highest = -1, highest_sealed = 0;
    const struct dirent *entry;
    while ((entry = readdir(directory)) != NULL) {
        int64_t step = dp_archive_step_of(entry->d_name);
        DP_AUTO_FREE char *inside = dp_asprintf("%s/%s", path, entry->d_name);
        if (step < 0 || !has_file(inside, DP_ARCHIVE_MANIFEST)) {
            continue;
        }
        int64_t sealed = dp_archive_sealed(inside);
        if (step > highest) {
            highest = step;
            highest_sealed = sealed;
        }
        if (sealed > last || (sealed == last && step > newest)) {
            newest = step;
            last = sealed;
        }
    }
    closedir(directory);
    // What may be the newest and is damaged is to be heard of, not to be passed over.
    *ret_step = highest_sealed < 0 ? highest : newest;
    *ret_sealed = last;
    return true;
}

dp_status dp_archive_newest(const char *path, char **ret_path, struct dp_error *err)
{
    int64_t newest, sealed;
    if (!dp_archive_look(path, &newest, &sealed)) {
        return dp_fail_errno(err, errno, "cannot open the checkpoint %s", path);
    }
    if (newest < 0) {
        return dp_fail(err, DP_NOT_FOUND,
                       "no checkpoint in %s: it has neither a %s nor a config.json nor a complete "
                       "step-N directory",
                       path, DP_ARCHIVE_MANIFEST);
    }
    *ret_path = dp_asprintf("%s/step-%" PRId64, path, newest);
    return DP_OK;
}

static dp_status open_ours(struct dp_archive *archive, struct dp_error *err)
{
    dp_status status = dp_archive_read_manifest(archive, err);
    if (status == DP_OK) {
        status = dp_archive_index(archive, err);
    }
    if (status != DP_OK) {
        return status;
    }
    int64_t got = dp_archive_parameters(archive);
    int64_t wanted = dp_archive_parameters_wanted(&archive->meta.model);
    if (got != wanted) {
        return dp_fail(err, DP_INVALID,
                       "the checkpoint %s holds %" PRId64 " parameters, its model has %" PRId64,
                       archive->path, got, wanted);
    }
    return DP_OK;
}

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

// Half of a checkpoint is none: one that was never sealed, or that has lost its manifest, is not
// taken for weights that somebody else has written.
static dp_status check_foreign(const char *path, struct dp_error *err)
{
    static const char end[] = ".partial";
    size_t length = strlen(path);
    while (length > 0 && path[length - 1] == '/') {
        length--;
    }
    bool is_half = length >= sizeof end - 1 &&
                   strncmp(path + length - (sizeof end - 1), end, sizeof end - 1) == 0;
    DIR *directory = opendir(path);
    const struct dirent *entry;
    while (directory != NULL && !is_half && (entry = readdir(directory)) != NULL) {
        is_half = starts_with(entry->d_name, "optimizer-");
    }
    if (directory != NULL) {
        closedir(directory);
    }
    return is_half ? dp_fail(err, DP_INVALID,
                             "%s is half a checkpoint: it has no %s, without which it was not "
                             "finished or is damaged",
                             path, DP_ARCHIVE_MANIFEST)
                   : DP_OK;
}

dp_status dp_archive_open(const char *path, struct dp_archive *ret_archive, struct dp_error *err)
{
    DP_CLEANUP(dp_archive_close) struct dp_archive archive = {0};
    dp_status status = DP_OK;
    if (has_file(path, DP_ARCHIVE_MANIFEST) || has_file(path, "config.json")) {
        archive.path = dp_strdup(path);
    } else {
        status = dp_archive_newest(path, &archive.path, err);
    }
    if (status == DP_OK && has_file(archive.path, DP_ARCHIVE_MANIFEST)) {
        status = open_ours(&archive, err);
    } else if (status == DP_OK) {
        status = check_foreign(archive.path, err);
        status = status == DP_OK ? dp_archive_open_hf(&archive, err) : status;
    }
    if (status == DP_OK) {
        *ret_archive = archive;
        archive = (struct dp_archive){0};
    }
    return status;
}

dp_status dp_archive_verify(const struct dp_archive *archive, uint64_t *ret_bytes,
                            struct dp_error *err)
{
    *ret_bytes = 0;
    dp_status counted = dp_archive_check_count(archive, false, err);
    if (counted != DP_OK) {
        return counted;
    }
    for (int32_t i = 0; i < archive->file_count; i++) {
        const struct dp_safetensors *file = &archive->files[i];
        for (int64_t t = 0; t < file->count; t++) {
            DP_AUTO_FREE char *values = dp_alloc((size_t)file->tensors[t].bytes, 1);
            dp_status status = dp_safetensors_read_all(file, &file->tensors[t], values, err);
            if (status != DP_OK) {
                return status;
            }
            *ret_bytes += file->tensors[t].bytes;
        }
    }
    return DP_OK;
}
