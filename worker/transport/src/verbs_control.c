// What ranks tell each other over the tcp connection beside their queue pairs: frames of one size.
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "dp/alloc.h"
#include "verbs.h"

#define FRAME_MAGIC 0x31565044u // "DPV1"
#define CHANNEL_WORDS 8
#define OUT_BYTES_MAX (64 * (size_t)FRAME_BYTES) // a peer that reads nothing is not waited for

struct frame {
    uint64_t words[FRAME_WORDS]; // magic and kind, epoch, then by kind
};

static uint64_t pair(uint64_t low, uint64_t high)
{
    return low | high << 32;
}

static void watch(struct verbs_link *link, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.u64 = (uint64_t)link->peer};
    if (link->watched != events) {
        int change = events == 0          ? EPOLL_CTL_DEL
                     : link->watched == 0 ? EPOLL_CTL_ADD
                                          : EPOLL_CTL_MOD;
        epoll_ctl(link->verbs->epoll_fd, change, link->fd, &event);
        link->watched = events;
    }
}

static void flush(struct verbs_link *link)
{
    size_t done = 0;
    while (done < link->out_bytes) {
        ssize_t sent =
            send(link->fd, link->out + done, link->out_bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0 && errno != EAGAIN) {
            done = link->out_bytes; // the reader finds out why
        }
        if (sent <= 0) {
            break;
        }
        done += (size_t)sent;
    }
    link->out_bytes -= done;
    if (link->out_bytes > 0) {
        memmove(link->out, link->out + done, link->out_bytes);
    }
    if (link->watched != 0) {
        watch(link, link->out_bytes > 0 ? EPOLLIN | EPOLLOUT : EPOLLIN);
    }
}

static void send_frame(struct verbs_link *link, verbs_frame_kind kind, struct frame *frame)
{
    if (link->fd < 0 || link->out_bytes + FRAME_BYTES > OUT_BYTES_MAX) {
        return;
    }
    frame->words[0] = pair(FRAME_MAGIC, (uint64_t)kind);
    frame->words[1] = link->epoch;
    unsigned char *to;
    link->out = dp_realloc(link->out, 1, link->out_bytes + FRAME_BYTES);
    to = link->out + link->out_bytes;
    for (int i = 0; i < FRAME_WORDS; i++) {
        uint64_t word = htole64(frame->words[i]);
        memcpy(to + 8 * i, &word, sizeof word);
    }
    link->out_bytes += FRAME_BYTES;
    flush(link);
}

void dp_verbs_control_send_end(struct verbs_link *link)
{
    const struct verbs *verbs = link->verbs;
    struct frame frame = {{0}};
    uint64_t *words = frame.words;
    words[2] = pair((uint64_t)verbs->device.mtu, verbs->device.lid);
    memcpy(&words[3], verbs->device.gid.raw, 16);
    words[3] = le64toh(words[3]);
    words[4] = le64toh(words[4]);
    for (int kind = 0; kind < VERBS_CHANNELS; kind++) {
        struct verbs_channel *channel = &link->channels[kind];
        uint64_t *at = words + 5 + CHANNEL_WORDS * kind;
        at[0] = pair(channel->qp->qp_num, channel->psn);
        at[1] = (uintptr_t)channel->slots;
        at[2] = (uintptr_t)channel->grants;
        at[3] = pair(link->region->mrs[0]->rkey, verbs->config.depth);
        at[4] = channel->slot_bytes;
        at[5] = channel->arrived;
        at[6] = channel->consumed;
        channel->granted = channel->consumed;
    }
    send_frame(link, VERBS_FRAME_END, &frame);
}

void dp_verbs_control_send_ready(struct verbs_link *link)
{
    struct frame frame = {{0}};
    send_frame(link, VERBS_FRAME_READY, &frame);
}

void dp_verbs_control_send_bye(struct verbs_link *link, const char *reason)
{
    struct frame frame = {{0}};
    if (!link->said_bye) {
        link->said_bye = true;
        unsigned char text[FRAME_TEXT_BYTES] = {0};
        snprintf((char *)text, sizeof text, "%s", reason);
        memcpy(&frame.words[2], text, sizeof text);
        for (int i = 2; i < FRAME_WORDS; i++) {
            frame.words[i] = le64toh(frame.words[i]);
        }
        send_frame(link, VERBS_FRAME_BYE, &frame);
    }
}

