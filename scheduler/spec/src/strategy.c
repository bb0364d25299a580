// Names of the choices of a strategy.

#include "dp/strategy.h"

#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/diag.h"

static const char *const format_names[] = {"auto",      "fp32",  "bf16",  "fp8",
                                           "fp8-block", "mxfp8", "nvfp4", NULL};
static const char *const shard_names[] = {"auto", "none", "zero1", "fsdp", NULL};

const char *dp_format_text(dp_format format)
{
    return format_names[format];
}

const char *dp_shard_text(dp_shard shard)
{
    return shard_names[shard];
}

static dp_status parse_name(const char *what, const char *text, const char *const *names,
                            int *ret_index, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf list = {0};
    for (int i = 0; names[i] != NULL; i++) {
        if (strcmp(names[i], text) == 0) {
            *ret_index = i;
            return DP_OK;
        }
        dp_buf_printf(&list, "%s%s", i == 0 ? "" : ", ", names[i]);
    }
    const char *near = dp_suggest(text, names);
    return dp_fail(err, DP_INVALID, "no %s is called \"%s\"; %s%s%s they are %s", what, text,
                   near == NULL ? "" : "did you mean \"", near == NULL ? "" : near,
                   near == NULL ? "" : "\"?", list.bytes);
}

dp_status dp_format_parse(const char *text, dp_format *ret_format, struct dp_error *err)
{
    int index = 0;
    dp_status status = parse_name("precision", text, format_names, &index, err);
    if (status == DP_OK) {
        *ret_format = (dp_format)index;
    }
    return status;
}

dp_status dp_shard_parse(const char *text, dp_shard *ret_shard, struct dp_error *err)
{
    int index = 0;
    dp_status status = parse_name("way to shard", text, shard_names, &index, err);
    if (status == DP_OK) {
        *ret_shard = (dp_shard)index;
    }
    return status;
}

static const char *const recompute_names[] = {
    "norm", "up", "activation", "attention", "experts", "full", "selective", "none", NULL};
static const uint32_t recompute_bits[] = {
    DP_RECOMPUTE_NORM,    DP_RECOMPUTE_UP,   DP_RECOMPUTE_ACTIVATION, DP_RECOMPUTE_ATTENTION,
    DP_RECOMPUTE_EXPERTS, DP_RECOMPUTE_FULL, DP_RECOMPUTE_ATTENTION,  0,
};
enum { RECOMPUTE_BITS = 6 }; // the first names have a bit of their own

void dp_recompute_text(uint32_t recompute, char ret_text[DP_NAME_MAX])
{
    size_t used = 0;
    snprintf(ret_text, DP_NAME_MAX, "%s", recompute == 0 ? "none" : "");
    for (size_t i = 0; i < RECOMPUTE_BITS; i++) {
        if ((recompute & recompute_bits[i]) != 0) {
            used += (size_t)snprintf(ret_text + used, DP_NAME_MAX - used, "%s%s",
                                     used == 0 ? "" : "+", recompute_names[i]);
        }
    }
}

dp_status dp_recompute_parse(const char *text, uint32_t *ret_recompute, struct dp_error *err)
{
    uint32_t recompute = 0;
    int words = 0;
    bool alone = false;
    for (const char *at = text;; words++) {
        size_t length = strcspn(at, "+,");
        DP_AUTO_FREE char *word = dp_strndup(at, length);
        int index = 0;
        dp_status status = parse_name("part to recompute", word, recompute_names, &index, err);
        if (status != DP_OK) {
            return status;
        }
        recompute |= recompute_bits[index];
        alone = alone || recompute_bits[index] == 0 || recompute_bits[index] == DP_RECOMPUTE_FULL;
        if (at[length] == '\0') {
            break;
        }
        at += length + 1;
    }
    if (alone && words > 0) {
        return dp_fail(err, DP_INVALID, "recompute \"%s\": none and full stand alone", text);
    }
    *ret_recompute = recompute;
    return DP_OK;
}
