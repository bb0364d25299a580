#include "top_screen.h"

#include <langinfo.h>
#include <locale.h>
#include <ncurses.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "connect.h"
#include "decisions.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"

enum {
    LEVELS = 8,
    HEAD_LINES = 3,
    LABEL_WIDTH = 34, // of a rank's line, before its cells
    VERDICT_LINES = 4,
    LINES_MAX = 1000, // of a terminal whose every cell is drawn
    COLUMNS_MAX = 2000,
    PAIR_BAD = 1, // then one for each level, from bad to good
    PAIR_NOTE = PAIR_BAD + LEVELS,
};

struct top_screen {
    SCREEN *terminal;
    bool color, utf8, paused;
    top_metric metric;
    bool worst_first;
    size_t first;           // rank (or place, when sorted) in the first line
    const Dp__V1__Job *job; // borrowed, until the next draw
    const struct top_history *history;
    size_t *order; // of ranks
    size_t order_count;
};

// From bad to good: told apart by colour-blind eyes, too, as the bars' heights differ.
static const short level_colors[LEVELS] = {196, 202, 208, 214, 220, 154, 76, 34};
static const short level_colors_8[LEVELS] = {COLOR_RED,    COLOR_RED,    COLOR_RED,   COLOR_YELLOW,
                                             COLOR_YELLOW, COLOR_YELLOW, COLOR_GREEN, COLOR_GREEN};
static const char *const bars[LEVELS] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

static void init_colors(struct top_screen *screen)
{
    screen->color = screen->color && has_colors();
    if (!screen->color) {
        return;
    }
    start_color();
    use_default_colors();
    const short *colors = COLORS >= 256 ? level_colors : level_colors_8;
    for (short level = 0; level < LEVELS; level++) {
        init_pair((short)(PAIR_BAD + level), colors[level], -1);
    }
    init_pair(PAIR_NOTE, COLOR_CYAN, -1);
}

static volatile sig_atomic_t has_new_size;

static void on_new_size(int signal_number)
{
    (void)signal_number;
    has_new_size = 1;
}

// ncurses does it by itself, but dies of sizes that some terminals say they have.
static void fit(void)
{
    struct winsize size = {0};
    has_new_size = 0;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0) {
        resize_term(size.ws_row < LINES_MAX ? size.ws_row : LINES_MAX,
                    size.ws_col < COLUMNS_MAX ? size.ws_col : COLUMNS_MAX);
    }
}

dp_status top_screen_open(bool color, struct top_screen **ret_screen, struct dp_error *err)
{
    setlocale(LC_CTYPE, "");
    const char *term = getenv("TERM");
    const struct sigaction resized = {.sa_handler = on_new_size}; // so that ncurses takes none
    sigaction(SIGWINCH, &resized, NULL);
    use_env(FALSE);
    SCREEN *terminal = newterm(NULL, stdout, stdin);
    if (terminal == NULL) {
        return dp_fail(err, DP_UNSUPPORTED, "cannot draw on a terminal called \"%s\" (TERM)",
                       term == NULL ? "" : term);
    }
    struct top_screen *screen = dp_new(struct top_screen);
    screen->terminal = terminal;
    screen->color = color;
    screen->utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    cbreak();
    noecho();
    nonl();
    intrflush(stdscr, FALSE);
    keypad(stdscr, TRUE);
    curs_set(0);
    fit();
    init_colors(screen);
    *ret_screen = screen;
    return DP_OK;
}

void top_screen_close(struct top_screen *screen)
{
    if (screen == NULL) {
        return;
    }
    endwin();
    delscreen(screen->terminal);
    free(screen->order);
    free(screen);
}

bool top_screen_paused(const struct top_screen *screen)
{
    return screen->paused;
}

static int level_of(float value)
{
    int level = (int)(value * LEVELS);
    return level >= LEVELS ? LEVELS - 1 : level;
}

