// What members tell each other with every put, and how a member that does other things is found
// out.
#include "engine.h"

#include <stdio.h>

static const char *const move_texts[4] = {
    [DP_MOVE_DISPATCH] = "dispatch",
    [DP_MOVE_COMBINE] = "combine",
    [DP_MOVE_COMBINE_INPUT] = "combine's input gradient",
    [DP_MOVE_DISPATCH_INPUT] = "dispatch's input gradient",
};

const char *dp_alltoall_move_text(uint32_t move)
{
    return move_texts[move & 3];
}

const char *dp_round_text(char *buffer, const struct round *round)
{
    char tag[DP_TRANSPORT_TAG_TEXT_MAX];
    snprintf(buffer, ROUND_TEXT_MAX, "%s (%s)", dp_alltoall_move_text(round->move),
             dp_transport_tag_text(tag, round->routing->tag));
    return buffer;
}

uint64_t dp_note_pack(const struct note *note)
{
    return (uint64_t)note->kind << 61 | (uint64_t)(note->move & 3) << 59 |
           (uint64_t)(note->lane & 3) << 57 | (uint64_t)(note->source & 0x3ff) << 47 |
           (uint64_t)(note->rows & ((1u << NOTE_ROWS_BITS) - 1)) << 29 |
           (uint64_t)(note->round & NOTE_ROUND_MASK) << 13 | (note->check & NOTE_CHECK_MASK);
}

struct note dp_note_unpack(uint64_t bits)
{
    return (struct note){
        .kind = (note_kind)(bits >> 61),
        .move = bits >> 59 & 3,
        .lane = bits >> 57 & 3,
        .source = bits >> 47 & 0x3ff,
        .rows = (uint32_t)(bits >> 29 & ((1u << NOTE_ROWS_BITS) - 1)),
        .round = bits >> 13 & NOTE_ROUND_MASK,
        .check = bits & NOTE_CHECK_MASK,
    };
}

static dp_status fail_order(const struct dp_alltoall *alltoall, int32_t peer,
                            const struct note *note, uint32_t number, uint32_t check,
                            const char *mine, struct dp_error *err)
{
    const struct link *link = &alltoall->links[peer];
    if (note->round == (number & NOTE_ROUND_MASK)) {
        return dp_fail(err, DP_INTERNAL,
                       "all-to-all: rank %d and rank %d both do %s as move %u, but of other "
                       "routings, formats or attempts (check %u and %u): here it is %s",
                       link->rank, alltoall->links[alltoall->self].rank,
                       dp_alltoall_move_text(note->move), note->round, note->check, check, mine);
    }
    return dp_fail(err, DP_INTERNAL,
                   "all-to-all: rank %d does %s as move %u, rank %d as move %u (%s): the order of "
                   "moves differs",
                   link->rank, dp_alltoall_move_text(note->move), note->round,
                   alltoall->links[alltoall->self].rank, number & NOTE_ROUND_MASK, mine);
}

static dp_status compare(const struct dp_alltoall *alltoall, int32_t peer, const struct note *note,
                         const struct round *round, struct dp_error *err)
{
    if (note->round == (round->number & NOTE_ROUND_MASK) && note->check == round->check) {
        return DP_OK;
    }
    char text[ROUND_TEXT_MAX];
    return fail_order(alltoall, peer, note, round->number, round->check, dp_round_text(text, round),
                      err);
}

dp_status dp_notes_check_early(struct dp_alltoall *alltoall, const struct round *round,
                               struct dp_error *err)
{
    dp_status status = DP_OK;
    for (int32_t i = 0; i < alltoall->topology.ranks && status == DP_OK; i++) {
        struct lane_peer *peer = &round->lane->peers[i];
        if (peer->is_noted) {
            struct note note = dp_note_unpack(peer->note);
            status = compare(alltoall, i, &note, round, err);
        }
    }
    return status;
}

// Of the lane's round under way, or of the one that will begin next here.
static dp_status check_current(struct dp_alltoall *alltoall, struct lane *lane, int32_t peer,
                               uint64_t bits, struct dp_error *err)
{
    struct note note = dp_note_unpack(bits);
    if (lane->round != NULL) {
        return compare(alltoall, peer, &note, lane->round, err);
    }
    struct lane_peer *from = &lane->peers[peer];
    struct note before = dp_note_unpack(from->note);
    if (from->is_noted && (before.round != note.round || before.check != note.check)) {
        return fail_order(alltoall, peer, &note, before.round, before.check, "not begun", err);
    }
    from->note = bits;
    from->is_noted = true;
    return DP_OK;
}

static dp_status fail_note(const struct dp_alltoall *alltoall, int32_t peer,
                           const struct note *note, const char *why, struct dp_error *err)
{
    return dp_fail(err, DP_INTERNAL,
                   "all-to-all: rank %d tells of %u rows of %u in %s, move %u: %s",
                   alltoall->links[peer].rank, note->rows, note->source,
                   dp_alltoall_move_text(note->move), note->round, why);
}

