/* Writes memory events for kvspec from C (C99) or C++ (C++11): this one file.
 *
 *     static kvspec_trace trace;
 *     kvspec_open(&trace, fd, "my engine 1.0");
 *     kvspec_pool(&trace, "kv", 16, 4096);
 *     kvspec_opened(&trace);
 *
 *     kvspec_event(&trace, "take");
 *     kvspec_text(&trace, "holder", "request 7");
 *     kvspec_text(&trace, "pool", "kv");
 *     kvspec_pages(&trace, "pages", pages, count);
 *     kvspec_end(&trace);
 *
 *     kvspec_flush(&trace);
 *
 * An event is its name and its arguments, in any order; the trace format says which they are. Nothing is allocated and
 * nothing is locked: bytes go into the buffer of the trace, and with write() to `fd` when it is full or flushed. So a
 * trace belongs to one thread at a time, and each thread that has events of its own, in pools of its own, has a trace.
 * `fd` may be a file or a pipe to `kvspec check -`; write() to a pipe blocks while the checker is behind.
 *
 * After an error of write() nothing is written any more: `error` has its errno, and the engine goes on.
 */
#ifndef KVSPEC_H
#define KVSPEC_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    int fd;
    int error;     /* errno of the write that failed; 0 while none has */
    int follows;   /* whether a value stands before in the same list or object */
    size_t used;
    char buffer[1 << 16];
} kvspec_trace;

/* Write all that is in the buffer. */
static inline void kvspec_flush(kvspec_trace *trace) {
    size_t done = 0;
    while (done < trace->used && !trace->error) {
        ssize_t count = write(trace->fd, trace->buffer + done, trace->used - done);
        if (count >= 0) {
            done += (size_t)count;
        } else if (errno != EINTR) {
            trace->error = errno;
        }
    }
    trace->used = 0;
}

static inline void kvspec_put(kvspec_trace *trace, char byte) {
    if (trace->used == sizeof trace->buffer) {
        kvspec_flush(trace);
    }
    trace->buffer[trace->used++] = byte;
}

static inline void kvspec_quoted(kvspec_trace *trace, const char *text) {
    static const char digits[] = "0123456789abcdef";
    kvspec_put(trace, '"');
    for (; *text; text++) {
        unsigned char byte = (unsigned char)*text;
        if (byte < ' ') {
            kvspec_put(trace, '\\');
            kvspec_put(trace, 'u');
            kvspec_put(trace, '0');
            kvspec_put(trace, '0');
            kvspec_put(trace, digits[byte >> 4]);
            kvspec_put(trace, digits[byte & 15]);
            continue;
        }
        if (byte == '"' || byte == '\\') {
            kvspec_put(trace, '\\');
        }
        kvspec_put(trace, *text);
    }
    kvspec_put(trace, '"');
}

static inline void kvspec_digits(kvspec_trace *trace, uint64_t number) {
    char digits[20];
    size_t count = 0;
    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    while (count) {
        kvspec_put(trace, digits[--count]);
    }
}

/* The next value: after a comma where one stands before it, and with a key in an object (NULL in a list). */
static inline void kvspec_next(kvspec_trace *trace, const char *key) {
    if (trace->follows) {
        kvspec_put(trace, ',');
    }
    trace->follows = 1;
    if (key) {
        kvspec_quoted(trace, key);
        kvspec_put(trace, ':');
    }
}

/* A list or an object, '[' or '{', until kvspec_close with ']' or '}'. */
static inline void kvspec_begin(kvspec_trace *trace, const char *key, char bracket) {
    kvspec_next(trace, key);
    kvspec_put(trace, bracket);
    trace->follows = 0;
}

static inline void kvspec_close(kvspec_trace *trace, char bracket) {
    kvspec_put(trace, bracket);
    trace->follows = 1;
}

static inline void kvspec_text(kvspec_trace *trace, const char *key, const char *text) {
    kvspec_next(trace, key);
    kvspec_quoted(trace, text);
}

static inline void kvspec_number(kvspec_trace *trace, const char *key, uint64_t number) {
    kvspec_next(trace, key);
    kvspec_digits(trace, number);
}

static inline void kvspec_bool(kvspec_trace *trace, const char *key, int value) {
    const char *word = value ? "true" : "false";
    kvspec_next(trace, key);
    while (*word) {
        kvspec_put(trace, *word++);
    }
}

/* Pages in their order, neighbours as runs [first, count]. */
static inline void kvspec_pages(kvspec_trace *trace, const char *key, const uint32_t *pages, size_t count) {
    size_t first = 0, next;
    kvspec_begin(trace, key, '[');
    for (; first < count; first = next) {
        for (next = first + 1; next < count && pages[next] == pages[next - 1] + 1;) {
            next++;
        }
        kvspec_begin(trace, NULL, '[');
        kvspec_number(trace, NULL, pages[first]);
        kvspec_number(trace, NULL, next - first);
        kvspec_close(trace, ']');
    }
    kvspec_close(trace, ']');
}

/* Labels or keys, 64 bits each: what a page holds, such as a hash of its tokens and of all before them. */
static inline void kvspec_hashes(kvspec_trace *trace, const char *key, const uint64_t *hashes, size_t count) {
    size_t i;
    kvspec_begin(trace, key, '[');
    for (i = 0; i < count; i++) {
        kvspec_next(trace, NULL);
        kvspec_put(trace, '"');
        kvspec_digits(trace, hashes[i]);
        kvspec_put(trace, '"');
    }
    kvspec_close(trace, ']');
}

/* A use of the positions [start, stop) of a table, in a list of `reads` or `writes`. */
static inline void kvspec_use(kvspec_trace *trace, const char *table, uint64_t start, uint64_t stop) {
    kvspec_begin(trace, NULL, '{');
    kvspec_text(trace, "table", table);
    kvspec_number(trace, "start", start);
    kvspec_number(trace, "stop", stop);
    kvspec_close(trace, '}');
}

/* An event; its arguments follow, and kvspec_end. */
static inline void kvspec_event(kvspec_trace *trace, const char *op) {
    trace->follows = 0;
    kvspec_begin(trace, NULL, '{');
    kvspec_text(trace, "op", op);
}

static inline void kvspec_end(kvspec_trace *trace) {
    kvspec_put(trace, '}');
    kvspec_put(trace, '\n');
}

/* The header: `producer` is the engine and its version, then each pool with its slots a page and its pages. */
static inline void kvspec_open(kvspec_trace *trace, int fd, const char *producer) {
    trace->fd = fd;
    trace->error = 0;
    trace->used = 0;
    trace->follows = 0;
    kvspec_begin(trace, NULL, '{');
    kvspec_number(trace, "kvspec", 2);
    kvspec_text(trace, "level", "memory");
    kvspec_text(trace, "producer", producer);
    kvspec_begin(trace, "pools", '{');
}

static inline void kvspec_pool(kvspec_trace *trace, const char *name, uint64_t page_size, uint64_t num_pages) {
    kvspec_begin(trace, name, '{');
    kvspec_number(trace, "page_size", page_size);
    kvspec_number(trace, "num_pages", num_pages);
    kvspec_close(trace, '}');
}

static inline void kvspec_opened(kvspec_trace *trace) {
    kvspec_close(trace, '}');
    kvspec_end(trace);
}

#endif
