#include "address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

static dp_status parse_unix(const char *text, struct rpc_address *address, struct dp_error *err)
{
    const char *path = text + strlen("unix:");
    struct sockaddr_un limit;
    if (path[0] == '\0' || strlen(path) >= sizeof limit.sun_path) {
        return dp_fail(err, DP_INVALID, "address \"%s\": a socket path has 1 to %zu bytes", text,
                       sizeof limit.sun_path - 1);
    }
    address->is_unix = true;
    DP_COPY_TEXT(address->host, path);
    DP_COPY_TEXT(address->target, text);
    return DP_OK;
}

static dp_status parse_port(const char *text, const char *digits, unsigned least,
                            unsigned *ret_port, struct dp_error *err)
{
    char *end = NULL;
    errno = 0;
    unsigned long port = strtoul(digits, &end, 10);
    if (digits[0] < '0' || digits[0] > '9' || *end != '\0' || errno != 0 || port > 65535 ||
        port < least) {
        return dp_fail(err, DP_INVALID, "address \"%s\": the port must be %u to 65535", text,
                       least);
    }
    *ret_port = (unsigned)port;
    return DP_OK;
}

dp_status dp_rpc_address_parse(const char *text, bool listening, struct rpc_address *ret_address,
                               struct dp_error *err)
{
    struct rpc_address address = {0};
    if (strlen(text) >= DP_ADDRESS_MAX) {
        return dp_fail(err, DP_INVALID, "address of %zu bytes; the limit is %d", strlen(text),
                       DP_ADDRESS_MAX - 1);
    }
    if (strncmp(text, "unix:", 5) == 0) {
        dp_status status = parse_unix(text, &address, err);
        *ret_address = status == DP_OK ? address : *ret_address;
        return status;
    }
    const char *colon = strrchr(text, ':');
    bool bracketed = text[0] == '[' && colon != NULL && colon[-1] == ']';
    size_t host_length = colon == NULL ? 0 : (size_t)(colon - text) - (bracketed ? 2 : 0);
    if (host_length == 0 || (!bracketed && memchr(text, ':', host_length) != NULL) ||
        strpbrk(text, " /@,%") != NULL) {
        return dp_fail(err, DP_INVALID,
                       "address \"%s\": expected host:port, [IPv6]:port or unix:/path", text);
    }
    memcpy(address.host, text + (bracketed ? 1 : 0), host_length);
    dp_status status = parse_port(text, colon + 1, listening ? 0 : 1, &address.port, err);
    if (status != DP_OK) {
        return status;
    }
    struct in_addr ipv4;
    const char *scheme = bracketed ? "ipv6:" : "ipv4:";
    if (!bracketed && inet_pton(AF_INET, address.host, &ipv4) != 1) {
        scheme = "dns:///";
    }
    snprintf(address.target, sizeof address.target, "%s%s", listening ? "" : scheme, text);
    *ret_address = address;
    return DP_OK;
}

void dp_rpc_address_print(const struct rpc_address *address, unsigned port, char *ret_text,
                          size_t size)
{
    if (address->is_unix) {
        snprintf(ret_text, size, "unix:%s", address->host);
    } else {
        bool ipv6 = strchr(address->host, ':') != NULL;
        snprintf(ret_text, size, ipv6 ? "[%s]:%u" : "%s:%u", address->host, port);
    }
}

// gRPC would unlink the socket of a living server, so ask whether somebody answers there.
static dp_status probe_unix(const struct rpc_address *address, struct dp_error *err)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    DP_COPY_TEXT(name.sun_path, address->host);
    DP_AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&name, sizeof name) == 0) {
        return dp_fail(err, DP_CONFLICT, "cannot listen on unix:%s: another server answers there",
                       address->host);
    }
    return DP_OK;
}

static void free_addresses(struct addrinfo **list)
{
    if (*list != NULL) {
        freeaddrinfo(*list);
    }
}

dp_status dp_rpc_address_probe(const struct rpc_address *address, struct dp_error *err)
{
    if (address->is_unix) {
        return probe_unix(address, err);
    }
    char port[16], text[DP_ADDRESS_MAX + 16];
    snprintf(port, sizeof port, "%u", address->port);
    dp_rpc_address_print(address, address->port, text, sizeof text);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    DP_CLEANUP(free_addresses) struct addrinfo *list = NULL;
    int failed = getaddrinfo(address->host, port, &hints, &list);
    if (failed != 0) {
        return dp_fail(err, DP_UNAVAILABLE, "cannot listen on %s: %s", text, gai_strerror(failed));
    }
    for (struct addrinfo *at = list; at != NULL; at = at->ai_next) {
        DP_AUTO_CLOSE int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int on = 1;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (fd < 0 || bind(fd, at->ai_addr, at->ai_addrlen) != 0 || listen(fd, 1) != 0) {
            int errnum = errno;
            return dp_fail(err, errnum == EADDRINUSE ? DP_CONFLICT : DP_UNAVAILABLE,
                           "cannot listen on %s: %s", text, strerror(errnum));
        }
    }
    return DP_OK;
}
