// The HTTP server's insides. Everything here runs on the owner's thread.
#pragma once

#include <microhttpd.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "dp/arena.h"
#include "dp/json.h"
#include "dp/rest.h"
#include "uri.h"

// uthash without a fallback for memory that runs out: that aborts.
#include <stdlib.h>
#include <uthash.h>

// A verb and a path, and what answers there: a handler, a page, or the description of all.
struct rest_route {
    const char *verb, *path;
    const struct dp_rest_handler *handler; // NULL = a page
    const struct dp_rest_page *page;       // NULL too = /openapi.json
};

struct rest_request;

// One client's connection. The deadline is of what it has to do next; when it passes without that,
// the connection is closed.
struct rest_connection {
    struct rest_connection *prev, *next;
    struct dp_rest_server *server;
    struct rest_request *request; // NULL = between two
    int fd;
    int64_t deadline_ns; // 0 = none
    bool watched;        // for the end of the client while its request is suspended
    bool closing;        // to make room
};

// One request, from its first line until its answer is gone or the client is.
struct rest_request {
    struct dp_rest_server *server;
    struct rest_connection *connection;
    struct MHD_Connection *mhd;
    struct rest_uri uri;
    const struct rest_route *route; // NULL = none
    bool is_head;
    bool begun;    // the headers were looked at
    bool queued;   // the library has the answer
    bool is_busy;  // there was no room for the body
    bool is_large; // the body is over the limit
    struct dp_buf body;

    // Once it is a call.
    uint64_t id;                   // 0 = it is none
    bool told;                     // on_closed is owed
    bool suspended;                // the library waits for us
    bool left;                     // the client did not wait for the answer
    struct MHD_Response *response; // set once; taken by the library when it asks again
    unsigned code;

    // Streams.
    struct dp_buf queue; // lines not given to the library yet
    size_t queue_lines;
    bool finished, failed;
    bool send_refused, writable_due;
    bool wake; // on_writable is due once nothing waits any more
    UT_hash_handle hh; // calls by id
};

struct rest_counter {
    const struct rest_route *route; // NULL = other
    unsigned code;
    uint64_t count;
};

struct dp_rest_server {
    struct MHD_Daemon *mhd;
    int epoll_fd; // the library's descriptor, wake_fd, and the clients of suspended requests
    int wake_fd;  // the library does not tell that a request may go on
    char address[DP_ADDRESS_MAX];
    const struct dp_rest_handler *handlers;
    size_t handlers_count;
    const struct dp_rest_page *pages;
    size_t pages_count;
    void *context;
    int64_t headers_ns, body_ns, answer_ns;
    size_t connections_max, calls_max;
    struct rest_route *routes;
    size_t routes_count;
    struct dp_buf openapi; // written when it is first asked for
    struct rest_connection *connections;
    size_t connections_count;
    struct rest_request *calls; // by id
    uint64_t next_id;
    size_t body_bytes; // of all requests
    struct rest_counter *counters;
    size_t counters_count;
    bool stopping, stopped;
};

// listen.c: a socket that listens on loopback, and its address as text.
dp_status dp_rest_listen(const char *address, int *ret_fd, bool *ret_is_ipv6, char *ret_text,
                         size_t size, struct dp_error *err);

// route.c
void dp_rest_routes_make(struct dp_rest_server *server);
// The route of this verb and path, or NULL with every verb that the path has ("GET, HEAD,
// OPTIONS"; empty = no such path) in `allowed`.
const struct rest_route *dp_rest_route_find(const struct dp_rest_server *server, const char *verb,
                                            const struct rest_uri *uri, struct dp_buf *allowed);
void dp_rest_routes_list(const struct dp_rest_server *server, struct dp_buf *out);

// bind.c: the message of a request, packed. DP_INVALID names the field, or line and column.
dp_status dp_rest_bind(const struct rest_request *request, const char *content_type,
                       struct dp_buf *ret_bytes, struct dp_error *err);

// answer.c: sets the answer of a request that has none; it leaves when the library asks for it.
void dp_rest_answer(struct rest_request *request, unsigned code, const char *content_type,
                    char *text, size_t length); // takes `text`
// An error with the code of the status table, or with another one.
void dp_rest_refuse(struct rest_request *request, const struct dp_error *err);
void dp_rest_refuse_as(struct rest_request *request, unsigned code, dp_status status,
                       const char *format, ...) __attribute__((format(printf, 4, 5)));
// The library has no room for what this request brings and would not say a word: the answer goes
// past it, and is the last of its connection.
void dp_rest_refuse_at_once(struct rest_request *request, unsigned code,
                            const struct dp_error *err);
// Hands the answer to the library.
enum MHD_Result dp_rest_answer_queue(struct rest_request *request);
// Ends a call for its handler, once.
void dp_rest_call_over(struct rest_request *request, bool cancelled);
// Between the library's callbacks: the request waits for its answer, or goes on.
void dp_rest_suspend(struct rest_request *request);
void dp_rest_resume(struct rest_request *request);

// request.c: the library's callbacks.
void *dp_rest_on_uri(void *context, const char *uri, struct MHD_Connection *mhd);
enum MHD_Result dp_rest_on_request(void *context, struct MHD_Connection *mhd, const char *url,
                                   const char *method, const char *version, const char *data,
                                   size_t *data_size, void **request);
void dp_rest_on_completed(void *context, struct MHD_Connection *mhd, void **request,
                          enum MHD_RequestTerminationCode code);

// server.c
int64_t dp_rest_now_ns(void);
