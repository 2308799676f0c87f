/*
 * ring_park_full.c - ring_park.c with a ring that is full at first: it is the producer that parks.
 */
#define FILLED 2

#include "ring_park.c"
