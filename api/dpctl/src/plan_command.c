// The command that asks for a plan's very strategy.

#include <string.h>

#include "dp/check.h"
#include "plan_request.h"

void plan_quote(const char *text, struct dp_buf *out)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-+=./:,@%";
    if (text[0] != '\0' && text[strspn(text, plain)] == '\0') {
        dp_buf_puts(out, text);
        return;
    }
    dp_buf_puts(out, "'");
    for (; *text != '\0'; text++) {
        dp_buf_printf(out, *text == '\'' ? "'\\''" : "%c", *text);
    }
    dp_buf_puts(out, "'");
}

static void put_option(const char *name, const char *value, struct dp_buf *out)
{
    if (value != NULL) {
        dp_buf_printf(out, " %s ", name);
        plan_quote(value, out);
    }
}

static void put_number(const char *name, int32_t value, struct dp_buf *out)
{
    if (value > 0) {
        dp_buf_printf(out, " %s %d", name, value);
    }
}

// Whether an assignment is about what put_strategy says anyway.
static bool is_pinned(const char *assignment, const struct dp_plan *plan)
{
    static const char *const keys[] = {
        "pipeline",      "data",    "expert",       "tensor",           "context",
        "expert_tensor", "virtual", "microbatches", "micro_batch_size", "schedule",
        "precision",     "shard",   "recompute"};
    // CPU and sim ranks have no choice of the last three.
    size_t count = DP_ARRAY_LENGTH(keys) - (plan->shard == DP_SHARD_AUTO ? 3 : 0);
    size_t length = strcspn(assignment, " =");
    for (size_t i = 0; i < count; i++) {
        if (strlen(keys[i]) == length && strncmp(keys[i], assignment, length) == 0) {
            return true;
        }
    }
    return false;
}

static void put_strategy(const struct dp_plan *plan, struct dp_buf *out)
{
    const struct {
        const char *name;
        int32_t value;
    } sizes[] = {{"pipeline", plan->pipeline},
                 {"data", plan->data},
                 {"expert", plan->expert},
                 {"tensor", plan->tensor > 1 ? plan->tensor : 0},
                 {"context", plan->context > 1 ? plan->context : 0},
                 {"expert_tensor", plan->expert_tensor > 1 ? plan->expert_tensor : 0},
                 {"virtual", plan->virtual_stages},
                 {"micro_batch_size", plan->micro_batch_size}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(sizes); i++) {
        if (sizes[i].value > 0) {
            dp_buf_printf(out, " --set %s=%d", sizes[i].name, sizes[i].value);
        }
    }
    dp_buf_printf(out, " --set schedule=%s", plan->schedule);
    if (plan->format != DP_FORMAT_AUTO) {
        dp_buf_printf(out, " --set precision=%s", dp_format_text(plan->format));
    }
    if (plan->shard != DP_SHARD_AUTO) {
        char recompute[DP_NAME_MAX];
        dp_recompute_text(plan->recompute, recompute);
        dp_buf_printf(out, " --set shard=%s --set recompute=%s", dp_shard_text(plan->shard),
                      recompute);
    }
}

void plan_command(const struct plan_request *request, const struct dp_plan *plan,
                  struct dp_buf *out)
{
    dp_buf_puts(out, "dpctl plan");
    if (request->file != NULL) {
        dp_buf_puts(out, " ");
        plan_quote(request->file, out);
    }
    put_option("--model", request->model, out);
    put_option("--gpu", request->gpu, out);
    put_number("--gpus", request->gpus, out);
    put_option("--cluster", request->cluster, out);
    put_option("--profile", request->profile, out);
    put_number("--global-batch", request->global_batch, out);
    put_number("--seq-len", request->sequence, out);
    dp_buf_puts(out, request->ignore_memory ? " --ignore-memory" : "");
    for (int i = 0; i < request->sets.count; i++) {
        if (!is_pinned(request->sets.items[i], plan)) {
            put_option("--set", request->sets.items[i], out);
        }
    }
    put_strategy(plan, out);
}
