#include "base64.h"

#include <string.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void dp_base64_encode(const uint8_t *bytes, size_t length, struct dp_buf *out)
{
    for (size_t at = 0; at < length; at += 3) {
        size_t have = length - at < 3 ? length - at : 3;
        uint32_t bits = (uint32_t)bytes[at] << 16;
        bits |= have > 1 ? (uint32_t)bytes[at + 1] << 8 : 0;
        bits |= have > 2 ? (uint32_t)bytes[at + 2] : 0;
        char *quad = dp_buf_extend(out, 4);
        for (size_t i = 0; i < 4; i++) {
            quad[i] = i <= have ? alphabet[bits >> (18 - 6 * i) & 63] : '=';
        }
    }
}

static bool decode_quad(const char *quad, bool last, struct dp_buf *out)
{
    size_t padding = 0;
    uint32_t bits = 0;
    for (size_t i = 0; i < 4; i++) {
        const char *found = quad[i] == '\0' ? NULL : strchr(alphabet, quad[i]);
        if (found == NULL && quad[i] == '=' && last && i >= 2) {
            padding++;
            bits <<= 6;
            continue;
        }
        if (found == NULL || padding > 0) {
            return false;
        }
        bits = bits << 6 | (uint32_t)(found - alphabet);
    }
    uint8_t bytes[3] = {(uint8_t)(bits >> 16), (uint8_t)(bits >> 8), (uint8_t)bits};
    dp_buf_append(out, bytes, 3 - padding);
    return true;
}

bool dp_base64_decode(const char *text, size_t length, struct dp_buf *out)
{
    if (length % 4 != 0) {
        return false;
    }
    for (size_t at = 0; at < length; at += 4) {
        if (!decode_quad(text + at, at + 4 == length, out)) {
            return false;
        }
    }
    return true;
}
