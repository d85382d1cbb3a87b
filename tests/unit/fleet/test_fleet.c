#include "fleet/fleet.h"

#include "core/clock.h"
#include "core/own.h"
#include "fleet/config.h"
#include "fleet/fleet_scene.h"
#include "fleet/truth.h"
#include "fleet/truth_commands.h"
#include "kvb_test.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void makes_requests_at_its_rate_and_publishes_every_batch(void **state)
{
    (void)state;
    struct fixture fixture;
    uint64_t published = 0;

    set_up(&fixture, 0);
    tick(&fixture, 101); /* 2 s at 50 requests a second */
    assert_ok(kvb_fleet_drain(fixture.fleet, 5000));

    const struct kvb_fleet_totals totals = totals_of(&fixture);
    assert_int_equal(totals.requests + totals.refused + totals.too_large, 100);
    assert_true(totals.held_blocks > 100);
    assert_int_equal(totals.failures, 0);
    for (size_t at = 0; at < kvb_fleet_rank_count(fixture.fleet); at++) {
        const struct kvb_fleet_rank_state rank = state_of(&fixture, at);
        assert_int_equal(rank.counts.published, rank.stats.batches);
        assert_int_equal(rank.counts.failures, 0);
        published += rank.counts.published;
    }
    assert_int_equal(published, totals.batches);
    tear_down(&fixture);
}

static void stops_making_requests_at_the_limit(void **state)
{
    (void)state;
    struct fixture fixture;

    set_up(&fixture, 5);
    tick(&fixture, 100);
    assert_int_equal(totals_of(&fixture).requests, 5);
    tick(&fixture, 1000);
    assert_int_equal(totals_of(&fixture).requests, 5);
    assert_int_equal(totals_of(&fixture).finished, 5);
    tear_down(&fixture);
}

static void does_nothing_while_paused(void **state)
{
    (void)state;
    struct fixture fixture;

    set_up(&fixture, 0);
    tick(&fixture, 50);
    assert_string_equal(say(&fixture, "drain"), "{\"end\":true}\n");
    const struct kvb_fleet_totals before = totals_of(&fixture);
    assert_true(before.is_paused);
    tick(&fixture, 50);
    assert_int_equal(totals_of(&fixture).batches, before.batches);
    assert_string_equal(say(&fixture, "resume"), "{\"end\":true}\n");
    tick(&fixture, 50);
    assert_true(totals_of(&fixture).batches > before.batches);
    tear_down(&fixture);
}

static size_t count_lines(const char *text)
{
    size_t lines = 0;

    for (const char *at = strchr(text, '\n'); at; at = strchr(at + 1, '\n')) {
        lines++;
    }
    return lines;
}

static void reports_the_content_of_all_of_one_worker_or_of_one_rank(void **state)
{
    (void)state;
    struct fixture fixture;

    set_up(&fixture, 0);
    tick(&fixture, 50);
    assert_int_equal(count_lines(say(&fixture, "truth")), workers * ranks + 1);
    assert_int_equal(count_lines(say(&fixture, "truth 8")), ranks + 1);
    const char *one = say(&fixture, "  truth 8\t1 ");
    assert_int_equal(count_lines(one), 2);
    assert_ptr_equal(strstr(one, "{\"worker_id\":8,\"dp_rank\":1,\"seq\":"), one);
    assert_non_null(strstr(one, "\"blocks\":[{\"tokens\":["));
    assert_int_equal(count_lines(say(&fixture, "stats")), workers * ranks + 2);
    tear_down(&fixture);
}

static void reports_what_is_wrong_with_a_command(void **state)
{
    (void)state;
    struct fixture fixture;
    const char *const bad[] = {
        "",          "what",        "truth 9",
        "truth 7 2", "truth x",     "truth 7 0 0",
        "reset",     "reset 7",     "restart 7 0 other",
        "drop 7 0",  "drop 7 0 x",  "drop 1 2 3 4 5 6",
        "changes",   "changes 7 0", "changes 7 0 x",
        "pause now", "truth -1",    "truth 7 4294967296",
        "sleep 7",   "wake",        "lose 7 0 x",
    };

    set_up(&fixture, 0);
    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        const char *answer = say(&fixture, bad[i]);
        assert_ptr_equal(strstr(answer, "{\"error\":\"expected"), answer);
        assert_int_equal(count_lines(answer), 2);
        assert_non_null(strstr(answer, "\n{\"end\":true}\n"));
    }
    tear_down(&fixture);
}

