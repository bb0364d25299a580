// Pairs of .bin and .idx as Megatron-LM's IndexedDataset has them (megatron/core/datasets/
// indexed_dataset.py). The index, little-endian and packed: 9 bytes "MMIDIDX\0\0", u64 version 1,
// u8 code of the tokens' type, u64 sequences, u64 documents; then int32 lengths of all sequences,
// int64 places of all in the .bin in bytes, int64 first sequences of all documents, and, of data
// with modes, an int8 for each sequence.
#include <string.h>

#include "dp/cleanup.h"
#include "files.h"

#define MAGIC "MMIDIDX\0\0"
#define MAGIC_BYTES 9
#define HEADER_BYTES 34
#define BLOCK 4096 // entries that are looked at together

struct index {
    const char *path;
    int fd;
    int64_t bytes;
    token_type type;
    int64_t sequences, documents;
    int64_t lengths, places, first; // where the three lists start
};

static dp_status read_type(struct index *index, uint8_t code, struct dp_error *err)
{
    static const struct {
        token_type type;
        const char *problem;
    } types[] = {
        [1] = {TOKEN_U8, NULL},  [2] = {TOKEN_I8, NULL},  [3] = {TOKEN_I16, NULL},
        [4] = {TOKEN_I32, NULL}, [5] = {TOKEN_I64, NULL}, [6] = {0, "float64"},
        [7] = {0, "float32"},    [8] = {TOKEN_U16, NULL},
    };
    if (code < 1 || code >= sizeof(types) / sizeof(types[0])) {
        return dp_fail(err, DP_INVALID, "%s, offset 17: %d is the code of no type; they are 1 to 8",
                       index->path, code);
    }
    if (types[code].problem != NULL) {
        return dp_fail(err, DP_INVALID,
                       "%s, offset 17: code %d is %s, and tokens are whole numbers", index->path,
                       code, types[code].problem);
    }
    index->type = types[code].type;
    return DP_OK;
}

// How many there may be follows from the size of the file, before anything is done with them.
static dp_status read_counts(struct index *index, const char *header, struct dp_error *err)
{
    uint64_t counts[2];
    memcpy(counts, header + MAGIC_BYTES + 9, sizeof counts);
    uint64_t room = (uint64_t)(index->bytes - HEADER_BYTES);
    if (counts[0] == 0 || counts[0] > room / 12 || counts[1] > room / 8) {
        return dp_fail(err, DP_INVALID,
                       "%s, offset 18: %llu sequences and %llu documents; a file of %lld bytes has "
                       "room for 1 to %llu sequences",
                       index->path, (unsigned long long)counts[0], (unsigned long long)counts[1],
                       (long long)index->bytes, (unsigned long long)(room / 12));
    }
    index->sequences = (int64_t)counts[0];
    index->documents = (int64_t)counts[1];
    int64_t lists = HEADER_BYTES + 12 * index->sequences + 8 * index->documents;
    if (index->bytes != lists && index->bytes != lists + index->sequences) {
        return dp_fail(err, DP_INVALID,
                       "%s has %lld bytes; %lld sequences and %lld documents, which its header "
                       "says at offset 18, take %lld (%lld with modes)",
                       index->path, (long long)index->bytes, (long long)index->sequences,
                       (long long)index->documents, (long long)lists,
                       (long long)(lists + index->sequences));
    }
    index->lengths = HEADER_BYTES;
    index->places = index->lengths + 4 * index->sequences;
    index->first = index->places + 8 * index->sequences;
    return DP_OK;
}

static dp_status read_header(struct index *index, struct dp_error *err)
{
    char header[HEADER_BYTES];
    if (index->bytes < HEADER_BYTES) {
        return dp_fail(err, DP_INVALID, "%s ends at offset %lld inside its header of %d bytes",
                       index->path, (long long)index->bytes, HEADER_BYTES);
    }
    dp_status status = dp_token_file_pread(index->fd, index->path, 0, header, sizeof header, err);
    if (status != DP_OK) {
        return status;
    }
    uint64_t version;
    memcpy(&version, header + MAGIC_BYTES, sizeof version);
    if (memcmp(header, MAGIC, MAGIC_BYTES) != 0) {
        return dp_fail(err, DP_INVALID,
                       "%s, offset 0: it does not start with \"MMIDIDX\" as an index of Megatron",
                       index->path);
    }
    if (version != 1) {
        return dp_fail(err, DP_INVALID, "%s, offset 9: version %llu; only 1 is known", index->path,
                       (unsigned long long)version);
    }
    status = read_type(index, (uint8_t)header[MAGIC_BYTES + 8], err);
    return status == DP_OK ? read_counts(index, header, err) : status;
}

