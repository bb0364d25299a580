// State directories and controllers for what is measured: a database with as many jobs as wanted, a
// controller as a process, and what /proc says of it.
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "dp/error.h"

// Jobs 1 to `jobs` run, of `ranks_per_job` ranks each that lie on the fleet's agents,
// `ranks_per_agent` on each.
dp_status state_fill_running(const char *directory, uint32_t jobs, uint32_t ranks_per_job,
                             uint32_t ranks_per_agent, struct dp_error *err);
// That many jobs that have ended, with ranks, steps, a plan and attempts.
dp_status state_fill_ended(const char *directory, uint32_t jobs, const char *toml,
                           struct dp_error *err);

// That many events with messages of `bytes`.
dp_status state_fill_events(const char *directory, uint32_t events, size_t bytes,
                            struct dp_error *err);

// That many nodes with names of 63 letters.
dp_status state_fill_nodes(const char *directory, uint32_t nodes, struct dp_error *err);

struct controller {
    pid_t pid;
    char address[128];
    double ready_s; // from its start until it serves
};
// Started on DIRECTORY/state; logs go to DIRECTORY/log. Waits until it serves.
dp_status controller_start(const char *program, const char *directory,
                           struct controller *ret_controller, struct dp_error *err);
// SIGTERM, and the wait for its end.
void controller_stop(struct controller *controller);
// SIGKILL, and the wait for its end.
void controller_kill(struct controller *controller);
// How often the log says that.
uint32_t controller_log_count(const char *directory, const char *text);
double controller_cpu_s(const struct controller *controller); // user and system, all threads
uint64_t controller_rss_bytes(const struct controller *controller);
