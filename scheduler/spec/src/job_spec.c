#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "spec_internal.h"

DP_DEFINE_CLEANUP(cleanup_toml, struct dp_toml, dp_toml_free)

enum { SECTIONS_MAX = 16 };

// Every Debian has it: 35149 bytes of English.
static const char default_corpus[] = "/usr/share/common-licenses/GPL-3";

const char *dp_device_kind_text(dp_device_kind kind)
{
    static const char *const texts[] = {"cpu", "sim", "cuda"};
    return (size_t)kind < DP_ARRAY_LENGTH(texts) ? texts[kind] : "unknown";
}

char *dp_path_join(const char *directory, const char *path)
{
    size_t length = strlen(directory);
    while (length > 1 && directory[length - 1] == '/') {
        length--;
    }
    while (strncmp(path, "./", 2) == 0) {
        path += 2;
    }
    return dp_asprintf("%.*s%s%s", (int)length, directory,
                       length > 0 && directory[length - 1] == '/' ? "" : "/", path);
}

void dp_job_spec_init(struct dp_job_spec *spec)
{
    *spec = (struct dp_job_spec){
        .data = {.holdout = 0.1, .shuffle = 1},
        .train = {.seed = 1},
        .optimizer = {.lr = 3e-4,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .eps = 1e-8,
                      .weight_decay = 0.1,
                      .grad_clip = 1.0},
        .queue = {.preemptible = 1},
        .retry = {.max = 3, .backoff_s = 10, .no_progress = 3},
        .straggler = {.threshold = 1.2},
        .resources = {.device = DP_DEVICE_CPU, .threads_per_rank = 1, .learn = 1},
        .sim = {.scale = 1.0},
    };
    DP_COPY_TEXT(spec->name, "job");
    DP_COPY_TEXT(spec->data.path, default_corpus);
}

struct parse {
    const char *base_directory;
    bool may_read_files; // hf_config
    struct dp_diags *diags;
    struct dp_job_spec *spec;
};

// The string below `key`, or NULL when absent or wrong (which is reported).
static const char *special_text(const struct parse *parse, const struct dp_toml_node *table,
                                const char *key, const struct dp_toml_node **ret_node)
{
    const struct dp_toml_node *node = dp_toml_get(table, key);
    *ret_node = node;
    if (node == NULL) {
        return NULL;
    }
    if (node->type != DP_TOML_STRING) {
        dp_diags_add(parse->diags, node->line, node->column, NULL,
                     "\"%s\" in [model] must be a string, not %s", key,
                     dp_toml_type_text(node->type));
        return NULL;
    }
    return node->value.string;
}

static void use_preset(const struct parse *parse, const struct dp_toml_node *node,
                       const char *preset)
{
    struct dp_error err = {0};
    if (dp_model_preset(preset, &parse->spec->model, &err) == DP_OK) {
        return;
    }
    const char *near = dp_suggest(preset, dp_model_preset_names());
    DP_AUTO_FREE char *help = near == NULL ? NULL : dp_asprintf("did you mean \"%s\"?", near);
    dp_diags_add(parse->diags, node->line, node->column, help, "%s", err.message);
}

static void use_hf_config(const struct parse *parse, const struct dp_toml_node *node,
                          const char *path)
{
    if (!parse->may_read_files) {
        dp_diags_add(parse->diags, node->line, node->column,
                     "submit it with dpctl, which puts the model's shape into the job",
                     "\"hf_config\" names a file that is not read here");
        return;
    }
    DP_AUTO_FREE char *joined = path[0] == '/' || parse->base_directory == NULL
                                    ? dp_strdup(path)
                                    : dp_path_join(parse->base_directory, path);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    struct dp_error err = {0};
    if (dp_read_file(joined, DP_SPEC_BYTES_MAX, &text, &err) != DP_OK ||
        dp_model_from_hf_config(text.bytes, text.length, joined, &parse->spec->model, &err) !=
            DP_OK) {
        dp_diags_add(parse->diags, node->line, node->column, NULL, "%s", err.message);
    }
}

