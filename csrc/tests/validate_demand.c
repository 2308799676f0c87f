/*
 * validate_demand.c - the demand counter against arithmetic that is too wide to overflow.
 */
#include "rsf_demand.h"
#include "validate.h"

__extension__ typedef __int128 wide;

static wide
at_most_unbounded(wide n)
{
    return n < RSF_UNBOUNDED ? n : RSF_UNBOUNDED;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, data + size};
    wide model = (wide)(next_number(&in) >> 1);
    rsf_demand demand;
    rsf_demand_init(&demand, (int64_t)model);
    while (!is_over(&in)) {
        wide before = model;
        int64_t n = (int64_t)(next_number(&in) >> 1), answer;
        unsigned move = next_byte(&in) % 16; /* ends are rare */
        if (move < 7) {
            n = n == 0 ? 1 : n;
            answer = rsf_demand_request(&demand, n);
            EXPECT(answer == before);
            model = before < 0 ? before : at_most_unbounded(before + n);
        } else if (move < 14) {
            answer = rsf_demand_fulfil(&demand, n);
            if (before >= 0 && before < RSF_UNBOUNDED) {
                EXPECT(answer == (before < n ? RSF_EXCEEDED : before - n));
                model = before < n ? before : before - n;
            } else {
                EXPECT(answer == before);
            }
        } else if (move == 14) {
            EXPECT(rsf_demand_cancel(&demand) == before);
            model = before < 0 ? before : RSF_CANCELLED;
        } else {
            EXPECT(rsf_demand_terminate(&demand) == before);
            model = before < 0 ? before : RSF_TERMINATED;
        }
        EXPECT(rsf_demand_load(&demand) == model);
    }
    return 0;
}
