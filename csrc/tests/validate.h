/*
 * validate.h - what the validating programs share. A program reads bytes as calls, makes them on a
 * primitive and on a plain model of it, and stops when the two differ. Built with -DRSF_LIBFUZZER
 * the bytes are libFuzzer's; else they are random, the same in each run.
 *
 * One thread: interleavings are the business of stress_*.c and of tests/model.
 */
#ifndef RSF_TESTS_VALIDATE_H
#define RSF_TESTS_VALIDATE_H

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);         \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} input;

static inline bool
is_over(const input *in)
{
    return in->at == in->end;
}

/* 0 when there is nothing left. */
static inline uint8_t
next_byte(input *in)
{
    return is_over(in) ? 0 : *in->at++;
}

/* Any 64-bit number; small ones, and those near the ends, often. */
static inline uint64_t
next_number(input *in)
{
    uint8_t kind = next_byte(in);
    if (kind < 128) {
        return kind;
    }
    uint64_t number = 0;
    for (int i = 0; i < 8; i++) {
        number = number << 8 | next_byte(in);
    }
    return kind < 192   ? number
           : kind < 224 ? (uint64_t)INT64_MAX - number % 8
                        : UINT64_MAX - number % 8;
}

#ifndef RSF_LIBFUZZER

#include "check.h"

#define INPUTS 50000
#define LONGEST 300 /* bytes of an input */

int
main(int argc, char **argv)
{
    uint64_t seed = 1;
    uint8_t bytes[LONGEST];
    (void)run_seconds(argc, argv);
    for (int i = 0; i < INPUTS; i++) {
        size_t size = (size_t)random_below(&seed, LONGEST + 1);
        for (size_t at = 0; at < size; at++) {
            bytes[at] = (uint8_t)random_u64(&seed);
        }
        (void)LLVMFuzzerTestOneInput(bytes, size);
    }
    return 0;
}

#endif

#endif /* RSF_TESTS_VALIDATE_H */