static void resets_one_rank(void **state)
{
    (void)state;
    struct fixture fixture;

    set_up(&fixture, 0);
    tick(&fixture, 50);
    assert_true(state_of(&fixture, 1).stats.held_blocks > 0);
    assert_string_equal(say(&fixture, "reset 7 1"), "{\"end\":true}\n");
    assert_int_equal(state_of(&fixture, 1).stats.held_blocks, 0);
    assert_true(state_of(&fixture, 0).stats.held_blocks > 0);
    assert_non_null(strstr(say(&fixture, "truth 7 1"), "\"unsent\":1"));
    tear_down(&fixture);
}

static void a_sleeping_engine_makes_no_step_and_publishes_the_clear_when_it_wakes(void **state)
{
    (void)state;
    struct fixture fixture;

    set_up(&fixture, 0);
    tick(&fixture, 50);
    assert_string_equal(say(&fixture, "sleep 7 1"), "{\"end\":true}\n");
    assert_true(state_of(&fixture, 1).stats.is_asleep);
    assert_int_equal(state_of(&fixture, 1).stats.held_blocks, 0);
    const uint64_t batches = state_of(&fixture, 1).stats.batches;
    tick(&fixture, 50);
    assert_int_equal(state_of(&fixture, 1).stats.batches, batches);
    assert_non_null(strstr(say(&fixture, "truth 7 1"), "\"unsent\":1"));
    assert_string_equal(say(&fixture, "wake 7 1"), "{\"end\":true}\n");
    tick(&fixture, 50);
    assert_true(state_of(&fixture, 1).stats.batches > batches);
    assert_false(state_of(&fixture, 1).stats.is_asleep);
    tear_down(&fixture);
}

static void loses_batches_without_a_gap_in_their_numbers(void **state)
{
    (void)state;
    struct fixture fixture;

    set_up(&fixture, 0);
    assert_string_equal(say(&fixture, "lose 7 1 3"), "{\"end\":true}\n");
    tick(&fixture, 50);
    assert_int_equal(state_of(&fixture, 1).stats.lost, 3);
    assert_true(state_of(&fixture, 1).stats.held_blocks > 0);
    tear_down(&fixture);
}

static void restarts_one_rank_with_the_same_or_other_hashes(void **state)
{
    (void)state;
    struct fixture fixture;

    set_up(&fixture, 0);
    tick(&fixture, 50);
    assert_string_equal(say(&fixture, "restart 8 0"), "{\"end\":true}\n");
    assert_non_null(strstr(say(&fixture, "truth 8 0"), "\"seq\":-1"));
    tick(&fixture, 50);
    assert_string_equal(say(&fixture, "restart 8 0 same"), "{\"end\":true}\n");
    assert_ok(kvb_fleet_drain(fixture.fleet, 5000));
    assert_int_equal(state_of(&fixture, 2).counts.failures, 0);
    tear_down(&fixture);
}

/* More sockets exist at once than are live: libzmq closes the old ones slowly. */
static void all_engines_may_restart_at_once(void **state)
{
    (void)state;
    struct fixture fixture;

    set_up_with(&fixture, 0, 60, 0);
    for (size_t at = 0; at < kvb_fleet_rank_count(fixture.fleet); at++) {
        assert_ok(kvb_fleet_restart(fixture.fleet, at, true));
    }
    assert_ok(kvb_fleet_drain(fixture.fleet, 20000));
    for (size_t at = 0; at < kvb_fleet_rank_count(fixture.fleet); at++) {
        assert_int_equal(state_of(&fixture, at).counts.failures, 0);
    }
    tear_down(&fixture);
}

