#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "format.h"

static dp_status agree(const struct dp_checkpoint_sync *sync, dp_status mine, struct dp_error *err)
{
    return sync == NULL ? mine : sync->agree(sync->context, mine, err);
}

// Removes a directory of files; what is not there is fine.
static void remove_directory(const char *path)
{
    DIR *directory = opendir(path);
    if (directory == NULL) {
        return;
    }
    const struct dirent *entry;
    while ((entry = readdir(directory)) != NULL) {
        unlinkat(dirfd(directory), entry->d_name, 0);
    }
    closedir(directory);
    rmdir(path);
}

static void sync_directory(const char *path)
{
    DP_AUTO_CLOSE int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
    }
}

static dp_status prepare(const char *directory, const char *partial, struct dp_error *err)
{
    dp_status status = dp_make_directories(directory, err);
    if (status != DP_OK) {
        return status;
    }
    remove_directory(partial);
    if (mkdir(partial, 0700) != 0) {
        return dp_fail_errno(err, errno, "cannot make directory %s", partial);
    }
    return DP_OK;
}

static dp_status write_shards(const char *partial, int32_t rank, int64_t step,
                              const struct dp_checkpoint_stage *stages, int32_t count,
                              uint64_t *ret_bytes, struct dp_error *err)
{
    *ret_bytes = 0;
    for (int32_t i = 0; i < count; i++) {
        char file[64];
        snprintf(file, sizeof file, "shard-%d-%d.dpt", rank, i);
        uint64_t bytes;
        dp_status status = dp_checkpoint_shard_write(partial, file, step, &stages[i], &bytes, err);
        if (status != DP_OK) {
            return status;
        }
        *ret_bytes += bytes;
    }
    return DP_OK;
}

static int is_shard(const struct dirent *entry)
{
    return strncmp(entry->d_name, "shard-", 6) == 0;
}

// What all ranks have written, read back: the manifest lists what is there, and nothing is missing.
static dp_status collect(const char *partial, struct manifest *manifest, struct dp_error *err)
{
    struct dirent **entries;
    int count = scandir(partial, &entries, is_shard, versionsort);
    if (count < 0) {
        return dp_fail_errno(err, errno, "cannot list %s", partial);
    }
    manifest->shards = dp_new_array(struct shard, (size_t)count);
    dp_status status = DP_OK;
    int64_t parameters = 0;
    for (int i = 0; i < count; i++) {
        if (status == DP_OK) {
            struct shard *shard = &manifest->shards[i];
            status = dp_checkpoint_shard_read(partial, entries[i]->d_name, shard, err);
            manifest->count += status == DP_OK;
            for (int32_t t = 0; t < shard->count; t++) {
                parameters += shard->tensors[t].rows * shard->tensors[t].cols;
            }
        }
        free(entries[i]);
    }
    free(entries);
    int64_t wanted = dp_model_parameters(&manifest->meta.model);
    if (status == DP_OK && parameters != wanted) {
        return dp_fail(err, DP_INTERNAL,
                       "the shards in %s hold %" PRId64 " parameters, the model has %" PRId64
                       ": every rank needs to write to the same directory",
                       partial, parameters, wanted);
    }
    return status;
}

// Gives the finished directory its name; an older one of that name is put aside until then.
static dp_status put_in_place(const char *directory, const char *partial, const char *final,
                              struct dp_error *err)
{
    DP_AUTO_FREE char *aside = dp_asprintf("%s.old", final);
    remove_directory(aside);
    bool has_old = rename(final, aside) == 0;
    if (rename(partial, final) != 0) {
        dp_fail_errno(err, errno, "cannot rename %s to %s", partial, final);
        if (has_old) {
            (void)!rename(aside, final);
        }
        return err == NULL ? DP_IO : err->status;
    }
    sync_directory(directory);
    remove_directory(aside);
    return DP_OK;
}

static dp_status commit(const char *directory, const char *partial, const char *final,
                        const struct dp_checkpoint_meta *meta, struct dp_error *err)
{
    DP_CLEANUP(dp_checkpoint_manifest_deinit) struct manifest manifest = {.meta = *meta};
    dp_status status = collect(partial, &manifest, err);
    if (status == DP_OK) {
        status = dp_checkpoint_manifest_write(partial, &manifest, err);
    }
    if (status == DP_OK) {
        sync_directory(partial);
        status = put_in_place(directory, partial, final, err);
    }
    return status;
}

dp_status dp_checkpoint_save(const char *directory, int32_t rank,
                             const struct dp_checkpoint_meta *meta,
                             const struct dp_checkpoint_stage *stages, int32_t count,
                             const struct dp_checkpoint_sync *sync, uint64_t *ret_bytes,
                             struct dp_error *err)
{
    DP_AUTO_FREE char *final = dp_asprintf("%s/step-%" PRId64, directory, meta->step);
    DP_AUTO_FREE char *partial = dp_asprintf("%s.partial", final);
    uint64_t bytes = 0;
    bool is_first = rank == 0;
    dp_status status = is_first ? prepare(directory, partial, err) : DP_OK;
    status = agree(sync, status, err);
    if (status == DP_OK) {
        status = write_shards(partial, rank, meta->step, stages, count, &bytes, err);
        status = agree(sync, status, err);
    }
    if (status == DP_OK) {
        status = is_first ? commit(directory, partial, final, meta, err) : DP_OK;
        status = agree(sync, status, err);
    }
    if (status != DP_OK) {
        if (is_first) {
            remove_directory(partial);
        }
        dp_fail_in(err, "checkpoint of step %" PRId64, meta->step);
        return status;
    }
    if (ret_bytes != NULL) {
        *ret_bytes = bytes;
    }
    return DP_OK;
}
