/*
 * Selects messages by their offsets from runs of plain messages, for the functions that take runs.
 *
 * next_message() reads each message again, whatever check() has found: a buffer may have changed since.
 */
#ifndef KIEL_GROUPS_SELECTION_H
#define KIEL_GROUPS_SELECTION_H

#include "_functions.h"
#include "_message.h"

typedef struct {
    Py_buffer buffer;
    Py_ssize_t start, stop;
} Run;

/* The messages with first <= offset <= last of some runs. */
typedef struct {
    Run *runs;
    Py_ssize_t count;
    int64_t first, last;
} Selection;

/* A position in a selection; starts as {0}. */
typedef struct {
    Py_ssize_t run, at;
} Cursor;

/* MESSAGE: the next one. OTHER: there are no more. BAD_LENGTH: the runs are not what check() found. */
static inline Found next_message(const Selection *selection, Cursor *cursor, Message *message)
{
    for (; cursor->run < selection->count; cursor->run++, cursor->at = 0) {
        const Run *run = &selection->runs[cursor->run];
        if (cursor->at < run->start)
            cursor->at = run->start;
        while (cursor->at < run->stop) {
            if (read_plain(run->buffer.buf, run->stop, cursor->at, message) != MESSAGE)
                return BAD_LENGTH;
            cursor->at = message->end;
            if (message->offset >= selection->first && message->offset <= selection->last)
                return MESSAGE;
        }
    }
    return OTHER;
}

/*
 * Takes the buffers of a tuple of runs. On success the caller must call drop_selection(); otherwise `runs` of the result
 * is NULL, and the exception is set.
 *
 * Selections are passed by value, and drop_selection() is inline: a selection whose address no other source knows stays
 * in registers while its messages are read.
 */
Selection take_selection(PyObject *runs, int64_t first, int64_t last);

static inline void drop_selection(Selection selection)
{
    while (selection.count > 0)
        PyBuffer_Release(&selection.runs[--selection.count].buffer);
    PyMem_Free(selection.runs);
}

/* Sets the exception for runs that are not what check() found, and returns NULL. */
PyObject *refuse_runs(void);

#endif
