#include "cmd/manual.h"

#include "cmd/roff.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

/* ---- The parts that every page has ----------------------------------------------------- */

static void begin(const struct kvb_manual *manual, FILE *out)
{
    kvb_roff_begin(
        out, manual->name, manual->section, "kvbridge " KVB_VERSION,
        manual->section == 5 ? "File Formats" : "kvbridge Manual");
    kvb_roff_section(out, "NAME");
    kvb_roff_text(out, 'R', manual->name);
    kvb_roff_text(out, 'R', " - ");
    kvb_roff_text(out, 'R', manual->summary);
    kvb_roff_end_line(out);
    kvb_roff_section(out, "SYNOPSIS");
}

static void write_row(const struct kvb_manual_row *row, bool is_first, FILE *out)
{
    if (row->term) {
        kvb_roff_term(out);
        kvb_roff_text(out, 'B', row->term);
        kvb_roff_end_line(out);
    } else if (!is_first) {
        kvb_roff_paragraph(out);
    }
    kvb_roff_line(out, row->text);
}

static bool is_description(const struct kvb_manual_row *row)
{
    return strcmp(row->title, "DESCRIPTION") == 0;
}

/* wants_description: only the rows of DESCRIPTION, or all others. */
static void write_rows(const struct kvb_manual *manual, bool wants_description, FILE *out)
{
    const char *title = "";

    for (size_t i = 0; i < manual->row_count; i++) {
        const struct kvb_manual_row *row = &manual->rows[i];
        const bool is_first = strcmp(row->title, title) != 0;
        if (is_description(row) != wants_description) {
            continue;
        }
        if (is_first) {
            title = row->title;
            kvb_roff_section(out, title);
        }
        write_row(row, is_first, out);
    }
}

/* ---- The doc of an argp ------------------------------------------------------------------ */

static bool is_command(const char *line)
{
    return strncmp(line, "  ", 2) == 0;
}

static size_t length_of_line(const char *line)
{
    return strcspn(line, "\n\v");
}

/* The line after this one; NULL at the end of the doc, or of the part before \v. */
static const char *next_line(const char *line)
{
    const char *end = line + length_of_line(line);

    return *end == '\n' ? end + 1 : NULL;
}

static void write_description(const char *doc, FILE *out)
{
    bool is_parted = false; /* by an empty line, from what stands already */

    kvb_roff_section(out, "DESCRIPTION");
    for (const char *line = doc; line; line = next_line(line)) {
        const size_t len = length_of_line(line);
        if (len == 0) {
            is_parted = line != doc;
        } else if (!is_command(line)) {
            if (is_parted) {
                kvb_roff_paragraph(out);
            }
            is_parted = false;
            kvb_roff_words(out, 'R', line, len);
            kvb_roff_end_line(out);
        }
    }
}

/* "check FILE   reads ...": bold, cursive, and the explanation below; a line that is
 * indented more goes on with the explanation before it. */
static void write_command(const char *row, size_t len, FILE *out)
{
    if (row[0] != ' ') {
        const char *gap = strstr(row, "  ");
        const size_t term = gap && gap < row + len ? (size_t)(gap - row) : len;
        const char *blank = memchr(row, ' ', term);
        const size_t name = blank ? (size_t)(blank - row) : term;
        kvb_roff_term(out);
        kvb_roff_words(out, 'B', row, name);
        if (blank) {
            kvb_roff_words(out, 'I', row + name, term - name);
        }
        kvb_roff_end_line(out);
        row += term;
        len -= term;
    }
    const size_t blanks = strspn(row, " ");
    if (blanks < len) {
        kvb_roff_words(out, 'R', row + blanks, len - blanks);
        kvb_roff_end_line(out);
    }
}

static void write_commands(const char *doc, FILE *out)
{
    bool has_title = false;

    for (const char *line = doc; line; line = next_line(line)) {
        if (!is_command(line)) {
            continue;
        }
        if (!has_title) {
            kvb_roff_section(out, "COMMANDS");
            has_title = true;
        }
        write_command(line + 2, length_of_line(line) - 2, out);
    }
}

static void write_exit_status(const char *doc, FILE *out)
{
    static const char title[] = "Exit status: "; /* the section says it */
    const char *post = strchr(doc, '\v');

    if (post) {
        post += strncmp(post + 1, title, strlen(title)) == 0 ? strlen(title) : 0;
        kvb_roff_section(out, "EXIT STATUS");
        kvb_roff_line(out, post + 1);
    }
}

/* ---- The options of an argp --------------------------------------------------------------- */

static bool is_end(const struct argp_option *option)
{
    return !option->name && !option->key && !option->doc && !option->group;
}

static bool is_title(const struct argp_option *option)
{
    return !option->name && !option->key;
}

static bool is_shown(const struct argp_option *option)
{
    return !(option->flags & OPTION_HIDDEN);
}

