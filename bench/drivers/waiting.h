/* waiting.h - how a driver's thread waits for the other side: the same for all contestants. */
#ifndef WAITING_H
#define WAITING_H

#include <sched.h>

#define SPINS 256 /* then it lets others run, which with few processors is what it waits for */

static inline void
wait_a_little(unsigned *idle)
{
    if (++*idle % SPINS == 0) {
        sched_yield();
        return;
    }
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

#endif /* WAITING_H */
