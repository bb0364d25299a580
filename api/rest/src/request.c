// The library's callbacks: what a request is, whether it is served, and its body.
#include <string.h>
#include <strings.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "server.h"

static struct rest_connection *connection_of(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    DP_CHECK(info != NULL && info->socket_context != NULL);
    return info->socket_context;
}

void *dp_rest_on_uri(void *context, const char *uri, struct MHD_Connection *mhd)
{
    struct rest_request *request = dp_new(struct rest_request);
    request->server = context;
    request->mhd = mhd;
    request->connection = connection_of(mhd);
    request->connection->request = request;
    struct dp_error err = {0};
    dp_status status = dp_rest_uri_parse(uri, &request->uri, &err);
    if (status == DP_TOO_LARGE) {
        dp_rest_refuse_at_once(request, MHD_HTTP_URI_TOO_LONG, &err);
    } else if (status != DP_OK) {
        dp_rest_refuse(request, &err);
    }
    return request;
}

static const char *header(const struct rest_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->mhd, MHD_HEADER_KIND, name);
}

// Whether "localhost:8080", "127.0.0.1", "[::1]:8080" and the like; the port does not matter, as a
// tunnel may have another.
static bool is_local_host(const char *host)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(names); i++) {
        size_t length = strlen(names[i]);
        if (strncasecmp(host, names[i], length) != 0) {
            continue;
        }
        const char *rest = host + length;
        if (*rest == '\0' || (*rest == ':' && strspn(rest + 1, "0123456789") == strlen(rest + 1))) {
            return true;
        }
    }
    return false;
}

static enum MHD_Result count_host(void *context, enum MHD_ValueKind kind, const char *key,
                                  const char *value)
{
    (void)kind;
    (void)value;
    *(int *)context += strcasecmp(key, MHD_HTTP_HEADER_HOST) == 0;
    return MHD_YES;
}

// A web page can make a browser call here under a name of its own that it lets point to this
// machine; then Host has that name. What a page of another site sends has that site's Origin.
static bool is_local_caller(struct rest_request *request)
{
    const char *host = header(request, MHD_HTTP_HEADER_HOST);
    const char *origin = header(request, MHD_HTTP_HEADER_ORIGIN);
    int hosts = 0;
    MHD_get_connection_values(request->mhd, MHD_HEADER_KIND, count_host, &hosts);
    if (hosts != 1) {
        dp_rest_refuse_as(request, MHD_HTTP_BAD_REQUEST, DP_INVALID,
                          "a request needs one Host header; this has %d", hosts);
        return false;
    }
    if (!is_local_host(host)) {
        dp_rest_refuse_as(request, MHD_HTTP_MISDIRECTED_REQUEST, DP_DENIED,
                          "Host \"%.*s\" is no name of this machine; call localhost or 127.0.0.1",
                          DP_NAME_MAX, host);
        return false;
    }
    const char *site = origin == NULL ? NULL : strstr(origin, "://");
    if (origin != NULL && (site == NULL || !is_local_host(site + 3))) {
        dp_rest_refuse_as(request, MHD_HTTP_FORBIDDEN, DP_DENIED,
                          "pages of %.*s may not call this machine", DP_NAME_MAX, origin);
        return false;
    }
    return true;
}

static void answer_options(struct rest_request *request, const char *allowed)
{
    dp_rest_answer(request, MHD_HTTP_NO_CONTENT, NULL, dp_strdup(""), 0);
    DP_CHECK(MHD_add_response_header(request->response, MHD_HTTP_HEADER_ALLOW, allowed) == MHD_YES);
}