static void read_model(const struct parse *parse, const struct dp_section *section,
                       const struct dp_toml_node *table)
{
    const struct dp_toml_node *preset_node, *hf_node;
    const char *preset = special_text(parse, table, "preset", &preset_node);
    const char *hf_config = special_text(parse, table, "hf_config", &hf_node);
    size_t problems = parse->diags->count;
    if (preset != NULL && hf_config != NULL) {
        dp_diags_add(parse->diags, hf_node->key_line, hf_node->key_column, "remove one of them",
                     "both \"preset\" and \"hf_config\" are given in [model]");
    } else if (preset != NULL) {
        use_preset(parse, preset_node, preset);
    } else if (hf_config != NULL) {
        use_hf_config(parse, hf_node, hf_config);
    }
    bool base_is_known = parse->diags->count == problems;
    dp_keys_read(section, dp_job_sections, table, parse->base_directory, parse->diags, parse->spec);
    if (base_is_known) {
        dp_keys_require(section, table, parse->diags, parse->spec);
    }
    dp_model_complete(&parse->spec->model, table);
}

// "the sections are a, b and c"; the caller's.
static char *list_sections(const char *const *names, size_t count)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_buf_puts(&text, "the sections are ");
    for (size_t i = 0; i < count; i++) {
        dp_buf_printf(&text, "%s%s", i == 0 ? "" : i + 1 == count ? " and " : ", ", names[i]);
    }
    return dp_strdup(text.bytes);
}

static void refuse_unknown_sections(const struct dp_toml_node *root, struct dp_diags *diags)
{
    const char *names[SECTIONS_MAX + 1] = {0};
    size_t count = 0;
    for (const struct dp_section *s = dp_job_sections + 1; s->name != NULL; s++) {
        names[count++] = s->name;
    }
    for (size_t i = 0; i < root->children_count; i++) {
        const struct dp_toml_node *node = &root->children[i];
        if (node->type != DP_TOML_TABLE || dp_section_find(dp_job_sections, node->key) != NULL ||
            dp_section_find_key(dp_job_sections, node->key) != NULL) {
            continue;
        }
        const char *near = dp_suggest(node->key, names);
        DP_AUTO_FREE char *help =
            near != NULL ? dp_asprintf("did you mean [%s]?", near) : list_sections(names, count);
        dp_diags_add(diags, node->key_line, node->key_column, help, "unknown section [%s]",
                     node->key);
    }
}

static void read_sections(const struct parse *parse, const struct dp_toml_node *root)
{
    refuse_unknown_sections(root, parse->diags);
    dp_keys_read(dp_job_sections, dp_job_sections, root, parse->base_directory, parse->diags,
                 parse->spec);
    for (const struct dp_section *section = dp_job_sections + 1; section->name != NULL; section++) {
        const struct dp_toml_node *node = dp_toml_get(root, section->name);
        if (node != NULL && node->type != DP_TOML_TABLE) {
            continue; // reported with the keys of the top level
        }
        if (node != NULL && strcmp(section->name, "model") == 0) {
            read_model(parse, section, node);
            continue;
        }
        if (node != NULL) {
            dp_keys_read(section, dp_job_sections, node, parse->base_directory, parse->diags,
                         parse->spec);
        }
        dp_keys_require(section, node, parse->diags, parse->spec);
    }
}

// Times of the sim device that follow from others.
static void complete_sim(struct dp_sim_spec *sim)
{
    sim->input_grad_s = sim->input_grad_s > 0 ? sim->input_grad_s : sim->forward_s;
    sim->weight_grad_s = sim->weight_grad_s > 0 ? sim->weight_grad_s : sim->forward_s;
    sim->pair_s =
        sim->pair_s > 0 ? sim->pair_s : sim->forward_s + sim->input_grad_s + sim->weight_grad_s;
}

static int compare_positions(const void *a, const void *b)
{
    const struct dp_diag *one = a, *two = b;
    return one->line != two->line ? (one->line > two->line) - (one->line < two->line)
                                  : (one->column > two->column) - (one->column < two->column);
}

static dp_status parse_job(const char *text, size_t length, const char *base_directory,
                           const char *default_name, bool may_read_files, struct dp_diags *diags,
                           struct dp_job_spec *ret_spec, struct dp_error *err)
{
    DP_CLEANUP(cleanup_toml) struct dp_toml *toml = NULL;
    dp_status status = dp_toml_parse(text, length, diags, &toml, err);
    if (status != DP_OK) {
        return status;
    }
    struct dp_job_spec spec;
    dp_job_spec_init(&spec);
    if (default_name != NULL) {
        DP_COPY_TEXT(spec.name, default_name);
    }
    struct parse parse = {base_directory, may_read_files, diags, &spec};
    read_sections(&parse, dp_toml_root(toml));
    if (diags->count == 0) {
        if (spec.resources.device == DP_DEVICE_SIM) {
            complete_sim(&spec.sim);
        }
        dp_job_check(&spec, dp_toml_root(toml), diags);
    }
    if (diags->count > 0) {
        qsort(diags->items, diags->count, sizeof(diags->items[0]), compare_positions);
        return dp_diags_status(diags, err);
    }
    *ret_spec = spec;
    return DP_OK;
}

