// Names and ports of tcp, for whoever has sockets of its own.
#pragma once

#include <sys/socket.h>

#include "dp/error.h"

// "host:port" or "[host]:port", numbers or names.
dp_status dp_tcp_resolve(const char *address, struct sockaddr_storage *ret_address,
                         socklen_t *ret_length, struct dp_error *err);
// A socket that listens on host, on a port that the kernel gives, and does not block; the caller
// closes it. `ret_address` of DP_ADDRESS_MAX bytes receives "host:port".
dp_status dp_tcp_listen(const char *host, char *ret_address, int *ret_fd, struct dp_error *err);
