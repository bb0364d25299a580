#include "verbs_world.h"

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/rand.h"

void verbs_world_open(int32_t world, const struct fake_faults *faults,
                      const struct fake_device *devices, const struct dp_verbs_config *config,
                      struct dp_transport **ret_ends)
{
    DP_AUTO_FREE char *texts = dp_alloc((size_t)world, DP_ADDRESS_MAX);
    DP_AUTO_FREE const char **addresses = dp_new_array(const char *, (size_t)world);
    struct dp_error err = {0};
    fake_verbs_start(NULL, devices, world);
    for (int32_t i = 0; i < world; i++) {
        char device[16];
        snprintf(device, sizeof device, "fake%d", i);
        struct dp_verbs_config own = config != NULL ? *config : (struct dp_verbs_config){0};
        own.library = &fake_verbs_library;
        own.device = device;
        // Nobody moves the bytes of a rank that is connected until all are.
        own.attempt_ms = own.attempt_ms != 0 ? own.attempt_ms : 120000;
        addresses[i] = texts + (size_t)i * DP_ADDRESS_MAX;
        assert_ok(dp_transport_verbs_listen("127.0.0.1", i, world, 5, &own,
                                            texts + (size_t)i * DP_ADDRESS_MAX, &ret_ends[i], &err),
                  &err);
    }
    if (faults != NULL) {
        fake_verbs_set_faults(faults);
    }
    cluster_connect(world, ret_ends, addresses, NULL, NULL);
}

static unsigned char byte_of(uint64_t key, size_t at)
{
    return (unsigned char)(dp_rand_mix(key, at / 8) >> (8 * (at % 8)));
}

void verbs_fill(unsigned char *bytes, size_t length, uint64_t key)
{
    for (size_t i = 0; i < length; i++) {
        bytes[i] = byte_of(key, i);
    }
}

bool verbs_is_filled(const unsigned char *bytes, size_t length, uint64_t key)
{
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] != byte_of(key, i)) {
            return false;
        }
    }
    return true;
}
