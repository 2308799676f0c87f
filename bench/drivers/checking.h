/* checking.h - how a driver checks a burst that it was handed: the same for all contestants. */
#ifndef CHECKING_H
#define CHECKING_H

#include <stdint.h>

/* 0 if these are first, first + 1 .. */
static inline uint64_t
differences(const uint64_t *elements, uint64_t first, uint64_t n)
{
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < n; i++) {
        wrong |= elements[i] ^ (first + i);
    }
    return wrong;
}

#endif /* CHECKING_H */
