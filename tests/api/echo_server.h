// A server whose answers depend on the request alone, in a thread of its own, for tests.
//
//   GetVersion     started_ns counts the calls that were cancelled
//   GetJob id      "missing" NOT_FOUND, "unschedulable" UNSCHEDULABLE with a text of 1800 bytes,
//                  "never" no answer, "huge" an answer over the limit, else a job of that id
//   SubmitJob      a job with the same job_toml
//   WatchJob       after_step step points, then the end; id "forever" stays open instead
//   ReadLogs       chunks of 64 KiB as long as the reader takes them, 256 in all
//   Session        acknowledges heartbeats
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "dp/rpc.h"

struct echo_server {
    struct dp_rpc_server *rpc;
    char address[DP_ADDRESS_MAX];
    pthread_t thread;
    int wake[2]; // a pipe: closing its writing end stops the thread
    atomic_uint grace_ms;
    uint32_t protocol; // that GetVersion tells
    unsigned logs_sent;
    atomic_uint opened, closed, cancelled, refused, queued_max, calls;
};

// listen: as dp_rpc_server_options.
dp_status echo_server_start(struct echo_server *server, const char *listen, struct dp_error *err);
dp_status echo_server_start_protocol(struct echo_server *server, const char *listen,
                                     uint32_t protocol, struct dp_error *err);
// Stops with `grace_ms` and returns when the port is free.
void echo_server_stop(struct echo_server *server, unsigned grace_ms);
