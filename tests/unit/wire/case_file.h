#pragma once

#include "core/span.h"

#include <stddef.h>

/* Cases of a test, one a line of a file in tests/data/cases:
 *
 *     # a comment
 *     let NAME = text          from here on $NAME stands for the text
 *     = section | answer       | answer: of the lines below that have none
 *     text => answer
 *
 * <0a> is a byte, <2d2b*40> are forty times two bytes, <> is nothing.  A \ at the end of a line
 * is a line feed: the text goes on in the next line. */

/* Calls check() for each case of the section (NULL: of every section) with its text, in memory of
 * exactly its size, so that the sanitizers see a read behind it.  Fails if there is none. */
void each_case(const char *file, const char *section, void (*check)(kvb_span text));

/* For check(): fails, with file and line, unless the case has this answer. */
void assert_answer(const char *answer);
