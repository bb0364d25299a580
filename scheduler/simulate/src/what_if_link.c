// The text of --slow-link.

#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/what_if.h"
#include "what_if_text.h"

struct link {
    int32_t from, to;
    int column;
    bool both;
    bool adds;
    double factor;  // 1 when it adds
    double seconds; // 0 when it does not
};

static bool bad_link(const struct dp_csv_cell *cell, struct dp_diags *diags)
{
    dp_diags_add(diags, 1, cell->column, "write 2-3:4x, 2>3:4x (one way) or 2-3:+0.5 (seconds)",
                 "\"%.*s\" is no link with a change", dp_csv_shown(cell), cell->text);
    return false;
}

static bool read_amount(const struct dp_csv_cell *amount, struct dp_diags *diags, struct link *link)
{
    struct dp_csv_cell rest = *amount;
    link->adds = false;
    link->factor = 1;
    link->seconds = 0;
    if (rest.length > 0 && rest.text[0] == '+') {
        link->adds = true;
        rest.text++;
        rest.length--;
        rest.column++;
        return dp_what_if_seconds(&rest, diags, 1, &link->seconds);
    }
    double number;
    if (dp_csv_number(&rest, &number) || (rest.length > 0 && rest.text[rest.length - 1] == 'x')) {
        return dp_what_if_factor(&rest, diags, 1, &link->factor);
    }
    return bad_link(amount, diags);
}

static bool read_item(const struct dp_csv_cell *item, const struct dp_schedule *schedule,
                      struct dp_diags *diags, struct link *link)
{
    struct dp_csv_cell ends, amount, from, to;
    if (!dp_what_if_cut(item, ':', &ends, &amount)) {
        return bad_link(item, diags);
    }
    link->column = item->column;
    link->both = dp_what_if_cut(&ends, '-', &from, &to);
    if (!link->both && !dp_what_if_cut(&ends, '>', &from, &to)) {
        return bad_link(item, diags);
    }
    bool good = dp_what_if_index(&from, "rank", schedule->pipeline, diags, 1, &link->from);
    good = dp_what_if_index(&to, "rank", schedule->pipeline, diags, 1, &link->to) && good;
    if (good && link->from == link->to) {
        dp_diags_add(diags, 1, item->column, NULL, "rank %d needs no link to itself", link->from);
        good = false;
    }
    return read_amount(&amount, diags, link) && good;
}

// Whether any message goes from one rank to the other: an activation to the next stage, a gradient
// to the one before.
static bool carries(const struct dp_schedule *schedule, int32_t from, int32_t to)
{
    for (int32_t stage = 0; stage + 1 < schedule->stages; stage++) {
        for (int direction = 0; direction < schedule->directions; direction++) {
            int32_t here = schedule->placement[2 * stage + direction];
            int32_t next = schedule->placement[2 * (stage + 1) + direction];
            if ((here == from && next == to) || (next == from && here == to)) {
                return true;
            }
        }
    }
    return false;
}

// Whether both items change one direction in the same manner, by a factor or by seconds.
static bool same_target(const struct link *a, const struct link *b)
{
    bool there = a->from == b->from && a->to == b->to;
    bool back = a->from == b->to && a->to == b->from;
    return (there || (back && (a->both || b->both))) && a->adds == b->adds;
}

static bool costs_nothing(const struct dp_sim_costs *costs, const struct dp_sim_hop *hop)
{
    bool bytes = costs->message_bytes_f > 0 || costs->message_bytes_b > 0;
    return hop->latency == 0 && (hop->bytes_per_second == 0 || !bytes);
}

static void change(struct dp_sim_hop *hop, const struct link *link)
{
    hop->latency = hop->latency * link->factor + link->seconds;
    hop->bytes_per_second /= link->factor;
}