// Whether the peer's end fits this one; it is used under its epoch.
static bool take_end(struct verbs_link *link, const uint64_t *words)
{
    struct verbs_end end = {
        .epoch = words[1], .mtu = (uint32_t)words[2], .lid = (uint32_t)(words[2] >> 32)};
    uint64_t gid[2] = {htole64(words[3]), htole64(words[4])};
    memcpy(end.gid, gid, sizeof gid);
    for (int kind = 0; kind < VERBS_CHANNELS; kind++) {
        const uint64_t *at = words + 5 + CHANNEL_WORDS * kind;
        end.channels[kind].qpn = (uint32_t)at[0];
        end.channels[kind].psn = (uint32_t)(at[0] >> 32);
        end.channels[kind].slots = at[1];
        end.channels[kind].grants = at[2];
        end.channels[kind].rkey = (uint32_t)at[3];
        end.channels[kind].arrived = at[5];
        end.channels[kind].consumed = at[6];
        if (at[3] >> 32 != link->verbs->config.depth || at[4] != link->channels[kind].slot_bytes) {
            return false;
        }
    }
    bool is_sound = end.mtu >= IBV_MTU_256 && end.mtu <= IBV_MTU_4096 && end.epoch <= UINT32_MAX &&
                    end.epoch > 0;
    if (is_sound && end.epoch > link->peer_end.epoch) {
        link->peer_end = end;
    }
    return is_sound;
}

static void take_bye(struct verbs_link *link, const uint64_t *words)
{
    char reason[FRAME_TEXT_BYTES];
    uint64_t text[FRAME_WORDS - 2];
    for (int i = 2; i < FRAME_WORDS; i++) {
        text[i - 2] = htole64(words[i]);
    }
    memcpy(reason, text, sizeof reason);
    reason[sizeof reason - 1] = '\0';
    for (char *at = reason; *at != '\0'; at++) {
        *at = (unsigned char)*at < ' ' ? '?' : *at;
    }
    // All that the peer sent is in the queue by now, since it waited for that.
    while (dp_verbs_poll(link)) {
    }
    dp_verbs_consume(link, true);
    link->heard_bye = true;
    struct dp_transport *front = link->verbs->base.front;
    pthread_mutex_lock(front->mutex);
    dp_transport_peer_closed(&link->verbs->base, link->peer, reason);
    pthread_mutex_unlock(front->mutex);
    pthread_cond_broadcast(&link->changed);
}

static void take_frame(struct verbs_link *link)
{
    uint64_t words[FRAME_WORDS];
    for (int i = 0; i < FRAME_WORDS; i++) {
        memcpy(&words[i], link->frame + 8 * i, sizeof words[i]);
        words[i] = le64toh(words[i]);
    }
    bool is_sound = (uint32_t)words[0] == FRAME_MAGIC;
    switch ((verbs_frame_kind)(is_sound ? words[0] >> 32 : 0)) {
    case VERBS_FRAME_END:
        is_sound = take_end(link, words);
        break;
    case VERBS_FRAME_READY:
        link->peer_ready = (uint32_t)words[1];
        break;
    case VERBS_FRAME_BYE:
        take_bye(link, words);
        break;
    default:
        is_sound = false;
    }
    if (!is_sound) {
        dp_verbs_link_end(link, "it speaks of tables of another size, or another language: it runs "
                                "another version or configuration");
    }
}

static void read_socket(struct verbs_link *link)
{
    while (link->watched != 0) {
        ssize_t got = recv(link->fd, link->frame + link->frame_got, FRAME_BYTES - link->frame_got,
                           MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0 && errno == EAGAIN) {
            return;
        }
        if (got <= 0) {
            int errnum = got < 0 ? errno : 0;
            watch(link, 0);
            while (dp_verbs_poll(link)) {
            }
            dp_verbs_consume(link, true);
            dp_verbs_link_end(link, errnum != 0 ? strerror(errnum) : "it closed the connection");
            return;
        }
        link->frame_got += (size_t)got;
        if (link->frame_got == FRAME_BYTES) {
            link->frame_got = 0;
            take_frame(link);
        }
    }
}

void dp_verbs_control_start(struct verbs_link *link)
{
    watch(link, EPOLLIN);
}

void dp_verbs_control_turn(struct verbs_link *link, uint32_t events)
{
    if (events & EPOLLOUT) {
        flush(link);
    }
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        read_socket(link);
    }
}
