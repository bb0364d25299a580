// The way of a checkpoint to the disk, beside the training.
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/cond.h"
#include "snapshot.h"

struct dp_saver {
    struct dp_device *device;
    struct dp_stream *stream; // of the copies
    int32_t rank;

    pthread_mutex_t mutex;
    pthread_cond_t changed; // monotonic clock
    dp_saver_phase phase;
    bool is_copying;        // copies are under way
    struct dp_error copied; // how they ended, whoever waited for them first
    bool is_taken;          // somebody is at what WRITING or SEALING needs
    bool has_thread, is_closed;

    // Of the checkpoint under way: written in IDLE, by the saver in WRITING and SEALING.
    struct snapshot snapshot;
    struct dp_archive_meta meta;
    char *partial, *final, *directory;
    int32_t keep;
    uint64_t bytes;
    struct dp_error err;
};

dp_status dp_saver_new(struct dp_device *device, int32_t rank, struct dp_saver **ret_saver,
                       struct dp_error *err)
{
    struct dp_saver *saver = dp_new(struct dp_saver);
    saver->device = device;
    saver->rank = rank;
    dp_status status = device->ops->stream_open(device, &saver->stream, err);
    if (status != DP_OK) {
        free(saver);
        return status;
    }
    pthread_mutex_init(&saver->mutex, NULL);
    dp_cond_init(&saver->changed);
    *ret_saver = saver;
    return DP_OK;
}

static void forget(struct dp_saver *saver)
{
    dp_snapshot_deinit(&saver->snapshot, saver->device);
    free(saver->partial);
    free(saver->final);
    free(saver->directory);
    saver->partial = saver->final = saver->directory = NULL;
}

void dp_saver_free(struct dp_saver *saver)
{
    if (saver == NULL) {
        return;
    }
    saver->device->ops->stream_close(saver->stream);
    forget(saver);
    pthread_cond_destroy(&saver->changed);
    pthread_mutex_destroy(&saver->mutex);
    free(saver);
}

static void set_phase(struct dp_saver *saver, dp_saver_phase phase)
{
    pthread_mutex_lock(&saver->mutex);
    saver->phase = phase;
    saver->is_taken = false;
    pthread_cond_broadcast(&saver->changed);
    pthread_mutex_unlock(&saver->mutex);
}

static void name(struct dp_saver *saver, const char *directory, int64_t step)
{
    saver->directory = dp_strdup(directory);
    saver->final = dp_asprintf("%s/step-%" PRId64, directory, step);
    saver->partial = dp_asprintf("%s.partial", saver->final);
    saver->bytes = 0;
}

void dp_saver_fail(struct dp_saver *saver, const char *directory, int64_t step,
                   const struct dp_error *why)
{
    DP_CHECK(dp_saver_phase_now(saver) == DP_SAVER_IDLE);
    name(saver, directory, step);
    saver->err = *why;
    dp_fail_in(&saver->err, "checkpoint of step %" PRId64 ", rank %d", step, saver->rank);
    set_phase(saver, DP_SAVER_FAILED);
}

dp_status dp_saver_begin(struct dp_saver *saver, const char *directory,
                         const struct dp_checkpoint_state *state, struct dp_error *err)
{
    DP_CHECK(dp_saver_phase_now(saver) == DP_SAVER_IDLE);
    dp_status status = dp_snapshot_init(&saver->snapshot, saver->device, state, err);
    if (status != DP_OK) {
        return status;
    }
    saver->meta = *state->meta;
    name(saver, directory, saver->meta.step);
    dp_snapshot_copy(&saver->snapshot, saver->device, saver->stream);
    saver->copied = (struct dp_error){0};
    saver->is_copying = true;
    set_phase(saver, DP_SAVER_WRITING);
    return DP_OK;
}

// The queue is waited for without the lock: by the saver's thread, by the training's, or by both. A
// stream tells a failure once, so that it is kept for the one that writes.
static dp_status settle(struct dp_saver *saver, struct dp_error *err)
{
    struct dp_error why = {0};
    dp_status status = saver->device->ops->stream_sync(saver->stream, &why);
    pthread_mutex_lock(&saver->mutex);
    saver->is_copying = false;
    if (status != DP_OK && saver->copied.status == DP_OK) {
        saver->copied = why;
    }
    why = saver->copied;
    pthread_mutex_unlock(&saver->mutex);
    if (why.status != DP_OK && err != NULL) {
        *err = why;
    }
    return why.status;
}

void dp_saver_settle(struct dp_saver *saver)
{
    pthread_mutex_lock(&saver->mutex);
    bool is_copying = saver->is_copying;
    pthread_mutex_unlock(&saver->mutex);
    if (is_copying) {
        (void)settle(saver, NULL);
    }
}

static dp_status write_list(struct dp_saver *saver, const char *kind, const struct part_list *list,
                            struct dp_error *err)
{
    if (list->count == 0) {
        return DP_OK;
    }
    DP_AUTO_FREE struct dp_saved_part *parts =
        dp_new_array(struct dp_saved_part, (size_t)list->count);
    for (int64_t i = 0; i < list->count; i++) {
        parts[i] = list->items[i].saved;
    }
    DP_AUTO_FREE char *path =
        dp_asprintf("%s/%s-r%d.safetensors", saver->partial, kind, saver->rank);
    uint64_t bytes;
    dp_status status = dp_safetensors_write(path, parts, list->count, &bytes, err);
    if (status == DP_OK) {
        saver->bytes += bytes;
    }
    return status;
}

