// Every kind of mistake in a job file: position, what, and what to do.

#include "spec_support.h"

struct mistake {
    const char *text;
    const char *position; // "" = the whole file
    const char *message;
};

#define TRAIN "[train]\nsteps = 5\nglobal_batch = 16\nsequence = 128\n"
#define MODEL "[model]\npreset = \"tiny-moe\"\n"
#define SHAPE "[model]\nlayers = 2\nhidden = 64\nheads = 4\nffn = 128\n"
#define X32 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"

static const struct mistake mistakes[] = {
    {MINIMAL "[parallel]\nmicro_batchs = 2\n", "job.toml:8:1: ", "did you mean \"microbatches\"?"},
    {MINIMAL "[parallel]\nlr = 2\n", "job.toml:8:1: ", "\"lr\" belongs in [optimizer]"},
    {MINIMAL "[parallel]\nzebra = 2\n", "job.toml:8:1: ", "the keys here are pipeline, expert"},
    {MINIMAL "[paralel]\n", "job.toml:7:2: ", "did you mean [parallel]?"},
    {MINIMAL "[zebra]\n", "job.toml:7:2: ", "the sections are model, data"},
    {"steps = 5\n" MINIMAL, "job.toml:1:1: ", "\"steps\" belongs in [train]"},
    {"model = 5\n" TRAIN, "job.toml:1:1: ", "unknown key \"model\""},
    {"[[model]]\nlayers = 1\n" TRAIN, "job.toml:1:3: ", "unknown key \"model\""},
    {MODEL "[train]\nsteps = \"5\"\nglobal_batch = 16\nsequence = 128\n",
     "job.toml:4:9: ", "must be an integer, not a string"},
    {MODEL "[train]\nsteps = 5.0\nglobal_batch = 16\nsequence = 128\n",
     "job.toml:4:9: ", "must be an integer, not a number"},
    {MODEL "[train]\nsteps = 0\nglobal_batch = 16\nsequence = 128\n",
     "job.toml:4:9: ", "at least 1"},
    {MODEL "[train]\nsteps = 5\nglobal_batch = 4294967312\nsequence = 128\n",
     "job.toml:5:16: ", "is 4294967312; it must be at least 1 and at most 16777216"},
    {MODEL "[train]\nsteps = 99999999999999999999\n", "job.toml:4:", ""},
    {MINIMAL "[optimizer]\nlr = inf\n", "job.toml:8:6: ", "at most 1000"},
    {MINIMAL "[optimizer]\nbeta1 = 1.0\n", "job.toml:8:9: ", "below 1"},
    {MINIMAL "[optimizer]\nlr = true\n", "job.toml:8:6: ", "must be a number, not a boolean"},
    {MINIMAL "[optimizer]\nlr_min = 1\n", "job.toml:8:10: ", "lr_min (1) is above lr"},
    {MINIMAL "[optimizer]\nwarmup_steps = 6\n", "job.toml:8:16: ", "warm-up takes 6 steps"},
    {MINIMAL "[data]\npath = 5\n", "job.toml:8:8: ", "must be a string, not an integer"},
    {MINIMAL "[data]\npath = \"a\\u0000b\"\n", "job.toml:8:8: ", "NUL"},
    {MINIMAL "[data]\nholdout = 0.6\n", "job.toml:8:11: ", "at most 0.5"},
    {"name = \"a\\u0000b\"\n" MINIMAL,
     "job.toml:1:8: ", "\"name\" in the top level holds a NUL character"},
    {"name = \"" X32 X32 X32 X32 "\"\n" MINIMAL,
     "job.toml:1:8: ", "\"name\" in the top level is too long: 128 bytes"},
    {MINIMAL "[resources]\ndevice = \"gpu\"\n", "job.toml:8:10: ", "no kind of device: \"gpu\""},
    {MINIMAL "[resources]\ndevice = \"sim\"\n", "", "set [sim] forward_s"},
    {MODEL, "", "\"steps\" is missing in [train]"},
    {MODEL "[train]\nsteps = 5\nsequence = 8\n",
     "job.toml:3:2: ", "\"global_batch\" is missing in [train]"},
    {TRAIN, "", "\"layers\" is missing in [model]"},
    {"[model]\nhidden = 64\n" TRAIN, "job.toml:1:2: ", "\"layers\" is missing in [model]"},
    {"[model]\npreset = \"tiny-mo\"\n" TRAIN, "job.toml:2:10: ", "did you mean \"tiny-moe\"?"},
    {"[model]\npreset = 3\n" TRAIN, "job.toml:2:10: ", "must be a string"},
    {"[model]\npreset = \"tiny-moe\"\nhf_config = \"x\"\n" TRAIN,
     "job.toml:3:1: ", "both \"preset\" and \"hf_config\""},
    {SHAPE "kv_heads = 3\n" TRAIN, "job.toml:6:12: ", "4 heads cannot share 3 key-value heads"},
    {SHAPE "head_dim = 15\n" TRAIN, "job.toml:6:12: ", "even width"},
    {SHAPE "top_k = 2\n" TRAIN, "job.toml:1:2: ", "the model has no experts"},
    {SHAPE "experts = 4\nexpert_ffn = 8\n" TRAIN, "job.toml:1:2: ", "top_k is 0"},
    {SHAPE "experts = 4\ntop_k = 5\nexpert_ffn = 8\n" TRAIN,
     "job.toml:7:9: ", "top_k is 5, but there are only 4 experts"},
    {SHAPE "experts = 8\ntop_k = 3\nexpert_ffn = 8\nexpert_groups = 4\ntop_groups = 1\n" TRAIN,
     "job.toml:7:9: ", "top_k is 3, but top_groups = 1 of 4 groups have only 2 experts"},
    {SHAPE "experts = 4\ntop_k = 2\n" TRAIN, "job.toml:1:2: ", "experts have no width"},
    {SHAPE "dense_layers = 3\nexperts = 4\ntop_k = 1\nexpert_ffn = 8\n" TRAIN,
     "job.toml:6:16: ", "dense_layers is 3, but there are 2 layers"},
    {"[model]\nlayers = 2\nhidden = 64\nheads = 4\n" TRAIN, "job.toml:1:2: ", "no width"},
    {SHAPE "vocabulary = 100\n" TRAIN, "job.toml:6:14: ", "vocabulary of 256"},
    {"[model]\npreset = \"gpt-oss-20b\"\n" TRAIN, "job.toml:1:2: ", "biases but those"},
    {"[model]\npreset = \"tiny-moe\"\nhidden = 1048576\nexperts = 4096\nexpert_ffn = 1048576\n"
     "layers = 1024\n" TRAIN,
     "job.toml:6:10: ", "the limit is 1e+15"},
    {MINIMAL "[optimizer]\nschedule = \"cosin\"\n", "job.toml:8:12: ", "did you mean \"cosine\""},
    {MINIMAL "[optimizer]\nmoments = \"fp8\"\n", "job.toml:8:11: ", "they are fp32, bf16"},
    // 1 - beta2 of it is less than half of a bf16's last digit: it would never fall again.
    {MINIMAL "[optimizer]\nmoments = \"bf16\"\nbeta2 = 0.999\n",
     "job.toml:9:9: ", "a second moment in bf16 stands still with beta2 = 0.999"},
    {"[model]\npreset = \"tiny-moe\"\nbiases = \"norm\"\n" TRAIN,
     "job.toml:3:10: ", "the cpu device does not run LayerNorm"},
    {MINIMAL "[optimizer]\ndecay_steps = 2\n",
     "job.toml:8:15: ", "the schedule \"cosine\" has no decay_steps"},
    {MINIMAL "[optimizer]\nschedule = \"wsd\"\nwarmup_steps = 2\ndecay_steps = 4\n",
     "job.toml:10:15: ", "4 steps of decay do not fit into 5 steps with 2 of warm-up"},
    {MINIMAL "[data]\nformat = \"gpt3\"\n", "job.toml:8:10: ", "did you mean \"gpt2\""},
    {MINIMAL "[data]\ntoken_bytes = 3\n", "job.toml:8:15: ", "a token of 3 bytes"},
    {MINIMAL "[parallel]\nshard = \"fsdp\"\n", "job.toml:8:9: ", "does not gather weights"},
    {MINIMAL "[parallel]\ntensor = 2\n", "job.toml:8:10: ", "tensor parallelism of 2"},
    {MINIMAL "[parallel]\ncontext = 2\n", "job.toml:8:11: ", "context parallelism of 2"},
    {MINIMAL "[parallel]\npipeline = 9\n", "job.toml:8:12: ", "only 8 layers"},
    {MINIMAL "[parallel]\nexpert = 3\n", "job.toml:8:10: ", "cannot share 8 experts evenly"},
    {MINIMAL "[parallel]\nexpert = 1\nexpert_copies = 1\n", "job.toml:9:17: ", "and expert is 1"},
    {MINIMAL "[parallel]\nexpert_copies = 1\n", "job.toml:8:17: ", "and expert is not set"},
    {MINIMAL "[parallel]\nexpert = 8\nexpert_copies = 4096\n",
     "job.toml:9:17: ", "take 32776 slots; the limit is 16384"},
    {MINIMAL "[parallel]\nexpert = 4\ndata = 2\n",
     "job.toml:8:10: ", "expert (4) does not divide data (2)"},
    {SHAPE TRAIN "[parallel]\nexpert = 2\n", "job.toml:11:10: ", "the model has no experts"},
    {MINIMAL "[parallel]\ndata = 2\nmicrobatches = 4\nmicro_batch_size = 3\n", "job.toml:5:16: ",
     "global_batch is 16, but data x microbatches x micro_batch_size is 2 x 4 x 3 = 24"},
    {MINIMAL "[parallel]\nmicrobatches = 5\n", "job.toml:5:16: ", "is not divisible"},
    {MINIMAL "[parallel]\nmicrobatches = 7\n",
     "job.toml:5:16: ", "7 together); the nearest that divides it is 8"},
    {MINIMAL "[parallel]\nmicrobatches = 6000\ndata = 6000\n",
     "job.toml:5:16: ", "36000000 together); the nearest that divides it is 16"},
    {MINIMAL "[parallel]\npipeline = 2\ndata = 2\n[resources]\nranks = 8\n",
     "job.toml:11:9: ", "2 x 2 = 4"},
    {MINIMAL "[parallel]\npipeline = 3\n[resources]\nranks = 8\n",
     "job.toml:10:9: ", "8 ranks cannot be divided"},
    {MINIMAL "[parallel]\nprecision = \"mxfp8\"\n",
     "job.toml:8:13: ", "the cpu device has no products in \"mxfp8\""},
    {MINIMAL "[parallel]\nrebalance_every = 5\n", "job.toml:8:19: ", "experts are to stay"},
    {MINIMAL "[parallel]\nlayers_per_stage = \"a\"\n", "job.toml:8:20: ", "commas between them"},
    {MINIMAL "[parallel]\nlayers_per_stage = \"3,9999999999999999999\"\n",
     "job.toml:8:20: ", "commas between them"},
    {MINIMAL "[parallel]\nlayers_per_stage = \"4,5\"\n",
     "job.toml:8:20: ", "9 layers in 2 stages, but the model has 8"},
    {MINIMAL "[parallel]\nlayers_per_stage = \"0,8\"\n", "job.toml:8:20: ", "stage 0 has no layer"},
    {SHAPE "rope_factor = 8\n" TRAIN, "job.toml:6:15: ", "but by a factor of 8"},
    {SHAPE
     "rope_scaling = \"llama3\"\nrope_factor = 8\nrope_original = 64\nrope_low_factor = 4\n" TRAIN,
     "job.toml:9:19: ", "rope_low_factor is 4, and rope_high_factor 4"},
    {"name = \"a b\"\n" MINIMAL, "job.toml:1:8: ", "cannot be the name of a job"},
    {"name = \"\"\n" MINIMAL, "job.toml:1:8: ", "cannot be the name of a job"},
    {"name = \"-x\"\n" MINIMAL, "job.toml:1:8: ", "cannot be the name of a job"},
    {"name = \"0123456789012345678901234567890123456789012345678901234567890123\"\n" MINIMAL,
     "job.toml:1:8: ", "too long: 64 bytes, at most 63"},
};

