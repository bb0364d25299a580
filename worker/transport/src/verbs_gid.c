#include <string.h>

#include "dp/verbs.h"

// The greater the better; 0 = of no use.
static int rank_of(const struct dp_gid *gid)
{
    static const unsigned char zero[16], mapped[12] = {[10] = 0xff, [11] = 0xff};
    const unsigned char *bytes = gid->bytes;
    bool is_roce = gid->type == DP_GID_ROCE_V1 || gid->type == DP_GID_ROCE_V2;
    if (!is_roce || memcmp(bytes, zero, sizeof zero) == 0) {
        return 0;
    }
    int version = gid->type == DP_GID_ROCE_V2 ? 10 : 0;
    bool is_v4 = memcmp(bytes, mapped, sizeof mapped) == 0;
    // 169.254/16 and fe80::/10 reach no further than one network.
    bool is_local = is_v4 ? bytes[12] == 169 && bytes[13] == 254
                          : bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
    int address = is_local ? 1 : is_v4 ? 3 : 2;
    return version + address;
}

static bool has_routable_subnet(const struct dp_gid *gid)
{
    return gid->type == DP_GID_IB && (gid->bytes[4] != 0 || gid->bytes[5] != 0);
}

int dp_verbs_choose_gid(bool is_ethernet, const struct dp_gid *gids, int count)
{
    if (!is_ethernet) {
        if (count > 1 && has_routable_subnet(&gids[1])) {
            return 1;
        }
        return count > 0 && gids[0].type == DP_GID_IB ? 0 : -1;
    }
    int best = -1, best_rank = 0;
    for (int i = 0; i < count; i++) {
        int rank = rank_of(&gids[i]);
        if (rank > best_rank) {
            best = i;
            best_rank = rank;
        }
    }
    return best;
}
