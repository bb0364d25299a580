#include <stdlib.h>

#include "dp/alloc.h"
#include "internal.h"

struct dp_agent_steps {
    struct dp_agent_blob items[DP_LINK_STEPS_KEPT]; // a ring
    size_t first;
    size_t count;
    struct dp_agent_blob lasting[DP_AGENT_LASTING_COUNT];
};

void dp_agent_steps_free(struct dp_agent_steps *steps)
{
    if (steps == NULL) {
        return;
    }
    for (size_t i = 0; i < DP_LINK_STEPS_KEPT; i++) {
        free(steps->items[i].bytes);
    }
    for (size_t i = 0; i < DP_AGENT_LASTING_COUNT; i++) {
        free(steps->lasting[i].bytes);
    }
    free(steps);
}

static struct dp_agent_steps *need(struct dp_agent_steps **steps)
{
    if (*steps == NULL) {
        *steps = dp_new(struct dp_agent_steps);
    }
    return *steps;
}

void dp_agent_steps_put(struct dp_agent_steps **steps, const void *bytes, size_t length)
{
    struct dp_agent_steps *ring = need(steps);
    dp_agent_blob_set(&ring->items[(ring->first + ring->count) % DP_LINK_STEPS_KEPT], bytes,
                      length);
    if (ring->count < DP_LINK_STEPS_KEPT) {
        ring->count++;
    } else {
        ring->first = (ring->first + 1) % DP_LINK_STEPS_KEPT;
    }
}

void dp_agent_steps_put_lasting(struct dp_agent_steps **steps, dp_agent_lasting kind,
                                const void *bytes, size_t length)
{
    dp_agent_blob_set(&need(steps)->lasting[kind], bytes, length);
}

static void send_blob(const struct dp_agent_blob *blob, struct dp_agent_effects *effects)
{
    if (blob->bytes != NULL) {
        struct dp_agent_effect *effect = dp_agent_effects_add(effects, DP_AGENT_DO_REPORT, NULL);
        effect->bytes = blob->bytes;
        effect->length = blob->length;
    }
}

// Steps come last: with the last of them a job is over, and what comes later is not looked at.
void dp_agent_steps_send(const struct dp_agent_steps *steps, struct dp_agent_effects *effects)
{
    if (steps == NULL) {
        return;
    }
    for (size_t i = 0; i < DP_AGENT_LASTING_COUNT; i++) {
        send_blob(&steps->lasting[i], effects);
    }
    for (size_t i = 0; i < steps->count; i++) {
        send_blob(&steps->items[(steps->first + i) % DP_LINK_STEPS_KEPT], effects);
    }
}
