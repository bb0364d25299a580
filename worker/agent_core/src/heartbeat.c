#include "dp/agent_core.h"

#include "dp/clock.h"

#define DEFAULT_MS 1000
#define MS_MIN 100

uint32_t dp_agent_heartbeat_ms(uint32_t asked_ms, uint32_t orphan_ms)
{
    uint32_t max_ms = orphan_ms / 4;
    uint32_t period_ms = asked_ms > 0 ? asked_ms : DEFAULT_MS;
    period_ms = period_ms < max_ms ? period_ms : max_ms;
    return period_ms > MS_MIN ? period_ms : MS_MIN;
}

int64_t dp_agent_heartbeat_wait_ns(uint32_t period_ms, double chance)
{
    return (int64_t)(period_ms * (1.0 - 0.2 * chance) * (double)DP_NS_PER_MS);
}
