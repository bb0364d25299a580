// Host lists and Slurm's topology.conf.

#include "spec_support.h"

#include "dp/alloc.h"
#include "dp/topology.h"

static void assert_expands(const char *list, const char *const *wanted, size_t count)
{
    struct dp_error err = {0};
    DP_CLEANUP(dp_hosts_deinit) struct dp_hosts hosts = {0};
    assert_ok(dp_hosts_expand(list, &hosts, NULL, &err), &err);
    assert_int_equal(hosts.count, count);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(hosts.names[i], wanted[i]);
    }
}

#define assert_hosts(list, ...)                                                                    \
    do {                                                                                           \
        static const char *const wanted_[] = {__VA_ARGS__};                                        \
        assert_expands(list, wanted_, sizeof(wanted_) / sizeof(wanted_[0]));                       \
    } while (0)

// As scontrol show hostnames of Slurm 22.05 expands them (tests/oracle/slurm_oracle.py compares).
static void host_lists_mean_what_slurm_makes_of_them(void **state)
{
    (void)state;
    assert_hosts("login", "login");
    assert_hosts("n[1-3,5],m", "n1", "n2", "n3", "n5", "m");
    assert_hosts("node[001-003]", "node001", "node002", "node003");
    assert_hosts("x[08-11]", "x08", "x09", "x10", "x11");
    assert_hosts("x[8-011]", "x8", "x9", "x10", "x11");
    assert_hosts("x[001-3]", "x001", "x002", "x003");
    assert_hosts("r[1-2]n[01-02]", "r1n01", "r1n02", "r2n01", "r2n02");
}

static void a_suffix_behind_brackets_stays(void **state)
{
    (void)state;
    assert_hosts("n[1-2]-ib", "n1-ib", "n2-ib");
}

