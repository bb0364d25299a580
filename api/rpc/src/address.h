// Addresses as people write them: "host:port", "[::1]:port", "unix:/path".
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "dp/error.h"

struct rpc_address {
    bool is_unix;
    char host[DP_ADDRESS_MAX]; // or the path
    unsigned port;
    char target[DP_ADDRESS_MAX + 16]; // what gRPC wants: a literal says so, else DNS is asked
};

// Port 0 only when listening.
dp_status dp_rpc_address_parse(const char *text, bool listening, struct rpc_address *ret_address,
                               struct dp_error *err);
// "host:port" or "unix:/path".
void dp_rpc_address_print(const struct rpc_address *address, unsigned port, char *ret_text,
                          size_t size);
// Why nobody can listen there: tries, and tells what the system says; DP_OK when it works.
dp_status dp_rpc_address_probe(const struct rpc_address *address, struct dp_error *err);
