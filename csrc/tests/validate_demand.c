/*
 * validate_demand.c - the demand counter, one thread: every pair of interesting values, compared
 * with arithmetic in 128 bits.
 */
#include "check.h"
#include "rsf_demand.h"

static const int64_t VALUES[] = {
    0,
    1,
    2,
    3,
    1000,
    INT64_C(1) << 31,
    INT64_C(1) << 32,
    RSF_UNBOUNDED / 2,
    RSF_UNBOUNDED / 2 + 1,
    RSF_UNBOUNDED - 2,
    RSF_UNBOUNDED - 1,
    RSF_UNBOUNDED,
};
#define N_VALUES (sizeof VALUES / sizeof VALUES[0])

__extension__ typedef __int128 wide;

static int64_t
saturate(wide value)
{
    return value > RSF_UNBOUNDED ? RSF_UNBOUNDED : (int64_t)value;
}

static void
check_request(int64_t start, int64_t n)
{
    rsf_demand demand;
    rsf_demand_init(&demand, start);
    CHECK_EQUAL(rsf_demand_request(&demand, n), start, "request answers the demand before");
    CHECK_EQUAL(rsf_demand_load(&demand), saturate((wide)start + n), "request saturates (3.17)");
}

static void
check_fulfil(int64_t start, int64_t n)
{
    rsf_demand demand;
    rsf_demand_init(&demand, start);
    int64_t answer = rsf_demand_fulfil(&demand, n);
    if (start == RSF_UNBOUNDED) {
        CHECK_EQUAL(answer, RSF_UNBOUNDED, "unbounded stays unbounded");
        CHECK_EQUAL(rsf_demand_load(&demand), RSF_UNBOUNDED, "unbounded stays unbounded");
    } else if (n > start) {
        CHECK_EQUAL(answer, RSF_EXCEEDED, "more delivered than asked for (1.1)");
        CHECK_EQUAL(rsf_demand_load(&demand), start, "an excess changes nothing");
    } else {
        CHECK_EQUAL(answer, start - n, "fulfil answers what is left");
        CHECK_EQUAL(rsf_demand_load(&demand), start - n, "fulfil takes off");
    }
}

typedef int64_t (*end_function)(rsf_demand *);

static void
check_end(int64_t start, end_function end, end_function other, int64_t sentinel)
{
    rsf_demand demand;
    rsf_demand_init(&demand, start);
    CHECK_EQUAL(end(&demand), start, "the first end answers the demand before");
    CHECK_EQUAL(rsf_demand_load(&demand), sentinel, "the sentinel is there");
    CHECK_EQUAL(end(&demand), sentinel, "the second end is a NOP");
    CHECK_EQUAL(other(&demand), sentinel, "the first end wins");
    for (size_t i = 1; i < N_VALUES; i++) {
        CHECK_EQUAL(rsf_demand_request(&demand, VALUES[i]), sentinel, "request afterwards (3.6)");
        CHECK_EQUAL(rsf_demand_fulfil(&demand, VALUES[i]), sentinel, "fulfil afterwards");
    }
    CHECK_EQUAL(rsf_demand_load(&demand), sentinel, "the sentinel stays");
}

int
main(int argc, char **argv)
{
    (void)run_seconds(argc, argv);
    for (size_t i = 0; i < N_VALUES; i++) {
        rsf_demand demand;
        rsf_demand_init(&demand, VALUES[i]);
        CHECK_EQUAL(rsf_demand_load(&demand), VALUES[i], "the initial demand");
        for (size_t j = 0; j < N_VALUES; j++) {
            if (VALUES[j] >= 1) {
                check_request(VALUES[i], VALUES[j]);
            }
            check_fulfil(VALUES[i], VALUES[j]);
        }
        check_end(VALUES[i], rsf_demand_cancel, rsf_demand_terminate, RSF_CANCELLED);
        check_end(VALUES[i], rsf_demand_terminate, rsf_demand_cancel, RSF_TERMINATED);
    }
    return 0;
}