static void lists_that_are_malformed_or_huge_are_refused_with_their_column(void **state)
{
    (void)state;
    static const struct {
        const char *list, *part;
        int column;
    } wrong[] = {
        {"n[3-1]", "runs backwards", 6},
        {"n[1-2", "not closed", 6},
        {"n[a-b]", "a number should", 3},
        {"n[1-2]]", "cannot be part", 7},
        {"a,,b", "name is missing", 3},
        {"", "name is missing", 1},
        {"n[]", "a number should", 3},
        {"n[1 2]", "only digits", 4},
        {"n[1-1000000]", "more than 16384", 12},
        {"n[0-99999999999999999999]", "digits", 20},
        {"a[0-9]b[0-9]c[0-9]d[0-9]e[0-9]", "brackets in one name", 26},
        {"a[0-127]b[0-128]", "more than 16384", 17},
        {"n[1-2]\\", "cannot be part", 7},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct dp_error err = {0};
        DP_CLEANUP(dp_hosts_deinit) struct dp_hosts hosts = {0};
        int column = 0;
        if (dp_hosts_expand(wrong[i].list, &hosts, &column, &err) == DP_OK) {
            fail_msg("%s was taken", wrong[i].list);
        }
        if (strstr(err.message, wrong[i].part) == NULL || column != wrong[i].column) {
            fail_msg("%s: column %d, not %d: %s", wrong[i].list, column, wrong[i].column,
                     err.message);
        }
    }
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void names_written_as_a_list_come_back(void **state)
{
    (void)state;
    static const char *const forms[] = {"n%03u", "n%u", "r%uc", "%u", "login", "a%02u-ib"};
    uint64_t random = 99;
    for (long run = 0; run < dp_fuzz_runs(300); run++) {
        DP_CLEANUP(dp_hosts_deinit) struct dp_hosts hosts = {0}, again = {0};
        size_t count = 1 + next_random(&random) % 30;
        unsigned number = 0;
        hosts.names = dp_new_array(char *, count);
        for (size_t i = 0; i < count; i++) {
            number = next_random(&random) % 3 == 0 ? (unsigned)(next_random(&random) % 1200)
                                                   : number + 1;
            size_t form =
                (next_random(&random) % 5 == 0 ? next_random(&random) : (uint64_t)run) % 6;
            char name[32];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
            snprintf(name, sizeof(name), forms[form], number);
#pragma GCC diagnostic pop
            hosts.names[hosts.count++] = dp_strdup(name);
        }
        DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
        struct dp_error err = {0};
        dp_hosts_write(&hosts, &text);
        assert_ok(dp_hosts_expand(text.bytes, &again, NULL, &err), &err);
        assert_int_equal(again.count, count);
        for (size_t i = 0; i < count; i++) {
            assert_string_equal(again.names[i], hosts.names[i]);
        }
    }
}

static void names_that_follow_each_other_become_ranges(void **state)
{
    (void)state;
    DP_CLEANUP(dp_hosts_deinit) struct dp_hosts hosts = {0};
    struct dp_error err = {0};
    assert_ok(dp_hosts_expand("n009,n010,n011,n020,m,r9,r10", &hosts, NULL, &err), &err);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_hosts_write(&hosts, &text);
    assert_string_equal(text.bytes, "n[009-011,020],m,r[9-10]");
}

static dp_status parse(const char *text, const char *only, struct dp_topology *ret,
                       struct dp_error *err)
{
    DP_CLEANUP(dp_diags_deinit) struct dp_diags diags;
    DP_CLEANUP(dp_hosts_deinit) struct dp_hosts hosts = {0};
    dp_diags_init(&diags, "topology.conf", text, strlen(text));
    if (only != NULL) {
        assert_ok(dp_hosts_expand(only, &hosts, NULL, err), err);
    }
    return dp_topology_parse(text, strlen(text), only == NULL ? NULL : &hosts, &diags, ret, err);
}

static void assert_sizes(const struct dp_topology_level *level, const char *wanted)
{
    char text[256] = "";
    for (size_t i = 0; i < level->count; i++) {
        size_t length = strlen(text);
        snprintf(text + length, sizeof(text) - length, "%s%d", i == 0 ? "" : ",", level->sizes[i]);
    }
    assert_string_equal(text, wanted);
}

// The example of Slurm's manual with comments, continued lines and other keys.
#define TREE                                                                                       \
    "# two leaves and an unequal one\n"                                                            \
    "SwitchName=s0 Nodes=dev[0-5] LinkSpeed=100\n"                                                 \
    "switchname=s1 nodes=dev[6-11] \\\n  # continued\n"                                            \
    "SwitchName=s2 \\\r\n Nodes=dev[12-15]\n\n"                                                    \
    "SwitchName=s3 Switches=s[0-2]   # the top\n"

static void a_tree_gives_hosts_and_groups_in_its_order(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_topology_deinit) struct dp_topology topology = {0};
    assert_ok(parse(TREE, NULL, &topology, &err), &err);
    assert_int_equal(topology.hosts.count, 16);
    assert_string_equal(topology.hosts.names[6], "dev6");
    assert_int_equal(topology.levels_count, 2);
    assert_string_equal(topology.levels[0].name, "leaf");
    assert_sizes(&topology.levels[0], "6,6,4");
    assert_string_equal(topology.levels[1].name, "spine");
    assert_sizes(&topology.levels[1], "16");
}

static void hosts_that_are_not_asked_for_are_left_out(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_topology_deinit) struct dp_topology topology = {0};
    assert_ok(parse(TREE "SwitchName=other Nodes=cpu[1-4]\n", "dev[1,3,14]", &topology, &err),
              &err);
    assert_int_equal(topology.hosts.count, 3);
    assert_sizes(&topology.levels[0], "2,1");
    assert_string_equal(topology.hosts.names[2], "dev14");
}

static void leaves_at_unequal_depths_keep_their_groups(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_topology_deinit) struct dp_topology topology = {0};
    assert_ok(parse("SwitchName=core Switches=sp,far\nSwitchName=sp Switches=l[1-2]\n"
                    "SwitchName=l1 Nodes=a[1-2]\nSwitchName=l2 Nodes=b[1-3]\n"
                    "SwitchName=far Nodes=c[1-4]\n",
                    NULL, &topology, &err),
              &err);
    assert_int_equal(topology.levels_count, 3);
    assert_sizes(&topology.levels[0], "2,3,4");
    assert_sizes(&topology.levels[1], "5,4");
    assert_sizes(&topology.levels[2], "9");
}

