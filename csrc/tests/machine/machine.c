/*
 * machine.c - the simulated machine: see machine.h
 */
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define LOCATIONS 128
#define VALUES 256  /* of one location, in one run */
#define STEPS 4000  /* of one run; one that needs more has no end */
#define STACK 65536 /* bytes */
#define DEFAULT_RUNS 20000

/* For each location, the oldest value that may still be read. */
typedef struct {
    uint16_t oldest[LOCATIONS];
} view;

typedef struct {
    uint64_t value;
    view published;
} stored;

typedef struct {
    const void *address;
    int last; /* index of the newest value */
    stored values[VALUES];
} location;

typedef struct {
    ucontext_t context;
    char stack[STACK];
    bool done;
    view seen;
} thread;

static location locations[LOCATIONS];
static int n_locations;
static view sc_view; /* the newest value that a sequentially consistent store gave each location */
static thread threads[MACHINE_THREADS + 1]; /* the last one prepares and finishes */
static int n_threads;
static int current;
static int steps;
static uint64_t random_state;
static ucontext_t main_context;
static const machine_program *running;
static const char *failure;

#define OUTSIDE MACHINE_THREADS

/* ------------------------------------------------------------------ choices */

static unsigned
choose(unsigned n)
{
    uint64_t z = (random_state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (unsigned)((z ^ (z >> 31)) % n);
}

static void
end_run(void)
{
    setcontext(&main_context);
}

/* Goes on with a thread that is not done; the caller's is stored. */
static void
switch_thread(void)
{
    int able[MACHINE_THREADS], n = 0;
    for (int i = 0; i < n_threads; i++) {
        if (!threads[i].done) {
            able[n++] = i;
        }
    }
    if (n == 0) {
        end_run();
    }
    int before = current;
    current = able[choose((unsigned)n)];
    if (current != before) {
        swapcontext(&threads[before].context, &threads[current].context);
    }
}

/* Before every access: here another thread may come in between. */
static void
step(void)
{
    if (current == OUTSIDE) {
        return;
    }
    if (++steps > STEPS) {
        failure = "a run without an end";
        end_run();
    }
    if (choose(2) == 0) {
        switch_thread();
    }
}

/* ------------------------------------------------------------------ views */

static void
join(view *into, const view *from)
{
    for (int i = 0; i < n_locations; i++) {
        if (into->oldest[i] < from->oldest[i]) {
            into->oldest[i] = from->oldest[i];
        }
    }
}

static void
raise_to(view *into, int number, int oldest)
{
    if (into->oldest[number] < oldest) {
        into->oldest[number] = (uint16_t)oldest;
    }
}

static uint64_t
memory(const void *p, size_t size)
{
    uint64_t wide = 0;
    uint32_t narrow;
    if (size == sizeof narrow) {
        memcpy(&narrow, p, size);
        return narrow;
    }
    memcpy(&wide, p, size);
    return wide;
}

/* A location is first met with the value that it has had since before the threads. */
static int
number_of(const void *p, uint64_t initial)
{
    for (int i = 0; i < n_locations; i++) {
        if (locations[i].address == p) {
            return i;
        }
    }
    if (n_locations == LOCATIONS) {
        fputs("the machine needs more locations\n", stderr);
        exit(2);
    }
    int number = n_locations++;
    location *place = &locations[number];
    place->address = p;
    place->last = 0;
    place->values[0].value = initial;
    memset(&place->values[0].published, 0, sizeof(view));
    sc_view.oldest[number] = 0;
    for (int i = 0; i <= MACHINE_THREADS; i++) {
        threads[i].seen.oldest[number] = 0;
    }
    for (int i = 0; i < number; i++) {
        for (int j = 0; j <= locations[i].last; j++) {
            locations[i].values[j].published.oldest[number] = 0;
        }
    }
    return number;
}

static stored *
append(int number, uint64_t value)
{
    location *place = &locations[number];
    if (place->last + 1 == VALUES) {
        fputs("the machine needs more values\n", stderr);
        exit(2);
    }
    stored *next = &place->values[++place->last];
    next->value = value;
    memset(&next->published, 0, sizeof(view));
    raise_to(&threads[current].seen, number, place->last);
    return next;
}

/* The new value carries what the thread has seen, if it is a release. */
static void
publish(int number, stored *value, int order)
{
    raise_to(&value->published, number, locations[number].last);
    if ((order & MACHINE_rel) != 0) {
        join(&value->published, &threads[current].seen);
    }
    if (order == MACHINE_sc) {
        raise_to(&sc_view, number, locations[number].last);
    }
}

static uint64_t
observe(int number, int index, int order)
{
    stored *value = &locations[number].values[index];
    raise_to(&threads[current].seen, number, index);
    if ((order & MACHINE_acq) != 0) {
        join(&threads[current].seen, &value->published);
    }
    return value->value;
}

/* One of the values that may be read; the newest as often as all others. */
static int
pick(int number, int order)
{
    int last = locations[number].last;
    int oldest = threads[current].seen.oldest[number];
    if (order == MACHINE_sc && oldest < sc_view.oldest[number]) {
        oldest = sc_view.oldest[number];
    }
    return choose(2) == 0 ? last : oldest + (int)choose((unsigned)(last - oldest + 1));
}

/* ------------------------------------------------------------------ accesses */

static void
keep(void *p, size_t size, uint64_t value)
{
    uint32_t narrow = (uint32_t)value;
    memcpy(p, size == sizeof narrow ? (void *)&narrow : (void *)&value, size);
}

uint64_t
machine_load(const void *p, size_t size, int order)
{
    step();
    int number = number_of(p, memory(p, size));
    return observe(number, pick(number, order), order);
}

void
machine_store(void *p, size_t size, uint64_t value, int order)
{
    step();
    int number = number_of(p, memory(p, size));
    publish(number, append(number, value), order);
    keep(p, size, value);
}

/* A read-modify-write reads the newest value, and passes on what that one carried. */
static void
replace(int number, void *p, size_t size, uint64_t value, int order)
{
    view carried = locations[number].values[locations[number].last].published;
    stored *next = append(number, value);
    publish(number, next, order);
    join(&next->published, &carried);
    keep(p, size, value);
}

uint64_t
machine_modify(void *p, size_t size, enum machine_operation operation, uint64_t operand, int order)
{
    step();
    int number = number_of(p, memory(p, size));
    uint64_t before = observe(number, locations[number].last, order);
    uint64_t after = operation == MACHINE_EXCHANGE ? operand
                     : operation == MACHINE_ADD    ? before + operand
                                                   : before | operand;
    replace(number, p, size, after, order);
    return before;
}

bool
machine_compare(void *p, size_t size, uint64_t *expected, uint64_t desired, int order)
{
    step();
    int number = number_of(p, memory(p, size));
    int last = locations[number].last;
    bool spurious = choose(8) == 0;
    int index = pick(number, order);
    if (!spurious && locations[number].values[index].value == *expected) {
        index = last; /* it may succeed only on the newest */
    }
    if (spurious || index != last || locations[number].values[index].value != *expected) {
        *expected = observe(number, index, MACHINE_rlx); /* a failure orders nothing */
        return false;
    }
    (void)observe(number, index, order & ~MACHINE_rel);
    replace(number, p, size, desired, order);
    return true;
}

/*
 * Plain memory. A read must know of the newest write; a write, of that and of every read since. A
 * thread's reads are counted in a location of their own, so that views carry them about.
 */
static int
reads_of(const uint64_t *p, int reader)
{
    return number_of((const char *)p + 1 + reader, 0); /* an address that nothing else has */
}

uint64_t
machine_read(const uint64_t *p)
{
    step();
    int number = number_of(p, *p);
    machine_check(threads[current].seen.oldest[number] == locations[number].last,
                  "data race: a plain read does not know of the last write");
    (void)append(reads_of(p, current), 0);
    return locations[number].values[locations[number].last].value;
}

void
machine_write(uint64_t *p, uint64_t value)
{
    step();
    int number = number_of(p, *p);
    machine_check(threads[current].seen.oldest[number] == locations[number].last,
                  "data race: a plain write does not know of the last one");
    for (int i = 0; i <= MACHINE_THREADS; i++) {
        int reads = reads_of(p, i);
        machine_check(threads[current].seen.oldest[reads] == locations[reads].last,
                      "data race: a plain write does not know of a read");
    }
    (void)append(number, value);
    *p = value;
}

void
machine_check(bool condition, const char *what)
{
    if (!condition) {
        failure = what;
        end_run();
    }
}

/* ------------------------------------------------------------------ runs */

static void
thread_main(int me)
{
    running->body(me);
    threads[me].done = true;
    switch_thread();
}

static void
start(uint64_t seed)
{
    random_state = seed;
    n_locations = 0;
    steps = 0;
    failure = NULL;
    memset(&sc_view, 0, sizeof sc_view);
    for (int i = 0; i <= MACHINE_THREADS; i++) {
        memset(&threads[i].seen, 0, sizeof(view));
    }
    n_threads = running->threads;
    current = OUTSIDE;
    running->prepare();
    for (int i = 0; i < n_threads; i++) {
        thread *t = &threads[i];
        t->done = false;
        t->seen = threads[OUTSIDE].seen;
        getcontext(&t->context);
        t->context.uc_stack.ss_sp = t->stack;
        t->context.uc_stack.ss_size = sizeof t->stack;
        t->context.uc_link = NULL;
        makecontext(&t->context, (void (*)(void))thread_main, 1, i);
    }
}

/* One run; the outcome is in `failure`. */
static void
run(uint64_t seed)
{
    volatile bool entered = false;
    start(seed);
    getcontext(&main_context); /* end_run() comes back here */
    if (!entered) {
        entered = true;
        current = (int)choose((unsigned)n_threads);
        setcontext(&threads[current].context);
    }
    if (failure == NULL) {
        current = OUTSIDE;
        for (int i = 0; i < n_threads; i++) {
            join(&threads[OUTSIDE].seen, &threads[i].seen);
        }
        volatile bool finished = false;
        getcontext(&main_context);
        if (!finished) {
            finished = true;
            running->finish();
        }
    }
}

int
machine_main(int argc, char **argv, const machine_program *program)
{
    uint64_t runs = argc > 1 ? strtoull(argv[1], NULL, 10) : DEFAULT_RUNS;
    running = program;
    for (uint64_t seed = 1; seed <= runs; seed++) {
        run(seed);
        if (failure != NULL) {
            fprintf(stderr, "%s, seed %llu: %s\n", argv[0], (unsigned long long)seed, failure);
            return 1;
        }
    }
    return 0;
}
