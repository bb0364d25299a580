#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/rand.h"
#include "format.h"

struct dp_checkpoint {
    char *path;
    struct manifest manifest;
    struct shard_tensor *tensors; // of all shards, by name
    size_t count;
};

DP_DEFINE_CLEANUP(cleanup_checkpoint, struct dp_checkpoint, dp_checkpoint_close)

void dp_checkpoint_close(struct dp_checkpoint *checkpoint)
{
    if (checkpoint == NULL) {
        return;
    }
    dp_checkpoint_manifest_deinit(&checkpoint->manifest);
    free(checkpoint->tensors);
    free(checkpoint->path);
    free(checkpoint);
}

const struct dp_checkpoint_meta *dp_checkpoint_meta(const struct dp_checkpoint *checkpoint)
{
    return &checkpoint->manifest.meta;
}

const char *dp_checkpoint_path(const struct dp_checkpoint *checkpoint)
{
    return checkpoint->path;
}

static bool has_manifest(const char *path)
{
    DP_AUTO_FREE char *manifest = dp_asprintf("%s/%s", path, MANIFEST_NAME);
    return access(manifest, F_OK) == 0;
}

// The step of a directory called step-N, or -1.
static int64_t step_of(const char *name)
{
    char *end;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') {
        return -1;
    }
    errno = 0;
    long long step = strtoll(name + 5, &end, 10);
    return errno == 0 && *end == '\0' ? step : -1;
}

// The checkpoint that a path means; the caller frees it.
static dp_status find_directory(const char *path, char **ret_directory, struct dp_error *err)
{
    if (has_manifest(path)) {
        *ret_directory = dp_strdup(path);
        return DP_OK;
    }
    DIR *directory = opendir(path);
    if (directory == NULL) {
        return dp_fail_errno(err, errno, "cannot open the checkpoint %s", path);
    }
    int64_t newest = -1;
    const struct dirent *entry;
    while ((entry = readdir(directory)) != NULL) {
        int64_t step = step_of(entry->d_name);
        DP_AUTO_FREE char *inside = dp_asprintf("%s/%s", path, entry->d_name);
        if (step > newest && has_manifest(inside)) {
            newest = step;
        }
    }
    closedir(directory);
    if (newest < 0) {
        return dp_fail(err, DP_NOT_FOUND,
                       "no checkpoint in %s: it has neither a %s nor a complete step-N directory",
                       path, MANIFEST_NAME);
    }
    *ret_directory = dp_asprintf("%s/step-%" PRId64, path, newest);
    return DP_OK;
}

static dp_status read_shards(struct dp_checkpoint *checkpoint, struct dp_error *err)
{
    struct manifest *manifest = &checkpoint->manifest;
    for (int32_t i = 0; i < manifest->count; i++) {
        struct shard *listed = &manifest->shards[i];
        DP_CLEANUP(dp_checkpoint_shard_deinit) struct shard shard = {0};
        dp_status status = dp_checkpoint_shard_read(checkpoint->path, listed->file, &shard, err);
        if (status != DP_OK) {
            return status;
        }
        if (shard.bytes != listed->bytes || shard.step != manifest->meta.step) {
            return dp_fail(err, DP_INVALID,
                           "%s/%s is damaged: it has %" PRIu64 " bytes of step %" PRId64
                           ", the manifest says %" PRIu64 " of step %" PRId64,
                           checkpoint->path, listed->file, shard.bytes, shard.step, listed->bytes,
                           manifest->meta.step);
        }
        dp_checkpoint_shard_deinit(listed);
        *listed = shard;
        shard = (struct shard){0};
        checkpoint->count += (size_t)listed->count;
    }
    return DP_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct shard_tensor *)a)->name, ((const struct shard_tensor *)b)->name);
}

static dp_status index_tensors(struct dp_checkpoint *checkpoint, struct dp_error *err)
{
    const struct manifest *manifest = &checkpoint->manifest;
    checkpoint->tensors = dp_new_array(struct shard_tensor, checkpoint->count);
    size_t at = 0;
    int64_t parameters = 0;
    for (int32_t i = 0; i < manifest->count; i++) {
        for (int32_t t = 0; t < manifest->shards[i].count; t++) {
            struct shard_tensor *tensor = &checkpoint->tensors[at++];
            *tensor = manifest->shards[i].tensors[t];
            tensor->shard = i;
            parameters += tensor->rows * tensor->cols;
        }
    }
    qsort(checkpoint->tensors, at, sizeof checkpoint->tensors[0], by_name);
    for (size_t i = 1; i < at; i++) {
        if (by_name(&checkpoint->tensors[i - 1], &checkpoint->tensors[i]) == 0) {
            return dp_fail(err, DP_INVALID, "the checkpoint %s holds %s twice", checkpoint->path,
                           checkpoint->tensors[i].name);
        }
    }
    int64_t wanted = dp_model_parameters(&manifest->meta.model);
    if (parameters != wanted) {
        return dp_fail(err, DP_INVALID,
                       "the checkpoint %s holds %" PRId64 " parameters, its model has %" PRId64,
                       checkpoint->path, parameters, wanted);
    }
    return DP_OK;
}

dp_status dp_checkpoint_open(const char *path, struct dp_checkpoint **ret_checkpoint,
                             struct dp_error *err)
{
    DP_CLEANUP(cleanup_checkpoint) struct dp_checkpoint *checkpoint = dp_new(struct dp_checkpoint);
    dp_status status = find_directory(path, &checkpoint->path, err);
    if (status == DP_OK) {
        status = dp_checkpoint_manifest_read(checkpoint->path, &checkpoint->manifest, err);
    }
    if (status == DP_OK) {
        status = read_shards(checkpoint, err);
    }
    if (status == DP_OK) {
        status = index_tensors(checkpoint, err);
    }
    if (status == DP_OK) {
        *ret_checkpoint = dp_steal(checkpoint);
    }
    return status;
}

