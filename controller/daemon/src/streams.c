#include "streams.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/hash.h"

struct caller {
    char host[DP_ADDRESS_MAX]; // without its port
    uint32_t streams;
    UT_hash_handle hh;
};

struct stream {
    uint64_t call;
    struct caller *caller;
    UT_hash_handle hh;
};

static struct caller *find_caller(struct daemon *daemon, uint64_t call)
{
    char host[DP_ADDRESS_MAX] = "";
    dp_rpc_call_peer(daemon->server, call, host, sizeof(host));
    char *port = strrchr(host, ':');
    if (port != NULL && strncmp(host, "unix:", 5) != 0) {
        *port = '\0';
    }
    struct caller *caller = NULL;
    HASH_FIND_STR(daemon->callers, host, caller);
    if (caller == NULL) {
        caller = dp_new(struct caller);
        DP_COPY_TEXT(caller->host, host);
        HASH_ADD_STR(daemon->callers, host, caller);
    }
    return caller;
}

static void forget_if_gone(struct daemon *daemon, struct caller *caller)
{
    if (caller->streams == 0) {
        HASH_DEL(daemon->callers, caller);
        free(caller);
    }
}

bool stream_admit(struct daemon *daemon, uint64_t call)
{
    if (dp_rest_is_call(call)) {
        return true;
    }
    struct caller *caller = find_caller(daemon, call);
    uint32_t all = HASH_COUNT(daemon->streams);
    if (caller->streams < DP_STREAMS_OF_CALLER_MAX && all < DP_STREAMS_MAX) {
        struct stream *stream = dp_new(struct stream);
        *stream = (struct stream){.call = call, .caller = caller};
        HASH_ADD(hh, daemon->streams, call, sizeof(call), stream);
        caller->streams++;
        return true;
    }
    char text[DP_TEXT_MAX];
    snprintf(text, sizeof(text),
             "%s watches %u jobs, logs and events already and all callers together %u; the most "
             "are %d and %d: end some, or watch one stream of events for many jobs",
             caller->host, caller->streams, all, DP_STREAMS_OF_CALLER_MAX, DP_STREAMS_MAX);
    forget_if_gone(daemon, caller);
    call_fail(daemon, call, DP_BUSY, text);
    return false;
}

void stream_leave(struct daemon *daemon, uint64_t call)
{
    struct stream *stream = NULL;
    HASH_FIND(hh, daemon->streams, &call, sizeof(call), stream);
    if (stream != NULL) {
        HASH_DELETE(hh, daemon->streams, stream);
        stream->caller->streams--;
        forget_if_gone(daemon, stream->caller);
        free(stream);
    }
}
