#include "kvb_test.h"

#include "config_file.h"
#include "core/conf.h"
#include "core/limits.h"
#include "core/own.h"
#include "fail_alloc.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- A table with a row of each type -------------------------------------------------- */

enum colour { RED, GREEN, COLOUR_COUNT };

struct thing {
    uint64_t id;
    char name[8];
    struct {
        uint32_t slots;
    } load;
};

struct sample {
    char text[16];
    uint64_t big;
    uint32_t small;
    bool is_on;
    double ratio;
    enum colour colour;
    struct thing *things;
    size_t thing_count;
};

static const char *colour_name(unsigned value)
{
    return value == GREEN ? "green" : "red";
}

static const char *colour_instead(const char *name)
{
    return strcmp(name, "teal") == 0 ? "green" : NULL;
}

/* clang-format off */
#define FIELD(field) KVB_CONF_FIELD(struct thing, field)
static const struct kvb_conf_key thing_keys[] = {
    { "id", KVB_CONF_U64, NULL, 0, INT64_MAX, FIELD(id), .help = "Its number." },
    { "name", KVB_CONF_STRING, "none", 0, FIELD(name), .help = "Its name." },
    { "load.slots", KVB_CONF_U32, "3", 0, 9, FIELD(load.slots), .help = "Its slots." },
};
#undef FIELD

static const struct kvb_conf_table thing_table = {
    .keys = thing_keys, .count = KVB_COUNT_OF(thing_keys), .bytes = sizeof(struct thing)
};

#define FIELD(field) KVB_CONF_FIELD(struct sample, field)
static const struct kvb_conf_key keys[] = {
    { "a.text", KVB_CONF_STRING, "hello", 1, FIELD(text), .help = "Some text,\non two lines." },
    { "a.b.big", KVB_CONF_U64, "70", 10, INT64_MAX, FIELD(big), .help = "Big." },
    { "a.b.small", KVB_CONF_U32, "7", 1, 100, FIELD(small), .help = "Small." },
    { "is_on", KVB_CONF_BOOL, "true", 0, 0, FIELD(is_on), .help = "On." },
    { "ratio", KVB_CONF_DOUBLE, "0.5", 0, 2, FIELD(ratio), .help = "Ratio." },
    { "colour", KVB_CONF_ENUM, "green", 0, COLOUR_COUNT - 1, FIELD(colour),
      .name_of = colour_name, .instead_of = colour_instead, .help = "Colour." },
    { "things", KVB_CONF_LIST, NULL, 0, 40, .items = &thing_table,
      .offset = offsetof(struct sample, things),
      .count_offset = offsetof(struct sample, thing_count), .help = "Things." },
};
#undef FIELD
/* clang-format on */

static const struct kvb_conf_removed removed[] = {
    { "former", "use text" },
    { "a.former", "a.text serves for it" },
};

static const struct kvb_conf_table table = { keys, KVB_COUNT_OF(keys), sizeof(struct sample),
                                             removed, KVB_COUNT_OF(removed) };

/* ---- Reading a text, and the errors that it must give -------------------------------------- */

static kvb_status
read_file(const struct config_file *file, struct sample *out_sample, struct kvb_conf_errors *errors)
{
    struct kvb_conf *conf = NULL;

    KVB_TRY(kvb_conf_open(file->path, errors, &conf));
    const kvb_status status = kvb_conf_read(conf, &table, out_sample);
    kvb_conf_close(conf);
    return status;
}

/* The caller frees it with kvb_conf_done(). */
static struct sample read_good(const char *text)
{
    struct config_file file;
    struct kvb_conf_errors errors = { 0 };
    struct sample sample = { 0 };

    config_file_write(&file, text, strlen(text));
    const kvb_status status = read_file(&file, &sample, &errors);
    assert_errors(&file, &errors, (const char *const[]){ NULL });
    assert_ok(status);
    config_file_remove(&file);
    return sample;
}

/* Reads the text, and expects exactly these errors. */
static struct sample read_bad(const char *text, const char *const expected[])
{
    struct config_file file;
    struct kvb_conf_errors errors = { 0 };
    struct sample sample = { 0 };

    config_file_write(&file, text, strlen(text));
    const kvb_status status = read_file(&file, &sample, &errors);
    assert_true(status == KVB_OK || status == KVB_BAD_CONFIG);
    assert_errors(&file, &errors, expected);
    config_file_remove(&file);
    return sample;
}

