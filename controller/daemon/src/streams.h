// Streams that people keep open (WatchJob, WatchEvents, ReadLogs), counted by where they come from:
// each costs memory for as long as it is open, so nobody may have any number of them. Those over
// HTTP are bounded by that server.
#pragma once

#include "daemon.h"

// False: there are too many, and the call is answered with what to do.
bool stream_admit(struct daemon *daemon, uint64_t call);
// The call is over, admitted or not.
void stream_leave(struct daemon *daemon, uint64_t call);