// Finds the route, or answers why there is none.
static bool find_route(struct rest_request *request, const char *verb)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf allowed = {0}, paths = {0};
    request->is_head = strcmp(verb, "HEAD") == 0;
    request->route = dp_rest_route_find(request->server, request->is_head ? "GET" : verb,
                                        &request->uri, &allowed);
    if (request->route != NULL) {
        return true;
    }
    if (allowed.length == 0) {
        dp_rest_routes_list(request->server, &paths);
        dp_rest_refuse_as(request, MHD_HTTP_NOT_FOUND, DP_NOT_FOUND,
                          "there is no %.*s; there are %s", DP_PATH_MAX, request->uri.path,
                          paths.bytes);
        return false;
    }
    if (strcmp(verb, "OPTIONS") == 0) {
        answer_options(request, allowed.bytes);
        return false;
    }
    dp_rest_refuse_as(request, MHD_HTTP_METHOD_NOT_ALLOWED, DP_USAGE, "%.*s takes %s, not %.*s",
                      DP_PATH_MAX, request->uri.path, allowed.bytes, DP_NAME_MAX, verb);
    DP_CHECK(MHD_add_response_header(request->response, MHD_HTTP_HEADER_ALLOW, allowed.bytes) ==
             MHD_YES);
    return false;
}

static void refuse_large(struct rest_request *request)
{
    dp_rest_refuse_as(request, MHD_HTTP_CONTENT_TOO_LARGE, DP_TOO_LARGE,
                      "the body has more than %u bytes", DP_REST_BODY_BYTES_MAX);
}

static void look_at_length(struct rest_request *request)
{
    const char *text = header(request, MHD_HTTP_HEADER_CONTENT_LENGTH);
    // The library has refused what is no number.
    if (text != NULL && strtoull(text, NULL, 10) > DP_REST_BODY_BYTES_MAX) {
        refuse_large(request);
    }
}

