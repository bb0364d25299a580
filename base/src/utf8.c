#include "dp/utf8.h"

#include <string.h>

size_t dp_utf8_length(const void *text, size_t left)
{
    const unsigned char *at = text;
    if (left == 0) {
        return 0;
    }
    unsigned char c = at[0];
    size_t length = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    if (length == 0 || length > left) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    bool wrong = (c == 0xe0 && at[1] < 0xa0) || (c == 0xed && at[1] > 0x9f) ||
                 (c == 0xf0 && at[1] < 0x90) || (c == 0xf4 && at[1] > 0x8f);
    return wrong ? 0 : length;
}

bool dp_utf8_valid(const void *text, size_t length)
{
    const unsigned char *at = text;
    for (size_t i = 0; i < length;) {
        size_t step = dp_utf8_length(at + i, length - i);
        if (step == 0) {
            return false;
        }
        i += step;
    }
    return true;
}

size_t dp_utf8_cut(const void *text, size_t length, size_t max)
{
    const unsigned char *at = text;
    if (length <= max) {
        return length;
    }
    while (max > 0 && (at[max] & 0xc0) == 0x80) {
        max--;
    }
    return max;
}

size_t dp_utf8_mark(const void *text, size_t length)
{
    return length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

// The bytes at the start that must not be printed; 0 = a good character is there, of *ret_good.
static size_t bad_bytes(const char *text, size_t left, const char *kept, size_t *ret_good)
{
    unsigned char c = (unsigned char)text[0];
    *ret_good = dp_utf8_length(text, left);
    if (*ret_good == 0) {
        return 1;
    }
    bool is_c0 = c == 127 || (c < ' ' && (c == '\0' || strchr(kept, c) == NULL));
    bool is_c1 = c == 0xc2 && (unsigned char)text[1] < 0xa0;
    return is_c0 || is_c1 ? *ret_good : 0;
}

void dp_utf8_clean(char *text, size_t length, const char *kept)
{
    for (size_t at = 0; at < length;) {
        size_t good;
        size_t bad = bad_bytes(text + at, length - at, kept, &good);
        memset(text + at, '?', bad);
        at += bad > 0 ? bad : good;
    }
}

bool dp_utf8_is_clean(const char *text, size_t length, const char *kept)
{
    size_t good = 0;
    for (size_t at = 0; at < length; at += good) {
        if (bad_bytes(text + at, length - at, kept, &good) > 0) {
            return false;
        }
    }
    return true;
}
