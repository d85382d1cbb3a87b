#include "cmd/roff.h"

#include <string.h>

/* What roff would take for its own, or print as another character. */
static const char *escape_of(char letter)
{
    switch (letter) {
    case '\\':
        return "\\e";
    case '-':
        return "\\-";
    case '"':
        return "\\(dq";
    case '\'':
        return "\\(aq";
    case '`':
        return "\\(ga";
    case '^':
        return "\\(ha";
    case '~':
        return "\\(ti";
    case '\n':
        return " ";
    default:
        return NULL;
    }
}

static void write_escaped(FILE *out, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        const char *escape = escape_of(text[i]);
        if (escape) {
            (void)fputs(escape, out);
        } else {
            (void)fputc(text[i], out);
        }
    }
}

/* An argument of a macro, in quotes. */
static void write_argument(FILE *out, const char *text)
{
    (void)fputs(" \"", out);
    write_escaped(out, text, strlen(text));
    (void)fputc('"', out);
}

void kvb_roff_begin(
    FILE *out, const char *name, unsigned section, const char *source, const char *manual)
{
    (void)fputs(".TH", out);
    write_argument(out, name);
    (void)fprintf(out, " %u \"\"", section); /* no date: the same build gives the same page */
    write_argument(out, source);
    write_argument(out, manual);
    (void)fputs("\n.nh\n.ad l\n", out); /* neither hyphens nor gaps in what may be copied */
}

void kvb_roff_section(FILE *out, const char *title)
{
    (void)fputs(".SH", out);
    write_argument(out, title);
    (void)fputc('\n', out);
}

void kvb_roff_subsection(FILE *out, const char *title)
{
    (void)fputs(".SS", out);
    write_argument(out, title);
    (void)fputc('\n', out);
}

/* \& prints nothing: a dot after it stands no more at the beginning of the line,
 * where it would be a request.  A font does the same. */
void kvb_roff_words(FILE *out, char font, const char *text, size_t len)
{
    if (font == 'R') {
        (void)fputs(len > 0 && text[0] == '.' ? "\\&" : "", out);
        write_escaped(out, text, len);
        return;
    }
    (void)fprintf(out, "\\f%c", font);
    write_escaped(out, text, len);
    (void)fputs("\\fR", out);
}

void kvb_roff_text(FILE *out, char font, const char *text)
{
    kvb_roff_words(out, font, text, strlen(text));
}

void kvb_roff_end_line(FILE *out)
{
    (void)fputc('\n', out);
}

void kvb_roff_break(FILE *out)
{
    (void)fputs(".br\n", out);
}

void kvb_roff_paragraph(FILE *out)
{
    (void)fputs(".PP\n", out);
}

void kvb_roff_term(FILE *out)
{
    (void)fputs(".TP\n", out);
}

void kvb_roff_line(FILE *out, const char *text)
{
    kvb_roff_text(out, 'R', text);
    kvb_roff_end_line(out);
}
