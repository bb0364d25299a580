// What a new measurement changed.

#include <math.h>
#include <string.h>

#include "calibrate.h"
#include "dp/profile.h"

// What two measurements of one machine differ by for no reason, among eight that were made while
// other programs had its cores (docs/calibration.md): the largest difference of figures that are
// timed by a thread's own CPU time, the median one of those that wait for other threads.
#define COMPUTE_NOISE 0.06
#define LINK_NOISE 0.5

struct figure {
    char name[24];
    const char *unit;
    double scale; // to the unit
    double before, after;
    double noise;
};

enum { FIGURES = 9 + DP_PROFILE_EXCHANGES_MAX };

// Returns how many there are.
static int figures_of(const struct dp_profile *b, const struct dp_profile *a,
                      struct figure ret_figures[FIGURES])
{
    const struct figure figures[] = {
        {"products", "GFLOP/s", 1e-9, b->gemm_flops_per_s, a->gemm_flops_per_s, COMPUTE_NOISE},
        {"attention", "GFLOP/s", 1e-9, b->attention_flops_per_s, a->attention_flops_per_s,
         COMPUTE_NOISE},
        {"attention's gradient", "GFLOP/s", 1e-9, b->attention_gradient_flops_per_s,
         a->attention_gradient_flops_per_s, COMPUTE_NOISE},
        {"memory", "GB/s", 1e-9, b->memory_bytes_per_s, a->memory_bytes_per_s, COMPUTE_NOISE},
        {"optimizer", "GB/s", 1e-9, b->optimizer_bytes_per_s, a->optimizer_bytes_per_s,
         COMPUTE_NOISE},
        {"hop, latency", "us", 1e6, b->local.latency_s, a->local.latency_s, LINK_NOISE},
        {"hop, rate", "GB/s", 1e-9, b->local.bytes_per_s, a->local.bytes_per_s, LINK_NOISE},
        {"sums", "GB/s", 1e-9, b->local.sum_bytes_per_s, a->local.sum_bytes_per_s, LINK_NOISE},
        {"slower when busy", "x", 1, b->busy_slowdown, a->busy_slowdown, COMPUTE_NOISE},
    };
    int count = sizeof figures / sizeof figures[0];
    memcpy(ret_figures, figures, sizeof figures);
    for (size_t i = 0; i < a->exchanges_count; i++) {
        struct figure *figure = &ret_figures[count++];
        bool same = i < b->exchanges_count && b->exchanges[i].ranks == a->exchanges[i].ranks;
        *figure = (struct figure){.unit = "GB/s",
                                  .scale = 1e-9,
                                  .before = same ? b->exchanges[i].bytes_per_s : 0,
                                  .after = a->exchanges[i].bytes_per_s,
                                  .noise = LINK_NOISE};
        snprintf(figure->name, sizeof figure->name, "all-to-all of %d", a->exchanges[i].ranks);
    }
    return count;
}

static bool is_noise(const struct figure *figure)
{
    return figure->before > 0 && fabs(log(figure->after / figure->before)) < log(1 + figure->noise);
}

void calibrate_render_changes(const struct dp_profile *before, const struct dp_profile *after,
                              struct dp_buf *out)
{
    struct figure figures[FIGURES];
    const struct dp_profile nothing = {.name = ""};
    int count = figures_of(before == NULL ? &nothing : before, after, figures);
    for (int i = 0; i < count; i++) {
        const struct figure *f = &figures[i];
        dp_buf_printf(out, "  %-22s", f->name);
        if (f->before > 0) {
            dp_buf_printf(out, "%10.4g ->%10.4g %-8s %+.1f %%%s\n", f->scale * f->before,
                          f->scale * f->after, f->unit, 100 * (f->after / f->before - 1),
                          is_noise(f) ? " (noise)" : "");
        } else {
            dp_buf_printf(out, "%10.4g %s\n", f->scale * f->after, f->unit);
        }
    }
}

json_t *calibrate_changes_json(const struct dp_profile *before, const struct dp_profile *after)
{
    struct figure figures[FIGURES];
    const struct dp_profile nothing = {.name = ""};
    json_t *list = json_array();
    int count = figures_of(before == NULL ? &nothing : before, after, figures);
    for (int i = 0; i < count; i++) {
        const struct figure *f = &figures[i];
        json_t *item = json_pack("{s:s, s:s, s:f, s:b}", "figure", f->name, "unit", f->unit,
                                 "after", f->scale * f->after, "noise", is_noise(f));
        if (f->before > 0) {
            json_object_set_new(item, "before", json_real(f->scale * f->before));
        }
        json_array_append_new(list, item);
    }
    return list;
}
