#include "core/clock.h"
#include "kvctl/kvctl.h"
#include "kvctl/top/columns.h"
#include "kvctl/top/draw.h"
#include "kvctl/top/json.h"
#include "kvctl/top/keys.h"
#include "kvctl/top/sampler.h"
#include "kvctl/top/terminal.h"

#include <curses.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* `kvctl top`: the sampler fills models, keys change the view, both are drawn.
 *
 *     keyboard, signals --+
 *                         +--> poll --> select --> draw --> terminal
 *     sampler's eventfd --+ */

enum {
    picture_bytes = 64 << 20,
    script_columns = 200, /* no terminal: all columns, however long a worker's id */
    once_interval_ms = 1000
};

/* --once: bridges speak every second, and a rate needs two words. */
static const uint64_t once_min_ns = 1200 * KVB_NS_PER_MS;
static const uint64_t once_max_ns = 2600 * KVB_NS_PER_MS;

struct top {
    const struct kvctl_options *options;
    struct kvctl_line line;
    struct kvctl_top_sampler *sampler; /* owned, like the two below */
    struct kvctl_top_model model;
    struct kvb_buf picture; /* of --once */
    int wake_fd;
    struct kvctl_top_view view;
    struct kvctl_top_terminal terminal;
    bool has_color;
    bool wipes;   /* before the next picture */
    bool is_hurt; /* the terminal is gone, or memory is out */
};

/* ---- Pictures ------------------------------------------------------------------------------ */

static void clock_text(char text[16])
{
    const time_t now_s = (time_t)(kvb_clock_wall_us() / 1000000);
    struct tm parts;

    localtime_r(&now_s, &parts);
    if (strftime(text, 16, "%H:%M:%S", &parts) == 0) {
        text[0] = '\0';
    }
}

static kvb_status draw(struct top *top, struct kvctl_top_frame *frame, struct kvb_buf *out)
{
    char clock[16];

    clock_text(clock);
    frame->clock = clock;
    frame->now_ns = kvb_clock_monotonic_ns();
    frame->has_color = top->has_color;
    KVB_TRY(kvctl_top_select(&top->model, &top->view));
    return kvctl_top_draw(&top->model, &top->view, frame, out);
}

static void redraw(struct top *top)
{
    struct kvctl_top_frame frame = { .columns = 0 };

    kvctl_top_terminal_erase(&frame.columns, &frame.rows);
    if (draw(top, &frame, NULL) != KVB_OK || kvctl_top_terminal_show(top->wipes) != KVB_OK) {
        top->is_hurt = true;
    }
    top->wipes = false;
}

/* ---- The live screen ---- */

static void drain_wake(const struct top *top)
{
    uint64_t count = 0;

    if (read(top->wake_fd, &count, sizeof count) < 0) {
        return; /* nothing was there */
    }
}

static void take_sample(struct top *top)
{
    drain_wake(top);
    if (!top->view.is_paused && kvctl_top_sampler_read(top->sampler, &top->model) != KVB_OK) {
        top->is_hurt = true;
    }
}

static void take_keys(struct top *top)
{
    for (int key = getch(); key != ERR; key = getch()) {
        if (key == ('L' & 0x1f)) { /* Ctrl-L: somebody wrote over our screen */
            top->wipes = true;
        }
        kvctl_top_press(&top->view, key);
    }
}

static void take_signal(struct top *top)
{
    switch (kvctl_top_terminal_signal(&top->terminal)) {
    case kvctl_top_signal_quit:
        top->view.is_done = true;
        break;
    case kvctl_top_signal_stop:
        kvctl_top_terminal_stop();
        top->wipes = true;
        break;
    case kvctl_top_signal_resume:
        kvctl_top_terminal_leave(); /* whatever another program left: all anew */
        top->wipes = true;
        break;
    case kvctl_top_signal_redraw:
        top->wipes = true;
        break;
    default:
        break;
    }
}

/* Waits for something to do, and does it. */
static void step(struct top *top)
{
    enum { wake, signals, keys, screen, sources };
    struct pollfd polled[sources] = {
        [wake] = { .fd = top->wake_fd, .events = POLLIN },
        [signals] = { .fd = top->terminal.signal_fd, .events = POLLIN },
        [keys] = { .fd = top->terminal.has_keys ? STDIN_FILENO : -1, .events = POLLIN },
        [screen] = { .fd = STDOUT_FILENO }, /* for the end of it */
    };

    const int ready = poll(polled, sources, (int)top->options->interval_ms);
    if (polled[wake].revents || ready == 0) {
        take_sample(top);
    }
    if (polled[signals].revents) {
        take_signal(top);
    }
    if (polled[screen].revents || (polled[keys].revents & ~POLLIN)) {
        top->is_hurt = true; /* hung up */
    } else if (polled[keys].revents) {
        take_keys(top);
    }
}

