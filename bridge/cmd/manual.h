#pragma once

#include "core/conf.h"

#include <argp.h>
#include <stddef.h>
#include <stdio.h>

/* Manual pages, made of what --help is made of, so that neither can forget what the
 * other says:
 *
 *     argp: options, doc     --> SYNOPSIS DESCRIPTION COMMANDS OPTIONS EXIT STATUS
 *     configuration table    --> KEYS
 *     manual_pages.c         --> NAME, and what neither says: FILES SIGNALS ...
 *
 * The hidden option --man of each program prints its page as roff: the build calls
 * it, and `kvctl --man | man -l -` reads it where no page is installed.
 *
 * In a doc, lines that begin with two blanks are commands: "  check FILE   reads ...";
 * what follows \v is about the exit status.
 * Threads: only the main thread, before any other starts. */

/* What stands on a page beside the tables. */
struct kvb_manual_row {
    const char *title; /* of the section; rows of one section stand together */
    const char *term;  /* NULL: running text */
    const char *text;
};

struct kvb_manual {
    const char *name; /* "kvctl", "kvbridge.cfg" */
    unsigned section;
    const char *summary; /* after the name, without a full stop */
    const struct kvb_manual_row *rows;
    size_t row_count;
};

/* By name; NULL: there is none. */
const struct kvb_manual *kvb_manual_find(const char *name);

/* The children of a program's argp: the option --man, whose page is that of the
 * program's name.  Where argp may not exit, parsing ends with ECANCELED. */
extern const struct argp_child kvb_manual_child[2];

/* The page of a program.  argp: the root, with the children that argp adds. */
void kvb_manual_write(const struct kvb_manual *manual, const struct argp *argp, FILE *out);

/* The page of a configuration file. */
void kvb_manual_write_keys(
    const struct kvb_manual *manual, const struct kvb_conf_table *table, FILE *out);