#define assert_wrong(text, ...)                                                                    \
    do {                                                                                           \
        struct sample wrong_sample = read_bad(text, (const char *const[]){ __VA_ARGS__, NULL });   \
        kvb_conf_done(&table, &wrong_sample);                                                      \
    } while (0)

static const struct thing *thing_at(const struct sample *sample, size_t at)
{
    if (at >= sample->thing_count || !sample->things) {
        fail_msg("there is no thing %zu", at);
        abort();
    }
    return &sample->things[at];
}

/* libconfig 1.5 leaks the strings of a file whose syntax is wrong. LeakSanitizer looks for a
 * function of this name. NOLINTBEGIN(bugprone-*,cert-*,readability-*) */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:strbuf_append\nleak:libconfig_yylex\n";
}
/* NOLINTEND(bugprone-*,cert-*,readability-*) */

/* ---- Good files ------------------------------------------------------------------------ */

static void an_empty_file_gives_the_defaults(void **state)
{
    (void)state;
    struct sample sample = read_good("");

    assert_string_equal(sample.text, "hello");
    assert_int_equal(sample.big, 70);
    assert_int_equal(sample.small, 7);
    assert_true(sample.is_on);
    assert_true(sample.ratio == 0.5);
    assert_int_equal(sample.colour, GREEN);
    assert_null(sample.things);
    assert_int_equal(sample.thing_count, 0);
    kvb_conf_done(&table, &sample);
}

static void every_type_is_read(void **state)
{
    (void)state;
    struct sample sample =
        read_good("a = { text = \"fifteen bytes..\"; b = { big = 5000000000L; small = 100; }; };\n"
                  "is_on = false; ratio = 2; colour = \"red\";\n"
                  "things = ( { id = 0x7FFFFFFFFFFFFFFEL; }, { id = \"9223372036854775807\";\n"
                  "  name = \"x\"; load = { slots = 9; }; } );\n");

    assert_string_equal(sample.text, "fifteen bytes..");
    assert_true(sample.big == 5000000000);
    assert_int_equal(sample.small, 100);
    assert_false(sample.is_on);
    assert_true(sample.ratio == 2.0);
    assert_int_equal(sample.colour, RED);
    assert_int_equal(sample.thing_count, 2);
    assert_true(thing_at(&sample, 0)->id == INT64_MAX - 1);
    assert_string_equal(thing_at(&sample, 0)->name, "none");
    assert_int_equal(thing_at(&sample, 0)->load.slots, 3);
    assert_true(thing_at(&sample, 1)->id == INT64_MAX);
    assert_string_equal(thing_at(&sample, 1)->name, "x");
    assert_int_equal(thing_at(&sample, 1)->load.slots, 9);
    kvb_conf_done(&table, &sample);
    assert_null(sample.things);
}

/* ---- Mistakes ---------------------------------------------------------------------------- */

static void unknown_keys_are_errors_at_every_depth(void **state)
{
    (void)state;
    assert_wrong(
        "tex = 1;\na = {\n  text2 = \"x\";\n  b = { bigger = 1; };\n};\nother = { x = 1; };\n"
        "things = (\n { id = 1; load = {\n slot = 1; }; a = 2; } );",
        "1: tex: unknown key: --help lists the known ones", /* nothing is near */
        "3: a.text2: unknown key: --help lists the known ones; is it a.text that is meant?",
        "4: a.b.bigger: unknown key", "6: other: unknown key",
        "9: things[0].load.slot: unknown key: --help lists the known ones; is it load.slots",
        "9: things[0].a: unknown key");
    assert_wrong(
        "color = \"red\";\nthing = ();\nti = 1;\nrtaio = 1;",
        "1: color: unknown key: --help lists the known ones; is it colour that is meant?",
        "2: thing: unknown key: --help lists the known ones; is it things that is meant?",
        "3: ti: unknown key: --help lists the known ones",
        "4: rtaio: unknown key: --help lists the known ones");
}

static void a_key_of_an_earlier_version_says_what_serves_in_its_place(void **state)
{
    (void)state;
    assert_wrong(
        "former = { any = 1; };\na = { former = 2; };\n", "1: former: this key is gone: use text",
        "2: a.former: this key is gone: a.text serves for it");
}

