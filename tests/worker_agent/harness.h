// Directories, processes and waiting for tests that run real programs.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "dp/buf.h"
#include "dp/cleanup.h"

#define HARNESS_DEADLINE_MS 120000

// A fresh directory below $TMPDIR; the caller frees the path after harness_remove.
char *harness_directory(void);
void harness_remove(const char *directory);

// Starts a program; `environment` holds NAME=VALUE texts added to the test's own, or NULL.
pid_t harness_start(char *const *arguments, char *const *environment);
// Waits for a child to end, at most until the deadline (the test fails then); its wait status.
int harness_wait(pid_t pid);
// Waits until no process of that number is left.
void harness_wait_gone(pid_t pid);
bool harness_exists(pid_t pid);
// Calls ready() every few milliseconds until it says true; fails the test at the deadline.
void harness_until(bool (*ready)(void *context), void *context, const char *what);
// The whole of a rank's output that was kept.
void harness_rank_log(const char *directory, uint32_t rank, struct dp_buf *ret_text);
