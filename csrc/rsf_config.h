/*
 * rsf_config.h - what the compiler must give us, said once.
 *
 * C11, no libc beyond <stdint.h>, <stdbool.h>, <stddef.h>; never Python.h.
 */
#ifndef RSF_CONFIG_H
#define RSF_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_MSC_VER) && !defined(__clang__)
#define RSF_COMPILER_MSVC 1
#elif defined(__GNUC__) || defined(__clang__)
#define RSF_COMPILER_GNU 1
#else
#error "rstreams_fast needs GCC, Clang or MSVC: no atomics are known for this compiler"
#endif

/*
 * The distance, in bytes, kept between fields that different threads write.
 *
 * A constant, never probed: a binary runs on other machines than the one it was built on. 128
 * covers Apple silicon's lines and the pairs of 64-byte lines that x86 prefetchers fetch together.
 * Distance is kept by padding and not by alignment, because the objects live in memory from
 * Python's allocators, which promise 16 bytes: padding of a whole line separates the fields
 * wherever the object starts.
 */
#define RSF_CACHE_LINE 128

#define RSF_STATIC_ASSERT(condition, text) _Static_assert(condition, text)

#if defined(RSF_COMPILER_GNU)
#define RSF_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define RSF_UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#else
#define RSF_LIKELY(condition) (condition)
#define RSF_UNLIKELY(condition) (condition)
#endif

/* The least power of two that is >= n; for 1 <= n <= 2^63. */
static inline uint64_t
rsf__power_of_two_at_least(uint64_t n)
{
    uint64_t power = 1;
    while (power < n) {
        power <<= 1;
    }
    return power;
}

#endif /* RSF_CONFIG_H */