static void wrong_types_are_errors_with_a_remedy(void **state)
{
    (void)state;
    assert_wrong("a = 1;", "1: a: expected a group { ... }");
    assert_wrong("a = { text = { x = 1; }; };", "1: a.text: expected a string in quotes");
    assert_wrong("a = { text = 5; };", "1: a.text: expected a string in quotes");
    assert_wrong(
        "a = { b = { small = \"5\"; }; };",
        "1: a.b.small: expected a whole number: leave out the quotes");
    assert_wrong("a = { b = { big = true; }; };", "1: a.b.big: expected a whole number");
    assert_wrong("is_on = 1;", "1: is_on: expected true or false, without quotes");
    assert_wrong("ratio = \"1\";", "1: ratio: expected a number, without quotes");
    assert_wrong("colour = \"blue\";", "1: colour: expected \"red\" or \"green\"");
    assert_wrong("colour = 1;", "1: colour: expected \"red\" or \"green\"");
    assert_wrong("things = { id = 1; };", "1: things: expected a list of groups");
    assert_wrong("things = [ 1, 2 ];", "1: things: expected a list of groups");
    assert_wrong("things = (\n 5 );", "1: things: entry 0 is no group { ... }");
}

static void values_out_of_range_are_errors(void **state)
{
    (void)state;
    assert_wrong(
        "a = { b = { small = 0;\n big = 9; }; };", "2: a.b.big: 9 is out of range: give 10 .. ",
        "1: a.b.small: 0 is out of range: give 1 .. 100");
    assert_wrong("a = { b = { small = 101; }; };", "1: a.b.small: 101 is out of range");
    assert_wrong("a = { b = { small = -5; }; };", "1: a.b.small: -5 is out of range");
    assert_wrong("a = { b = { small = 4294967297L; }; };", "1: a.b.small: 4294967297 is out of");
    assert_wrong("ratio = 2.1;", "1: ratio: is out of range: give 0 .. 2");
    assert_wrong("ratio = -0.1;", "1: ratio: is out of range: give 0 .. 2");
    assert_wrong("ratio = 1.0e999;", "1: ratio: is out of range: give 0 .. 2");
    assert_wrong("a = { text = \"\"; };", "1: a.text: is empty: give at least 1 byte");
    assert_wrong(
        "a = { text = \"sixteen bytes...\"; };", "1: a.text: is too long: at most 15 bytes");
    assert_wrong("a = { text = \"x\\ny\"; };", "1: a.text: contains a control character");
}

/* libconfig 1.5 alone would read 4294967297 as 1, and 2^63 as 2^63-1. */
static void integers_that_libconfig_would_cut_are_errors(void **state)
{
    (void)state;
    static const char *const too_big[] = {
        "2147483648", "4294967297", "-4294967297", "+4294967297", "99999999999999999999999",
        "0xFFFFFFFF", "0xEEEEEEEEE"
    };
    static const char *const too_big_even_so[] = { "9223372036854775808L", "0x8000000000000000L",
                                                   "18446744073709551617L",
                                                   "9223372036854775808LL" };
    char text[100];

    for (size_t i = 0; i < KVB_COUNT_OF(too_big); i++) {
        (void)snprintf(text, sizeof text, "a={b={big=%s;};};", too_big[i]);
        assert_wrong(
            text, "1: a.b.big: expected a whole number in 10 .. 9223372036854775807; above "
                  "2147483647 add L (5000000000L) or quotes");
    }
    for (size_t i = 0; i < KVB_COUNT_OF(too_big_even_so); i++) {
        struct sample sample;
        (void)snprintf(text, sizeof text, "a={b={big=%s;};};", too_big_even_so[i]);
        sample = read_bad(
            text, (const char *const[]){ "1: a.b.big: expected a whole number in 10 .. 92", NULL });
        assert_int_equal(sample.big, 70);
        kvb_conf_done(&table, &sample);
    }
    assert_wrong("a = { b = { big = 1.5; }; };", "1: a.b.big: expected a whole number in 10 .. ");
}

