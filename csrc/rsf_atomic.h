/*
 * rsf_atomic.h - the only atomics of the house.
 *
 * Shared fields are plain integers; every access from more than one thread goes through an
 * accessor whose name says its memory order:
 *
 *     rlx      relaxed: atomic, orders nothing else
 *     acq      acquire: sees what the matching release published
 *     rel      release: publishes everything written before
 *     acq_rel  both, for read-modify-write operations
 *     sc       sequentially consistent: besides, one total order of all sc accesses
 *
 *     rsf_load_{rlx,acq,sc}_T(p)                         T: u32, u64, i64
 *     rsf_store_{rlx,rel,sc}_T(p, v)
 *     rsf_exchange_{rlx,acq,rel,acq_rel,sc}_T(p, v)      the value before
 *     rsf_fetch_add_..., rsf_fetch_sub_..., rsf_fetch_or_...   the value before
 *     rsf_cas_..._T(p, &expected, desired)               weak: may fail though *p == expected;
 *                                                        a failure loads *p into expected, relaxed
 *                                                        in every order: to see more takes
 *                                                        a look of its own
 *
 * The order stands in the name at the call, and nowhere else: tests/mutants.py finds each call by
 * its name, weakens it by one step, and expects that a check fails.
 *
 * GCC and Clang use the __atomic builtins, which sanitizers understand; MSVC uses interlocked and
 * __iso_volatile operations. There is no fallback to plain accesses: an unknown compiler or
 * processor is an #error.
 */
#ifndef RSF_ATOMIC_H
#define RSF_ATOMIC_H

#include "rsf_config.h"

#if defined(RSF_MODEL)

#include RSF_MODEL /* tests/machine: the same accessors, simulated */

#elif defined(RSF_COMPILER_GNU)

#if __GCC_ATOMIC_INT_LOCK_FREE != 2 || __GCC_ATOMIC_LLONG_LOCK_FREE != 2
#error "rstreams_fast needs lock-free 32-bit and 64-bit atomics, which this target lacks"
#endif

#define RSF__DEFINE_LOAD(suffix, type, order, builtin_order)                                       \
    static inline type rsf_load_##order##_##suffix(const type *p)                                  \
    {                                                                                              \
        return __atomic_load_n(p, builtin_order);                                                  \
    }

#define RSF__DEFINE_STORE(suffix, type, order, builtin_order)                                      \
    static inline void rsf_store_##order##_##suffix(type *p, type v)                               \
    {                                                                                              \
        __atomic_store_n(p, v, builtin_order);                                                     \
    }

#define RSF__DEFINE_RMW(suffix, type, order, builtin_order)                                        \
    static inline type rsf_exchange_##order##_##suffix(type *p, type v)                            \
    {                                                                                              \
        return __atomic_exchange_n(p, v, builtin_order);                                           \
    }                                                                                              \
    static inline type rsf_fetch_add_##order##_##suffix(type *p, type v)                           \
    {                                                                                              \
        return __atomic_fetch_add(p, v, builtin_order);                                            \
    }                                                                                              \
    static inline type rsf_fetch_sub_##order##_##suffix(type *p, type v)                           \
    {                                                                                              \
        return __atomic_fetch_sub(p, v, builtin_order);                                            \
    }                                                                                              \
    static inline type rsf_fetch_or_##order##_##suffix(type *p, type v)                            \
    {                                                                                              \
        return __atomic_fetch_or(p, v, builtin_order);                                             \
    }                                                                                              \
    static inline bool rsf_cas_##order##_##suffix(type *p, type *expected, type desired)           \
    {                                                                                              \
        return __atomic_compare_exchange_n(p, expected, desired, true, builtin_order,              \
                                           __ATOMIC_RELAXED);                                      \
    }

#define RSF__DEFINE_ATOMICS(suffix, type)                                                          \
    RSF__DEFINE_LOAD(suffix, type, rlx, __ATOMIC_RELAXED)                                          \
    RSF__DEFINE_LOAD(suffix, type, acq, __ATOMIC_ACQUIRE)                                          \
    RSF__DEFINE_LOAD(suffix, type, sc, __ATOMIC_SEQ_CST)                                           \
    RSF__DEFINE_STORE(suffix, type, rlx, __ATOMIC_RELAXED)                                         \
    RSF__DEFINE_STORE(suffix, type, rel, __ATOMIC_RELEASE)                                         \
    RSF__DEFINE_STORE(suffix, type, sc, __ATOMIC_SEQ_CST)                                          \
    RSF__DEFINE_RMW(suffix, type, rlx, __ATOMIC_RELAXED)                                           \
    RSF__DEFINE_RMW(suffix, type, acq, __ATOMIC_ACQUIRE)                                           \
    RSF__DEFINE_RMW(suffix, type, rel, __ATOMIC_RELEASE)                                           \
    RSF__DEFINE_RMW(suffix, type, acq_rel, __ATOMIC_ACQ_REL)                                       \
    RSF__DEFINE_RMW(suffix, type, sc, __ATOMIC_SEQ_CST)

#elif defined(RSF_COMPILER_MSVC)

#include <intrin.h>

/*
 * Loads and stores: __iso_volatile_* is exactly one access and, unlike volatile under
 * /volatile:ms, orders nothing. x64 keeps loads and stores in acquire/release order by itself, so
 * only the compiler must be held back; ARM64 needs a barrier. Interlocked operations without a
 * suffix are full barriers on both, which serves every order. A sequentially consistent store is
 * an exchange, so that a sequentially consistent load needs no more than an acquire.
 */
