// What a device has given out, by purpose, and its limit.
#include "memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"

struct dp_memory_account {
    pthread_mutex_t lock;
    struct dp_device_memory memory;
};

const char *dp_memory_tag_text(dp_memory_tag tag)
{
    static const char *const texts[DP_MEMORY_TAGS] = {
        [DP_MEMORY_WEIGHTS] = "weights", [DP_MEMORY_GRADIENTS] = "gradients",
        [DP_MEMORY_MOMENTS] = "moments", [DP_MEMORY_ACTIVATIONS] = "activations",
        [DP_MEMORY_SCRATCH] = "scratch", [DP_MEMORY_WINDOWS] = "windows",
        [DP_MEMORY_STAGING] = "staging"};
    DP_CHECK(tag >= 0 && tag < DP_MEMORY_TAGS);
    return texts[tag];
}

struct dp_memory_account *dp_account_new(void)
{
    struct dp_memory_account *account = dp_new(struct dp_memory_account);
    pthread_mutex_init(&account->lock, NULL);
    return account;
}

void dp_account_free(struct dp_memory_account *account)
{
    pthread_mutex_destroy(&account->lock);
    free(account);
}

static bool is_host(dp_memory_tag tag)
{
    return tag == DP_MEMORY_STAGING;
}

static void add_to(struct dp_device_memory *m, dp_memory_tag tag, uint64_t bytes)
{
    m->tag_live[tag] += bytes;
    if (m->tag_live[tag] > m->tag_peak[tag]) {
        m->tag_peak[tag] = m->tag_live[tag];
    }
    m->live += is_host(tag) ? 0 : bytes;
    if (m->live > m->peak) {
        m->peak = m->live;
        memcpy(m->at_peak, m->tag_live, sizeof(m->at_peak));
    }
}

bool dp_account_add(struct dp_device *device, dp_memory_tag tag, size_t bytes, bool forced)
{
    struct dp_memory_account *account = device->account;
    struct dp_device_memory *m = &account->memory;
    pthread_mutex_lock(&account->lock);
    const bool fits =
        m->limit == 0 || is_host(tag) || (m->live <= m->limit && bytes <= m->limit - m->live);
    if (fits || forced) {
        add_to(m, tag, bytes);
    }
    pthread_mutex_unlock(&account->lock);
    return fits;
}

void dp_account_remove(struct dp_device *device, dp_memory_tag tag, size_t bytes)
{
    struct dp_memory_account *account = device->account;
    pthread_mutex_lock(&account->lock);
    DP_CHECK(account->memory.tag_live[tag] >= bytes);
    account->memory.live -= is_host(tag) ? 0 : bytes;
    account->memory.tag_live[tag] -= bytes;
    pthread_mutex_unlock(&account->lock);
}

struct dp_device_memory dp_device_memory(const struct dp_device *device)
{
    pthread_mutex_lock(&device->account->lock);
    struct dp_device_memory memory = device->account->memory;
    pthread_mutex_unlock(&device->account->lock);
    return memory;
}

void dp_device_reset_peak(struct dp_device *device)
{
    pthread_mutex_lock(&device->account->lock);
    struct dp_device_memory *m = &device->account->memory;
    m->peak = m->live;
    memcpy(m->tag_peak, m->tag_live, sizeof(m->tag_peak));
    memcpy(m->at_peak, m->tag_live, sizeof(m->at_peak));
    pthread_mutex_unlock(&device->account->lock);
}

void dp_device_set_limit(struct dp_device *device, uint64_t bytes)
{
    pthread_mutex_lock(&device->account->lock);
    device->account->memory.limit = bytes;
    pthread_mutex_unlock(&device->account->lock);
}

void dp_device_count(struct dp_device *device, dp_memory_tag tag, int64_t bytes)
{
    if (bytes < 0) {
        dp_account_remove(device, tag, (size_t)-bytes);
    } else {
        dp_account_add(device, tag, (size_t)bytes, true);
    }
}

dp_status dp_account_fail(struct dp_device *device, dp_memory_tag tag, size_t bytes,
                          struct dp_error *err)
{
    const struct dp_device_memory m = dp_device_memory(device);
    return dp_fail(err, DP_TOO_LARGE,
                   "%zu bytes of %s do not fit beside the %llu in use on this device: its limit is "
                   "%llu; use a smaller micro-batch, recompute more or spread over more ranks",
                   bytes, dp_memory_tag_text(tag), (unsigned long long)m.live,
                   (unsigned long long)m.limit);
}
