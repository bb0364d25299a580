// UTF-8 as RFC 3629 has it: no long forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <stdbool.h>
#include <stddef.h>

// Bytes of the character that starts at `text`, or 0 when there is none within `left` bytes.
size_t dp_utf8_length(const void *text, size_t left);
bool dp_utf8_valid(const void *text, size_t length);
// The longest whole number of characters within `max` bytes of valid text; for cutting.
size_t dp_utf8_cut(const void *text, size_t length, size_t max);
// The byte-order mark at the start of a text: 3 bytes, or 0 when there is none.
size_t dp_utf8_mark(const void *text, size_t length);
// Overwrites with "?" each byte of what a terminal might obey or could not show: control characters
// but those in `kept`, and what is no UTF-8. What was read from a file goes through here before it
// is printed.
void dp_utf8_clean(char *text, size_t length, const char *kept);
// Whether dp_utf8_clean would leave all of it.
bool dp_utf8_is_clean(const char *text, size_t length, const char *kept);
