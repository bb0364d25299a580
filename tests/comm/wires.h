// Ranks that are threads of one process in network namespaces of their own, each pair joined by a
// veth pair that lets so many bytes a second through (tc tbf). Needs root, and iproute2.
//
// Namespaces and links have no names: they are gone with the process, however it ends.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define WIRES_RANKS_MAX 8

struct wires {
    int32_t ranks;
    int home;                    // the namespace that the process began in
    int places[WIRES_RANKS_MAX]; // of each rank
};

// bytes_per_second of frames, in each direction of each pair; 0 = as fast as it goes. NULL, or why
// the machine does not allow it.
const char *wires_open(struct wires *wires, int32_t ranks, double bytes_per_second);
void wires_close(struct wires *wires);
// The calling thread, and threads that it starts, are in the rank's place until it goes home.
void wires_enter(const struct wires *wires, int32_t rank);
void wires_go_home(const struct wires *wires);
// Address of the rank.
#define WIRES_HOST_MAX 16
const char *wires_host(int32_t rank, char *buffer);
// What has left the rank's place by its links, with all headers.
uint64_t wires_sent_bytes(const struct wires *wires, int32_t rank);
