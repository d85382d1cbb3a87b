#pragma once

#include "fleet/fleet.h"

#include <stdint.h>

/* kvfleet's command line. */
struct kvb_kvfleet_options {
    struct kvb_fleet_options fleet; /* trace is set after the file was read */
    const char *trace_path;         /* borrowed from argv, like all texts; NULL: none */
    uint32_t scale;
    const char *model;
    const char *truth_path;  /* NULL: none */
    const char *config_path; /* NULL: none */
    uint32_t config_split;   /* files to divide the workers among */
    bool has_http;
    char http_address[64];
    uint16_t http_port;
    bool has_serve;
    uint16_t serve_port;      /* of the first worker; 0: free ones */
    uint32_t malformed_every; /* of fleet, when malformed payloads are wanted */
    uint32_t step_ms;
    uint64_t seconds; /* 0: until a signal */
};

/* Ends the program with a sentence on wrong usage.  Threads: only the main one,
 * before any other starts. */
void kvb_kvfleet_options_parse(int argc, char **argv, struct kvb_kvfleet_options *out_options);