static void blocks_are_joined_by_their_sizes(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_topology_deinit) struct dp_topology topology = {0};
    assert_ok(parse("BlockName=b1 Nodes=n[01-18]\nBlockName=b2 Nodes=n[19-36]\n"
                    "BlockName=b3 Nodes=n[37-54]\nBlockName=b4 Nodes=n[55-70]\n"
                    "BlockName=b5 Nodes=n[71-88]\nBlockSizes=16,32\n",
                    NULL, &topology, &err),
              &err);
    assert_int_equal(topology.levels_count, 3);
    assert_string_equal(topology.levels[0].name, "block");
    assert_sizes(&topology.levels[0], "18,18,18,16,18");
    assert_sizes(&topology.levels[1], "36,34,18");
    assert_sizes(&topology.levels[2], "88");
}

static void mistakes_are_named_with_their_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } wrong[] = {
        {"SwitchName=a Switches=b\nSwitchName=b Switches=a\nSwitchName=c Nodes=n\n",
         "above itself"},
        {"SwitchName=a Nodes=n\nSwitchName=b Switches=a,c\n", "topology.conf:2:23: switch \"b\" "},
        {"SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[2-3]\nSwitchName=c Switches=a,b\n",
         "topology.conf:2:20: host \"n2\" is below \"a\" already"},
        {"SwitchName=a Nodes=n1\nSwitchName=b Switches=a\nSwitchName=c Switches=a\n",
         "topology.conf:3:23: switch \"a\" is below \"b\" already"},
        {"SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n", "described before, in line 1"},
        {"SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\n", "no switch joins \"a\" and \"b\""},
        {"SwitchName=a Nodes=n[1-99999999]\n", "topology.conf:1:32: a range of more than"},
        {"SwitchName=a Nodes=n1\nSwitchName=a2 \\\n Nodes=n[1-\n", "topology.conf:3:12: a number"},
        {"SwitchName=a\n", "names no Nodes= or Switches="},
        {"SwitchName=a Nodes=n1 Switches=b\n", "both Nodes= and Switches="},
        {"BlockName=a Switches=b\n", "names no Nodes="},
        {"BlockName=a Nodes=n1\nSwitchName=b Nodes=n2\n", "in one file"},
        {"BlockName=a Nodes=n1\nBlockName=b Nodes=n2\nBlockSizes=2,3\n", "multiples of the first"},
        {"BlockName=a Nodes=n1\nBlockSizes=0\n", "numbers from 1"},
        {"SwitchName=a Nodes=ALL\n", "does not say which"},
        {"Nodes=n1\n", "says nothing about a switch"},
        {"SwitchName a\n", "topology.conf:1:1: a KEY=VALUE"},
        {"", "no switch joins any host"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct dp_error err = {0};
        DP_CLEANUP(dp_topology_deinit) struct dp_topology topology = {0};
        assert_refused(parse(wrong[i].text, NULL, &topology, &err), DP_INVALID, &err,
                       wrong[i].part);
    }
}

static void switches_deeper_than_anybody_builds_are_refused(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_topology_deinit) struct dp_topology topology = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_buf_puts(&text, "SwitchName=s0 Nodes=n[1-4]\n");
    for (int i = 1; i < 5000; i++) {
        dp_buf_printf(&text, "SwitchName=s%d Switches=s%d\n", i, i - 1);
    }
    assert_refused(parse(text.bytes, NULL, &topology, &err), DP_INVALID, &err,
                   "lies below more than");
}

// A line of 40 bytes may stand for 16384 names: a file within its size could mean 2^28 of them.
// These mean 655360.
static void short_lines_cannot_ask_for_names_without_end(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_topology_deinit) struct dp_topology topology = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    for (int i = 0; i < 40; i++) {
        dp_buf_printf(&text, "SwitchName=s%d Nodes=n[1-%d]\n", i, DP_NODES_MAX);
    }
    assert_refused(parse(text.bytes, NULL, &topology, &err), DP_INVALID, &err,
                   "topology.conf:17:22: more than 262144 names");
}

// Two hosts share a group of a level when the lowest switch above both is no higher than it.
struct tree {
    int32_t parent[64], level[64], leaf_of[256], switches, hosts;
};

