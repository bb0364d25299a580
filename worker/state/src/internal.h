// What the two ends say to each other. Little-endian throughout.
#pragma once

#include "dp/state.h"

#define STATE_MAGIC 0x54535044u // "DPST"
#define STATE_VERSION 1u
#define STATE_HELLO_BYTES 32u   // magic, version u32; token u64; from, to u32; zero u64
#define STATE_REQUEST_BYTES 32u // question, part u32; first, count u64; zero u64
#define STATE_ANSWER_BYTES 32u  // magic, question u32; length, hash u64; zero u64

typedef enum state_question {
    STATE_TABLE = 1,
    STATE_VALUES, // elements [first, first + count) of the part, counted from its begin
} state_question;

struct state_request {
    uint32_t question, part;
    uint64_t first, count;
};

struct state_answer {
    uint32_t question;
    uint64_t length, hash;
};

void dp_state_put_hello(unsigned char *bytes, uint64_t token, int32_t from, int32_t to);
// Whether it is of this protocol and token; who says it, and to whom.
bool dp_state_read_hello(const unsigned char *bytes, uint64_t token, int32_t *ret_from,
                         int32_t *ret_to);
void dp_state_put_request(unsigned char *bytes, const struct state_request *request);
struct state_request dp_state_read_request(const unsigned char *bytes);
void dp_state_put_answer(unsigned char *bytes, const struct state_answer *answer);
// False: it is no answer to `question`, or has more bytes than `length_max`.
bool dp_state_read_answer(const unsigned char *bytes, uint32_t question, uint64_t length_max,
                          struct state_answer *ret_answer);
