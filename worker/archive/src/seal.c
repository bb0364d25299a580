// From the files of all ranks to one checkpoint, at once.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive_internal.h"
#include "dp/alloc.h"
#include "dp/check.h"

#define ASIDE ".replaced" // behind the name of one that a new one takes the place of

void dp_archive_remove(const char *path)
{
    DIR *directory = opendir(path);
    if (directory == NULL) {
        unlink(path); // where it is none
        return;
    }
    const struct dirent *entry;
    while ((entry = readdir(directory)) != NULL) {
        unlinkat(dirfd(directory), entry->d_name, 0);
    }
    closedir(directory);
    rmdir(path);
}

// What ranks that were killed leave behind: parts that they wrote, and one that had stepped aside
// (put_in_place), which comes back where nothing has its name.
static void clear_up(const char *parent)
{
    DIR *directory = opendir(parent);
    const struct dirent *entry;
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        const char *dot = strrchr(entry->d_name, '.');
        if (dot == NULL || strncmp(entry->d_name, "step-", strlen("step-")) != 0) {
            continue;
        }
        DP_AUTO_FREE char *path = dp_asprintf("%s/%s", parent, entry->d_name);
        DP_AUTO_FREE char *name = dp_strndup(path, strlen(path) - strlen(dot));
        bool is_aside = strcmp(dot, ASIDE) == 0;
        if (is_aside && access(name, F_OK) != 0) {
            (void)rename(path, name);
        } else if (is_aside || strcmp(dot, ".partial") == 0) {
            dp_archive_remove(path);
        }
    }
    if (directory != NULL) {
        closedir(directory);
    }
}

dp_status dp_archive_prepare(const char *partial, struct dp_error *err)
{
    DP_AUTO_FREE char *parent = dp_strdup(partial);
    *strrchr(parent, '/') = '\0';
    dp_status status = dp_make_directories(parent, err);
    if (status != DP_OK) {
        return status;
    }
    clear_up(parent);
    if (mkdir(partial, 0777) != 0) {
        return dp_fail_errno(err, errno, "cannot make directory %s", partial);
    }
    return DP_OK;
}

static int is_model(const struct dirent *entry)
{
    return strncmp(entry->d_name, "model-r", strlen("model-r")) == 0;
}

static int is_optimizer(const struct dirent *entry)
{
    return strncmp(entry->d_name, "optimizer-r", strlen("optimizer-r")) == 0;
}

// Gives the files of one kind their places in the row, and opens them.
static dp_status take_files(struct dp_archive *archive, const char *kind,
                            int (*is_kind)(const struct dirent *), struct dp_error *err)
{
    struct dirent **entries;
    int count = scandir(archive->path, &entries, is_kind, versionsort);
    if (count < 0) {
        return dp_fail_errno(err, errno, "cannot list %s", archive->path);
    }
    archive->files =
        dp_realloc(archive->files, (size_t)(archive->file_count + count), sizeof archive->files[0]);
    dp_status status = DP_OK;
    for (int i = 0; i < count; i++) {
        DP_AUTO_FREE char *from = dp_asprintf("%s/%s", archive->path, entries[i]->d_name);
        DP_AUTO_FREE char *to =
            dp_asprintf("%s/%s-%05d-of-%05d.safetensors", archive->path, kind, i + 1, count);
        if (status == DP_OK && rename(from, to) != 0) {
            status = dp_fail_errno(err, errno, "cannot rename %s", from);
        }
        if (status == DP_OK) {
            status = dp_safetensors_open(to, &archive->files[archive->file_count], err);
            archive->file_count += status == DP_OK;
        }
        free(entries[i]);
    }
    free(entries);
    return status;
}

static dp_status check_whole(const struct dp_archive *archive, struct dp_error *err)
{
    int64_t wanted = dp_archive_parameters_wanted(&archive->meta.model);
    int64_t got = dp_archive_parameters(archive);
    int64_t moments[2] = {0};
    bool has_moments = false;
    for (int64_t i = 0; i < archive->count; i++) {
        const struct dp_archive_tensor *tensor = &archive->tensors[i];
        if (tensor->kind >= DP_ARCHIVE_M && dp_archive_counts(archive, tensor)) {
            moments[tensor->kind - DP_ARCHIVE_M] += tensor->end - tensor->begin;
            has_moments = true;
        }
    }
    if (got != wanted || (has_moments && (moments[0] != wanted || moments[1] != wanted))) {
        return dp_fail(err, DP_INTERNAL,
                       "the files in %s hold %" PRId64 " parameters and %" PRId64 " and %" PRId64
                       " moments, the model has %" PRId64
                       " parameters: every rank needs to write to the same directory",
                       archive->path, got, moments[0], moments[1], wanted);
    }
    return DP_OK;
}

