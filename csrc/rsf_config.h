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

/*
 * Asks for the line of p, to be written or read soon; a hint, which changes nothing and faults
 * nowhere. On x86 the builtin alone would fetch it for reading, and the first write would have to
 * go to the other processor once more; prefetchw is a no-op where a 64-bit processor lacks it.
 */
#if defined(RSF_COMPILER_GNU) && defined(__x86_64__)
#define RSF__PREFETCH_WRITE(p) __asm__ volatile("prefetchw %0" : : "m"(*(p)))
#define RSF__PREFETCH_READ(p) __builtin_prefetch((p), 0)
#elif defined(RSF_COMPILER_GNU)
#define RSF__PREFETCH_WRITE(p) __builtin_prefetch((p), 1)
#define RSF__PREFETCH_READ(p) __builtin_prefetch((p), 0)
#else /* MSVC offers it by another name for each processor: left to the hardware */
#define RSF__PREFETCH_WRITE(p) ((void)(p))
#define RSF__PREFETCH_READ(p) ((void)(p))
#endif

/* The lines that hold these bytes: not RSF_CACHE_LINE, which is a distance and may be two. */
#define RSF__PREFETCH_STEP 64

static inline void
rsf_prefetch_write(const void *start, size_t bytes)
{
    const char *byte = (const char *)start;
    for (size_t i = 0; i < bytes; i += RSF__PREFETCH_STEP) {
        RSF__PREFETCH_WRITE(byte + i);
    }
}

static inline void
rsf_prefetch_read(const void *start, size_t bytes)
{
    const char *byte = (const char *)start;
    for (size_t i = 0; i < bytes; i += RSF__PREFETCH_STEP) {
        RSF__PREFETCH_READ(byte + i);
    }
}

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
