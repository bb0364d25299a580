#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dp/check.h"
#include "dp/cleanup.h"
#include "server.h"

// "127.0.0.1:8080", "[::1]:8080", "localhost:8080".
static dp_status split(const char *address, char *ret_host, size_t size, uint16_t *ret_port,
                       struct dp_error *err)
{
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    unsigned long port = colon == NULL ? 0 : strtoul(colon + 1, &end, 10);
    bool is_number = colon != NULL && colon[1] >= '0' && colon[1] <= '9' && *end == '\0';
    size_t length = colon == NULL ? 0 : (size_t)(colon - address);
    if (!is_number || port > UINT16_MAX || length == 0 || length >= size) {
        return dp_fail(err, DP_INVALID, "\"%s\" is no HOST:PORT, such as 127.0.0.1:8080", address);
    }
    memcpy(ret_host, address, length);
    ret_host[length] = '\0';
    if (ret_host[0] == '[' && ret_host[length - 1] == ']') {
        memmove(ret_host, ret_host + 1, length - 2);
        ret_host[length - 2] = '\0';
    }
    *ret_port = (uint16_t)port;
    return DP_OK;
}

static dp_status resolve(const char *address, const char *host, uint16_t port,
                         struct sockaddr_storage *ret_storage, struct dp_error *err)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    const char *number = strcmp(host, "localhost") == 0 ? "127.0.0.1" : host;
    bool is_loopback = false;
    *ret_storage = (struct sockaddr_storage){0};
    if (inet_pton(AF_INET, number, &v4.sin_addr) == 1) {
        is_loopback = ntohl(v4.sin_addr.s_addr) >> 24 == 127;
        memcpy(ret_storage, &v4, sizeof v4);
    } else if (inet_pton(AF_INET6, number, &v6.sin6_addr) == 1) {
        is_loopback = IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
        memcpy(ret_storage, &v6, sizeof v6);
    } else {
        return dp_fail(err, DP_INVALID,
                       "\"%s\" is no address to listen on; give a number, such as 127.0.0.1:8080",
                       address);
    }
    return is_loopback ? DP_OK
                       : dp_fail(err, DP_DENIED,
                                 "HTTP is served without asking who calls, so on loopback only: "
                                 "listen on 127.0.0.1 or [::1], not on %s",
                                 host);
}

static void print(const struct sockaddr_storage *storage, char *ret_text, size_t size)
{
    char number[INET6_ADDRSTRLEN] = "";
    if (storage->ss_family == AF_INET6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, storage, sizeof v6);
        inet_ntop(AF_INET6, &v6.sin6_addr, number, sizeof number);
        snprintf(ret_text, size, "[%s]:%u", number, (unsigned)ntohs(v6.sin6_port));
    } else {
        struct sockaddr_in v4;
        memcpy(&v4, storage, sizeof v4);
        inet_ntop(AF_INET, &v4.sin_addr, number, sizeof number);
        snprintf(ret_text, size, "%s:%u", number, (unsigned)ntohs(v4.sin_port));
    }
}

dp_status dp_rest_listen(const char *address, int *ret_fd, bool *ret_is_ipv6, char *ret_text,
                         size_t size, struct dp_error *err)
{
    char host[DP_ADDRESS_MAX];
    uint16_t port = 0;
    struct sockaddr_storage storage;
    dp_status status = split(address, host, sizeof host, &port, err);
    if (status == DP_OK) {
        status = resolve(address, host, port, &storage, err);
    }
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_CLOSE int fd = socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    // A port whose last user is gone may be had at once; one that is in use may not.
    int on = 1;
    socklen_t length = sizeof storage;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, (struct sockaddr *)&storage, length) != 0 || listen(fd, SOMAXCONN) != 0 ||
        getsockname(fd, (struct sockaddr *)&storage, &length) != 0) {
        return dp_fail_errno(err, errno, "cannot serve HTTP on %s", address);
    }
    print(&storage, ret_text, size);
    *ret_is_ipv6 = storage.ss_family == AF_INET6;
    *ret_fd = dp_steal_fd(&fd);
    return DP_OK;
}
