// What is known of a corpus from having read it.
#pragma once

#include "files.h"

struct token_scan {
    uint64_t hash;
    double entropy; // nats per token
};

// Reads all tokens, or evenly spaced parts of very many, and so checks them.
dp_status dp_token_files_scan(const struct token_files *files, int32_t vocabulary,
                              struct token_scan *ret_scan, struct dp_error *err);
