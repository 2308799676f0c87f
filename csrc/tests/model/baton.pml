/*
 * baton.pml - how callers leave work for a waiter that spins, sleeps, and keeps off once announced,
 * on a sequentially consistent machine: it sleeps for good only when all work is done, and of the
 * callers that find it asleep one wakes it.
 *
 * In the C core: rsf_baton_*, with a backend's event, which must not be set twice. A process that
 * sleeps for good is an invalid end state. The weak orders are the closed programs' business
 * (tests/model/baton_*.c).
 *
 * Mutants, each of which must fail: BLIND_SLEEP sleeps though it was called; LATE_TAKE forgets the
 * calls after it has looked; ALL_WAKE tells every caller to wake; QUIET_GIVE gives without waking.
 */
#ifndef CALLERS
#define CALLERS 3
#endif
#ifndef TIMES
#define TIMES 2
#endif

byte left, done;
bool coming, here, asleep; /* the word */
bool woken;                /* the event */

inline call(bit_)
{
    atomic {
#ifdef ALL_WAKE
        told = asleep;
#else
        told = asleep && !coming && !here;
#endif
        bit_ = true
    }
}

inline wake()
{
    if
    :: told -> atomic { assert(!woken); woken = true }
    :: else -> skip
    fi
}

proctype caller()
{
    byte i;
    bool told;
    for (i : 1 .. TIMES) {
        left++;
        if
        :: call(coming); wake()
        :: skip
        fi;
        call(here);
#ifndef QUIET_GIVE
        wake()
#endif
    }
}

inline take()
{
    atomic { coming = false; here = false; asleep = false }
}

inline look()
{
    atomic { done = done + left; left = 0 }
}

proctype waiter()
{
    bool called;
    do
    ::
#ifdef LATE_TAKE
        look();
        take();
#else
        take();
        look();
#endif
        if
        :: done == CALLERS * TIMES -> break
        :: else -> skip
        fi;
        /* The end of a spin: called, or at any time. */
        if
        :: coming || here -> skip
        :: true ->
            atomic { called = coming || here; asleep = true };
            if
#ifdef BLIND_SLEEP
            :: true -> atomic { woken -> woken = false }
#else
            :: !called -> atomic { woken -> woken = false }
            :: called -> skip
#endif
            fi
        fi;
        /* Announced: keeps off until it is given its turn, or no longer. */
        if
        :: here -> skip
        :: true -> skip
        fi
    od
}

init
{
    byte i;
    atomic {
        for (i : 1 .. CALLERS) {
            run caller()
        }
        run waiter()
    }
    _nr_pr == 1;
    assert(done == CALLERS * TIMES && !woken)
}
