/*
 * serial_park_cancel.c - serial_park_end.c with a cancel in the place of the terminal signal.
 */
#define CANCEL 1

#include "serial_park_end.c"
