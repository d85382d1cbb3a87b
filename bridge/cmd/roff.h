#pragma once

#include <stddef.h>
#include <stdio.h>

/* Writes manual pages in the man macros of roff.  All words that go through here
 * are escaped: a dash stays a dash that can be copied, no line becomes a request.
 * A failed write shows in ferror(out).  Threads: the caller locks. */

/* .TH; first of all.  source: "kvbridge 0.1.0"; manual: the line at the top. */
void kvb_roff_begin(
    FILE *out, const char *name, unsigned section, const char *source, const char *manual);

/* .SH and .SS */
void kvb_roff_section(FILE *out, const char *title);
void kvb_roff_subsection(FILE *out, const char *title);

/* Words for the line that is being written, in one of the fonts 'R' 'B' 'I'. */
void kvb_roff_words(FILE *out, char font, const char *text, size_t len);
void kvb_roff_text(FILE *out, char font, const char *text);

/* Ends the line; it is filled together with the next. */
void kvb_roff_end_line(FILE *out);

/* Ends nothing: what follows begins a new line, or a new paragraph. */
void kvb_roff_break(FILE *out);
void kvb_roff_paragraph(FILE *out);

/* What follows up to the end of the line is a term; then its explanation. */
void kvb_roff_term(FILE *out);

/* A whole line of running text; newlines in it are blanks. */
void kvb_roff_line(FILE *out, const char *text);