static enum kvctl_exit run_live(struct top *top)
{
    /* Signals are blocked by now: what comes is read in step(). */
    if (kvctl_top_terminal_enter() != KVB_OK) {
        kvctl_say("top: the terminal cannot be set up");
        return kvctl_failed;
    }
    while (!top->view.is_done && !top->is_hurt) {
        step(top);
        if (!top->view.is_done && !top->is_hurt) {
            redraw(top);
        }
    }
    kvctl_top_terminal_leave();
    return top->view.is_done ? kvctl_ok : kvctl_failed;
}

/* ---- One picture ---- */

static bool is_settled(const struct kvctl_top_model *model, uint64_t waited_ns)
{
    return (waited_ns >= once_min_ns && model->totals.new_bridges == 0 &&
            model->link.is_answering) ||
           waited_ns >= once_max_ns;
}

static kvb_status wait_for_rates(struct top *top)
{
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    struct pollfd wake = { .fd = top->wake_fd, .events = POLLIN };

    do {
        if (poll(&wake, 1, 100) > 0) {
            drain_wake(top);
        }
        KVB_TRY(kvctl_top_sampler_read(top->sampler, &top->model));
    } while (!is_settled(&top->model, kvb_clock_monotonic_ns() - began_ns));
    return KVB_OK;
}

static kvb_status draw_once(struct top *top)
{
    struct kvctl_top_frame frame = { .columns = script_columns };
    size_t rows = 0;

    if (top->options->is_json) {
        KVB_TRY(kvctl_top_select(&top->model, &top->view));
        return kvctl_top_json(&top->model, &top->picture);
    }
    if (isatty(STDOUT_FILENO)) {
        kvctl_top_terminal_size(&frame.columns, &rows);
    }
    return draw(top, &frame, &top->picture);
}

static enum kvctl_exit run_once(struct top *top)
{
    kvb_status status = wait_for_rates(top);

    status = status == KVB_OK ? draw_once(top) : status;
    if (status != KVB_OK) {
        kvctl_say("top: %s", kvb_status_name(status));
        return kvctl_failed;
    }
    fwrite(top->picture.data, 1, top->picture.len, stdout);
    if (!top->model.link.is_answering) {
        kvctl_say("no answer from an aggregator: %s", top->model.link.trouble);
        return kvctl_failed;
    }
    return kvctl_ok;
}

/* ---- Beginning and end ---- */

static enum kvctl_exit check_options(const struct kvctl_options *options, struct top *top)
{
    if (options->sort && kvctl_top_column_named(options->sort, &top->view.sort) != KVB_OK) {
        kvctl_say("--sort: expected the title of a column, got \"%s\"", options->sort);
        return kvctl_usage;
    }
    if (options->filter) {
        (void)snprintf(top->view.filter, sizeof top->view.filter, "%s", options->filter);
    }
    if (!options->is_once && options->is_json) {
        kvctl_say("top: --json needs --once");
        return kvctl_usage;
    }
    if (!options->is_once && kvctl_top_terminal_check() != KVB_OK) {
        kvctl_say("top draws on a terminal, which stdout is not (or TERM is dumb): give --once");
        return kvctl_usage;
    }
    return kvctl_ok;
}

static enum kvctl_exit run_sampled(struct top *top)
{
    const struct kvctl_options *options = top->options;
    const uint32_t interval_ms = options->is_once ? once_interval_ms : options->interval_ms;

    const enum kvctl_exit connected = kvctl_connect(options, NULL, &top->line);
    if (connected != kvctl_ok) {
        return connected;
    }
    const kvb_status status =
        kvctl_top_sampler_start(&top->line, interval_ms, top->wake_fd, &top->sampler);
    if (status == KVB_BAD_INPUT) {
        kvctl_say("--namespace, --component: 1 to 64 of A-Z a-z 0-9 _ -");
        return kvctl_usage;
    }
    if (status != KVB_OK) {
        kvctl_say("top: cannot subscribe: %s", kvb_status_name(status));
        return kvctl_failed;
    }
    return options->is_once ? run_once(top) : run_live(top);
}

/* With signals caught: before there is any thread, until there is nothing left to restore. */
static enum kvctl_exit run_caught(struct top *top)
{
    if (top->options->is_once) {
        return run_sampled(top);
    }
    if (kvctl_top_terminal_open(&top->terminal) != KVB_OK) {
        kvctl_say("top: cannot catch signals");
        return kvctl_failed;
    }
    const enum kvctl_exit result = run_sampled(top);
    kvctl_top_terminal_close(&top->terminal);
    return result;
}

enum kvctl_exit kvctl_top(const struct kvctl_options *options)
{
    struct top top = { .options = options, .has_color = kvctl_top_terminal_has_color() };
    enum kvctl_exit result = check_options(options, &top);

    if (result != kvctl_ok) {
        return result;
    }
    top.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (top.wake_fd < 0) {
        kvctl_say("top: no eventfd");
        return kvctl_failed;
    }
    kvb_buf_init(&top.picture, picture_bytes);
    result = run_caught(&top);
    kvctl_top_sampler_stop(top.sampler);
    kvctl_hang_up(&top.line);
    kvctl_top_model_done(&top.model);
    kvb_buf_done(&top.picture);
    (void)close(top.wake_fd);
    return result;
}