// A bar as high as the value, coloured by how good that is.
static void draw_cell(const struct top_screen *screen, float value)
{
    if (value < 0) {
        addstr(screen->utf8 ? "·" : ".");
        return;
    }
    int level = level_of(value);
    int good = top_metric_is_good(screen->metric) ? level : LEVELS - 1 - level;
    if (screen->color) {
        attron(COLOR_PAIR(PAIR_BAD + good));
    }
    if (screen->utf8) {
        addstr(bars[level]);
    } else {
        addch((chtype)('1' + level));
    }
    if (screen->color) {
        attroff(COLOR_PAIR(PAIR_BAD + good));
    }
}

// Ends a line that text may have left anywhere.
static void put_line(int y, attr_t attributes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void put_line(int y, attr_t attributes, const char *format, ...)
{
    char text[DP_ERROR_MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (y < 0 || y >= LINES) {
        return;
    }
    for (char *at = text; *at != '\0'; at++) {
        *at = *at == '\n' || *at == '\t' ? ' ' : *at; // what people are told may have lines
    }
    move(y, 0);
    attron(attributes);
    addnstr(text, COLS - 1);
    attroff(attributes);
    clrtoeol();
}

static void draw_head(const struct top_screen *screen)
{
    const Dp__V1__Job *job = screen->job;
    char loss[32] = "", seconds[32];
    if (job->loss_known) {
        snprintf(loss, sizeof(loss), "  loss %.4f", job->loss);
    }
    put_line(0, A_BOLD, "%s  %s  %s  step %llu/%llu  %s a step  %.0f tokens/s%s%s", job->id,
             job->name, job_state_text(job->state), (unsigned long long)job->step,
             (unsigned long long)job->steps_total, dpctl_seconds(seconds, job->step_s),
             job->tokens_per_s, loss, screen->paused ? "  PAUSED" : "");
    put_line(1, 0, "%s%s%s", job->reason, job->reason[0] == '\0' ? "" : ": ", job->message);
    put_line(2, A_REVERSE, "  RANK NODE         %5s  CAUSE        %s, older to the left",
             screen->metric == TOP_SPEED ? "SPEED" : "NOW", top_metric_text(screen->metric));
}

static void draw_rank(const struct top_screen *screen, int y, size_t index)
{
    const Dp__V1__JobRank *rank = screen->job->ranks[index];
    const Dp__V1__StragglerVerdict *verdict = top_verdict_of(screen->job, rank->rank);
    float now = top_history_at(screen->history, screen->metric, index, 0);
    bool confirmed = verdict != NULL && strcmp(verdict->state, "confirmed") == 0;
    char share[16] = "-";
    if (now >= 0) {
        snprintf(share, sizeof(share), "%.0f%%", (double)now * 100);
    }
    bool runs = strcmp(rank->phase, "running") == 0;
    put_line(y, confirmed ? A_BOLD : 0, "%c %4u %-12.12s %5s  %-11.11s",
             verdict == NULL ? ' '
             : confirmed     ? '!'
                             : '?',
             rank->rank, rank->node, share,
             verdict != NULL ? verdict->cause
             : runs          ? ""
                             : rank->phase);
    int cells = COLS - 1 - LABEL_WIDTH;
    if (cells <= 0) {
        return;
    }
    // The newest at the right edge.
    for (int i = 0; i < cells; i++) {
        move(y, LABEL_WIDTH + i);
        draw_cell(screen,
                  top_history_at(screen->history, screen->metric, index, (size_t)(cells - 1 - i)));
    }
}

// How bad a rank is now; the unknown ones last.
static float badness(const struct top_screen *screen, size_t rank)
{
    float value = top_history_at(screen->history, screen->metric, rank, 0);
    if (value < 0) {
        return value;
    }
    return top_metric_is_good(screen->metric) ? 1.0F - value : value;
}

static int by_badness(const void *a, const void *b, void *context)
{
    const size_t *first = a, *second = b;
    float left = badness(context, *first), right = badness(context, *second);
    if (left > right || left < right) {
        return left > right ? -1 : 1;
    }
    return *first < *second ? -1 : 1;
}

static void sort_ranks(struct top_screen *screen)
{
    size_t count = screen->job->n_ranks;
    screen->order = dp_realloc(screen->order, count + 1, sizeof(*screen->order));
    screen->order_count = count;
    for (size_t i = 0; i < count; i++) {
        screen->order[i] = i;
    }
    if (screen->worst_first) {
        qsort_r(screen->order, count, sizeof(*screen->order), by_badness, screen);
    }
}

// How many verdicts there is room for below the ranks.
static int draw_verdicts(const struct top_screen *screen)
{
    const Dp__V1__Job *job = screen->job;
    int shown = 0, y = LINES - 2;
    for (size_t i = job->n_stragglers; i-- > 0 && shown < VERDICT_LINES && y > HEAD_LINES;) {
        const Dp__V1__StragglerVerdict *verdict = job->stragglers[i];
        if (!dpctl_verdict_stands(job, verdict)) {
            continue;
        }
        char text[256];
        dpctl_verdict_text(text, sizeof(text), verdict);
        put_line(y--, screen->color ? COLOR_PAIR(PAIR_NOTE) : 0, "%s: %s", text, verdict->message);
        shown++;
    }
    return shown;
}

static void redraw(struct top_screen *screen)
{
    if (screen->job == NULL) {
        return;
    }
    erase();
    draw_head(screen);
    int room = LINES - HEAD_LINES - 1 - draw_verdicts(screen);
    sort_ranks(screen);
    size_t count = screen->order_count, rows = room > 0 ? (size_t)room : 0;
    size_t last_first = count > rows ? count - rows : 0;
    screen->first = screen->first < last_first ? screen->first : last_first;
    for (size_t i = 0; i < rows && screen->first + i < count; i++) {
        draw_rank(screen, HEAD_LINES + (int)i, screen->order[screen->first + i]);
    }
    put_line(LINES - 1, A_REVERSE,
             "%zu-%zu of %zu   q leave   m figure   s %s first   space %s   arrows, page keys",
             count == 0 ? 0 : screen->first + 1,
             screen->first + rows < count ? screen->first + rows : count, count,
             screen->worst_first ? "lowest rank" : "worst", screen->paused ? "go on" : "pause");
    refresh();
}

void top_screen_draw(struct top_screen *screen, const Dp__V1__Job *job,
                     const struct top_history *history)
{
    screen->job = job;
    screen->history = history;
    redraw(screen);
}

static void scroll_by(struct top_screen *screen, long lines)
{
    long first = (long)screen->first + lines;
    screen->first = first < 0 ? 0 : (size_t)first; // redraw() holds the other end
}

static bool take_key(struct top_screen *screen, int key)
{
    int page = LINES - HEAD_LINES - 2;
    switch (key) {
    case 'q':
        return true;
    case 'm':
        screen->metric = (top_metric)((screen->metric + 1) % TOP_METRIC_COUNT);
        break;
    case 's':
        screen->worst_first = !screen->worst_first;
        break;
    case ' ':
        screen->paused = !screen->paused;
        break;
    case KEY_UP:
        scroll_by(screen, -1);
        break;
    case KEY_DOWN:
        scroll_by(screen, 1);
        break;
    case KEY_PPAGE:
        scroll_by(screen, -page);
        break;
    case KEY_NPAGE:
        scroll_by(screen, page);
        break;
    case KEY_HOME:
        screen->first = 0;
        break;
    case KEY_END:
        screen->first = screen->order_count;
        break;
    default:
        break;
    }
    redraw(screen);
    return false;
}

// Whether the user leaves.
static bool take_keys(struct top_screen *screen)
{
    bool leaves = false;
    timeout(0);
    for (int key = getch(); key != ERR && !leaves; key = getch()) {
        leaves = take_key(screen, key);
    }
    return leaves;
}

bool top_screen_wait(struct top_screen *screen, int timeout_ms)
{
    int64_t end_ns = dp_clock_monotonic_ns() + timeout_ms * DP_NS_PER_MS;
    for (;;) {
        int64_t left_ns = end_ns - dp_clock_monotonic_ns();
        if (left_ns <= 0 || interrupted()) {
            return false;
        }
        struct pollfd keys = {.fd = STDIN_FILENO, .events = POLLIN};
        int ready = poll(&keys, 1, (int)(left_ns / DP_NS_PER_MS) + 1);
        if (has_new_size) {
            fit();
            redraw(screen);
        }
        // Without its terminal it would find a key, which is none, again and again.
        if (ready > 0 && (keys.revents != POLLIN || take_keys(screen))) {
            return true;
        }
    }
}
