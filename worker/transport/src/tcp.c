// Ranks over tcp; what is of tcp alone: names and ports.
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "stream.h"

dp_status dp_tcp_resolve(const char *address, struct sockaddr_storage *ret_address,
                         socklen_t *ret_length, struct dp_error *err)
{
    char host[DP_ADDRESS_MAX];
    const char *colon = strrchr(address, ':');
    if (colon == NULL || !DP_COPY_TEXT(host, address)) {
        return dp_fail(err, DP_INVALID, "\"%s\" is not host:port", address);
    }
    host[colon - address] = '\0';
    char *name = host;
    size_t length = strlen(host);
    if (length >= 2 && host[0] == '[' && host[length - 1] == ']') {
        host[length - 1] = '\0';
        name = host + 1;
    }
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *info;
    int failed = getaddrinfo(name, colon + 1, &hints, &info);
    if (failed != 0) {
        return dp_fail(err, DP_UNAVAILABLE, "cannot resolve %s: %s", address, gai_strerror(failed));
    }
    memcpy(ret_address, info->ai_addr, info->ai_addrlen);
    *ret_length = info->ai_addrlen;
    freeaddrinfo(info);
    return DP_OK;
}

dp_status dp_tcp_listen(const char *host, char *ret_address, int *ret_fd, struct dp_error *err)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *info;
    int failed = getaddrinfo(host, "0", &hints, &info);
    if (failed != 0) {
        return dp_fail(err, DP_INVALID, "cannot resolve the data host %s: %s", host,
                       gai_strerror(failed));
    }
    DP_AUTO_CLOSE int fd =
        socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    bool is_bound =
        fd >= 0 && bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0;
    int errnum = errno;
    bool is_v6 = info->ai_family == AF_INET6;
    freeaddrinfo(info);
    if (!is_bound) {
        return dp_fail_errno(err, errnum, "cannot listen on %s", host);
    }
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } bound = {0};
    socklen_t length = sizeof bound;
    if (getsockname(fd, &bound.any, &length) != 0) {
        return dp_fail_errno(err, errno, "cannot tell the port on %s", host);
    }
    unsigned port = ntohs(is_v6 ? bound.v6.sin6_port : bound.v4.sin_port);
    int used = snprintf(ret_address, DP_ADDRESS_MAX, is_v6 ? "[%s]:%u" : "%s:%u", host, port);
    if (used >= DP_ADDRESS_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "the data host %s is too long a name", host);
    }
    *ret_fd = dp_steal_fd(&fd);
    return DP_OK;
}

const struct dp_transport_ops dp_tcp_ops = {
    .attributes = {.name = "tcp",
                   .bandwidth = 2e9,
                   .latency_s = 3e-5,
                   .message_bytes_max = DP_TRANSPORT_BYTES_MAX},
    .connect = dp_socket_connect,
    .send = dp_socket_send,
    .resume = dp_socket_resume,
    .cut = dp_socket_cut,
    .aborted = dp_socket_aborted,
    .progress = dp_socket_progress,
    .put = dp_socket_put,
    .close = dp_socket_close,
    .free = dp_socket_free,
};

dp_status dp_transport_tcp_listen(const char *host, int32_t rank, int32_t world, uint64_t token,
                                  char *ret_address, struct dp_transport **ret_transport,
                                  struct dp_error *err)
{
    dp_status status = dp_transport_check_world(rank, world, err);
    int listen_fd = -1;
    struct stream *stream = NULL;
    if (status == DP_OK) {
        status = dp_tcp_listen(host, ret_address, &listen_fd, err);
    }
    if (status == DP_OK) {
        status = dp_socket_new(&dp_tcp_ops, rank, world, token, listen_fd, &stream, err);
    }
    if (status == DP_OK) {
        *ret_transport = &stream->base;
    }
    return status;
}
