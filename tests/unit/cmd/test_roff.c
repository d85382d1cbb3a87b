#include "kvb_test.h"

#include "cmd/roff.h"

#include <stdlib.h>

/* What a test writes, as text. */
struct page {
    FILE *out;
    char *text;
    size_t len;
};

static void begin(struct page *page)
{
    page->out = open_memstream(&page->text, &page->len);
    assert_non_null(page->out);
}

static void assert_page(struct page *page, const char *expected)
{
    assert_int_equal(fclose(page->out), 0);
    assert_string_equal(page->text, expected);
    free(page->text);
}

static void what_roff_would_take_for_its_own_is_escaped(void **state)
{
    (void)state;
    struct page page;

    begin(&page);
    kvb_roff_line(page.out, "a\\b -c \"d\" 'e' `f` ^g ~h");
    assert_page(&page, "a\\eb \\-c \\(dqd\\(dq \\(aqe\\(aq \\(gaf\\(ga \\(hag \\(tih\n");
}

static void text_never_begins_a_request(void **state)
{
    (void)state;
    struct page page;

    begin(&page);
    kvb_roff_line(page.out, ".so /etc/passwd");
    kvb_roff_line(page.out, "'so /etc/passwd");
    kvb_roff_text(page.out, 'B', ".so /etc/passwd");
    kvb_roff_end_line(page.out);
    kvb_roff_line(page.out, "one\n.so two");
    assert_page(
        &page, "\\&.so /etc/passwd\n\\(aqso /etc/passwd\n\\fB.so /etc/passwd\\fR\none .so two\n");
}

static void titles_are_arguments_in_quotes(void **state)
{
    (void)state;
    struct page page;

    begin(&page);
    kvb_roff_begin(page.out, "a \"b\"", 5, "c 1", "d");
    kvb_roff_section(page.out, "SEE ALSO");
    kvb_roff_subsection(page.out, "match and route:");
    assert_page(
        &page, ".TH \"a \\(dqb\\(dq\" 5 \"\" \"c 1\" \"d\"\n.nh\n.ad l\n"
               ".SH \"SEE ALSO\"\n.SS \"match and route:\"\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_roff_would_take_for_its_own_is_escaped),
        cmocka_unit_test(text_never_begins_a_request),
        cmocka_unit_test(titles_are_arguments_in_quotes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
