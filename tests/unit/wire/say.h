#pragma once

#include "model/load.h"

#include <stdbool.h>
#include <stdint.h>

/* What was read, in the words of an answer in tests/data/cases.  Nothing here allocates. */

/* Forgets what was said. */
void say_nothing(void);

__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

/* " label text", unless the text is empty. */
void say_text(const char *label, const char *text);

/* " label 7", if it is given. */
void say_number(bool is_given, const char *label, uint64_t number);

/* The figures of these bits 1 << kvb_load_figure; fails unless the others are 0. */
void say_figures(const struct kvb_load *load, unsigned figures);

/* Without the blank that it begins with. */
const char *what_was_said(void);