// A credit is of the round under way here, or of the one before: nobody is further ahead, since a
// round is not over anywhere before all are through with the one before.
static dp_status take_credit(struct dp_alltoall *alltoall, struct lane *lane, int32_t peer,
                             uint64_t bits, struct dp_error *err)
{
    struct lane_peer *from = &lane->peers[peer];
    struct note note = dp_note_unpack(bits);
    uint64_t of = from->credits;
    dp_status status = DP_OK;
    if (of == lane->over) {
        status = check_current(alltoall, lane, peer, bits, err);
    } else if (of + 1 != lane->over) {
        status = fail_note(alltoall, peer, &note, "a credit out of turn", err);
    } else if (note.round != (lane->last_number & NOTE_ROUND_MASK) ||
               note.check != lane->last_check) {
        char tag[DP_TRANSPORT_TAG_TEXT_MAX];
        status = fail_order(alltoall, peer, &note, lane->last_number, lane->last_check,
                            dp_transport_tag_text(tag, lane->last_tag), err);
    }
    from->credits += status == DP_OK;
    return status;
}

// Rows that can have come of a source in one move; what is told must not count beyond.
static dp_status take_rows(struct dp_alltoall *alltoall, struct lane *lane, int32_t peer,
                           const struct note *note, struct dp_error *err)
{
    uint32_t sources =
        (uint32_t)(note->kind == NOTE_RETURN ? alltoall->topology.nodes : alltoall->topology.ranks);
    bool is_back = dp_alltoall_is_back((dp_move)note->move);
    bool is_fit = is_back == (note->kind == NOTE_PARTIAL || note->kind == NOTE_RETURN);
    if (note->source >= sources || !is_fit) {
        return fail_note(alltoall, peer, note, "there is no such thing", err);
    }
    int64_t *count = NULL;
    if (note->kind == NOTE_ARRIVAL) {
        count = &lane->arrived[note->source];
    } else if (note->kind == NOTE_INBOUND) {
        count = &lane->inbound[note->source];
    } else if (note->kind == NOTE_RETURN) {
        count = &lane->returned[note->source];
    } else if (alltoall->links[peer].is_near) {
        count = &lane->partial[(int64_t)note->source * alltoall->node_ranks +
                               alltoall->topology.local[peer]];
    }
    if (count == NULL || *count + note->rows > alltoall->tokens_max) {
        return fail_note(alltoall, peer, note, "more than there can be", err);
    }
    *count += note->rows;
    return DP_OK;
}

static dp_status take_control(struct dp_alltoall *alltoall, int32_t peer, const struct note *note,
                              struct dp_error *err)
{
    struct link *link = &alltoall->links[peer];
    if (note->move == CONTROL_CLOSE) {
        link->has_closed = true;
    } else if (note->move == CONTROL_ACK) {
        uint32_t told = (note->round << 13 | note->check) & ACK_MASK;
        uint64_t more = (told - (uint32_t)link->acked) & ACK_MASK;
        if (more > link->sent - link->acked) {
            return dp_fail(err, DP_INTERNAL,
                           "all-to-all: rank %d says that it has read %llu notes of the %llu that "
                           "rank %d has sent",
                           link->rank, (unsigned long long)(link->acked + more),
                           (unsigned long long)link->sent, alltoall->links[alltoall->self].rank);
        }
        link->acked += more;
    }
    return DP_OK;
}

static dp_status take(struct dp_alltoall *alltoall, int32_t peer, uint64_t bits,
                      struct dp_error *err)
{
    struct note note = dp_note_unpack(bits);
    if (note.kind == NOTE_CONTROL) {
        return take_control(alltoall, peer, &note, err);
    }
    if ((int32_t)note.lane >= alltoall->depth) {
        return fail_note(alltoall, peer, &note, "there is no such lane", err);
    }
    struct lane *lane = &alltoall->lanes[note.move][note.lane];
    if (note.kind == NOTE_CREDIT) {
        return take_credit(alltoall, lane, peer, bits, err);
    }
    dp_status status = check_current(alltoall, lane, peer, bits, err);
    if (status != DP_OK || note.kind == NOTE_PART) {
        return status;
    }
    if (note.kind == NOTE_COUNTS) {
        lane->peers[peer].has_counts = true;
        return DP_OK;
    }
    return take_rows(alltoall, lane, peer, &note, err);
}

static dp_status read_peer(struct dp_alltoall *alltoall, int32_t peer, bool *progress,
                           struct dp_error *err)
{
    struct link *link = &alltoall->links[peer];
    uint64_t landed = dp_window_landed(alltoall->window, link->rank);
    dp_status status = DP_OK;
    while (link->read < landed && status == DP_OK) {
        uint64_t bits;
        status = dp_window_wait(alltoall->window, link->rank, link->read + 1, 0, &bits, err);
        if (status == DP_OK) {
            link->read++;
            *progress = true;
            status = take(alltoall, peer, bits, err);
        }
    }
    if (status == DP_OK && link->read - link->told >= UNACKED_MAX && !link->has_closed) {
        link->told = link->read;
        status =
            dp_link_control(alltoall, peer, CONTROL_ACK, (uint32_t)(link->read & ACK_MASK), err);
    }
    return status;
}

dp_status dp_notes_read(struct dp_alltoall *alltoall, bool *progress, struct dp_error *err)
{
    dp_status status = DP_OK;
    for (int32_t i = 0; i < alltoall->topology.ranks && status == DP_OK; i++) {
        if (i != alltoall->self) {
            status = read_peer(alltoall, i, progress, err);
        }
    }
    return status;
}
