// Words for verdicts.
#include "dp/straggler.h"

void dp_straggler_config_init(struct dp_straggler_config *config)
{
    *config = (struct dp_straggler_config){
        .enter = 1.2,
        .gap = 0.1,
        .persist_steps = 8,
        .persist_s = 0.5,
        .warm_up_steps = 5,
        .freeze_steps = 10,
        .blind_steps = 12,
        .noticeable = 0.03,
    };
}

const char *dp_straggler_state_text(dp_straggler_state state)
{
    static const char *const texts[] = {"healthy", "no data", "noted", "suspected", "confirmed"};
    return texts[state];
}

const char *dp_straggler_cause_text(dp_straggler_cause cause)
{
    static const char *const texts[] = {
        "unknown", "device", "link", "host", "uneven stage", "uneven data", "our own doing",
    };
    return texts[cause];
}
