// One schedule with its costs: made by a family, searched for, or read from a file.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/schedule_audit.h"
#include "dp/utf8.h"
#include "dp/what_if.h"
#include "schedule_verbs.h"

void schedule_subject_deinit(struct schedule_subject *subject)
{
    dp_schedule_deinit(&subject->schedule);
    dp_sim_costs_deinit(&subject->costs);
    dp_sim_costs_deinit(&subject->before);
    dp_buf_deinit(&subject->notes);
    if (subject->found != NULL) {
        dp_auto_result_deinit(subject->found);
        free(subject->found);
    }
}

// Whether the subject names a file and not a family.
static bool is_file_name(const char *subject)
{
    // Names of families have neither dots nor slashes.
    return strcmp(subject, "-") == 0 || strpbrk(subject, "./") != NULL ||
           (strcmp(subject, "auto") != 0 && dp_schedule_family_find(subject) == NULL &&
            access(subject, F_OK) == 0);
}

void schedule_file_deinit(struct schedule_file *file)
{
    dp_diags_deinit(&file->problems);
    dp_buf_deinit(&file->text);
    *file = (struct schedule_file){0};
}

static dp_status read_letters(const char *text, dp_schedule_letters *ret_letters,
                              struct dp_error *err)
{
    static const char *const names[] = {
        [DP_SCHEDULE_LETTERS_NEW] = "new", [DP_SCHEDULE_LETTERS_OLD] = "old"};
    *ret_letters = DP_SCHEDULE_LETTERS_ANY;
    for (size_t i = DP_SCHEDULE_LETTERS_NEW; text != NULL && i < DP_ARRAY_LENGTH(names); i++) {
        if (strcmp(text, names[i]) == 0) {
            *ret_letters = (dp_schedule_letters)i;
            return DP_OK;
        }
    }
    return text == NULL ? DP_OK
                        : dp_fail(err, DP_USAGE, "--letters is new or old, not \"%s\"", text);
}

static dp_status read_csv(dp_schedule_letters letters, struct schedule_file *file,
                          struct dp_schedule *ret_schedule, struct dp_error *err)
{
    struct dp_schedule_csv csv;
    dp_status status = dp_schedule_read_csv(file->text.bytes, file->text.length, letters, &csv,
                                            &file->problems, err);
    if (status == DP_OK) {
        file->form = csv.has_comms ? "compute_comms" : "compute_only";
        file->letters = csv.letters == DP_SCHEDULE_LETTERS_OLD ? "old" : "new";
        *ret_schedule = csv.schedule;
    }
    return status;
}

// JSON begins with a bracket, a CSV never; what is called JSON is read as that, so that the problem
// is named.
static bool is_json(const char *path, const struct dp_buf *text)
{
    size_t length = strlen(path), at = dp_utf8_mark(text->bytes, text->length);
    if (length >= 5 && strcasecmp(path + length - 5, ".json") == 0) {
        return true;
    }
    while (at < text->length && strchr(" \t\r\n", text->bytes[at]) != NULL) {
        at++;
    }
    return at < text->length && (text->bytes[at] == '{' || text->bytes[at] == '[');
}

static dp_status read_file(const char *path, const char *letters, struct schedule_file *file,
                           struct dp_schedule *ret_schedule, struct dp_error *err)
{
    dp_schedule_letters wanted;
    dp_status status = read_letters(letters, &wanted, err);
    if (status == DP_OK) {
        status = dp_read_file(path, DP_SCHEDULE_BYTES_MAX, &file->text, err);
    }
    if (status != DP_OK) {
        return status;
    }
    dp_diags_init(&file->problems, path, file->text.bytes, file->text.length);
    if (!is_json(path, &file->text)) {
        return read_csv(wanted, file, ret_schedule, err);
    }
    if (letters != NULL) {
        return dp_fail(err, DP_USAGE, "%s is JSON; --letters is for PyTorch's CSV", path);
    }
    file->form = "dp.schedule/1";
    return dp_schedule_read_json(file->text.bytes, file->text.length, ret_schedule, &file->problems,
                                 err);
}