static void write_option(const struct argp_option *option, FILE *out)
{
    const char letter[] = { '-', (char)option->key, '\0' };
    char name[64];

    kvb_roff_term(out);
    if (option->key > 0 && option->key < 128 && isgraph(option->key)) {
        kvb_roff_text(out, 'B', letter);
        kvb_roff_text(out, 'R', ", ");
    }
    (void)snprintf(name, sizeof name, "--%s", option->name);
    kvb_roff_text(out, 'B', name);
    if (option->arg) {
        kvb_roff_text(out, 'R', "=");
        kvb_roff_text(out, 'I', option->arg);
    }
    kvb_roff_end_line(out);
    kvb_roff_line(out, option->doc ? option->doc : "");
}

static bool begins_without_title(const struct argp_option *options)
{
    while (!is_end(options) && !is_shown(options)) {
        options++;
    }
    return !is_end(options) && !is_title(options);
}

static void write_table(const struct argp_option *options, FILE *out)
{
    for (const struct argp_option *option = options; !is_end(option); option++) {
        if (!is_shown(option)) {
            continue;
        }
        if (is_title(option)) {
            kvb_roff_subsection(out, option->doc);
        } else {
            write_option(option, out);
        }
    }
}

/* Its own and its children's: --help and --version are children that argp adds.  Two
 * floors are all there are. */
static void write_options(const struct argp *argp, FILE *out)
{
    bool has_some = argp->options != NULL;
    bool has_more = false;

    kvb_roff_section(out, "OPTIONS");
    if (argp->options) {
        write_table(argp->options, out);
    }
    for (const struct argp_child *child = argp->children; child && child->argp; child++) {
        const struct argp_option *options = child->argp->options;
        if (!options) {
            continue;
        }
        if (has_some && !has_more && begins_without_title(options)) {
            kvb_roff_subsection(out, "Also:"); /* not of the last title before it */
            has_more = true;
        }
        write_table(options, out);
        has_some = true;
    }
}

/* The argp that the program wrote: where argp has added help, it is the first child. */
static const struct argp *words_of(const struct argp *argp)
{
    return argp->doc || !argp->children ? argp : argp->children[0].argp;
}

/* ---- Pages ----------------------------------------------------------------------------------- */

static void write_synopsis(const struct kvb_manual *manual, const struct argp *argp, FILE *out)
{
    kvb_roff_text(out, 'B', manual->name);
    kvb_roff_text(out, 'R', " [");
    kvb_roff_text(out, 'I', "OPTION");
    kvb_roff_text(out, 'R', "...]");
    if (argp->args_doc) {
        kvb_roff_text(out, 'R', " ");
        kvb_roff_text(out, 'I', argp->args_doc);
    }
    kvb_roff_end_line(out);
}

void kvb_manual_write(const struct kvb_manual *manual, const struct argp *argp, FILE *out)
{
    const struct argp *words = words_of(argp);

    begin(manual, out);
    write_synopsis(manual, words, out);
    write_description(words->doc, out);
    write_commands(words->doc, out);
    write_options(argp, out);
    write_exit_status(words->doc, out);
    write_rows(manual, false, out);
}

static void write_key(void *context, const struct kvb_conf_words *words)
{
    FILE *out = context;

    kvb_roff_term(out);
    kvb_roff_text(out, 'B', words->path);
    kvb_roff_text(out, 'R', words->value);
    kvb_roff_end_line(out);
    kvb_roff_line(out, words->help);
    if (words->range[0] != '\0') {
        kvb_roff_break(out);
        kvb_roff_line(out, words->range);
    }
}

void kvb_manual_write_keys(
    const struct kvb_manual *manual, const struct kvb_conf_table *table, FILE *out)
{
    begin(manual, out);
    kvb_roff_text(out, 'I', "/etc/kvbridge/");
    kvb_roff_text(out, 'I', manual->name);
    kvb_roff_end_line(out);
    write_rows(manual, true, out);
    kvb_roff_section(out, "KEYS");
    kvb_conf_describe(table, write_key, out);
    write_rows(manual, false, out);
}

/* ---- The option -------------------------------------------------------------------------------
 */

enum { key_man = 2000 };

/* argp prescribes the type, and runs before any thread is started.
 * NOLINTBEGIN(concurrency-mt-unsafe,readability-non-const-parameter) */
static error_t parse(int key, char *argument, struct argp_state *state)
{
    (void)argument;
    if (key != key_man) {
        return ARGP_ERR_UNKNOWN;
    }
    const struct kvb_manual *manual = kvb_manual_find(state->name);
    if (!manual) {
        argp_error(state, "--man: there is no page for a program of this name");
        return EINVAL;
    }
    kvb_manual_write(manual, state->root_argp, state->out_stream);
    argp_state_help(state, state->out_stream, ARGP_HELP_EXIT_OK); /* prints nothing more */
    return ECANCELED;
}
/* NOLINTEND(concurrency-mt-unsafe,readability-non-const-parameter) */

static const struct argp_option options[] = {
    { "man", key_man, NULL, OPTION_HIDDEN, NULL, -1 },
    { 0 },
};
static const struct argp man_option = { .options = options, .parser = parse };

const struct argp_child kvb_manual_child[2] = { { &man_option, 0, NULL, 0 }, { 0 } };