static void apply(const struct link *link, const struct dp_schedule *schedule,
                  const struct dp_sim_costs *costs, struct dp_buf *notes)
{
    struct dp_sim_hop *there = dp_sim_hop_at(costs, link->from, link->to);
    struct dp_sim_hop *back = dp_sim_hop_at(costs, link->to, link->from);
    bool nothing = link->seconds == 0 && costs_nothing(costs, there) &&
                   (!link->both || costs_nothing(costs, back));
    bool used = carries(schedule, link->from, link->to);
    change(there, link);
    if (link->both) {
        change(back, link);
    }
    if (notes == NULL) {
        return;
    }
    const char *arrow = link->both ? "-" : ">";
    if (!used) {
        dp_buf_printf(notes,
                      "no neighbouring stages are on ranks %d and %d: link %d%s%d is unused\n",
                      link->from, link->to, link->from, arrow, link->to);
    } else if (nothing) {
        dp_buf_printf(notes,
                      "link %d%s%d costs nothing, and %g times nothing is nothing: give a hop, or "
                      "%d%s%d:+SECONDS\n",
                      link->from, arrow, link->to, link->factor, link->from, arrow, link->to);
    }
}

// What a change leaves of a hop; a bandwidth of 0, to which too many divisions come, would be
// endless.
static void check_hop(const struct dp_sim_hop *before, const struct dp_sim_hop *hop,
                      const struct link *link, struct dp_diags *diags)
{
    if (hop->latency > DP_COST_SECONDS_MAX) {
        dp_diags_add(diags, 1, link->column, NULL,
                     "the link's latency would be %g seconds; at most %g", hop->latency,
                     DP_COST_SECONDS_MAX);
    }
    if (before->bytes_per_second > 0 && !(hop->bytes_per_second >= DP_COST_BYTES_PER_S_MIN)) {
        dp_diags_add(diags, 1, link->column, NULL, "the link would carry %g bytes/s; at least %g",
                     hop->bytes_per_second, DP_COST_BYTES_PER_S_MIN);
    } else if (!isfinite(hop->bytes_per_second)) {
        dp_diags_add(diags, 1, link->column, NULL, "the link would be infinitely fast");
    }
}

// Tries the changes, one after the other, on hops of their own.
static void check_changes(const struct link *links, size_t count, const struct dp_sim_costs *costs,
                          struct dp_diags *diags)
{
    size_t hops_bytes = (size_t)costs->pipeline * (size_t)costs->pipeline * sizeof(*costs->hops);
    DP_AUTO_FREE struct dp_sim_hop *hops = dp_memdup(costs->hops, hops_bytes);
    struct dp_sim_costs changed = *costs;
    changed.hops = hops;
    for (size_t i = 0; i < count; i++) {
        const struct link *link = &links[i];
        for (int way = 0; way <= link->both; way++) {
            struct dp_sim_hop *hop = way == 0 ? dp_sim_hop_at(&changed, link->from, link->to)
                                              : dp_sim_hop_at(&changed, link->to, link->from);
            struct dp_sim_hop before = *hop;
            change(hop, link);
            check_hop(&before, hop, link, diags);
        }
    }
}

static void check_repeats(const struct link *links, size_t count, struct dp_diags *diags)
{
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < i; j++) {
            if (same_target(&links[i], &links[j])) {
                dp_diags_add(diags, 1, links[i].column, NULL, "link %d%s%d is there twice",
                             links[i].from, links[i].both ? "-" : ">", links[i].to);
                break;
            }
        }
    }
}

dp_status dp_what_if_slow_link(const char *name, const char *text,
                               const struct dp_schedule *schedule, struct dp_sim_costs *costs,
                               struct dp_buf *notes, struct dp_error *err)
{
    struct what_if_items items;
    dp_what_if_items_init(&items, name, text);
    DP_AUTO_FREE struct link *links = dp_new_array(struct link, items.count);
    size_t count = 0; // of those that can be read
    for (size_t i = 0; i < items.count; i++) {
        count += read_item(&items.cells[i], schedule, &items.diags, &links[count]);
    }
    check_repeats(links, count, &items.diags);
    dp_status status = dp_diags_status(&items.diags, err);
    if (status == DP_OK) {
        check_changes(links, count, costs, &items.diags);
        status = dp_diags_status(&items.diags, err);
    }
    for (size_t i = 0; i < count && status == DP_OK; i++) {
        apply(&links[i], schedule, costs, notes);
    }
    dp_what_if_items_deinit(&items);
    return status;
}