static void big_integers_may_stand_in_names_strings_and_comments(void **state)
{
    (void)state;
    struct sample sample = read_good("# 99999999999 \" @include\n// 99999999999\n"
                                     "/* 99999999999 \" \n @ */ ratio = 1.5; "
                                     "a = { text = \"99999999999 \\\"@\"; b = { small = 0x0a; }; };"
                                     "things = ( { id = 2147483647; name = \"*\" } );");

    assert_string_equal(sample.text, "99999999999 \"@");
    assert_int_equal(sample.small, 10);
    assert_true(thing_at(&sample, 0)->id == 2147483647);
    kvb_conf_done(&table, &sample);
}

static void numbers_in_strings_must_be_plain_decimals(void **state)
{
    (void)state;
    static const char *const bad[] = { "",    " 50",  "50 ", "-50",
                                       "+50", "0x50", "5e3", "18446744073709551616" };
    char text[100];

    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        char expected[100];
        (void)snprintf(text, sizeof text, "a={b={big=\"%s\";};};", bad[i]);
        (void)snprintf(
            expected, sizeof expected, "1: a.b.big: \"%s\" is no decimal number in 10 .. ", bad[i]);
        assert_wrong(text, expected);
    }
    assert_wrong(
        "a={b={big=\"9223372036854775808\";};};",
        "1: a.b.big: 9223372036854775808 is out of range: give 10 .. 9223372036854775807");
}

static void a_missing_required_key_is_reported_at_the_line_of_its_group(void **state)
{
    (void)state;
    struct sample sample = read_bad(
        "\nthings = (\n {\n },\n { name = \"x\"; }\n);",
        (const char *const[]){ "3: things[0].id: is missing", "5: things[1].id: is missing",
                               NULL });

    assert_true(thing_at(&sample, 0)->id == UINT64_MAX); /* the mark of a missing value */
    kvb_conf_done(&table, &sample);
}

static void lists_have_a_minimum_and_a_maximum_length(void **state)
{
    (void)state;
    char text[1000] = "things = ( {id=1;}";

    for (int i = 0; i < 40; i++) {
        const size_t len = strlen(text);
        (void)snprintf(text + len, sizeof text - len, ",{id=1;}");
    }
    const size_t len = strlen(text);
    (void)snprintf(text + len, sizeof text - len, ");");
    assert_wrong(text, "1: things: has 41 entries: give 0 .. 40");
}

static void errors_above_the_ceiling_are_only_counted(void **state)
{
    (void)state;
    struct config_file file;
    struct kvb_conf_errors errors = { 0 };
    struct sample sample = { 0 };
    char text[1000] = "";
    char *printed = NULL;
    size_t printed_len = 0;

    for (int i = 0; i < 40; i++) {
        const size_t len = strlen(text);
        (void)snprintf(text + len, sizeof text - len, "unknown%d = 1;\n", i);
    }
    config_file_write(&file, text, strlen(text));
    assert_ok(read_file(&file, &sample, &errors));
    assert_int_equal(errors.count, 40);
    FILE *out = open_memstream(&printed, &printed_len);
    kvb_conf_errors_print(&errors, out);
    (void)fclose(out);
    assert_non_null(strstr(printed, ":32: unknown31: unknown key"));
    assert_null(strstr(printed, "unknown32"));
    assert_non_null(strstr(printed, "... and 8 more\n"));
    free(printed);
    config_file_remove(&file);
    kvb_conf_done(&table, &sample);
}

/* ---- Files that are no configuration -------------------------------------------------------- */

static void wrong_syntax_is_reported_with_its_line(void **state)
{
    (void)state;
    assert_wrong(
        "ratio = 1;\na = { text = ;\n};",
        "2: syntax error at \"a = { text = ;\": there or just before");
    assert_wrong(
        "ratio = 1;\nratio = 1;", "2: duplicate setting name: \"ratio = 1;\" gives a key of its "
                                  "group a second time: remove one");
    assert_wrong("ratio = 1;\na = {", "2: syntax error");
    assert_wrong("ratio = 1;\na = { text = \"x\n\n", "2: the string that begins here");
    assert_wrong(
        "ratio = 1;\n/* never closed\n", "2: the comment that begins here is never closed");
    assert_wrong("ratio = 1;\n\n@include \"x\"\n", "3: @include is not supported");
}

