// Daemons that dpctl starts and finds again: a pid file holds "PID START_TIME", and a process
// counts as alive only while both still match, so a reused pid is never signalled.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/error.h"

// The pid in the file when that very process still runs, else 0.
int process_read(const char *pid_file);
// Starts argv[0] in a session of its own, stdin from /dev/null, stdout and stderr appended to
// log_file, and writes the pid file.
dp_status process_start(const char *pid_file, const char *log_file, char *const argv[],
                        struct dp_error *err);
// Sends `first_signal`, has the process go on if it is stopped, waits up to timeout_ms, then kills.
// Removes the pid file. DP_OK when nothing ran.
dp_status process_stop(const char *pid_file, int first_signal, int64_t timeout_ms,
                       struct dp_error *err);
// The same with SIGTERM for a daemon of others: the file holds "PID" and is locked by the process,
// which works in `directory`. The file stays.
dp_status process_stop_locked(const char *pid_file, const char *directory, int64_t timeout_ms,
                              struct dp_error *err);
