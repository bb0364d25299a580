// Memory registered with a device: ranges of whole pages, each once however many use it, and no
// longer than the device takes in one piece.
#pragma once

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/error.h"
#include "dp/verbs_library.h"

struct verbs_region {
    struct verbs_region *next;
    unsigned char *start; // page-aligned
    size_t bytes;         // whole pages
    size_t piece_bytes;   // of every piece but the last
    int32_t pieces;
    int32_t users; // 0 = idle: registered until dp_verbs_regions_trim
    struct ibv_mr *mrs[];
};

struct verbs_regions {
    const struct dp_verbs_library *library;
    struct ibv_pd *pd;
    size_t piece_bytes_max;
    pthread_mutex_t mutex;
    struct verbs_region *first;
};

// max_mr_size as the device tells it.
void dp_verbs_regions_init(struct verbs_regions *regions, const struct dp_verbs_library *library,
                           struct ibv_pd *pd, uint64_t max_mr_size);
// Deregisters all, used or not: no queue pair may be left.
void dp_verbs_regions_deinit(struct verbs_regions *regions);
// A region that holds the range; registered for local and remote writes, relaxed ordering off.
dp_status dp_verbs_region_get(struct verbs_regions *regions, const void *memory, size_t bytes,
                              struct verbs_region **ret_region, struct dp_error *err);
// Accepts NULL. The memory may be freed after the next trim only.
void dp_verbs_region_put(struct verbs_regions *regions, struct verbs_region *region);
// Deregisters what nobody uses; no request that may touch such memory may be on its way.
void dp_verbs_regions_trim(struct verbs_regions *regions);
// A region in use that holds the range already, one more user of it; NULL = none.
struct verbs_region *dp_verbs_region_find(struct verbs_regions *regions, const void *memory,
                                          size_t bytes);
// The registration that an address is in, and how many bytes from there on.
struct ibv_mr *dp_verbs_region_mr(const struct verbs_region *region, const void *memory,
                                  size_t *ret_bytes);