static void unreadable_files_are_errors(void **state)
{
    (void)state;
    struct kvb_conf_errors errors = { 0 };
    struct kvb_conf *conf = NULL;

    assert_int_equal(kvb_conf_open("/tmp", &errors, &conf), KVB_BAD_CONFIG);
    assert_int_equal(kvb_conf_open("/nowhere/x.cfg", &errors, &conf), KVB_BAD_CONFIG);
    assert_int_equal(errors.count, 2);
    assert_string_equal(errors.texts[0].text, "/tmp:1: cannot read the file: Is a directory");
    assert_string_equal(
        errors.texts[1].text, "/nowhere/x.cfg:1: cannot read the file: No such file or directory");
    assert_null(conf);
    kvb_conf_close(NULL);
}

static void files_with_nul_bytes_or_too_many_bytes_are_errors(void **state)
{
    (void)state;
    struct config_file file;
    struct kvb_conf_errors errors = { 0 };
    struct sample sample = { 0 };
    char *text = calloc(1, kvb_max_config_bytes + 1);

    assert_non_null(text);
    config_file_write(&file, "a\0b", 3);
    assert_int_equal(read_file(&file, &sample, &errors), KVB_BAD_CONFIG);
    config_file_remove(&file);
    memset(text, ' ', kvb_max_config_bytes + 1);
    config_file_write(&file, text, kvb_max_config_bytes + 1);
    assert_int_equal(read_file(&file, &sample, &errors), KVB_BAD_CONFIG);
    config_file_remove(&file);
    config_file_write(&file, text, kvb_max_config_bytes);
    assert_ok(read_file(&file, &sample, &errors));
    config_file_remove(&file);
    assert_int_equal(errors.count, 2);
    assert_non_null(strstr(errors.texts[0].text, "NUL bytes"));
    assert_non_null(strstr(errors.texts[1].text, "larger than 16 MiB"));
    kvb_conf_done(&table, &sample);
    free(text);
}

/* Any bytes give a result, never a crash. The sanitizers also find leaks here. */
static void survives_random_texts(void **state)
{
    (void)state;
    static const char *const pieces[] = {
        "a",           "=", "{",  "}", ";",  "\"",    "things", "(",  ")",     "1",   "-",
        "99999999999", "L", "0x", ".", "\n", "/*",    "*/",     "//", "ratio", "id",  "[",
        "]",           ",", "\\", "#", " ",  "is_on", "text",   "b",  "true",  "\xff"
    };
    unsigned seed = 3;

    for (int round = 0; round < 2000; round++) {
        struct config_file file;
        struct kvb_conf_errors errors = { 0 };
        struct sample sample = { 0 };
        char text[600] = "";
        for (int i = rand_r(&seed) % 60; i > 0; i--) {
            const size_t len = strlen(text);
            (void)snprintf(
                text + len, sizeof text - len, "%s",
                pieces[(size_t)rand_r(&seed) % KVB_COUNT_OF(pieces)]);
        }
        config_file_write(&file, text, strlen(text));
        if (read_file(&file, &sample, &errors) == KVB_OK) {
            kvb_conf_done(&table, &sample);
        } else {
            assert_int_equal(errors.count, 1);
        }
        config_file_remove(&file);
    }
}

/* ---- The rest ---------------------------------------------------------------------------------
 */

static void checks_across_keys_name_the_line_of_the_key_or_of_its_group(void **state)
{
    (void)state;
    static const char text[] = "a = {\n b =\n {\n big = 70;\n };\n};\n"
                               "things = (\n {\n id = 1; },\n { id = 2;\n load = {}; } );";
    struct config_file file;
    struct kvb_conf_errors errors = { 0 };
    struct kvb_conf *conf = NULL;

    config_file_write(&file, text, strlen(text));
    assert_ok(kvb_conf_open(file.path, &errors, &conf));
    kvb_conf_error(conf, "a.b.big", "is %d", 70);
    kvb_conf_error(conf, "a.b.small", "is not there");
    kvb_conf_error(conf, "nothing.at.all", "x");
    kvb_conf_error(conf, "things[0].id", "x");
    kvb_conf_error(conf, "things[1].load.slots", "x");
    kvb_conf_error(conf, "things[7].id", "x");
    kvb_conf_error(conf, "a[7].id", "x");
    kvb_conf_error(conf, "", "x");
    assert_errors(
        &file, &errors,
        (const char *const[]){ "4: a.b.big: is 70", "2: a.b.small: is not there",
                               "1: nothing.at.all: x", "9: things[0].id: x",
                               "11: things[1].load.slots: x", "7: things[7].id: x", "1: a[7].id: x",
                               "1: x", NULL });
    kvb_conf_close(conf);
    config_file_remove(&file);
}

