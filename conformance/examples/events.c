/* The life of a request as memory events, as often as it is asked; with a second argument its pages are given back twice.
 *
 *     cc -O2 -o events events.c && ./events 1000 | kvspec check -
 */
#include <stdio.h>
#include <stdlib.h>

#include "kvspec.h"

static kvspec_trace trace;

static void named(const char *op, const char *key, const char *name) {
    kvspec_event(&trace, op);
    kvspec_text(&trace, key, name);
}

static void of_pages(const char *op, const char *holder, const uint32_t *pages, size_t count) {
    named(op, "holder", holder);
    kvspec_text(&trace, "pool", "kv");
    kvspec_pages(&trace, "pages", pages, count);
    kvspec_end(&trace);
}

static void uses(const char *kind, const char *table, uint64_t stop) {
    kvspec_begin(&trace, kind, '[');
    kvspec_use(&trace, table, 0, stop);
    kvspec_close(&trace, ']');
}

static void request(unsigned number, int twice) {
    char name[32];
    uint32_t pages[] = {1 + 3 * (number % 20), 2 + 3 * (number % 20), 64};
    uint64_t labels[] = {2 * number, 2 * number + 1, 0};
    size_t count = 2;

    labels[2] = UINT64_MAX - number;
    snprintf(name, sizeof name, "request \"%u\"\n", number);
    count += number % 2;

    of_pages("take", name, pages, count);

    named("map", "table", name);
    kvspec_text(&trace, "holder", name);
    kvspec_text(&trace, "pool", "kv");
    kvspec_pages(&trace, "pages", pages, count);
    kvspec_hashes(&trace, "labels", labels, count);
    kvspec_end(&trace);

    kvspec_event(&trace, "begin");
    kvspec_number(&trace, "id", number);
    kvspec_text(&trace, "stream", "compute");
    uses("writes", name, 6);
    uses("reads", name, 6);
    kvspec_bool(&trace, "reads_own_writes", 1);
    kvspec_end(&trace);

    kvspec_event(&trace, "end");
    kvspec_number(&trace, "id", number);
    kvspec_end(&trace);

    named("unmap", "table", name);
    kvspec_end(&trace);
    of_pages("release", name, pages, count);
    if (twice) {
        of_pages("release", name, pages, 1);
    }
    named("end_holder", "holder", name);
    kvspec_end(&trace);
}

int main(int argc, char **argv) {
    unsigned number, requests = argc > 1 ? (unsigned)atoi(argv[1]) : 1;

    kvspec_open(&trace, STDOUT_FILENO, "events.c 1");
    kvspec_pool(&trace, "kv", 4, 64);
    kvspec_opened(&trace);
    for (number = 0; number < requests; number++) {
        request(number, argc > 2);
    }
    kvspec_event(&trace, "idle");
    kvspec_end(&trace);
    kvspec_flush(&trace);
    return trace.error != 0;
}
