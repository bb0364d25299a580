// Starting a rank's process clean, and ending what it leaves behind.
#pragma once

#include <sys/types.h>

#include "dp/error.h"
#include "dp/link.h"

// Starts `spawn` in its own session with an empty signal mask, default dispositions and no
// descriptors but 0-3: null input, a pipe for both outputs, the control socket. The kernel kills it
// when the keeper dies. Returns once the program runs, or with the reason why it cannot.
// *ret_control_fd and *ret_output_fd are the keeper's ends, non-blocking, the caller's to close.
dp_status process_start(const struct dp_link_spawn *spawn, pid_t *ret_pid, int *ret_control_fd,
                        int *ret_output_fd, struct dp_error *err);

// SIGKILLs the children of this process for which keep() is false. The keeper is the subreaper of
// its ranks, so these are what ranks left behind. Returns how many there were.
int process_kill_orphans(bool (*keep)(void *context, pid_t pid), void *context);