// Where a file system cannot exchange two names, the old one steps aside: between two renames
// nothing has the name, but nothing is lost either.
static dp_status step_aside(const char *partial, const char *final, struct dp_error *err)
{
    DP_AUTO_FREE char *aside = dp_asprintf("%s" ASIDE, final);
    if (rename(final, aside) != 0) {
        return dp_fail_errno(err, errno, "cannot rename %s to %s", final, aside);
    }
    if (rename(partial, final) != 0) {
        dp_status status = dp_fail_errno(err, errno, "cannot rename %s to %s", partial, final);
        (void)rename(aside, final);
        return status;
    }
    return DP_OK;
}

// Gives the finished directory its name. One that has it already changes places with it, in one
// step where the file system can, and goes only when the new name is on the disk.
static dp_status put_in_place(const char *partial, const char *final, struct dp_error *err)
{
    DP_AUTO_FREE char *parent = dp_strdup(final);
    *strrchr(parent, '/') = '\0';
    DP_AUTO_FREE char *aside = dp_asprintf("%s" ASIDE, final);
    const char *old = partial;
    dp_status status = DP_OK;
    if (renameat2(AT_FDCWD, partial, AT_FDCWD, final, RENAME_EXCHANGE) != 0) {
        if (errno == ENOENT && rename(partial, final) == 0) {
            return dp_archive_sync_directory(parent, err);
        }
        if (errno != EINVAL && errno != ENOSYS) {
            return dp_fail_errno(err, errno, "cannot rename %s to %s", partial, final);
        }
        old = aside;
        status = step_aside(partial, final, err);
    }
    if (status == DP_OK) {
        status = dp_archive_sync_directory(parent, err);
    }
    if (status == DP_OK) {
        dp_archive_remove(old);
    }
    return status;
}

dp_status dp_archive_seal(const char *partial, const char *final,
                          const struct dp_archive_meta *meta, struct dp_error *err)
{
    DP_CLEANUP(dp_archive_close)
    struct dp_archive archive = {.path = dp_strdup(partial), .meta = *meta};
    DP_AUTO_FREE char *parent = dp_strdup(final);
    *strrchr(parent, '/') = '\0';
    int64_t newest, sealed;
    archive.meta.sealed = dp_archive_look(parent, &newest, &sealed) ? sealed + 1 : 1;
    dp_status status = take_files(&archive, "model", is_model, err);
    if (status == DP_OK) {
        status = take_files(&archive, "optimizer", is_optimizer, err);
    }
    if (status == DP_OK) {
        status = dp_archive_index(&archive, err);
    }
    if (status == DP_OK) {
        status = check_whole(&archive, err);
    }
    if (status == DP_OK) {
        status = dp_archive_write_hf(partial, &archive, err);
    }
    if (status == DP_OK) {
        status = dp_archive_write_manifest(partial, &archive, err);
    }
    if (status == DP_OK) {
        static const char *const names[] = {DP_ARCHIVE_CONFIG, DP_ARCHIVE_INDEX,
                                            DP_ARCHIVE_MANIFEST};
        status = dp_archive_sync_files(partial, names, DP_ARRAY_LENGTH(names), err);
    }
    return status == DP_OK ? put_in_place(partial, final, err) : status;
}

static int by_step(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

void dp_archive_retain(const char *path, int64_t newest, int32_t keep)
{
    DIR *directory = keep > 0 ? opendir(path) : NULL;
    if (directory == NULL) {
        return;
    }
    DP_AUTO_FREE int64_t *steps = NULL;
    size_t count = 0;
    const struct dirent *entry;
    while ((entry = readdir(directory)) != NULL) {
        int64_t step = dp_archive_step_of(entry->d_name);
        DP_AUTO_FREE char *manifest =
            dp_asprintf("%s/%s/%s", path, entry->d_name, DP_ARCHIVE_MANIFEST);
        if (step >= 0 && step <= newest && access(manifest, F_OK) == 0) {
            steps = dp_realloc(steps, count + 1, sizeof steps[0]);
            steps[count++] = step;
        }
    }
    closedir(directory);
    if (count > 0) {
        qsort(steps, count, sizeof steps[0], by_step);
    }
    for (size_t i = 0; i + (size_t)keep < count; i++) {
        // Without its manifest first: half of it is none.
        DP_AUTO_FREE char *old = dp_asprintf("%s/step-%" PRId64, path, steps[i]);
        DP_AUTO_FREE char *manifest = dp_asprintf("%s/%s", old, DP_ARCHIVE_MANIFEST);
        unlink(manifest);
        dp_archive_remove(old);
    }
}
