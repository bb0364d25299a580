// Prints a drawing or a file for other tools: the subject of the golden files and of the tests that
// load our files elsewhere.
//
//     render_emit FORMAT FAMILY P M [V [F B I W FB HOP [WIDTH]]]
//
// V = 0 is the family's own number of chunks per rank; costs are the same for all stages.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "auto_costs.h"
#include "dp/auto.h"
#include "dp/check.h"
#include "dp/render.h"

struct subject {
    struct dp_schedule schedule;
    struct dp_sim_costs costs;
    struct dp_sim_result result;
    int32_t width;
};

static dp_status gantt(const struct subject *subject, struct dp_buf *out, struct dp_error *err)
{
    (void)err;
    struct dp_render_options options = {.width = subject->width};
    dp_render_gantt(&subject->schedule, &subject->result, &options, out);
    return DP_OK;
}

static dp_status gantt_color(const struct subject *subject, struct dp_buf *out,
                             struct dp_error *err)
{
    (void)err;
    struct dp_render_options options = {.width = subject->width, .color = true};
    dp_render_gantt(&subject->schedule, &subject->result, &options, out);
    return DP_OK;
}

static dp_status table_with(const struct subject *subject, bool color, struct dp_buf *out,
                            struct dp_error *err)
{
    struct dp_render_options options = {.width = subject->width, .color = color};
    double unit =
        dp_render_table_unit(&subject->result, dp_schedule_action_count(&subject->schedule));
    return dp_render_table(&subject->schedule, &subject->result, unit, &options, out, err);
}

static dp_status table(const struct subject *subject, struct dp_buf *out, struct dp_error *err)
{
    return table_with(subject, false, out, err);
}

static dp_status table_color(const struct subject *subject, struct dp_buf *out,
                             struct dp_error *err)
{
    return table_with(subject, true, out, err);
}

static dp_status svg(const struct subject *subject, struct dp_buf *out, struct dp_error *err)
{
    (void)err;
    struct dp_render_svg_options options = {.width = subject->width};
    dp_render_svg(&subject->schedule, &subject->result, &subject->costs, &options, out);
    return DP_OK;
}

static dp_status perfetto(const struct subject *subject, struct dp_buf *out, struct dp_error *err)
{
    (void)err;
    dp_render_prediction(&subject->schedule, &subject->result, &subject->costs, out);
    return DP_OK;
}

static dp_status torch_csv(const struct subject *subject, struct dp_buf *out, struct dp_error *err)
{
    return dp_render_torch_csv(&subject->schedule, out, err);
}

static dp_status torch_csv_comms(const struct subject *subject, struct dp_buf *out,
                                 struct dp_error *err)
{
    return dp_render_torch_csv_comms(&subject->schedule, &subject->result, true, out, err);
}

static dp_status torch_csv_comms_old(const struct subject *subject, struct dp_buf *out,
                                     struct dp_error *err)
{
    return dp_render_torch_csv_comms(&subject->schedule, &subject->result, false, out, err);
}

static dp_status megatron(const struct subject *subject, struct dp_buf *out, struct dp_error *err)
{
    struct dp_render_megatron_options options = {.layers = 2 * subject->schedule.stages + 1,
                                                 .mtp_layers = 1,
                                                 .micro_batch_size = 2,
                                                 .data = 4};
    return dp_render_megatron(&subject->schedule, &options, out, err);
}

static dp_status json(const struct subject *subject, struct dp_buf *out, struct dp_error *err)
{
    (void)err;
    dp_schedule_write_json(&subject->schedule, out);
    dp_buf_puts(out, "\n");
    return DP_OK;
}

static const struct {
    const char *name;
    dp_status (*write)(const struct subject *subject, struct dp_buf *out, struct dp_error *err);
} formats[] = {
    {"gantt", gantt},
    {"gantt-color", gantt_color},
    {"table", table},
    {"table-color", table_color},
    {"svg", svg},
    {"perfetto", perfetto},
    {"torch-csv", torch_csv},
    {"torch-csv-comms", torch_csv_comms},
    {"torch-csv-comms-2.14", torch_csv_comms_old},
    {"megatron", megatron},
    {"json", json},
};