static void help_lists_every_key_with_default_range_and_help(void **state)
{
    (void)state;
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);

    kvb_conf_help(&table, out);
    (void)fclose(out);
    assert_string_equal(
        text, "  a.text = \"hello\"\n      Some text,\n      on two lines.\n"
              "  a.b.big = 70\n      Big.\n      10 .. 9223372036854775807\n"
              "  a.b.small = 7\n      Small.\n      1 .. 100\n"
              "  is_on = true\n      On.\n"
              "  ratio = 0.5\n      Ratio.\n      0 .. 2\n"
              "  colour = \"green\"\n      Colour.\n      \"red\" | \"green\"\n"
              "  things = ( { ... }, ... )\n      Things.\n"
              "  things[].id = ...   (required)\n      Its number.\n"
              "      0 .. 9223372036854775807\n"
              "  things[].name = \"none\"\n      Its name.\n"
              "  things[].load.slots = 3\n      Its slots.\n      0 .. 9\n");
    free(text);
}

static void strings_expand_environment_variables(void **state)
{
    (void)state;
    /* One thread uses the environment. NOLINTBEGIN(concurrency-mt-unsafe) */
    (void)setenv("KVB_TEST_NODE", "n1", 1);
    (void)setenv("KVB_TEST_EMPTY", "", 1);
    (void)setenv("KVB_TEST_NUMBER", "5000000000", 1);
    (void)unsetenv("KVB_TEST_UNSET");
    /* NOLINTEND(concurrency-mt-unsafe) */
    struct sample sample =
        read_good("a = { text = \"x=$(KVB_TEST_NODE),$(KVB_TEST_NODE)\"; b = { big = "
                  "\"$(KVB_TEST_NUMBER)\"; }; };"
                  "things = ( { id = 1; name = \"$(KVB_TEST_EMPTY)\"; },"
                  " { id = 2; name = \"$$(A)$\"; }, { id = 3; name = \"$x$$()\"; } );");

    assert_string_equal(sample.text, "x=n1,n1");
    assert_int_equal(sample.big, 5000000000);
    assert_string_equal(thing_at(&sample, 0)->name, "");
    assert_string_equal(thing_at(&sample, 1)->name, "$(A)$");
    assert_string_equal(thing_at(&sample, 2)->name, "$x$()");
    kvb_conf_done(&table, &sample);
    assert_wrong(
        "a = {\n text = \"$(KVB_TEST_UNSET)\"; };",
        "2: text: the environment variable KVB_TEST_UNSET is not set",
        "2: a.text: is too long: at most 15 bytes");
    assert_wrong(
        "a = { text = \"$(KVB TEST)\"; };", "1: text: $( is no $(NAME) of an environment variable");
    assert_wrong(
        "a = { text = \"$(KVB\"; };", "1: text: $( is no $(NAME) of an environment variable");
    assert_wrong(
        "a = { text = \"$()\"; };", "1: text: $( is no $(NAME) of an environment variable");
    assert_wrong(
        "things = ( { id = 1; name = \"$(KVB_TEST_NODE)234567\"; } );",
        "1: things[0].name: is too long: at most 7 bytes");
}

static void survives_every_allocation_failing(void **state)
{
    (void)state;
    static const char text[] = "things = ( { id = 1; }, { id = 2; } ); ratio = 1;";
    struct config_file file;
    kvb_status status = KVB_NO_MEMORY;

    config_file_write(&file, text, strlen(text));
    for (long n = 0; status == KVB_NO_MEMORY; n++) {
        struct kvb_conf_errors errors = { 0 };
        struct sample sample = { 0 };
        fail_alloc_after(n);
        status = read_file(&file, &sample, &errors);
        fail_alloc_after(-1);
        assert_int_equal(errors.count, 0);
        assert_int_equal(sample.thing_count, status == KVB_OK ? 2 : 0);
        kvb_conf_done(&table, &sample);
        assert_true(n < 10);
    }
    assert_ok(status);
    config_file_remove(&file);
}

/* ---- Defaults of a list's groups ------------------------------------------------------------- */

