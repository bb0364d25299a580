#include "verbs_region.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "dp/alloc.h"

void dp_verbs_regions_init(struct verbs_regions *regions, const struct dp_verbs_library *library,
                           struct ibv_pd *pd, uint64_t max_mr_size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t most = max_mr_size > SIZE_MAX / 2 || max_mr_size == 0 ? SIZE_MAX / 2 : max_mr_size;
    *regions = (struct verbs_regions){
        .library = library, .pd = pd, .piece_bytes_max = most < page ? page : most / page * page};
    pthread_mutex_init(&regions->mutex, NULL);
}

static void deregister(struct verbs_regions *regions, struct verbs_region *region)
{
    for (int32_t i = 0; i < region->pieces; i++) {
        regions->library->dereg_mr(region->mrs[i]);
    }
    free(region);
}

static void drop(struct verbs_regions *regions, bool is_all)
{
    struct verbs_region **at = &regions->first;
    while (*at != NULL) {
        struct verbs_region *region = *at;
        if (is_all || region->users == 0) {
            *at = region->next;
            deregister(regions, region);
        } else {
            at = &region->next;
        }
    }
}

void dp_verbs_regions_deinit(struct verbs_regions *regions)
{
    drop(regions, true);
    pthread_mutex_destroy(&regions->mutex);
}

void dp_verbs_regions_trim(struct verbs_regions *regions)
{
    pthread_mutex_lock(&regions->mutex);
    drop(regions, false);
    pthread_mutex_unlock(&regions->mutex);
}

static struct verbs_region *find(struct verbs_regions *regions, const unsigned char *start,
                                 size_t bytes)
{
    for (struct verbs_region *region = regions->first; region != NULL; region = region->next) {
        if (start >= region->start && bytes <= region->bytes &&
            (size_t)(start - region->start) <= region->bytes - bytes) {
            return region;
        }
    }
    return NULL;
}

static dp_status fail_register(const struct verbs_region *region, int errnum, struct dp_error *err)
{
    if (errnum == ENOMEM) {
        return dp_fail(err, DP_TOO_LARGE,
                       "cannot register %zu bytes with the device: no more memory may be locked; "
                       "raise the limit (ulimit -l, LimitMEMLOCK=)",
                       region->bytes);
    }
    return dp_fail_errno(err, errnum, "cannot register %zu bytes with the device", region->bytes);
}

static dp_status register_new(struct verbs_regions *regions, unsigned char *start, size_t bytes,
                              struct verbs_region **ret_region, struct dp_error *err)
{
    size_t most = regions->piece_bytes_max;
    size_t pieces = bytes / most + (bytes % most != 0);
    struct verbs_region *region = dp_alloc(1, sizeof *region + pieces * sizeof region->mrs[0]);
    region->start = start;
    region->bytes = bytes;
    region->piece_bytes = most;
    for (size_t i = 0; i < pieces; i++) {
        size_t at = i * most;
        size_t part = bytes - at < most ? bytes - at : most;
        struct ibv_mr *mr = regions->library->reg_mr(
            regions->pd, start + at, part, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        if (mr == NULL) {
            dp_status status = fail_register(region, errno, err);
            deregister(regions, region);
            return status;
        }
        region->mrs[region->pieces++] = mr;
    }
    *ret_region = region;
    return DP_OK;
}

dp_status dp_verbs_region_get(struct verbs_regions *regions, const void *memory, size_t bytes,
                              struct verbs_region **ret_region, struct dp_error *err)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)memory & ~(page - 1);
    uintptr_t end = ((uintptr_t)memory + (bytes > 0 ? bytes : 1) + page - 1) & ~(page - 1);
    dp_status status = DP_OK;
    pthread_mutex_lock(&regions->mutex);
    struct verbs_region *region = find(regions, (unsigned char *)first, end - first);
    if (region == NULL) {
        status = register_new(regions, (unsigned char *)first, end - first, &region, err);
        if (status == DP_OK) {
            region->next = regions->first;
            regions->first = region;
        }
    }
    if (status == DP_OK) {
        region->users++;
        *ret_region = region;
    }
    pthread_mutex_unlock(&regions->mutex);
    return status;
}

void dp_verbs_region_put(struct verbs_regions *regions, struct verbs_region *region)
{
    if (region != NULL) {
        pthread_mutex_lock(&regions->mutex);
        region->users--;
        pthread_mutex_unlock(&regions->mutex);
    }
}

struct verbs_region *dp_verbs_region_find(struct verbs_regions *regions, const void *memory,
                                          size_t bytes)
{
    pthread_mutex_lock(&regions->mutex);
    struct verbs_region *region = find(regions, memory, bytes);
    region = region != NULL && region->users > 0 ? region : NULL;
    if (region != NULL) {
        region->users++;
    }
    pthread_mutex_unlock(&regions->mutex);
    return region;
}

struct ibv_mr *dp_verbs_region_mr(const struct verbs_region *region, const void *memory,
                                  size_t *ret_bytes)
{
    size_t at = (size_t)((const unsigned char *)memory - region->start);
    size_t piece = at / region->piece_bytes;
    size_t end = (piece + 1) * region->piece_bytes;
    *ret_bytes = (end < region->bytes ? end : region->bytes) - at;
    return region->mrs[piece];
}
