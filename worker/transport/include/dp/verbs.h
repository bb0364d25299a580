// Ranks joined by RDMA (InfiniBand, RoCE): a transport whose puts are RDMA writes into the peer's
// registered window, and whose messages are RDMA writes into slots that the peer has set aside.
//
// Every pair of ranks has a tcp connection, over which they agree on queue pairs and say goodbye,
// and two reliable queue pairs, one for messages and one for windows, so that neither holds up the
// other; nothing relies on an order between them. A put is any number of plain writes, then one
// write with immediate data that brings the put's description into the next entry of a table at the
// receiver; its completion there, never a flag in memory, says that all of it is in place. A sender
// has as many entries in flight as the table holds; they are given back in bulk.
//
// When a queue pair fails, both are drained and destroyed, and a new pair is made under the next
// epoch; what the peer has not got is written again. A link that fails again and again at the same
// place, or in a way that would only repeat, is closed: DP_UNAVAILABLE names the peer and the
// completion status in words.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/error.h"
#include "dp/transport.h"

struct dp_verbs_library;

// Zero means the default for every member.
struct dp_verbs_config {
    const struct dp_verbs_library *library; // NULL = the machine's, dp_verbs_library()
    const char *device;                     // name; NULL = the first that has an active port
    int port;                               // 0 = the device's first active one
    int gid_index;                          // index + 1; 0 = dp_verbs_choose_gid
    uint32_t depth;       // entries in flight for each queue pair, a power of two; 64
    size_t slot_bytes;    // payload of one piece of a message; 16 KiB
    size_t staging_bytes; // for each queue pair, what is copied and not yet acknowledged; 512 KiB
    int timeout;          // exponent: 4.096 us * 2^timeout for each of 8 tries; 17 = 0.5 s
    int attempts_max;     // new queue pairs at the same place before a link is given up; 5
    int64_t backoff_ms;   // before the second attempt; doubles; 50
    int64_t attempt_ms;   // an attempt that takes longer has failed; 10 000
    int64_t drain_ms;     // queue pairs that have not flushed by then are destroyed as they are;
                          // 1000
};

// As dp_transport_tcp_listen; DP_UNAVAILABLE when there is no library, device, active port or
// usable GID, naming what is missing.
dp_status dp_transport_verbs_listen(const char *host, int32_t rank, int32_t world, uint64_t token,
                                    const struct dp_verbs_config *config, char *ret_address,
                                    struct dp_transport **ret_transport, struct dp_error *err);

struct dp_verbs_stats {
    uint64_t reconnects;     // epochs begun after the first
    uint64_t late;           // completions and notes of an old epoch that were ignored
    uint64_t duplicates;     // notes that came again
    uint64_t grants;         // credits given back in writes of their own
    uint64_t requests;       // work requests posted
    uint64_t signalled;      // of these with a completion
    uint64_t zero_copy;      // put parts that were written from where they lay
    uint32_t in_flight_peak; // entries of a queue pair that had not been given back
    uint32_t mtu;            // bytes; the smallest agreed
};
// Any thread. Of a transport of another kind all zero.
void dp_verbs_stats(struct dp_transport *transport, struct dp_verbs_stats *ret_stats);

typedef enum dp_gid_type {
    DP_GID_UNREADABLE = 0, // neither address nor type can be had: not mapped into this container
    DP_GID_IB,
    DP_GID_ROCE_V1,
    DP_GID_ROCE_V2
} dp_gid_type;

struct dp_gid {
    unsigned char bytes[16];
    dp_gid_type type;
};

// Which entry of a port's table a queue pair is to use; -1 = none can be.
// InfiniBand: entry 1 where it carries a routable subnet (bytes 4 and 5 not zero), else entry 0.
// Ethernet: readable entries that are not all zero, by the best of: RoCE v2 before v1; then an IPv4
// address, an IPv6 address, a link-local one; then the lowest index.
int dp_verbs_choose_gid(bool is_ethernet, const struct dp_gid *gids, int count);
