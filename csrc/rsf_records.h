/*
 * rsf_records.h - whole records between the storage of an rsf_ring and memory in one piece.
 *
 * The storage has rsf_ring_slots() places of `size` bytes each. Records that wrap round the end of
 * the storage are two pieces there: a copy is at most two moves.
 */
#ifndef RSF_RECORDS_H
#define RSF_RECORDS_H

#include <string.h>

#include "rsf_ring.h"

/*
 * Producer only, between reserve and commit; wait-free. Copies n records to the slots from index
 * `first` on. Pre: n <= what reserve said; slots * size and n * size fit in a size_t. `from` may be
 * storage itself: the pieces are moved, not copied.
 */
static inline void
rsf_records_put(const rsf_ring *ring, void *storage, uint64_t size, uint64_t first, uint64_t n,
                const void *from)
{
    uint64_t piece = rsf_ring_contiguous(ring, first, n);
    unsigned char *slots = storage;
    const unsigned char *given = from;
    if (piece != 0) {
        memmove(slots + (size_t)(rsf_ring_slot(ring, first) * size), given, (size_t)(piece * size));
    }
    if (piece != n) {
        memmove(slots, given + (size_t)(piece * size), (size_t)((n - piece) * size));
    }
}

/*
 * Consumer only, between peek and release; wait-free. Copies n records from the slots from index
 * `first` on. Pre: n <= what peek said; as above.
 */
static inline void
rsf_records_take(const rsf_ring *ring, const void *storage, uint64_t size, uint64_t first,
                 uint64_t n, void *to)
{
    uint64_t piece = rsf_ring_contiguous(ring, first, n);
    const unsigned char *slots = storage;
    unsigned char *taken = to;
    if (piece != 0) {
        memmove(taken, slots + (size_t)(rsf_ring_slot(ring, first) * size), (size_t)(piece * size));
    }
    if (piece != n) {
        memmove(taken + (size_t)(piece * size), slots, (size_t)((n - piece) * size));
    }
}

#endif /* RSF_RECORDS_H */