static bool has_body(const struct rest_request *request)
{
    const char *length = header(request, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return header(request, MHD_HTTP_HEADER_TRANSFER_ENCODING) != NULL ||
           (length != NULL && strspn(length, "0") != strlen(length));
}

// The headers are there.
static enum MHD_Result begin(struct rest_request *request, const char *verb)
{
    request->begun = true;
    request->connection->deadline_ns = dp_rest_now_ns() + request->server->body_ns;
    if (request->response == NULL && is_local_caller(request) && find_route(request, verb)) {
        look_at_length(request);
    }
    // An answer before the body is the connection's last; without one it need not be.
    return request->response != NULL && has_body(request) ? dp_rest_answer_queue(request) : MHD_YES;
}

// A body that is refused is read to its end all the same: the library takes no answer before.
static void take_body(struct rest_request *request, const char *data, size_t size)
{
    struct dp_rest_server *server = request->server;
    request->is_large |= size > DP_REST_BODY_BYTES_MAX - request->body.length;
    request->is_busy |= size > DP_REST_BODIES_BYTES_MAX - server->body_bytes;
    if (!request->is_large && !request->is_busy) {
        dp_buf_append(&request->body, data, size);
        server->body_bytes += size;
    }
}

static void drop_body(struct rest_request *request)
{
    request->server->body_bytes -= request->body.length;
    dp_buf_deinit(&request->body);
}

// The description of the methods; it does not change while the server runs.
static void write_openapi(struct dp_rest_server *server, struct dp_buf *out)
{
    if (server->openapi.length == 0) {
        json_t *json = dp_rest_openapi(server->handlers, server->handlers_count, server->pages,
                                       server->pages_count);
        dp_json_write(json, 2, &server->openapi);
        json_decref(json);
    }
    dp_buf_append(out, server->openapi.bytes, server->openapi.length);
}

static void answer_page(struct rest_request *request)
{
    struct dp_rest_server *server = request->server;
    struct dp_buf text = {0};
    const char *content_type = "application/json";
    if (request->route->page != NULL) {
        content_type = request->route->page->content_type;
        request->route->page->write(server->context, &text);
    } else {
        write_openapi(server, &text);
    }
    size_t length = text.length;
    dp_rest_answer(request, MHD_HTTP_OK, content_type, dp_buf_take(&text), length);
}

static void call_handler(struct rest_request *request, const struct dp_buf *bytes)
{
    struct dp_rest_server *server = request->server;
    const struct dp_rest_handler *handler = request->route->handler;
    unsigned deadline_ms = dp_methods[handler->method].deadline_ms;
    request->id = DP_REST_CALL | server->next_id++;
    HASH_ADD(hh, server->calls, id, sizeof request->id, request);
    request->connection->deadline_ns =
        deadline_ms == 0 ? 0 : dp_rest_now_ns() + (int64_t)deadline_ms * 1000000;
    request->told = true;
    handler->on_message(server->context, request->id, bytes->bytes == NULL ? "" : bytes->bytes,
                        bytes->length);
}

static void start_call(struct rest_request *request)
{
    struct dp_rest_server *server = request->server;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    struct dp_error err = {0};
    bool is_stream = dp_methods[request->route->handler->method].server_streaming;
    dp_status status =
        dp_rest_bind(request, header(request, MHD_HTTP_HEADER_CONTENT_TYPE), &bytes, &err);
    drop_body(request);
    if (status == DP_UNSUPPORTED) {
        dp_rest_refuse_as(request, MHD_HTTP_UNSUPPORTED_MEDIA_TYPE, DP_UNSUPPORTED, "%s",
                          err.message);
    } else if (status != DP_OK) {
        dp_rest_refuse(request, &err);
    } else if (server->stopping) {
        dp_rest_refuse_as(request, MHD_HTTP_SERVICE_UNAVAILABLE, DP_UNAVAILABLE,
                          "the server is stopping; try again in a moment");
    } else if (HASH_COUNT(server->calls) >= server->calls_max) {
        dp_rest_refuse_as(request, MHD_HTTP_TOO_MANY_REQUESTS, DP_BUSY,
                          "%zu requests are open already; try again when some are answered",
                          server->calls_max);
    } else if (is_stream && request->is_head) {
        dp_rest_answer(request, MHD_HTTP_OK, "application/x-ndjson", dp_strdup(""), 0);
    } else {
        call_handler(request, &bytes);
    }
}

// The whole request is there.
static enum MHD_Result complete(struct rest_request *request)
{
    if (request->is_large) {
        refuse_large(request);
    } else if (request->is_busy) {
        dp_rest_refuse_as(request, MHD_HTTP_TOO_MANY_REQUESTS, DP_BUSY,
                          "other requests are taking all room for bodies; try again in a moment");
    } else if (request->route->handler == NULL) {
        answer_page(request);
    } else {
        start_call(request);
    }
    if (request->response != NULL) {
        return dp_rest_answer_queue(request);
    }
    dp_rest_suspend(request);
    return MHD_YES;
}

enum MHD_Result dp_rest_on_request(void *context, struct MHD_Connection *mhd, const char *url,
                                   const char *method, const char *version, const char *data,
                                   size_t *data_size, void **context_of_request)
{
    (void)context;
    (void)mhd;
    (void)url;
    (void)version;
    struct rest_request *request = *context_of_request;
    if (request->left) {
        return MHD_NO;
    }
    if (!request->begun) {
        return begin(request, method);
    }
    if (*data_size > 0) {
        take_body(request, data, *data_size);
        *data_size = 0;
        return MHD_YES;
    }
    return request->response != NULL ? dp_rest_answer_queue(request) : complete(request);
}

void dp_rest_on_completed(void *context, struct MHD_Connection *mhd, void **context_of_request,
                          enum MHD_RequestTerminationCode code)
{
    (void)mhd;
    struct dp_rest_server *server = context;
    struct rest_request *request = *context_of_request;
    if (request == NULL) {
        return;
    }
    bool cancelled = code != MHD_REQUEST_TERMINATED_COMPLETED_OK || request->response == NULL;
    dp_rest_call_over(request, cancelled);
    if (request->id != 0) {
        HASH_DELETE(hh, server->calls, request);
    }
    if (request->response != NULL && !request->queued) {
        MHD_destroy_response(request->response);
    }
    request->connection->request = NULL;
    request->connection->deadline_ns = dp_rest_now_ns() + server->headers_ns;
    drop_body(request);
    dp_buf_deinit(&request->queue);
    dp_rest_uri_deinit(&request->uri);
    free(request);
    *context_of_request = NULL;
}
