// Thousands of stub agents in one process and thread: each a session's stream of its own, on a few
// connections or on one each. They say hello, send heartbeats and samples of their ranks, and take
// what comes without acting on it.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/error.h"

struct fleet;

struct fleet_options {
    const char *address; // of the controller, "host:port"
    uint32_t agents, connections;
    uint32_t ranks_per_agent, ranks_per_job; // 0 = no ranks; jobs are job-1, job-2, ...
    uint32_t heartbeat_ms, sample_ms;        // sample_ms 0 = none
    uint32_t lease_ms;
};

struct fleet_figures {
    uint64_t welcomed, acked, samples; // hellos and heartbeats that were answered, samples sent
    uint64_t closed;                   // streams that are over
    uint64_t skipped;                  // messages that waited so long that the next one was due
};

dp_status fleet_open(const struct fleet_options *options, struct fleet **ret_fleet,
                     struct dp_error *err);
// Sends what is due and takes what comes, for so long.
void fleet_run(struct fleet *fleet, int64_t ms);
// Until every agent is welcomed; false when the time passes first.
bool fleet_settle(struct fleet *fleet, int64_t timeout_ms);
// These agents say nothing any more, and their streams stay open.
void fleet_silence(struct fleet *fleet, uint32_t first, uint32_t count);
struct fleet_figures fleet_figures(const struct fleet *fleet);
// Accepts NULL.
void fleet_close(struct fleet *fleet);

// "node-00017".
void fleet_name(char name[16], uint32_t agent);
