// RDMA hardware in this process: devices whose queue pairs reach each other through memory, as a
// dp_verbs_library. It keeps to the specification of reliable connections and promises no more:
// plain writes are acknowledged before they are in memory, and placed in any order up to the next
// write with immediate data on the same queue pair, whose completion comes after all of them (or
// until the queue pair fails); queue pairs are served in any order; the source is read when the
// request is served, not when it is posted.
//
// It also looks at its user: queue pairs posted to by two threads at once, regions given back while
// a request needs them, objects given back in the wrong order or not at all are counted as
// violations.
#pragma once

#include "dp/verbs.h"
#include "dp/verbs_library.h"

#define FAKE_DEVICES_MAX 8
#define FAKE_GIDS 4

// "One in so many", by a sequence that the seed decides; 0 = never.
struct fake_faults {
    uint64_t seed;
    int64_t delay_us_max;      // of each request
    uint32_t lose_one_in;      // never arrives: transport retry counter exceeded
    uint32_t duplicate_one_in; // a note completes twice, the second time now or some notes later
    uint32_t not_ready_one_in; // the receiver is not ready at first
    uint32_t not_ready_for_good_one_in; // receiver-not-ready retry counter exceeded
    uint32_t flush_one_in;              // the queue pair fails by itself
    // A note is overtaken by the next request of its queue pair (against the rules).
    uint32_t swap_one_in;
    uint32_t unkept_one_in; // is acknowledged, then lost with its queue pair (against the rules)
    uint32_t stale_one_in;  // on a new queue pair, a note is told before what it announces
    int64_t bad_key_after;  // the key of that plain write is wrong; 0 = never
    int64_t count_max;      // of lose, flush, swap, unkept and not ready for good; 0 = any number
};

struct fake_device {
    enum ibv_mtu mtu;              // 0 = 1024
    bool is_infiniband;            // else Ethernet
    bool is_down;                  // its port is
    uint64_t max_mr_size;          // 0 = any
    uint32_t inline_max;           // + 1; 0 = 64
    struct dp_gid gids[FAKE_GIDS]; // all zero = a RoCE v2 one of its own at index 1
};

// One at a time. Devices are called "fake0" on; the array is copied.
void fake_verbs_start(const struct fake_faults *faults, const struct fake_device *devices,
                      int count);
struct fake_verbs_counts {
    uint64_t lost, duplicated, not_ready, flushed, swapped, unkept, stale, overtaken;
    uint64_t violations;
    char violation[128]; // the first
};
// All transports must have been freed: what is left over counts as a violation.
void fake_verbs_stop(struct fake_verbs_counts *ret_counts);
// Also after the end.
void fake_verbs_counts(struct fake_verbs_counts *ret_counts);
bool fake_verbs_is_running(void);
extern const struct dp_verbs_library fake_verbs_library;

// From now on.
void fake_verbs_set_faults(const struct fake_faults *faults);
// Takes the device off the network, as if its machine had lost power, or puts it back.
void fake_verbs_unplug(int device, bool is_off);
void fake_verbs_raise(int device, enum ibv_event_type event);
// Queue pairs made so far, over all devices; for how often somebody tried.
uint64_t fake_verbs_queues_made(void);
// Times on the monotonic clock at which queue pairs were made, the newest last; returns how many.
int fake_verbs_made_at(int64_t *ret_times, int most);