static void every_mistake_is_named_with_its_position(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
        struct dp_error err = {0};
        struct dp_job_spec spec;
        const struct mistake *mistake = &mistakes[i];
        dp_status status = parse_job(mistake->text, NULL, &spec, &err);
        if (status != DP_INVALID || strstr(err.message, mistake->position) == NULL ||
            strstr(err.message, mistake->message) == NULL) {
            fail_msg("mistake %zu: wanted \"%s%s\", got %s \"%s\" for\n%s", i, mistake->position,
                     mistake->message, dp_status_name(status), err.message, mistake->text);
        }
    }
}

static void all_mistakes_come_at_once_in_the_order_of_the_file(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec;
    const char text[] = "nam = \"x\"\n"
                        "[model]\n"
                        "preset = \"tiny-moe\"\n"
                        "layers = 0\n"
                        "[train]\n"
                        "steps = \"many\"\n"
                        "sequence = 128\n"
                        "[paralel]\n"
                        "[resources]\n"
                        "device = \"gpu\"\n";
    assert_int_equal(parse_job(text, NULL, &spec, &err), DP_INVALID);
    const char *const order[] = {"job.toml:1:1:", "job.toml:4:10:", "job.toml:5:2:",
                                 "job.toml:6:9:", "job.toml:8:2:",  "job.toml:10:10:"};
    const char *at = err.message;
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        at = strstr(at, order[i]);
        if (at == NULL) {
            fail_msg("%s is missing or out of order in\n%s", order[i], err.message);
        }
    }
}

static void the_source_line_and_a_caret_are_shown(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec;
    assert_refused(parse_job(MINIMAL "[optimizer]\n  lr = \"x\"\n", NULL, &spec, &err), DP_INVALID,
                   &err, "\n      lr = \"x\"\n           ^\nhelp: learning rate after warm-up");
}

static void a_missing_file_and_an_empty_one_are_errors(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec;
    assert_refused(dp_job_spec_load("/nonexistent/job.toml", &spec, &err), DP_NOT_FOUND, &err,
                   "/nonexistent/job.toml");
    assert_refused(parse_job("", NULL, &spec, &err), DP_INVALID, &err,
                   "\"steps\" is missing in [train]");
    assert_refused(parse_job("# [model]\n", NULL, &spec, &err), DP_INVALID, &err,
                   "\"layers\" is missing in [model]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mistake_is_named_with_its_position),
        cmocka_unit_test(all_mistakes_come_at_once_in_the_order_of_the_file),
        cmocka_unit_test(the_source_line_and_a_caret_are_shown),
        cmocka_unit_test(a_missing_file_and_an_empty_one_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