static int32_t grow(struct tree *tree, uint64_t *random, int32_t depth, struct dp_buf *text)
{
    int32_t self = tree->switches++;
    tree->level[self] = depth;
    int32_t count = 1 + (int32_t)(next_random(random) % 3);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf children = {0};
    for (int32_t i = 0; i < count; i++) {
        if (depth == 0) {
            tree->leaf_of[tree->hosts] = self;
            dp_buf_printf(&children, "%sh%d", i == 0 ? "" : ",", tree->hosts++);
        } else {
            int32_t child = grow(tree, random, depth - 1, text);
            tree->parent[child] = self;
            dp_buf_printf(&children, "%ss%d", i == 0 ? "" : ",", child);
        }
    }
    dp_buf_printf(text, "SwitchName=s%d %s=%s\n", self, depth == 0 ? "Nodes" : "Switches",
                  children.bytes);
    return self;
}

static int32_t joined_at(const struct tree *tree, int32_t a, int32_t b)
{
    int32_t one = tree->leaf_of[a], two = tree->leaf_of[b];
    while (one != two) {
        one = tree->parent[one];
        two = tree->parent[two];
    }
    return tree->level[one];
}

// Sizes of the groups that switches up to a level make of hosts in the order found.
static size_t sizes_at(const struct tree *tree, const struct dp_hosts *hosts, int32_t level,
                       int32_t sizes[256])
{
    size_t count = 0;
    for (size_t i = 0; i < hosts->count; i++) {
        bool joined = i > 0 && joined_at(tree, atoi(hosts->names[i - 1] + 1),
                                         atoi(hosts->names[i] + 1)) <= level;
        if (!joined) {
            sizes[count++] = 0;
        }
        sizes[count - 1]++;
    }
    return count;
}

static void groups_are_those_of_the_lowest_common_switch(void **state)
{
    (void)state;
    uint64_t random = 4242;
    for (long run = 0; run < dp_fuzz_runs(300); run++) {
        struct tree tree = {.switches = 0};
        DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
        int32_t depth = (int32_t)(next_random(&random) % 4);
        grow(&tree, &random, depth, &text);
        struct dp_error err = {0};
        DP_CLEANUP(dp_topology_deinit) struct dp_topology topology = {0};
        assert_ok(parse(text.bytes, NULL, &topology, &err), &err);
        assert_int_equal(topology.hosts.count, tree.hosts);
        // Levels that say nothing more than the one inside them, or nothing at all, are left out.
        int32_t found = 0, before[256] = {0};
        size_t before_count = 0;
        for (int32_t level = 0; level <= depth; level++) {
            int32_t sizes[256] = {0};
            size_t count = sizes_at(&tree, &topology.hosts, level, sizes);
            if (count == topology.hosts.count ||
                (count == before_count && memcmp(sizes, before, sizeof(sizes)) == 0)) {
                continue;
            }
            assert_in_range(found, 0, topology.levels_count - 1);
            assert_int_equal(topology.levels[found].count, count);
            assert_memory_equal(topology.levels[found].sizes, sizes, count * sizeof(*sizes));
            memcpy(before, sizes, sizeof(sizes));
            before_count = count;
            found++;
        }
        assert_int_equal(found, topology.levels_count);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_lists_mean_what_slurm_makes_of_them),
        cmocka_unit_test(a_suffix_behind_brackets_stays),
        cmocka_unit_test(lists_that_are_malformed_or_huge_are_refused_with_their_column),
        cmocka_unit_test(names_written_as_a_list_come_back),
        cmocka_unit_test(names_that_follow_each_other_become_ranges),
        cmocka_unit_test(a_tree_gives_hosts_and_groups_in_its_order),
        cmocka_unit_test(hosts_that_are_not_asked_for_are_left_out),
        cmocka_unit_test(leaves_at_unequal_depths_keep_their_groups),
        cmocka_unit_test(blocks_are_joined_by_their_sizes),
        cmocka_unit_test(mistakes_are_named_with_their_line),
        cmocka_unit_test(switches_deeper_than_anybody_builds_are_refused),
        cmocka_unit_test(short_lines_cannot_ask_for_names_without_end),
        cmocka_unit_test(groups_are_those_of_the_lowest_common_switch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