static double number(int argc, char **argv, int index, double otherwise)
{
    return index < argc ? strtod(argv[index], NULL) : otherwise;
}

// "auto" is searched for among what a stage on one rank can express.
static dp_status search(const struct dp_schedule_params *params,
                        const struct dp_sim_uniform *uniform, struct subject *ret_subject,
                        struct dp_error *err)
{
    struct uniform_model model = {.stage = *uniform, .activation_bytes = 1};
    struct dp_auto_problem problem = {.pipeline = params->pipeline,
                                      .microbatches = params->microbatches,
                                      .costs = uniform_costs,
                                      .context = &model,
                                      .placements = DP_AUTO_STRAIGHT | DP_AUTO_LOOP | DP_AUTO_VEE |
                                                    DP_AUTO_WAVES,
                                      .virtual_stages = params->virtual_stages};
    struct dp_auto_options options = {.seed = 1, .moves_max = 200};
    struct dp_auto_result result;
    dp_status status = dp_auto_search(&problem, &options, &result, err);
    if (status == DP_OK) {
        ret_subject->schedule = result.schedule;
        ret_subject->costs = result.costs;
        result.schedule = (struct dp_schedule){0};
        result.costs = (struct dp_sim_costs){0};
        dp_auto_result_deinit(&result);
    }
    return status;
}

static dp_status obtain(int argc, char **argv, struct subject *ret_subject, struct dp_error *err)
{
    struct dp_schedule_params params = {.pipeline = (int32_t)number(argc, argv, 3, 1),
                                        .microbatches = (int32_t)number(argc, argv, 4, 1),
                                        .virtual_stages = (int32_t)number(argc, argv, 5, 0)};
    struct dp_sim_uniform uniform = {.f = number(argc, argv, 6, 1),
                                     .b = number(argc, argv, 7, 2),
                                     .i = number(argc, argv, 8, 1),
                                     .w = number(argc, argv, 9, 1),
                                     .fb = number(argc, argv, 10, 3),
                                     .hop = {.latency = number(argc, argv, 11, 0)}};
    ret_subject->width = (int32_t)number(argc, argv, 12, 0);
    dp_status status;
    if (strcmp(argv[2], "auto") == 0) {
        status = search(&params, &uniform, ret_subject, err);
    } else {
        status = dp_schedule_generate(argv[2], &params, &ret_subject->schedule, err);
        if (status == DP_OK) {
            dp_sim_costs_init_uniform(&ret_subject->costs, &ret_subject->schedule, &uniform);
        }
    }
    return status == DP_OK ? dp_simulate(&ret_subject->schedule, &ret_subject->costs, true,
                                         &ret_subject->result, err)
                           : status;
}

int main(int argc, char **argv)
{
    struct dp_error err = {0};
    struct subject subject = {0};
    struct dp_buf text = {0};
    size_t format = 0;
    while (argc >= 5 && format < DP_ARRAY_LENGTH(formats) &&
           strcmp(formats[format].name, argv[1]) != 0) {
        format++;
    }
    if (argc < 5 || format == DP_ARRAY_LENGTH(formats)) {
        fprintf(stderr, "usage: render_emit FORMAT FAMILY P M [V [F B I W FB HOP [WIDTH]]]\n");
        return 2;
    }
    dp_status status = obtain(argc, argv, &subject, &err);
    if (status == DP_OK) {
        status = formats[format].write(&subject, &text, &err);
    }
    if (status == DP_OK) {
        fwrite(text.bytes, 1, text.length, stdout);
    } else {
        fprintf(stderr, "%s\n", err.message);
    }
    dp_buf_deinit(&text);
    dp_sim_result_deinit(&subject.result);
    dp_sim_costs_deinit(&subject.costs);
    dp_schedule_deinit(&subject.schedule);
    return dp_status_exit_code(status);
}
