// UTF-8 as RFC 3629 has it: no long forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <stdbool.h>
#include <stddef.h>

// Bytes of the character that starts at `text`, or 0 when there is none within `left` bytes.
size_t dp_utf8_length(const void *text, size_t left);
bool dp_utf8_valid(const void *text, size_t length);
// The longest whole number of characters within `max` bytes of valid text; for cutting.
size_t dp_utf8_cut(const void *text, size_t length, size_t max);
