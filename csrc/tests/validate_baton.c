/*
 * validate_baton.c - the baton, one thread: who is told to wake, what a waiter sees, what take
 * forgets; and random moves compared with three plain flags.
 */
#include "check.h"
#include "rsf_baton.h"

#define MOVES 100000

typedef bool (*call_function)(rsf_baton *);

static void
check_awake(call_function call)
{
    rsf_baton baton;
    rsf_baton_init(&baton);
    CHECK(!rsf_baton_is_called(&baton) && !rsf_baton_is_here(&baton), "called from the beginning");
    for (int round = 0; round < 2; round++) {
        CHECK(!call(&baton), "told to wake who does not sleep");
        CHECK(rsf_baton_is_called(&baton), "called, and not seen");
        CHECK_EQUAL(rsf_baton_is_here(&baton), call == rsf_baton_give, "given its turn");
        CHECK(!rsf_baton_prepare_sleep(&baton), "called, and may sleep");
        CHECK(!call(&baton), "told to wake who was not let sleep");
        rsf_baton_take(&baton);
        CHECK(!rsf_baton_is_called(&baton) && !rsf_baton_is_here(&baton),
              "taken, and still called");
    }
}

static void
check_asleep(call_function call, call_function other)
{
    rsf_baton baton;
    rsf_baton_init(&baton);
    for (int round = 0; round < 2; round++) {
        CHECK(rsf_baton_prepare_sleep(&baton), "nobody called, and may not sleep");
        CHECK(!rsf_baton_is_called(&baton), "asleep counts as called");
        CHECK(call(&baton), "it sleeps, and the first call is not told to wake it");
        CHECK(!call(&baton) && !other(&baton) && !call(&baton), "two are told to wake it");
        CHECK(rsf_baton_is_called(&baton) && rsf_baton_is_here(&baton), "called both ways");
        rsf_baton_take(&baton);
        CHECK(!other(&baton), "told to wake who has woken");
        CHECK_EQUAL(rsf_baton_is_here(&baton), other == rsf_baton_give, "given its turn");
        rsf_baton_take(&baton);
    }
}

static void
check_announced(void)
{
    rsf_baton baton;
    rsf_baton_init(&baton);
    (void)rsf_baton_announce(&baton);
    CHECK(rsf_baton_is_called(&baton) && !rsf_baton_is_here(&baton), "announced is not given");
    CHECK(!rsf_baton_give(&baton), "told to wake who does not sleep");
    CHECK(rsf_baton_is_called(&baton) && rsf_baton_is_here(&baton), "announced, and given");
    rsf_baton_take(&baton);
    /* The waiter did not keep off: it takes between the two, and the second calls it again. */
    (void)rsf_baton_announce(&baton);
    rsf_baton_take(&baton);
    (void)rsf_baton_give(&baton);
    CHECK(rsf_baton_is_called(&baton) && rsf_baton_is_here(&baton), "given after it had taken");
    CHECK(!rsf_baton_prepare_sleep(&baton), "called, and may sleep");
}

static void
check_moves(void)
{
    rsf_baton baton;
    rsf_baton_init(&baton);
    bool coming = false, here = false, asleep = false;
    uint64_t seed = 1;
    for (int move = 0; move < MOVES; move++) {
        bool told = asleep && !coming && !here;
        switch (random_below(&seed, 4)) {
        case 0:
            CHECK_EQUAL(rsf_baton_announce(&baton), told, "who announces is told to wake");
            coming = true;
            break;
        case 1:
            CHECK_EQUAL(rsf_baton_give(&baton), told, "who gives is told to wake");
            here = true;
            break;
        case 2:
            if (!told) { /* a sleeper does not move */
                CHECK_EQUAL(rsf_baton_prepare_sleep(&baton), !coming && !here, "may sleep");
                asleep = true;
            }
            break;
        default:
            if (!told) {
                rsf_baton_take(&baton);
                coming = here = asleep = false;
            }
        }
        CHECK_EQUAL(rsf_baton_is_called(&baton), coming || here, "is called");
        CHECK_EQUAL(rsf_baton_is_here(&baton), here, "is here");
    }
}

int
main(int argc, char **argv)
{
    (void)run_seconds(argc, argv);
    check_awake(rsf_baton_announce);
    check_awake(rsf_baton_give);
    check_asleep(rsf_baton_announce, rsf_baton_give);
    check_asleep(rsf_baton_give, rsf_baton_announce);
    check_announced();
    check_moves();
    return 0;
}
