#pragma once

#include "script.h"

/* Scripts of what engine events do to a mirror, and of what is listed then.  Behind each step that
 * changes the lists, pictures and digests must show exactly what was published.
 *
 *     mirror [names] [counted] [chunk-tokens N] [chunk-blocks N]   the first step: an empty mirror
 *                  of all tiers; names: the engine's own; counted: each store is a copy
 *     EVENTS       as event_words.h says them
 *     meet other|cross|encoder GROUP   an event of this group was skipped
 *     restart      of the engine
 *     incomplete   blocks may be missing
 *
 *     has LIST PATH..., lacks LIST PATH...   LIST: a tier, window or window1, whose windows are of
 *                  the second length; PATH: the tokens of a prompt, 1.2.3, or the engine's name
 *     order PATH...    exactly these blocks were published by the last events, in this order
 *     follows PATH     ... with this parent
 *     windows RULE...  tokens/size, with a c before chunks; none
 *     full-groups N..., window-groups K N...   the groups of full attention and of window K
 *     shape K TIER SIZE
 *     chunk N      the blocks of a chunk of an offload connector
 *     even; odd TEXT
 *     NAME N       of LIST's blocks or of one of the counts, as unknown-removed 0 */

/* For SCRIPT_OF(). */
void play_mirror_script(void **state);
int end_mirror_script(void **state);

#define MIRROR(name, text) SCRIPT_OF(name, play_mirror_script, end_mirror_script, text)