// Of every chunk: what it keeps, and how much of that until W.
static void set_bytes(struct dp_sim_costs *costs, double bytes, double until_w)
{
    // Upwards, so that what fits under a cap does fit.
    uint64_t whole = (uint64_t)ceil(bytes), kept = (uint64_t)ceil(until_w);
    for (int32_t i = 0; i < costs->pipeline * costs->slots; i++) {
        costs->chunks[i].activation_bytes = whole;
        costs->chunks[i].released_at_i_bytes = whole - kept;
    }
}

// Seconds and bytes of one chunk; under same_model what is said of 1/P of the model is shared by
// the chunks that make it up.
static dp_status uniform_costs(const struct schedule_request *request,
                               const struct dp_schedule *schedule, struct dp_sim_costs *ret_costs,
                               struct dp_error *err)
{
    struct dp_sim_uniform uniform;
    dp_status status = dp_what_if_parse_cost("--cost", request->cost, &uniform, err);
    if (status != DP_OK) {
        return status;
    }
    double share = request->same_model ? (double)schedule->pipeline / schedule->stages : 1;
    double *const parts[] = {&uniform.f, &uniform.b,  &uniform.i,
                             &uniform.w, &uniform.fb, &uniform.fi};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(parts); i++) {
        *parts[i] *= share;
    }
    uniform.hop.latency = request->hop;
    dp_sim_costs_init_uniform(ret_costs, schedule, &uniform);
    ret_costs->p2p = request->p2p;
    // Without a word on bytes a chunk keeps its 1.
    if (request->activation_bytes > 0) {
        set_bytes(ret_costs, request->activation_bytes * share, request->weight_bytes * share);
    }
    return DP_OK;
}

static dp_status read_stage_costs(const struct schedule_request *request,
                                  const struct dp_schedule *schedule, struct dp_sim_costs *costs,
                                  struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_status status = dp_read_file(request->stage_cost, DP_STAGE_COSTS_BYTES_MAX, &text, err);
    return status == DP_OK ? dp_what_if_stage_costs(request->stage_cost, text.bytes, text.length,
                                                    schedule, costs, err)
                           : status;
}

static dp_status check_layers(const struct schedule_request *request,
                              const struct dp_schedule *schedule, struct dp_error *err)
{
    if (request->layers > 0 && schedule->stages > request->layers) {
        return dp_fail(err, DP_INVALID, "%s has %d stages here, the model %d layers",
                       schedule->name, schedule->stages, request->layers);
    }
    return DP_OK;
}

static dp_status base_costs(const struct schedule_request *request,
                            const struct dp_schedule *schedule, struct dp_sim_costs *ret_costs,
                            struct dp_error *err)
{
    struct dp_sim_costs costs = {0};
    dp_status status = check_layers(request, schedule, err);
    if (status == DP_OK) {
        status = uniform_costs(request, schedule, &costs, err);
    }
    if (status == DP_OK && request->stage_cost != NULL) {
        status = read_stage_costs(request, schedule, &costs, err);
    }
    if (status != DP_OK) {
        dp_sim_costs_deinit(&costs);
        return status;
    }
    if (request->same_chunks) {
        double bytes = request->activation_bytes * schedule->pipeline / schedule->stages;
        set_bytes(&costs, bytes, bytes);
    }
    *ret_costs = costs;
    return DP_OK;
}

static bool has_changes(const struct schedule_request *request)
{
    return request->slow_count > 0 || request->slow_links_count > 0;
}

static dp_status change_costs(const struct schedule_request *request,
                              const struct dp_schedule *schedule, struct dp_sim_costs *costs,
                              struct dp_buf *notes, struct dp_error *err)
{
    dp_status status = DP_OK;
    for (int i = 0; i < request->slow_count && status == DP_OK; i++) {
        status = dp_what_if_slow("--slow", request->slow[i], schedule, costs, err);
    }
    for (int i = 0; i < request->slow_links_count && status == DP_OK; i++) {
        status = dp_what_if_slow_link("--slow-link", request->slow_links[i], schedule, costs, notes,
                                      err);
    }
    return status;
}