dp_status dp_checkpoint_check_model(const struct dp_checkpoint *checkpoint,
                                    const struct dp_model_spec *model, struct dp_error *err)
{
    double theirs, ours;
    const char *field =
        dp_checkpoint_model_difference(&checkpoint->manifest.meta.model, model, &theirs, &ours);
    if (field == NULL) {
        return DP_OK;
    }
    return dp_fail(err, DP_INVALID,
                   "the checkpoint %s is of another model: its %s is %g, this job's is %g",
                   checkpoint->path, field, theirs, ours);
}

static dp_status read_values(int fd, const char *path, const struct shard_tensor *tensor,
                             char *values, size_t length, struct dp_error *err)
{
    for (size_t at = 0; at < length;) {
        ssize_t got = pread(fd, values + at, length - at, (off_t)(tensor->offset + at));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return dp_fail_errno(err, errno, "cannot read %s from %s", tensor->name, path);
        }
        if (got == 0) {
            return dp_fail(err, DP_INVALID, "%s is damaged: it ends inside %s", path, tensor->name);
        }
        at += (size_t)got;
    }
    if (dp_hash64(values, length, 0) != tensor->hash) {
        return dp_fail(err, DP_INVALID, "%s is damaged: %s does not match its hash", path,
                       tensor->name);
    }
    return DP_OK;
}

// Between float and double, where the file and the device differ.
static void convert(const char *from, dp_element from_element, int64_t count, char *to)
{
    if (from_element == DP_F32) {
        const float *narrow = (const float *)(const void *)from;
        double *wide = (double *)(void *)to;
        for (int64_t i = 0; i < count; i++) {
            wide[i] = (double)narrow[i];
        }
    } else {
        const double *wide = (const double *)(const void *)from;
        float *narrow = (float *)(void *)to;
        for (int64_t i = 0; i < count; i++) {
            narrow[i] = (float)wide[i];
        }
    }
}

// Puts the three parts of one tensor where they belong.
static void store(const struct dp_checkpoint_stage *stage, const struct dp_tensor *tensor,
                  dp_element element, const char *values)
{
    struct dp_device *device = dp_stage_device(stage->stage);
    void *targets[SHARD_PARTS] = {dp_stage_weights(stage->stage), stage->m, stage->v};
    size_t width = dp_element_bytes(device->element);
    size_t bytes = (size_t)tensor->count * width;
    DP_AUTO_FREE char *converted = element == device->element ? NULL : dp_alloc_aligned(bytes, 1);
    for (int i = 0; i < SHARD_PARTS; i++) {
        const char *part = values + (size_t)i * (size_t)tensor->count * dp_element_bytes(element);
        if (converted != NULL) {
            convert(part, element, tensor->count, converted);
            part = converted;
        }
        if (targets[i] != NULL) {
            device->ops->copy(device->stream, (char *)targets[i] + (size_t)tensor->offset * width,
                              part, bytes);
            device->ops->stream_sync(device->stream, NULL);
        }
    }
}

static dp_status load_tensor(struct dp_checkpoint *checkpoint,
                             const struct dp_checkpoint_stage *stage,
                             const struct dp_tensor *tensor, int *fds, struct dp_error *err)
{
    struct shard_tensor key;
    memcpy(key.name, tensor->name, sizeof key.name);
    const struct shard_tensor *found = bsearch(&key, checkpoint->tensors, checkpoint->count,
                                               sizeof checkpoint->tensors[0], by_name);
    if (found == NULL) {
        return dp_fail(err, DP_INVALID, "the checkpoint %s lacks %s", checkpoint->path,
                       tensor->name);
    }
    const struct shard *shard = &checkpoint->manifest.shards[found->shard];
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", checkpoint->path, shard->file);
    if (found->rows != tensor->rows || found->cols != tensor->cols) {
        return dp_fail(err, DP_INVALID,
                       "%s in %s is %" PRId64 " x %" PRId64 ", this model's is %" PRId64
                       " x %" PRId64,
                       tensor->name, path, found->rows, found->cols, tensor->rows, tensor->cols);
    }
    int *fd = &fds[found->shard];
    *fd = *fd < 0 ? open(path, O_RDONLY | O_CLOEXEC) : *fd;
    if (*fd < 0) {
        return dp_fail_errno(err, errno, "cannot open %s", path);
    }
    size_t length = SHARD_PARTS * (size_t)tensor->count * dp_element_bytes(shard->element);
    DP_AUTO_FREE char *values = dp_alloc_aligned(length, 1);
    dp_status status = read_values(*fd, path, found, values, length, err);
    if (status == DP_OK) {
        store(stage, tensor, shard->element, values);
    }
    return status;
}

dp_status dp_checkpoint_load_stage(struct dp_checkpoint *checkpoint,
                                   const struct dp_checkpoint_stage *stage, struct dp_error *err)
{
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(stage->stage, &count);
    int32_t shards = checkpoint->manifest.count;
    DP_AUTO_FREE int *fds = dp_new_array(int, (size_t)shards);
    for (int32_t i = 0; i < shards; i++) {
        fds[i] = -1;
    }
    dp_status status = DP_OK;
    for (int32_t i = 0; i < count && status == DP_OK; i++) {
        status = load_tensor(checkpoint, stage, &tensors[i], fds, err);
    }
    for (int32_t i = 0; i < shards; i++) {
        dp_cleanup_close(&fds[i]);
    }
    return status;
}