#if defined(_M_X64)
#define RSF__MSVC_LOAD_BARRIER() _ReadWriteBarrier()
#define RSF__MSVC_STORE_BARRIER() _ReadWriteBarrier()
#define RSF__MSVC_SC_LOAD_BARRIER() _ReadWriteBarrier()
#elif defined(_M_ARM64)
#define RSF__MSVC_LOAD_BARRIER() __dmb(_ARM64_BARRIER_ISHLD)
#define RSF__MSVC_STORE_BARRIER() __dmb(_ARM64_BARRIER_ISH)
#define RSF__MSVC_SC_LOAD_BARRIER() __dmb(_ARM64_BARRIER_ISH)
#else
#error "rstreams_fast needs x64 or ARM64 with MSVC: no 64-bit atomics are known for this processor"
#endif

#define RSF__DEFINE_MSVC_RMW(suffix, type, word, bits, order)                                      \
    static inline type rsf_exchange_##order##_##suffix(type *p, type v)                            \
    {                                                                                              \
        return (type)_InterlockedExchange##bits((volatile word *)p, (word)v);                      \
    }                                                                                              \
    static inline type rsf_fetch_add_##order##_##suffix(type *p, type v)                           \
    {                                                                                              \
        return (type)_InterlockedExchangeAdd##bits((volatile word *)p, (word)v);                   \
    }                                                                                              \
    static inline type rsf_fetch_sub_##order##_##suffix(type *p, type v)                           \
    {                                                                                              \
        return (type)_InterlockedExchangeAdd##bits((volatile word *)p, (word)(0 - v));             \
    }                                                                                              \
    static inline type rsf_fetch_or_##order##_##suffix(type *p, type v)                            \
    {                                                                                              \
        return (type)_InterlockedOr##bits((volatile word *)p, (word)v);                            \
    }                                                                                              \
    static inline bool rsf_cas_##order##_##suffix(type *p, type *expected, type desired)           \
    {                                                                                              \
        word wanted = (word)(*expected);                                                           \
        word found = _InterlockedCompareExchange##bits((volatile word *)p, (word)desired, wanted); \
        *expected = (type)found;                                                                   \
        return found == wanted;                                                                    \
    }

/* `word` and `bits` name the intrinsics' types: long and no suffix for 32 bits, __int64 and 64. */
#define RSF__DEFINE_MSVC(suffix, type, word, bits, iso_word, iso_bits)                             \
    static inline type rsf_load_rlx_##suffix(const type *p)                                        \
    {                                                                                              \
        return (type)__iso_volatile_load##iso_bits((const volatile iso_word *)p);                  \
    }                                                                                              \
    static inline type rsf_load_acq_##suffix(const type *p)                                        \
    {                                                                                              \
        type v = rsf_load_rlx_##suffix(p);                                                         \
        RSF__MSVC_LOAD_BARRIER();                                                                  \
        return v;                                                                                  \
    }                                                                                              \
    static inline type rsf_load_sc_##suffix(const type *p)                                         \
    {                                                                                              \
        RSF__MSVC_SC_LOAD_BARRIER();                                                               \
        return rsf_load_acq_##suffix(p);                                                           \
    }                                                                                              \
    static inline void rsf_store_rlx_##suffix(type *p, type v)                                     \
    {                                                                                              \
        __iso_volatile_store##iso_bits((volatile iso_word *)p, (iso_word)v);                       \
    }                                                                                              \
    static inline void rsf_store_rel_##suffix(type *p, type v)                                     \
    {                                                                                              \
        RSF__MSVC_STORE_BARRIER();                                                                 \
        rsf_store_rlx_##suffix(p, v);                                                              \
    }                                                                                              \
    static inline void rsf_store_sc_##suffix(type *p, type v)                                      \
    {                                                                                              \
        (void)_InterlockedExchange##bits((volatile word *)p, (word)v);                             \
    }                                                                                              \
    RSF__DEFINE_MSVC_RMW(suffix, type, word, bits, rlx)                                            \
    RSF__DEFINE_MSVC_RMW(suffix, type, word, bits, acq)                                            \
    RSF__DEFINE_MSVC_RMW(suffix, type, word, bits, rel)                                            \
    RSF__DEFINE_MSVC_RMW(suffix, type, word, bits, acq_rel)                                        \
    RSF__DEFINE_MSVC_RMW(suffix, type, word, bits, sc)

#define RSF__DEFINE_ATOMICS(suffix, type) RSF__DEFINE_MSVC_##suffix(type)
#define RSF__DEFINE_MSVC_u32(type) RSF__DEFINE_MSVC(u32, type, long, , __int32, 32)
#define RSF__DEFINE_MSVC_u64(type) RSF__DEFINE_MSVC(u64, type, __int64, 64, __int64, 64)
#define RSF__DEFINE_MSVC_i64(type) RSF__DEFINE_MSVC(i64, type, __int64, 64, __int64, 64)

#endif

RSF__DEFINE_ATOMICS(u32, uint32_t)
RSF__DEFINE_ATOMICS(u64, uint64_t)
RSF__DEFINE_ATOMICS(i64, int64_t)

RSF_STATIC_ASSERT(sizeof(uint64_t) == 8 && sizeof(int64_t) == 8 && sizeof(uint32_t) == 4,
                  "the accessors' widths");
#endif /* RSF_ATOMIC_H */
