// An agent as a process, its files, and the controller that it talks to.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fake_controller.h"
#include "harness.h"

struct cluster {
    struct fake_controller controller;
    char *directory; // of everything
    char *state_dir;
    char *address_file;
    char *script;      // DP_FAKE_RANK=...
    const char *mode;  // an extra option, or NULL
    char *calibration; // DP_FAKE_CALIBRATION=..., or NULL
    size_t damage;     // where, in eighths of the file
    pid_t worker;
};

// Starts everything and waits until the agent is connected. script: the words of each rank; mode:
// an extra option of dp-worker, or NULL.
void cluster_open(struct cluster *cluster, const char *script, const char *mode);
void cluster_close(struct cluster *cluster);
void cluster_write_address(const struct cluster *cluster);
pid_t cluster_start_worker(const struct cluster *cluster);
void cluster_end_worker(struct cluster *cluster);
// Kills the agent and starts it again; meanwhile() looks after its files, when given.
void cluster_restart_after_kill(struct cluster *cluster,
                                void (*meanwhile)(struct cluster *cluster));
// name: of the assignment's directory.
pid_t cluster_keeper_pid(const struct cluster *cluster, const char *name);
// Prepares and starts ranks 0 and 1 of job-1 and waits until both run.
void cluster_run_two(struct cluster *cluster);
// Releases job-1 and waits until nothing of it is left.
void cluster_release(struct cluster *cluster);

extern const uint32_t two_ranks[2];

// For fake_controller_until.
bool is_connected(struct fake_controller *controller);
bool has_hello(struct fake_controller *controller);
bool is_calibrated(struct fake_controller *controller);
bool both_ready(struct fake_controller *controller);
bool both_running(struct fake_controller *controller);
bool both_finished(struct fake_controller *controller);
bool both_died(struct fake_controller *controller);
bool holds_nothing(struct fake_controller *controller);
