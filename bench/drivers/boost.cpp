// boost's single-producer single-consumer queue, driven as drivers.c drives ours.
#include <boost/lockfree/spsc_queue.hpp>
#include <cstdint>
#include <memory>
#include <thread>

#include "checking.h"
#include "waiting.h"

namespace {

constexpr std::size_t CAPACITY = 1024;
constexpr std::size_t MAX_BURST = 256;

using Queue = boost::lockfree::spsc_queue<std::uint64_t, boost::lockfree::capacity<CAPACITY>>;

void
produce(Queue &queue, std::uint64_t n, std::size_t burst)
{
    std::uint64_t elements[MAX_BURST];
    unsigned idle = 0;
    for (std::uint64_t done = 0; done < n;) {
        std::size_t count;
        if (burst == 1) {
            count = queue.push(done) ? 1 : 0;
        } else {
            std::size_t wanted = n - done < burst ? n - done : burst;
            for (std::size_t i = 0; i < wanted; i++) {
                elements[i] = done + i;
            }
            count = queue.push(elements, wanted);
        }
        if (count == 0) {
            wait_a_little(&idle);
        } else {
            idle = 0;
        }
        done += count;
    }
}

bool
consume(Queue &queue, std::uint64_t n, std::size_t burst)
{
    std::uint64_t elements[MAX_BURST];
    std::uint64_t wrong = 0;
    unsigned idle = 0;
    for (std::uint64_t done = 0; done < n;) {
        std::size_t count =
            burst == 1 ? (queue.pop(elements[0]) ? 1 : 0) : queue.pop(elements, burst);
        if (count == 0) {
            wait_a_little(&idle);
            continue;
        }
        idle = 0;
        wrong |= differences(elements, done, count);
        done += count;
    }
    return wrong == 0;
}

// All that is there, where it is: places become free when the last of them was taken.
bool
consume_in_place(Queue &queue, std::uint64_t n, std::size_t)
{
    std::uint64_t wrong = 0;
    unsigned idle = 0;
    for (std::uint64_t done = 0; done < n;) {
        if (queue.consume_all([&](std::uint64_t element) { wrong |= element ^ done++; }) == 0) {
            wait_a_little(&idle);
        } else {
            idle = 0;
        }
    }
    return wrong == 0;
}

std::uint64_t
run(std::uint64_t n, std::uint64_t burst, bool (*consume_how)(Queue &, std::uint64_t, std::size_t))
{
    auto queue = std::make_unique<Queue>();
    bool right = false;
    std::thread consumer([&] { right = consume_how(*queue, n, burst); });
    std::thread producer([&] { produce(*queue, n, burst); });
    producer.join();
    consumer.join();
    return right ? n : UINT64_MAX;
}

} // namespace

extern "C" std::uint64_t
ring(std::uint64_t n, std::uint64_t burst)
{
    return run(n, burst, consume);
}

extern "C" std::uint64_t
ring_in_place(std::uint64_t n, std::uint64_t burst)
{
    return run(n, burst, consume_in_place);
}
