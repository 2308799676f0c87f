/*
 * drain.pml - the drain loop that work in progress (WIP) guards, on a sequentially consistent
 * machine: one process at a time drains, and nothing that entered is left behind.
 *
 * In the C core: rsf_demand_request and rsf_demand_fulfil on a counter of work, rsf_serial_enter and
 * rsf_serial_leave; in the layers above it, every drain. The weak orders are the closed programs'
 * business (tests/model/demand_drain.c, serial_*.c); this explores every interleaving of more.
 *
 * Mutants, each of which must fail: FORGETFUL leaves without looking whether somebody entered;
 * LATE reads what it answers for after it has worked.
 */
#ifndef PROCESSES
#define PROCESSES 3
#endif
#ifndef SIGNALS
#define SIGNALS 2
#endif

byte wip;
byte left_for_the_drain; /* where the drain looks */
byte delivered;
byte inside;

inline work()
{
    inside++;
    assert(inside == 1);
    do
    :: left_for_the_drain > 0 ->
        atomic { left_for_the_drain--; delivered++ }
    :: else -> break
    od;
    inside--
}

proctype signaller()
{
    byte round, missed, before;
    for (round : 1 .. SIGNALS) {
        atomic { left_for_the_drain++ };
        atomic { before = wip; wip++ };
        if
        :: before > 0 -> skip /* somebody drains, and will come to it */
        :: else ->
            do
            ::
#ifndef LATE
                missed = wip;
#endif
                work();
#ifdef LATE
                missed = wip;
#endif
#ifdef FORGETFUL
                wip = 0;
                break
#else
                atomic { wip = wip - missed; before = wip };
                if
                :: before == 0 -> break
                :: else -> skip
                fi
#endif
            od
        fi
    }
}

init
{
    byte i;
    atomic {
        for (i : 1 .. PROCESSES) {
            run signaller()
        }
    }
    _nr_pr == 1; /* all have ended */
    assert(delivered == PROCESSES * SIGNALS);
    assert(wip == 0 && left_for_the_drain == 0)
}