struct part {
    uint64_t id;
    const char *name;
    uint32_t size;
    uint64_t numbers[2];
    size_t number_count;
    uint32_t port;
};

struct whole {
    struct part defaults;
    struct part *parts;
    size_t part_count;
};

/* clang-format off */
#define FIELD(field) KVB_CONF_FIELD(struct part, field)
static const struct kvb_conf_key part_keys[] = {
    { "id", KVB_CONF_U64, NULL, 0, 9, FIELD(id), .scope = KVB_CONF_OF_A_GROUP, .help = "Number." },
    { "name", KVB_CONF_TEXT, NULL, 1, 8, FIELD(name), .help = "Name." },
    { "size", KVB_CONF_U32, "3", 0, 9, FIELD(size), .help = "Size." },
    { "numbers", KVB_CONF_U64S, NULL, 0, 9, FIELD(numbers),
      .count_offset = offsetof(struct part, number_count), .help = "Numbers." },
    { "port", KVB_CONF_U32, "7", 1, 9, FIELD(port), .scope = KVB_CONF_OF_DEFAULTS, .help = "Port." },
};
#undef FIELD

static const struct kvb_conf_table part_table = { .keys = part_keys,
                                                  .count = KVB_COUNT_OF(part_keys),
                                                  .bytes = sizeof(struct part) };

static const struct kvb_conf_key whole_keys[] = {
    { "defaults", KVB_CONF_DEFAULTS, .items = &part_table,
      KVB_CONF_FIELD(struct whole, defaults), .help = "What parts do not say." },
    { "parts", KVB_CONF_LIST, NULL, 0, 9, .items = &part_table,
      .offset = offsetof(struct whole, parts), .count_offset = offsetof(struct whole, part_count),
      .help = "Parts." },
};
/* clang-format on */

static const struct kvb_conf_table whole_table = { .keys = whole_keys,
                                                   .count = KVB_COUNT_OF(whole_keys),
                                                   .bytes = sizeof(struct whole) };

/* The caller closes *out_conf, from which texts are borrowed. */
static struct whole
read_whole(const char *text, struct kvb_conf **out_conf, struct kvb_conf_errors *errors)
{
    struct config_file file;
    struct whole whole = { .part_count = 0 };

    config_file_write(&file, text, strlen(text));
    assert_ok(kvb_conf_open(file.path, errors, out_conf));
    assert_ok(kvb_conf_read(*out_conf, &whole_table, &whole));
    config_file_remove(&file);
    return whole;
}

static void a_group_has_the_defaults_that_it_does_not_replace(void **state)
{
    struct kvb_conf_errors errors = { 0 };
    struct kvb_conf *conf = NULL;

    (void)state;
    struct whole whole = read_whole(
        "defaults = { name = \"all\"; numbers = (1, 2); port = 8; };\n"
        "parts = ( { id = 1; }, { id = 2; name = \"own\"; size = 5; numbers = (3); } );\n",
        &conf, &errors);
    assert_int_equal(errors.count, 0);
    assert_string_equal(whole.parts[0].name, "all");
    assert_int_equal(whole.parts[0].size, 3);
    assert_int_equal(whole.parts[0].number_count, 2);
    assert_true(whole.parts[0].numbers[1] == 2);
    assert_string_equal(whole.parts[1].name, "own");
    assert_int_equal(whole.parts[1].size, 5);
    assert_int_equal(whole.parts[1].number_count, 1);
    assert_int_equal(whole.defaults.port, 8);
    kvb_conf_done(&whole_table, &whole);
    kvb_conf_close(conf);
}

static void without_defaults_a_group_needs_its_keys(void **state)
{
    struct kvb_conf_errors errors = { 0 };
    struct kvb_conf *conf = NULL;

    (void)state;
    struct whole whole =
        read_whole("defaults = { name = \"\"; };\nparts = ( { id = 1; } );\n", &conf, &errors);
    assert_int_equal(errors.count, 1);
    assert_non_null(strstr(errors.texts[0].text, "parts[0].name: is missing and has no default"));
    assert_int_equal(whole.defaults.size, 3);
    assert_string_equal(whole.defaults.name, "");
    kvb_conf_done(&whole_table, &whole);
    kvb_conf_close(conf);
}

