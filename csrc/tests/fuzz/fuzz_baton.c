/*
 * fuzz_baton.c - the baton against three flags.
 */
#include "fuzz.h"
#include "rsf_baton.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, data + size};
    rsf_baton baton;
    bool coming = false, here = false, asleep = false;

    rsf_baton_init(&baton);
    while (!is_over(&in)) {
        bool sleeps = asleep && !coming && !here; /* and makes no move */
        switch (next_byte(&in) % 4) {
        case 0:
            EXPECT(rsf_baton_announce(&baton) == sleeps);
            coming = true;
            break;
        case 1:
            EXPECT(rsf_baton_give(&baton) == sleeps);
            here = true;
            break;
        case 2:
            if (!sleeps) {
                EXPECT(rsf_baton_prepare_sleep(&baton) == (!coming && !here));
                asleep = true;
            }
            break;
        default:
            if (!sleeps) {
                rsf_baton_take(&baton);
                coming = here = asleep = false;
            }
        }
        EXPECT(rsf_baton_is_called(&baton) == (coming || here));
        EXPECT(rsf_baton_is_here(&baton) == here);
    }
    return 0;
}