dp_status dp_job_spec_parse(const char *text, size_t length, const char *base_directory,
                            struct dp_diags *diags, struct dp_job_spec *ret_spec,
                            struct dp_error *err)
{
    return parse_job(text, length, base_directory, NULL, false, diags, ret_spec, err);
}

// The absolute directory of `path`, and its name without ".toml".
static dp_status locate(const char *path, char **ret_directory, char **ret_stem,
                        struct dp_error *err)
{
    bool is_stdin = strcmp(path, "-") == 0;
    const char *slash = is_stdin ? NULL : strrchr(path, '/');
    const char *base = slash == NULL ? path : slash + 1;
    size_t stem = strlen(base);
    if (stem > 5 && strcmp(base + stem - 5, ".toml") == 0) {
        stem -= 5;
    }
    DP_AUTO_FREE char *working = getcwd(NULL, 0);
    if (working == NULL) {
        return dp_fail(err, DP_IO, "the working directory cannot be read");
    }
    DP_AUTO_FREE char *directory =
        slash == NULL ? dp_strdup(".") : dp_strndup(path, (size_t)(slash - path) + (slash == path));
    *ret_directory = directory[0] == '/'           ? dp_steal(directory)
                     : strcmp(directory, ".") == 0 ? dp_steal(working)
                                                   : dp_path_join(working, directory);
    *ret_stem = is_stdin ? NULL : dp_strndup(base, stem);
    return DP_OK;
}

dp_status dp_job_spec_examine(const char *path, struct dp_diags *ret_problems,
                              struct dp_job_spec *ret_spec, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    DP_AUTO_FREE char *directory = NULL;
    DP_AUTO_FREE char *stem = NULL;
    dp_diags_init(ret_problems, strcmp(path, "-") == 0 ? "standard input" : path, NULL, 0);
    dp_status status = dp_read_file(path, DP_SPEC_BYTES_MAX, &text, err);
    status = status == DP_OK ? locate(path, &directory, &stem, err) : status;
    if (status != DP_OK) {
        return status;
    }
    ret_problems->text = text.bytes;
    ret_problems->text_length = text.length;
    status = parse_job(text.bytes, text.length, directory, stem, true, ret_problems, ret_spec, err);
    ret_problems->text = NULL;
    ret_problems->text_length = 0;
    return status;
}

dp_status dp_job_spec_load(const char *path, struct dp_job_spec *ret_spec, struct dp_error *err)
{
    DP_CLEANUP(dp_diags_deinit) struct dp_diags problems;
    return dp_job_spec_examine(path, &problems, ret_spec, err);
}

void dp_job_spec_of_model(const struct dp_model_spec *model, dp_device_kind device,
                          struct dp_job_spec *ret_spec)
{
    enum { SAMPLES = 1024, TOKENS = 4096 };
    dp_job_spec_init(ret_spec);
    ret_spec->model = *model;
    ret_spec->train.steps = 1;
    ret_spec->train.global_batch = SAMPLES;
    bool is_short = model->positions > 0 && model->positions < TOKENS;
    ret_spec->train.sequence = is_short ? model->positions : TOKENS;
    ret_spec->resources.device = device;
}

int32_t dp_job_spec_ranks(const struct dp_job_spec *spec, bool *ret_fixed)
{
    const struct dp_parallel_spec *parallel = &spec->parallel;
    int32_t given = spec->resources.ranks;
    if (ret_fixed != NULL) {
        *ret_fixed = given > 0 || (parallel->pipeline > 0 && parallel->data > 0);
    }
    if (given > 0) {
        return given;
    }
    int64_t pipeline = parallel->pipeline > 0 ? parallel->pipeline : 1;
    int64_t shards = (parallel->tensor > 0 ? parallel->tensor : 1) *
                     (int64_t)(parallel->context > 0 ? parallel->context : 1);
    int64_t data = parallel->data > 0 ? parallel->data : parallel->expert / shards;
    int64_t ranks = pipeline * (data > 0 ? data : 1) * shards;
    return ranks < DP_RANKS_MAX ? (int32_t)ranks : DP_RANKS_MAX;
}

void dp_job_spec_write(const struct dp_job_spec *spec, struct dp_buf *out)
{
    for (const struct dp_section *section = dp_job_sections; section->name != NULL; section++) {
        dp_keys_write(section, spec, out);
    }
}