static dp_status write_all(struct dp_saver *saver, struct dp_error *err)
{
    dp_status status = settle(saver, err);
    if (status == DP_OK) {
        status = write_list(saver, "model", &saver->snapshot.weights, err);
    }
    if (status == DP_OK) {
        status = write_list(saver, "optimizer", &saver->snapshot.moments, err);
    }
    return status;
}

static void end(struct dp_saver *saver, dp_status status, dp_saver_phase phase)
{
    if (status != DP_OK) {
        dp_fail_in(&saver->err, "checkpoint of step %" PRId64 ", rank %d", saver->meta.step,
                   saver->rank);
    }
    set_phase(saver, status == DP_OK ? phase : DP_SAVER_FAILED);
}

static void write_copies(struct dp_saver *saver)
{
    dp_status status = write_all(saver, &saver->err);
    dp_snapshot_deinit(&saver->snapshot, saver->device);
    end(saver, status, DP_SAVER_WRITTEN);
}

// Nobody waits for older ones to go; what they are is kept here, since all else is the caller's
// once it is told.
static void seal(struct dp_saver *saver)
{
    DP_AUTO_FREE char *directory = dp_strdup(saver->directory);
    int64_t step = saver->meta.step;
    int32_t keep = saver->keep;
    dp_status status = dp_archive_seal(saver->partial, saver->final, &saver->meta, &saver->err);
    end(saver, status, DP_SAVER_SEALED);
    if (status == DP_OK) {
        dp_archive_retain(directory, step, keep);
    }
}

static void work(struct dp_saver *saver, dp_saver_phase phase)
{
    if (phase == DP_SAVER_WRITING) {
        write_copies(saver);
    } else {
        seal(saver);
    }
}

static bool is_busy(dp_saver_phase phase)
{
    return phase == DP_SAVER_WRITING || phase == DP_SAVER_SEALING;
}

void dp_saver_run(struct dp_saver *saver)
{
    pthread_mutex_lock(&saver->mutex);
    saver->has_thread = true;
    while (is_busy(saver->phase) || !saver->is_closed) {
        if (!is_busy(saver->phase) || saver->is_taken) {
            pthread_cond_wait(&saver->changed, &saver->mutex);
            continue;
        }
        dp_saver_phase phase = saver->phase;
        saver->is_taken = true;
        pthread_mutex_unlock(&saver->mutex);
        work(saver, phase);
        pthread_mutex_lock(&saver->mutex);
    }
    saver->has_thread = false;
    pthread_mutex_unlock(&saver->mutex);
}

void dp_saver_close(struct dp_saver *saver)
{
    pthread_mutex_lock(&saver->mutex);
    saver->is_closed = true;
    pthread_cond_broadcast(&saver->changed);
    pthread_mutex_unlock(&saver->mutex);
}

void dp_saver_seal(struct dp_saver *saver, int32_t keep)
{
    DP_CHECK(dp_saver_phase_now(saver) == DP_SAVER_WRITTEN);
    saver->keep = keep;
    set_phase(saver, DP_SAVER_SEALING);
}

void dp_saver_drop(struct dp_saver *saver, bool removes)
{
    dp_saver_phase phase = dp_saver_phase_now(saver);
    DP_CHECK(!is_busy(phase));
    if (removes && saver->partial != NULL && phase != DP_SAVER_SEALED) {
        dp_archive_remove(saver->partial);
    }
    forget(saver);
    set_phase(saver, DP_SAVER_IDLE);
}

dp_saver_phase dp_saver_phase_now(struct dp_saver *saver)
{
    pthread_mutex_lock(&saver->mutex);
    dp_saver_phase phase = saver->phase;
    pthread_mutex_unlock(&saver->mutex);
    return phase;
}

dp_saver_phase dp_saver_wait(struct dp_saver *saver, int64_t deadline_ns)
{
    pthread_mutex_lock(&saver->mutex);
    while (is_busy(saver->phase) && (saver->has_thread || saver->is_taken) &&
           dp_clock_monotonic_ns() < deadline_ns) {
        dp_cond_wait(&saver->changed, &saver->mutex, deadline_ns);
    }
    dp_saver_phase phase = saver->phase;
    bool is_mine = is_busy(phase) && !saver->has_thread && !saver->is_taken;
    saver->is_taken = saver->is_taken || is_mine;
    pthread_mutex_unlock(&saver->mutex);
    if (is_mine) {
        work(saver, phase);
        phase = dp_saver_phase_now(saver);
    }
    return phase;
}

const struct dp_error *dp_saver_error(const struct dp_saver *saver)
{
    return &saver->err;
}

uint64_t dp_saver_bytes(const struct dp_saver *saver)
{
    return saver->bytes;
}

const char *dp_saver_path(const struct dp_saver *saver)
{
    return saver->final;
}