// Both the costs without --slow and --slow-link and, where these were given, those with them.
static dp_status subject_costs(const struct schedule_request *request,
                               struct schedule_subject *subject, struct dp_error *err)
{
    dp_sim_costs_deinit(&subject->costs);
    dp_status status = base_costs(request, &subject->schedule, &subject->costs, err);
    if (status != DP_OK || !has_changes(request)) {
        return status;
    }
    subject->changed = true;
    dp_sim_costs_copy(&subject->before, &subject->costs);
    return change_costs(request, &subject->schedule, &subject->costs, &subject->notes, err);
}

static dp_status auto_costs(void *context, const struct dp_schedule *shape,
                            struct dp_sim_costs *ret_costs, uint64_t *ret_static_bytes,
                            struct dp_error *err)
{
    (void)ret_static_bytes;
    const struct schedule_request *request = context;
    struct dp_sim_costs costs = {0};
    dp_status status = base_costs(request, shape, &costs, err);
    if (status == DP_OK) {
        status = change_costs(request, shape, &costs, NULL, err);
    }
    if (status != DP_OK) {
        dp_sim_costs_deinit(&costs);
        return status;
    }
    *ret_costs = costs;
    return DP_OK;
}

static const struct {
    const char *name;
    unsigned bits;
} placements[] = {{"all", 0},
                  {"straight", DP_AUTO_STRAIGHT},
                  {"loop", DP_AUTO_LOOP},
                  {"v", DP_AUTO_VEE},
                  {"wave", DP_AUTO_WAVES},
                  {"bidirectional", DP_AUTO_BIDIRECTIONAL},
                  {"single", DP_AUTO_STRAIGHT | DP_AUTO_LOOP | DP_AUTO_VEE | DP_AUTO_WAVES}};

const char *schedule_placement_name(const struct dp_schedule *schedule)
{
    int32_t ranks = schedule->pipeline, chunks = schedule->stages / ranks;
    if (schedule->directions == 2) {
        return "bidirectional";
    }
    if (chunks == 1) {
        return "straight";
    }
    // The second turn begins where the first has ended, or at rank 0 again.
    return schedule->placement[2 * ranks] != ranks - 1 ? "loop" : chunks == 2 ? "v" : "wave";
}

static dp_status find_placement(const char *name, unsigned *ret_bits, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf names = {0};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(placements); i++) {
        if (name == NULL || strcmp(placements[i].name, name) == 0) {
            *ret_bits = placements[i].bits;
            return DP_OK;
        }
        dp_buf_printf(&names, "%s%s", i > 0 ? ", " : "", placements[i].name);
    }
    return dp_fail(err, DP_USAGE, "unknown placement \"%s\"; there are %s", name, names.bytes);
}