// Sequences [begin, begin + count) start where those before them end.
static dp_status check_sequences(const struct index *index, int64_t begin, int64_t count,
                                 int64_t bytes, int64_t *at, struct dp_error *err)
{
    int32_t lengths[BLOCK];
    int64_t places[BLOCK];
    dp_status status = dp_token_file_pread(index->fd, index->path, index->lengths + 4 * begin,
                                           lengths, (size_t)count * sizeof lengths[0], err);
    if (status == DP_OK) {
        status = dp_token_file_pread(index->fd, index->path, index->places + 8 * begin, places,
                                     (size_t)count * sizeof places[0], err);
    }
    const int64_t width = dp_token_bytes(index->type);
    for (int64_t i = 0; status == DP_OK && i < count; i++) {
        if (lengths[i] < 0 || lengths[i] > (bytes - *at) / width) {
            status = dp_fail(err, DP_INVALID,
                             "%s, offset %lld: sequence %lld has %d tokens of %lld bytes; the .bin "
                             "has %lld bytes left for it",
                             index->path, (long long)(index->lengths + 4 * (begin + i)),
                             (long long)(begin + i), lengths[i], (long long)width,
                             (long long)(bytes - *at));
        } else if (places[i] != *at) {
            status = dp_fail(err, DP_INVALID,
                             "%s, offset %lld: sequence %lld lies at %lld of the .bin; the ones "
                             "before it end at %lld",
                             index->path, (long long)(index->places + 8 * (begin + i)),
                             (long long)(begin + i), (long long)places[i], (long long)*at);
        }
        *at += status == DP_OK ? lengths[i] * width : 0;
    }
    return status;
}

static dp_status check_documents(const struct index *index, struct dp_error *err)
{
    int64_t last = 0;
    for (int64_t begin = 0; begin < index->documents; begin += BLOCK) {
        int64_t first[BLOCK];
        int64_t count = index->documents - begin < BLOCK ? index->documents - begin : BLOCK;
        dp_status status = dp_token_file_pread(index->fd, index->path, index->first + 8 * begin,
                                               first, (size_t)count * sizeof first[0], err);
        if (status != DP_OK) {
            return status;
        }
        for (int64_t i = 0; i < count; i++) {
            if (first[i] < last || first[i] > index->sequences) {
                return dp_fail(err, DP_INVALID,
                               "%s, offset %lld: document %lld starts with sequence %lld; %lld to "
                               "%lld are possible",
                               index->path, (long long)(index->first + 8 * (begin + i)),
                               (long long)(begin + i), (long long)first[i], (long long)last,
                               (long long)index->sequences);
            }
            last = first[i];
        }
    }
    return DP_OK;
}

dp_status dp_token_file_open_megatron(struct token_file *file, int64_t bytes, const char *idx,
                                      struct dp_error *err)
{
    DP_AUTO_CLOSE int fd = -1;
    struct index index = {.path = idx};
    dp_status status = dp_token_file_open(idx, &fd, &index.bytes, err);
    index.fd = fd;
    if (status == DP_OK) {
        status = read_header(&index, err);
    }
    int64_t at = 0;
    for (int64_t begin = 0; status == DP_OK && begin < index.sequences; begin += BLOCK) {
        int64_t left = index.sequences - begin;
        status = check_sequences(&index, begin, left < BLOCK ? left : BLOCK, bytes, &at, err);
    }
    if (status == DP_OK && at != bytes) {
        status =
            dp_fail(err, DP_INVALID, "%s has %lld bytes; the sequences of %s end at offset %lld",
                    file->path, (long long)bytes, idx, (long long)at);
    }
    if (status == DP_OK) {
        status = check_documents(&index, err);
    }
    if (status == DP_OK) {
        file->type = index.type;
        file->offset = 0;
        file->count = bytes / dp_token_bytes(index.type);
    }
    return status;
}
