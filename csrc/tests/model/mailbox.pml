/*
 * mailbox.pml - the signal serializer's mailbox, drain and terminal latch, on a sequentially
 * consistent machine: one at a time is delivered, each sender's in its order, and the terminal
 * signal once, after everything that was accepted before it.
 *
 * In the C core: rsf_serial_reserve, _publish, _enter, _peek, _release, _leave,
 * _latch_terminal and _is_drained. tail counts twice the index, plus 1 once latched, as there.
 *
 * Mutants, each of which must fail: BLIND_END ends when nothing is published, though something is
 * reserved; OPEN_LATCH reserves without looking at the latch in the same step; NO_BOUND forgets the
 * capacity.
 */
#define SENDERS 2
#ifndef ELEMENTS
#define ELEMENTS 2
#endif
#define CAPACITY 2
#define SLOTS 2
#define NOTHING 255

byte tail, head; /* tail: 2 * index + latched */
byte published[SLOTS] = NOTHING; /* the index that a slot holds */
byte sender[SLOTS], number[SLOTS];
byte wip, inside, terminals;
bool terminal;
byte accepted[SENDERS], received[SENDERS];

inline deliver()
{
    inside++;
    assert(inside == 1);
    do
    :: published[head % SLOTS] == head ->
        assert(terminals == 0);
        who = sender[head % SLOTS];
        assert(number[head % SLOTS] == received[who]);
        received[who]++;
        head++
    :: else -> break
    od;
    if
#ifdef BLIND_END
    :: terminal && terminals == 0 -> terminals++
#else
    :: terminal && terminals == 0 && tail / 2 == head -> terminals++
#endif
    :: else -> skip
    fi;
    inside--
}

inline enter_and_drain()
{
    atomic { before = wip; wip++ };
    if
    :: before > 0 -> skip
    :: else ->
        seen = 1;
        do
        ::
            deliver();
            atomic { before = wip; wip = wip - seen };
            if
            :: before == seen -> break
            :: else -> seen = before - seen
            fi
        od
    fi
}

proctype signaller(byte me)
{
    byte index, before, seen, who;
    bool latched;
    do
    :: accepted[me] == ELEMENTS -> break
    :: else ->
#ifdef OPEN_LATCH
        latched = tail % 2;
        atomic {
            if
            :: latched -> break
            :: !latched && tail / 2 - head < CAPACITY ->
#else
        atomic {
            if
            :: tail % 2 == 1 -> break
#ifdef NO_BOUND
            :: tail % 2 == 0 ->
#else
            :: tail % 2 == 0 && tail / 2 - head < CAPACITY ->
#endif
#endif
                index = tail / 2;
                tail = tail + 2
            fi
        };
        sender[index % SLOTS] = me;
        number[index % SLOTS] = accepted[me];
        published[index % SLOTS] = index;
        accepted[me]++;
        enter_and_drain()
    od
}

proctype ender()
{
    byte before, seen, who;
    atomic { tail = tail + 1 };
    terminal = true;
    enter_and_drain()
}

init
{
    byte i;
    atomic {
        for (i : 0 .. SENDERS - 1) {
            run signaller(i)
        }
        run ender()
    }
    _nr_pr == 1;
    assert(terminals == 1 && wip == 0);
    for (i : 0 .. SENDERS - 1) {
        assert(received[i] == accepted[i])
    }
}
