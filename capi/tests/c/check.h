/* Checks of the tests in C: each says where it was and what came instead. */

#ifndef CHECK_H
#define CHECK_H

#include <inttypes.h>
#include <pando.h>
#include <stdio.h>
#include <stdlib.h>

/* The expression must have this value. */
#define IS(wanted, expression)                                                                     \
    check_is(__FILE__, __LINE__, #expression, (int64_t)(wanted), (int64_t)(expression))

static inline void check_is(const char *file, int line, const char *text, int64_t wanted,
                            int64_t found)
{
    if (wanted == found)
        return;
    fprintf(stderr, "%s:%d: %s is %" PRId64 " (%s), not %" PRId64 " (%s); last error: %s\n", file,
            line, text, found, found < 0 ? pando_strerror((int)found) : "", wanted,
            wanted < 0 ? pando_strerror((int)wanted) : "", pando_last_error());
    exit(EXIT_FAILURE);
}

#endif