static void reports_additions_and_removals_since_a_change(void **state)
{
    (void)state;
    struct fixture fixture;

    set_up_with(&fixture, 0, workers, 4096);
    tick(&fixture, 50);
    const char *answer = say(&fixture, "changes 7 1 0");
    assert_ptr_equal(strstr(answer, "{\"worker_id\":7,\"dp_rank\":1,\"now_ns\":"), answer);
    assert_non_null(strstr(answer, "\"lost\":0,"));
    assert_non_null(strstr(answer, "\"changes\":[[\"stored\","));
    assert_string_equal(say(&fixture, "restart 7 1"), "{\"end\":true}\n");
    assert_non_null(strstr(say(&fixture, "changes 7 1 0"), "[\"cleared\","));
    assert_non_null(strstr(say(&fixture, "changes 7 1 1000000"), "\"changes\":[]}"));
    tear_down(&fixture);
}

static void drops_batches_only_from_the_network(void **state)
{
    (void)state;
    struct fixture fixture;

    set_up(&fixture, 0);
    assert_string_equal(say(&fixture, "drop 7 0 3"), "{\"end\":true}\n");
    tick(&fixture, 100);
    assert_ok(kvb_fleet_drain(fixture.fleet, 5000));
    const struct kvb_fleet_rank_state rank = state_of(&fixture, 0);
    assert_int_equal(rank.counts.withheld, 3);
    assert_int_equal(rank.counts.published, rank.stats.batches - 3);
    tear_down(&fixture);
}

static void writes_a_workers_section(void **state)
{
    (void)state;
    struct fixture fixture;
    char expected[512];

    set_up(&fixture, 0);
    const struct kvb_config_options options = {
        .address = "engines", .model = "m", .block_size = 16, .ranks = ranks
    };
    const struct kvb_fleet_ports ports = kvb_fleet_ports(fixture.fleet, 1);
    (void)snprintf(
        expected, sizeof expected,
        "# Written by kvfleet.\nworkers = (\n"
        "  { id = 8; model = \"m\"; block_size = 16;\n"
        "    events = \"tcp://engines:%u\"; replay = \"tcp://engines:%u\";\n"
        "    first_rank = 0; ranks = 2;\n"
        "    load = { zmq = \"tcp://engines:%u\"; };\n"
        "  }\n"
        ");\n",
        ports.events, ports.replay, ports.load);
    assert_ok(kvb_config_text(fixture.fleet, &options, 1, 2, &fixture.out));
    assert_int_equal(fixture.out.len, strlen(expected));
    assert_memory_equal(fixture.out.data, expected, fixture.out.len);
    tear_down(&fixture);
}

static void refuses_ports_above_65535(void **state)
{
    (void)state;
    struct fixture fixture;
    struct kvb_detail detail = { 0 };
    struct kvb_fleet *fleet = NULL;
    struct kvb_fleet_options options = begin_set_up(&fixture);

    options.base_port = 65530;
    assert_int_equal(kvb_fleet_new(&options, &detail, &fleet), KVB_BAD_CONFIG);
    assert_non_null(strstr(detail.text, "beyond 65535"));
    options.base_port = 0;
    options.engine.blocks = 1;
    assert_int_equal(kvb_fleet_new(&options, &detail, &fleet), KVB_BAD_CONFIG);
    assert_non_null(strstr(detail.text, "blocks"));
    tear_down(&fixture);
}

/* ---- the control socket ---------------------------------------------------------- */

static int connect_to(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void serve(struct kvb_truth_server *server)
{
    struct pollfd item = { .fd = kvb_truth_server_fd(server), .events = POLLIN };

    while (poll(&item, 1, 0) > 0) {
        kvb_truth_server_serve(server);
    }
}

static void send_text(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), 0), strlen(text));
}

static void assert_answer(int fd, const char *expected)
{
    char text[256] = "";

    assert_true(recv(fd, text, sizeof text - 1, 0) > 0);
    assert_string_equal(text, expected);
}

struct served {
    struct fixture fixture;
    struct kvb_truth_server *server;
    char folder[32];
    char path[64];
};

static void set_up_server(struct served *served)
{
    struct kvb_detail detail = { 0 };

    set_up(&served->fixture, 0);
    (void)snprintf(served->folder, sizeof served->folder, "/tmp/kvb-fleet-XXXXXX");
    assert_non_null(mkdtemp(served->folder));
    (void)snprintf(served->path, sizeof served->path, "%s/truth", served->folder);
    assert_ok(kvb_truth_server_new(served->path, served->fixture.fleet, &detail, &served->server));
}