static void keys_stand_where_they_have_a_meaning(void **state)
{
    struct kvb_conf_errors errors = { 0 };
    struct kvb_conf *conf = NULL;

    (void)state;
    struct whole whole = read_whole(
        "defaults = { id = 1; name = \"longer than it may be\"; };\n"
        "parts = ( { id = 1; name = \"a\"; port = 2; } );\n",
        &conf, &errors);
    assert_int_equal(errors.count, 3);
    assert_non_null(strstr(errors.texts[0].text, "1: defaults.id: has no default: each group"));
    assert_non_null(strstr(errors.texts[1].text, "1: defaults.name: is too long: at most 8 bytes"));
    assert_non_null(strstr(errors.texts[2].text, "2: parts[0].port: is a default alone: move it"));
    kvb_conf_done(&whole_table, &whole);
    kvb_conf_close(conf);
}

/* A second file has more groups of the list, and the defaults of the first. */
static void another_file_has_the_same_defaults(void **state)
{
    const struct part defaults = { .name = "all", .size = 4 };
    struct kvb_conf_errors errors = { 0 };
    struct kvb_conf *conf = NULL;
    struct config_file file;
    struct whole whole = { .part_count = 0 };
    static const char text[] = "parts = ( { id = 1; } );\n";
    static const struct kvb_conf_table more = { .keys = &whole_keys[1],
                                                .count = 1,
                                                .bytes = sizeof(struct whole) };

    (void)state;
    config_file_write(&file, text, strlen(text));
    assert_ok(kvb_conf_open(file.path, &errors, &conf));
    assert_ok(kvb_conf_read_more(conf, &more, &defaults, &whole));
    config_file_remove(&file);
    assert_int_equal(errors.count, 0);
    assert_string_equal(whole.parts[0].name, "all");
    assert_int_equal(whole.parts[0].size, 4);
    kvb_conf_done(&more, &whole);
    kvb_conf_close(conf);
}

static void help_names_the_keys_that_may_be_defaults(void **state)
{
    char *help = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&help, &len);

    (void)state;
    kvb_conf_help(&whole_table, out);
    (void)fclose(out);
    assert_non_null(strstr(
        help, "  defaults = { ... }\n      What parts do not say.\n      name size numbers\n"
              "  defaults.port = 7\n"));
    assert_non_null(strstr(help, "  parts[].size = 3\n"));
    assert_null(strstr(help, "parts[].port"));
    free(help);
}

SUITE(conf)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_file_gives_the_defaults),
        cmocka_unit_test(every_type_is_read),
        cmocka_unit_test(unknown_keys_are_errors_at_every_depth),
        cmocka_unit_test(a_key_of_an_earlier_version_says_what_serves_in_its_place),
        cmocka_unit_test(wrong_types_are_errors_with_a_remedy),
        cmocka_unit_test(values_out_of_range_are_errors),
        cmocka_unit_test(integers_that_libconfig_would_cut_are_errors),
        cmocka_unit_test(big_integers_may_stand_in_names_strings_and_comments),
        cmocka_unit_test(numbers_in_strings_must_be_plain_decimals),
        cmocka_unit_test(a_missing_required_key_is_reported_at_the_line_of_its_group),
        cmocka_unit_test(lists_have_a_minimum_and_a_maximum_length),
        cmocka_unit_test(errors_above_the_ceiling_are_only_counted),
        cmocka_unit_test(wrong_syntax_is_reported_with_its_line),
        cmocka_unit_test(unreadable_files_are_errors),
        cmocka_unit_test(files_with_nul_bytes_or_too_many_bytes_are_errors),
        cmocka_unit_test(survives_random_texts),
        cmocka_unit_test(checks_across_keys_name_the_line_of_the_key_or_of_its_group),
        cmocka_unit_test(help_lists_every_key_with_default_range_and_help),
        cmocka_unit_test(strings_expand_environment_variables),
        cmocka_unit_test(survives_every_allocation_failing),
        cmocka_unit_test(a_group_has_the_defaults_that_it_does_not_replace),
        cmocka_unit_test(without_defaults_a_group_needs_its_keys),
        cmocka_unit_test(keys_stand_where_they_have_a_meaning),
        cmocka_unit_test(another_file_has_the_same_defaults),
        cmocka_unit_test(help_names_the_keys_that_may_be_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
