// A fuzz target is one function that takes any bytes. It must not crash, leak, run for long or take
// much memory, and what it accepts must hold what its reader promises: a broken promise ends it by
// DP_CHECK. libFuzzer calls it (preset fuzz); replay.c calls it with the files of a corpus.
#pragma once

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