static void tear_down_server(struct served *served)
{
    kvb_truth_server_free(served->server);
    assert_int_equal(access(served->path, F_OK), -1);
    assert_int_equal(rmdir(served->folder), 0);
    tear_down(&served->fixture);
}

static void answers_lines_however_they_are_split(void **state)
{
    (void)state;
    struct served served;

    set_up_server(&served);
    const int fd = connect_to(served.path);
    send_text(fd, "pau");
    serve(served.server);
    assert_false(totals_of(&served.fixture).is_paused);
    send_text(fd, "se\nresume\n");
    serve(served.server);
    assert_answer(fd, "{\"end\":true}\n{\"end\":true}\n");
    assert_false(totals_of(&served.fixture).is_paused);
    (void)close(fd);
    serve(served.server);
    tear_down_server(&served);
}

static void stops_on_command(void **state)
{
    (void)state;
    struct served served;

    set_up_server(&served);
    const int fd = connect_to(served.path);
    assert_false(kvb_truth_server_is_stopped(served.server));
    send_text(fd, "stop\n");
    serve(served.server);
    assert_true(kvb_truth_server_is_stopped(served.server));
    assert_answer(fd, "{\"end\":true}\n");
    (void)close(fd);
    tear_down_server(&served);
}

static void disconnects_at_an_endless_line(void **state)
{
    (void)state;
    struct served served;
    char text[301];
    char byte = 0;

    memset(text, 'x', 300);
    text[300] = '\0';
    set_up_server(&served);
    const int fd = connect_to(served.path);
    send_text(fd, text);
    serve(served.server);
    assert_true(recv(fd, &byte, 1, 0) <= 0);
    (void)close(fd);
    tear_down_server(&served);
}

static void serves_sixteen_at_once_and_refuses_the_next(void **state)
{
    (void)state;
    struct served served;
    int fds[17];
    char byte = 0;

    set_up_server(&served);
    for (size_t i = 0; i < KVB_COUNT_OF(fds); i++) {
        fds[i] = connect_to(served.path);
        serve(served.server);
    }
    assert_int_equal(recv(fds[16], &byte, 1, 0), 0);
    send_text(fds[15], "resume\n");
    serve(served.server);
    assert_answer(fds[15], "{\"end\":true}\n");
    for (size_t i = 0; i < KVB_COUNT_OF(fds); i++) {
        (void)close(fds[i]);
    }
    tear_down_server(&served);
}

static void replaces_an_existing_file_only_if_it_is_a_socket(void **state)
{
    (void)state;
    struct kvb_detail detail = { 0 };
    struct kvb_truth_server *server = NULL;
    char path[] = "/tmp/kvb-truth-XXXXXX";
    const int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(kvb_truth_server_new(path, NULL, &detail, &server), KVB_BAD_CONFIG);
    assert_non_null(strstr(detail.text, "in use"));
    assert_int_equal(access(path, F_OK), 0);
    (void)unlink(path);
    (void)close(fd);
}

SUITE(fleet)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(makes_requests_at_its_rate_and_publishes_every_batch),
        cmocka_unit_test(stops_making_requests_at_the_limit),
        cmocka_unit_test(does_nothing_while_paused),
        cmocka_unit_test(reports_the_content_of_all_of_one_worker_or_of_one_rank),
        cmocka_unit_test(reports_what_is_wrong_with_a_command),
        cmocka_unit_test(resets_one_rank),
        cmocka_unit_test(a_sleeping_engine_makes_no_step_and_publishes_the_clear_when_it_wakes),
        cmocka_unit_test(loses_batches_without_a_gap_in_their_numbers),
        cmocka_unit_test(restarts_one_rank_with_the_same_or_other_hashes),
        cmocka_unit_test(all_engines_may_restart_at_once),
        cmocka_unit_test(reports_additions_and_removals_since_a_change),
        cmocka_unit_test(drops_batches_only_from_the_network),
        cmocka_unit_test(writes_a_workers_section),
        cmocka_unit_test(refuses_ports_above_65535),
        cmocka_unit_test(answers_lines_however_they_are_split),
        cmocka_unit_test(stops_on_command),
        cmocka_unit_test(disconnects_at_an_endless_line),
        cmocka_unit_test(serves_sixteen_at_once_and_refuses_the_next),
        cmocka_unit_test(replaces_an_existing_file_only_if_it_is_a_socket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
