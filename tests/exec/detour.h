// A way between ranks that can stop carrying bytes: a process that forwards what comes to its port.
// While it is stopped, the kernel goes on acknowledging for it, as on a link whose far end is gone.
#pragma once

#include <sys/types.h>

#define DETOUR_ADDRESS_MAX 32

// Starts it; "127.0.0.1:port" is what to connect to instead of `to`, "host:port" of IPv4. It ends
// with the caller, or by SIGKILL; its parent waits for it.
pid_t detour_start(const char *to, char *ret_address);
