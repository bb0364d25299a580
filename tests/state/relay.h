// A way to a server that fails: a thread that hands bytes on between two sockets.
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "dp/limits.h"

typedef enum relay_fault {
    RELAY_CLOSES,  // after so many bytes of the server's
    RELAY_FLIPS,   // a bit of the byte behind them
    RELAY_IS_MUTE, // from then on
} relay_fault;

struct relay {
    char to[DP_ADDRESS_MAX], address[DP_ADDRESS_MAX]; // the server's, and its own
    relay_fault fault;
    size_t after;
    int listen_fd, wake_fd;
    pthread_t thread;
    atomic_size_t passed; // bytes of the server's that it has handed on
};

void relay_start(struct relay *relay, const char *to, relay_fault fault, size_t after);
void relay_stop(struct relay *relay);
