// Base64 as in RFC 4648 section 4, with padding.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/buf.h"

void dp_base64_encode(const uint8_t *bytes, size_t length, struct dp_buf *out);
// False when the text is not base64; `out` then holds part of it.
bool dp_base64_decode(const char *text, size_t length, struct dp_buf *out);
