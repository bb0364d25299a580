#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "server.h"

void dp_rest_routes_make(struct dp_rest_server *server)
{
    server->routes =
        dp_new_array(struct rest_route, server->handlers_count + server->pages_count + 1);
    for (size_t i = 0; i < server->handlers_count; i++) {
        const struct dp_rest_handler *handler = &server->handlers[i];
        const struct dp_method *method = &dp_methods[handler->method];
        if (method->http_verb != NULL) {
            DP_CHECK(!method->client_streaming);
            server->routes[server->routes_count++] = (struct rest_route){
                .verb = method->http_verb, .path = method->http_path, .handler = handler};
        }
    }
    for (size_t i = 0; i < server->pages_count; i++) {
        server->routes[server->routes_count++] = (struct rest_route){
            .verb = "GET", .path = server->pages[i].path, .page = &server->pages[i]};
    }
    server->routes[server->routes_count++] =
        (struct rest_route){.verb = "GET", .path = "/openapi.json"};
}

// How many segments are the template's own words; -1 when the path is not of it.
static int match(const char *template, const struct rest_uri *uri)
{
    int words = 0;
    size_t count = 0;
    for (const char *at = template; *at == '/'; count++) {
        size_t length = strcspn(at + 1, "/");
        if (count == uri->segments_count) {
            return -1;
        }
        const char *segment = uri->segments[count];
        if (at[1] == '{') {
            if (segment[0] == '\0') {
                return -1;
            }
        } else if (strlen(segment) == length && memcmp(segment, at + 1, length) == 0) {
            words++;
        } else {
            return -1;
        }
        at += 1 + length;
    }
    return count == uri->segments_count ? words : -1;
}

static void allow(struct dp_buf *allowed, const char *verb)
{
    dp_buf_printf(allowed, "%s%s", allowed->length > 0 ? ", " : "", verb);
    if (strcmp(verb, "GET") == 0) {
        dp_buf_puts(allowed, ", HEAD");
    }
}

const struct rest_route *dp_rest_route_find(const struct dp_rest_server *server, const char *verb,
                                            const struct rest_uri *uri, struct dp_buf *allowed)
{
    const struct rest_route *found = NULL;
    int best = -1;
    for (size_t i = 0; i < server->routes_count; i++) {
        const struct rest_route *route = &server->routes[i];
        int words = match(route->path, uri);
        if (words < 0) {
            continue;
        }
        allow(allowed, route->verb);
        if (words > best && strcmp(route->verb, verb) == 0) {
            best = words;
            found = route;
        }
    }
    if (allowed->length > 0) {
        dp_buf_puts(allowed, ", OPTIONS");
    }
    return found;
}

void dp_rest_routes_list(const struct dp_rest_server *server, struct dp_buf *out)
{
    for (size_t i = 0; i < server->routes_count; i++) {
        dp_buf_printf(out, "%s%s %s", i > 0 ? ", " : "", server->routes[i].verb,
                      server->routes[i].path);
    }
}