// `auto` is made for the costs: seconds are of 1/P of the model, whatever it makes of it.
static dp_status search(const struct schedule_request *request, struct schedule_subject *subject,
                        struct dp_error *err)
{
    struct schedule_request same_model = *request;
    same_model.same_model = true;
    if (request->layers == 0 && request->virtual_stages == 0 && request->stage_cost == NULL) {
        // Without hops the thinnest slices win; few models have layers for them.
        same_model.layers = 4 * request->pipeline;
    }
    struct dp_auto_problem problem = {.pipeline = request->pipeline,
                                      .microbatches = request->microbatches,
                                      .virtual_stages = request->virtual_stages,
                                      .costs = auto_costs,
                                      .context = &same_model,
                                      .objective = request->objective};
    dp_status status = find_placement(request->placement, &problem.placements, err);
    if (status != DP_OK) {
        return status;
    }
    uint64_t caps[DP_PIPELINE_MAX];
    for (int32_t rank = 0; rank < request->pipeline; rank++) {
        caps[rank] = (uint64_t)request->memory_cap;
    }
    problem.memory_cap = request->memory_cap > 0 ? caps : NULL;
    struct dp_auto_options options = {.seed = request->seed, .moves_max = request->moves};
    struct dp_auto_result *found = dp_new(struct dp_auto_result);
    status = dp_auto_search(&problem, &options, found, err);
    if (status != DP_OK) {
        free(found);
        return status;
    }
    if (found->left_out > 0) {
        dp_buf_printf(&subject->notes,
                      "auto: too large to be tried: %d families or numbers of chunks; take fewer "
                      "micro-batches, or one placement (--placement, -v)\n",
                      (int)found->left_out);
    }
    subject->found = found;
    subject->schedule = found->schedule;
    found->schedule = (struct dp_schedule){0};
    return subject_costs(&same_model, subject, err);
}

static dp_status generate(const struct schedule_request *request, const char *name,
                          struct schedule_subject *subject, struct dp_error *err)
{
    struct dp_schedule_params params = {.pipeline = request->pipeline,
                                        .microbatches = request->microbatches,
                                        .virtual_stages = request->virtual_stages};
    dp_status status = dp_schedule_generate(name, &params, &subject->schedule, err);
    return status == DP_OK ? subject_costs(request, subject, err) : status;
}

static dp_status obtain_file(const struct schedule_request *request, const char *name,
                             struct schedule_file *file, struct schedule_subject *subject,
                             struct dp_error *err)
{
    if (request->pipeline > 0 || request->microbatches > 0 || request->virtual_stages > 0) {
        return dp_fail(err, DP_USAGE, "%s has its own sizes; leave out -P, -M and -v", name);
    }
    dp_status status = read_file(name, request->letters, file, &subject->schedule, err);
    return status == DP_OK ? subject_costs(request, subject, err) : status;
}

dp_status schedule_obtain(const struct schedule_request *request, const char *name,
                          struct schedule_file *file, struct schedule_subject *ret_subject,
                          struct dp_error *err)
{
    bool is_auto = strcmp(name, "auto") == 0;
    const char *of_auto = schedule_request_given(request, SCHEDULE_SEARCH | SCHEDULE_CAP);
    if (!is_auto && of_auto != NULL && !request->same_model) {
        return dp_fail(err, DP_USAGE, "%s is for schedule auto", of_auto);
    }
    bool is_file = is_file_name(name);
    if (!is_file && (request->pipeline == 0 || request->microbatches == 0)) {
        return dp_fail(err, DP_USAGE, "say -P RANKS and -M MICROBATCHES for schedule %s", name);
    }
    if (!is_file && request->letters != NULL) {
        return dp_fail(err, DP_USAGE, "%s is no file; --letters is for PyTorch's CSV", name);
    }
    struct schedule_subject subject = {0};
    DP_CLEANUP(schedule_file_deinit) struct schedule_file unwanted = {0};
    file = file != NULL ? file : &unwanted;
    dp_status status = is_auto   ? search(request, &subject, err)
                       : is_file ? obtain_file(request, name, file, &subject, err)
                                 : generate(request, name, &subject, err);
    if (status != DP_OK) {
        schedule_subject_deinit(&subject);
        return status;
    }
    *ret_subject = subject;
    return DP_OK;
}

dp_status schedule_obtain_subject(const struct schedule_request *request,
                                  struct schedule_file *file, struct schedule_subject *ret_subject,
                                  struct dp_error *err)
{
    dp_status status = schedule_obtain(request, request->subject, file, ret_subject, err);
    const char *note = status == DP_OK ? ret_subject->notes.bytes : NULL;
    while (note != NULL && *note != '\0') {
        int length = (int)strcspn(note, "\n");
        fprintf(stderr, "note: %.*s\n", length, note);
        note += length + (note[length] == '\n');
    }
    return status;
}
