/*
 * Check and decode plain messages of magic 0, many in one call.
 *
 * check() verifies a run of them and finds its end; span() counts the messages of such runs, columns() copies them into
 * the buffers of Arrow's columns, records() makes tuples of them, values() makes lists of their fields. wrapper() finds
 * the compressed value of a wrapper, whose CRC crc_matches() verifies. Everything else in a set (the content of wrappers,
 * garbage, unfinished messages) is left to the caller, message_sets/compiled_decoder.py.
 *
 * Safety: no result of an earlier pass is trusted. Each pass checks the bounds again (see _message.h), and writing
 * stops at the end of the measured room. Only crc_matches() releases the interpreter's lock; for an interpreter without
 * one, this module is not built.
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#include "_crc32.h"
#include "_message.h"

/* ------------------------------------------------------------------ check */

typedef enum { STOPPED, STOPPED_BEHIND, STOPPED_BY_LENGTH, STOPPED_BY_CRC } Verdict;

static Verdict check_run(const uint8_t *data, Py_ssize_t size, Py_ssize_t *at, int64_t *last_offset, int64_t last_wanted)
{
    Message message;
    for (; ; *at = message.end, *last_offset = message.offset) {
        Found found = read_plain(data, size, *at, &message);
        if (found == OTHER || int64_at(data + *at) <= *last_offset)
            return STOPPED;
        if (found == BAD_LENGTH)
            return STOPPED_BY_LENGTH;
        const uint8_t *start = data + *at;
        if (crc32_of(start + CHECKED_AT, message.end - *at - CHECKED_AT) != uint32_at(start + CRC_AT))
            return STOPPED_BY_CRC;
        if (message.offset > last_wanted)
            return STOPPED_BEHIND;
    }
}

PyDoc_STRVAR(check_doc, "check(data, start, stop, last_offset, last_wanted, /) -> (stop, last_offset, verdict)");

static PyObject *check(PyObject *module, PyObject *args)
{
    Py_buffer data;
    Py_ssize_t at, size;
    long long last_offset, last_wanted;
    if (!PyArg_ParseTuple(args, "y*nnLL:check", &data, &at, &size, &last_offset, &last_wanted))
        return NULL;
    if (at < 0 || at > size || size > data.len) {
        PyErr_Format(PyExc_ValueError, "from %zd to %zd; expected numbers from 0 to %zd", at, size, data.len);
        PyBuffer_Release(&data);
        return NULL;
    }
    int64_t last = last_offset;
    Verdict verdict = check_run(data.buf, size, &at, &last, last_wanted);
    PyBuffer_Release(&data);
    return Py_BuildValue("(nLi)", at, (long long)last, (int)verdict);
}

/* ------------------------------------------------------------------ wrappers */

/* The CRC of a longer wrapper is computed without the interpreter's lock. */
enum { MOST_LOCKED_BYTES = 256 << 10 };

PyDoc_STRVAR(wrapper_doc, "wrapper(data, start, last_offset, /) -> (stop, offset, codec, value_start) | None");

static PyObject *wrapper(PyObject *module, PyObject *args)
{
    Py_buffer data;
    Py_ssize_t at;
    long long last_offset;
    if (!PyArg_ParseTuple(args, "y*nL:wrapper", &data, &at, &last_offset))
        return NULL;
    if (at < 0 || at > data.len) {
        PyErr_Format(PyExc_ValueError, "start is %zd; expected 0 to %zd", at, data.len);
        PyBuffer_Release(&data);
        return NULL;
    }
    const uint8_t *bytes = data.buf;
    Message message;
    Found found = read_wrapper(bytes, data.len, at, &message);
    PyObject *answer = Py_None;
    if (found != OTHER && message.offset > last_offset) {
        const uint8_t *start = bytes + at, *value = message.value.bytes;
        bool fills = found == MESSAGE && value + message.value.size == bytes + message.end;
        answer = Py_BuildValue("(nLin)", (Py_ssize_t)message.end, (long long)message.offset,
                               start[ATTRIBUTES_AT] & CODEC_BITS, fills ? (Py_ssize_t)(value - start) : -1);
    } else
        Py_INCREF(answer);
    PyBuffer_Release(&data);
    return answer;
}

PyDoc_STRVAR(crc_matches_doc, "crc_matches(message, /) -> bool");

static PyObject *crc_matches(PyObject *module, PyObject *argument)
{
    Py_buffer message;
    if (PyObject_GetBuffer(argument, &message, PyBUF_SIMPLE) < 0)
        return NULL;
    bool matches = false;
    if (message.len >= LEAST_MESSAGE) {
        const uint8_t *start = message.buf;
        PyThreadState *unlocked = message.len > MOST_LOCKED_BYTES ? PyEval_SaveThread() : NULL;
        matches = crc32_of(start + CHECKED_AT, message.len - CHECKED_AT) == uint32_at(start + CRC_AT);
        if (unlocked)
            PyEval_RestoreThread(unlocked);
    }
    PyBuffer_Release(&message);
    return PyBool_FromLong(matches);
}

/* ------------------------------------------------------------------ selections */

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

static PyObject *refuse_runs(void)
{
    PyErr_SetString(PyExc_ValueError, "a run holds something else than whole plain messages");
    return NULL;
}

/* Fills `run` from (data, start, stop); on success the caller must release its buffer. */
static bool take_run(PyObject *item, Run *run)
{
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a run is a tuple of data, start and stop");
        return false;
    }
    if (!PyArg_ParseTuple(item, "y*nn:run", &run->buffer, &run->start, &run->stop))
        return false;
    if (run->start >= 0 && run->start <= run->stop && run->stop <= run->buffer.len)
        return true;
    PyErr_Format(PyExc_ValueError, "a run from %zd to %zd of %zd bytes", run->start, run->stop, run->buffer.len);
    PyBuffer_Release(&run->buffer);
    return false;
}

static void drop_selection(Selection *selection)
{
    while (selection->count > 0)
        PyBuffer_Release(&selection->runs[--selection->count].buffer);
    PyMem_Free(selection->runs);
}

/* Takes the buffers of a tuple of runs; on success the caller must call drop_selection(). */
static bool take_selection(PyObject *runs, Selection *selection)
{
    Py_ssize_t count = PyTuple_Size(runs);
    selection->count = 0;
    selection->runs = PyMem_Calloc((size_t)count + 1, sizeof(Run));
    if (!selection->runs) {
        PyErr_NoMemory();
        return false;
    }
    for (; selection->count < count; selection->count++)
        if (!take_run(PyTuple_GetItem(runs, selection->count), &selection->runs[selection->count])) {
            drop_selection(selection);
            return false;
        }
    return true;
}

/* ------------------------------------------------------------------ span */

PyDoc_STRVAR(span_doc, "span(runs, first, last, /) -> (count, first_offset, last_offset)");

static PyObject *span(PyObject *module, PyObject *args)
{
    PyObject *runs;
    long long first, last, least = -1, most = -1;
    if (!PyArg_ParseTuple(args, "O!LL:span", &PyTuple_Type, &runs, &first, &last))
        return NULL;
    Selection selection = {.first = first, .last = last};
    if (!take_selection(runs, &selection))
        return NULL;
    Cursor cursor = {0};
    Message message;
    Found found;
    Py_ssize_t count = 0;
    for (; (found = next_message(&selection, &cursor, &message)) == MESSAGE; count++) {
        if (!count)
            least = message.offset;
        most = message.offset;
    }
    drop_selection(&selection);
    return found == OTHER ? Py_BuildValue("(nLL)", count, least, most) : refuse_runs();
}

/* ------------------------------------------------------------------ columns */

/* Values of one column: `room` bytes as measured, of which `size` are used. */
typedef struct {
    int64_t room, size, nulls;
    PyObject *data, *ends, *validity;
    char *bytes;
    int32_t *next_end;
    uint8_t *bits;
} Column;

typedef struct {
    Py_ssize_t room, size;
    PyObject *offsets;
    int64_t *numbers;
    Column key, value;
} Columns;

static void measure_blob(Column *column, const Blob *blob)
{
    if (blob->size < 0)
        column->nulls++;
    else
        column->room += blob->size;
}

static bool copy_blob(Column *column, const Blob *blob, Py_ssize_t row)
{
    if (blob->size >= 0) {
        if (blob->size > column->room - column->size)
            return false;
        memcpy(column->bytes + column->size, blob->bytes, (size_t)blob->size);
        column->size += blob->size;
        if (column->bits)
            column->bits[row / 8] |= (uint8_t)(1u << (row % 8));
    } else if (!column->bits)
        return false;
    *++column->next_end = (int32_t)column->size;
    return true;
}

static bool measure(const Selection *selection, Columns *columns)
{
    Cursor cursor = {0};
    Message message;
    Found found;
    for (; (found = next_message(selection, &cursor, &message)) == MESSAGE; columns->room++) {
        measure_blob(&columns->key, &message.key);
        measure_blob(&columns->value, &message.value);
    }
    return found == OTHER;
}

/* False if the runs do not match the measured sizes. */
static bool copy(const Selection *selection, Columns *columns)
{
    Cursor cursor = {0};
    Message message;
    Found found;
    for (; (found = next_message(selection, &cursor, &message)) == MESSAGE; columns->size++) {
        if (columns->size == columns->room || !copy_blob(&columns->key, &message.key, columns->size)
            || !copy_blob(&columns->value, &message.value, columns->size))
            return false;
        columns->numbers[columns->size] = message.offset;
    }
    return found == OTHER && columns->size == columns->room;
}

static PyObject *new_bytes(int64_t size)
{
    return PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
}

static bool allocate_column(Column *column, Py_ssize_t rows)
{
    if (column->room > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "more than 2 GiB in one column");
        return false;
    }
    column->data = new_bytes(column->room);
    column->ends = new_bytes(((int64_t)rows + 1) * 4);
    if (!column->data || !column->ends)
        return false;
    column->bytes = (void *)PyBytes_AsString(column->data);
    column->next_end = (void *)PyBytes_AsString(column->ends);
    *column->next_end = 0;
    if (column->nulls) {
        column->validity = new_bytes(((int64_t)rows + 7) / 8);
        if (!column->validity)
            return false;
        column->bits = (void *)PyBytes_AsString(column->validity);
        memset(column->bits, 0, ((size_t)rows + 7) / 8);
    }
    return true;
}

static bool allocate(Columns *columns)
{
    columns->offsets = new_bytes((int64_t)columns->room * 8);
    if (!columns->offsets)
        return false;
    columns->numbers = (void *)PyBytes_AsString(columns->offsets);
    return allocate_column(&columns->key, columns->room) && allocate_column(&columns->value, columns->room);
}

static PyObject *column_tuple(const Column *column)
{
    PyObject *validity = column->validity ? column->validity : Py_None;
    return Py_BuildValue("(OOOL)", column->data, column->ends, validity, (long long)column->nulls);
}

static void drop_column(Column *column)
{
    Py_CLEAR(column->data);
    Py_CLEAR(column->ends);
    Py_CLEAR(column->validity);
}

static PyObject *columns_of(const Selection *selection)
{
    Columns columns = {0};
    PyObject *answer = NULL;
    if (!measure(selection, &columns))
        return refuse_runs();
    if (allocate(&columns))
        answer = copy(selection, &columns)
            ? Py_BuildValue("(ONN)", columns.offsets, column_tuple(&columns.key), column_tuple(&columns.value))
            : refuse_runs();
    Py_CLEAR(columns.offsets);
    drop_column(&columns.key);
    drop_column(&columns.value);
    return answer;
}

PyDoc_STRVAR(columns_doc, "columns(runs, first, last, /) -> (offsets, keys, values)");

static PyObject *columns(PyObject *module, PyObject *args)
{
    PyObject *runs;
    long long first, last;
    if (!PyArg_ParseTuple(args, "O!LL:columns", &PyTuple_Type, &runs, &first, &last))
        return NULL;
    Selection selection = {.first = first, .last = last};
    if (!take_selection(runs, &selection))
        return NULL;
    PyObject *answer = columns_of(&selection);
    drop_selection(&selection);
    return answer;
}

/* ------------------------------------------------------------------ records */

enum { RECORD_FIELDS = 5 };

/* What all records of one call share. */
typedef struct {
    PyTypeObject *type;
    allocfunc allocate;
    PyObject *topic, *partition;
    /* Whether its records cannot be part of a reference cycle. */
    bool acyclic;
} Kind;

static PyObject *blob_object(const Blob *blob)
{
    return blob->size < 0 ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize((const char *)blob->bytes, blob->size);
}

/*
 * The values are made first, so that no code, not even the garbage collector, sees a record without them.
 *
 * A record of text, integers and bytes cannot be part of a cycle. So the garbage collector need not visit it; otherwise
 * a program that keeps some thousand records pays for several visits of each.
 */
static PyObject *record_of(const Kind *kind, const Message *message)
{
    PyObject *offset = PyLong_FromLongLong(message->offset);
    PyObject *key = blob_object(&message->key);
    PyObject *value = blob_object(&message->value);
    PyObject *record = offset && key && value ? kind->allocate(kind->type, RECORD_FIELDS) : NULL;
    if (!record) {
        Py_XDECREF(offset);
        Py_XDECREF(key);
        Py_XDECREF(value);
        return NULL;
    }
    PyTuple_SetItem(record, 0, Py_NewRef(kind->topic));
    PyTuple_SetItem(record, 1, Py_NewRef(kind->partition));
    PyTuple_SetItem(record, 2, offset);
    PyTuple_SetItem(record, 3, key);
    PyTuple_SetItem(record, 4, value);
    if (kind->acyclic)
        PyObject_GC_UnTrack(record);
    return record;
}

static bool append_records(const Selection *selection, const Kind *kind, PyObject *list)
{
    Cursor cursor = {0};
    Message message;
    Found found;
    while ((found = next_message(selection, &cursor, &message)) == MESSAGE) {
        PyObject *record = record_of(kind, &message);
        if (!record)
            return false;
        int failed = PyList_Append(list, record);
        Py_DECREF(record);
        if (failed)
            return false;
    }
    return found == OTHER || refuse_runs();
}

/* A record of numbers, bytes and text, and without attributes of its own, refers to nothing that could refer to it. */
static int is_acyclic(const Kind *kind)
{
    PyObject *offset = PyObject_GetAttrString((PyObject *)kind->type, "__dictoffset__");
    if (!offset)
        return -1;
    long at = PyLong_AsLong(offset);
    Py_DECREF(offset);
    if (at == -1 && PyErr_Occurred())
        return -1;
    return at == 0 && PyUnicode_CheckExact(kind->topic) && PyLong_CheckExact(kind->partition);
}

PyDoc_STRVAR(records_doc, "records(runs, first, last, kind, topic, partition, /) -> list");

static PyObject *records(PyObject *module, PyObject *args)
{
    PyObject *runs, *type, *list;
    Kind kind;
    long long first, last;
    if (!PyArg_ParseTuple(args, "O!LLO!OO:records", &PyTuple_Type, &runs, &first, &last, &PyType_Type, &type,
                          &kind.topic, &kind.partition))
        return NULL;
    kind.type = (PyTypeObject *)type;
    kind.allocate = (allocfunc)PyType_GetSlot(kind.type, Py_tp_alloc);
    if (!PyType_IsSubtype(kind.type, &PyTuple_Type) || !kind.allocate) {
        PyErr_SetString(PyExc_TypeError, "records are of a type of tuple");
        return NULL;
    }
    int acyclic = is_acyclic(&kind);
    if (acyclic < 0)
        return NULL;
    kind.acyclic = acyclic;
    Selection selection = {.first = first, .last = last};
    if (!take_selection(runs, &selection))
        return NULL;
    list = PyList_New(0);
    if (list && !append_records(&selection, &kind, list))
        Py_CLEAR(list);
    drop_selection(&selection);
    return list;
}

/* ------------------------------------------------------------------ values */

/*
 * The fields of messages, a list of each. `keys` is NULL while all keys are null, `offsets` while each offset is one
 * more than the one before: most topics need neither list.
 */
typedef struct {
    PyObject *values, *keys, *offsets;
    Py_ssize_t count;
    int64_t first;
} Fields;

/* Appends an item and drops the reference to it. */
static bool append_new(PyObject *list, PyObject *item)
{
    int failed = item ? PyList_Append(list, item) : -1;
    Py_XDECREF(item);
    return !failed;
}

static bool append_key(Fields *fields, const Blob *key)
{
    if (!fields->keys) {
        if (key->size < 0)
            return true;
        fields->keys = PyList_New(0);
        for (Py_ssize_t row = 0; fields->keys && row < fields->count; row++)
            if (PyList_Append(fields->keys, Py_None))
                return false;
    }
    return fields->keys && append_new(fields->keys, blob_object(key));
}

static bool append_offset(Fields *fields, int64_t offset)
{
    if (!fields->count)
        fields->first = offset;
    if (!fields->offsets) {
        if (fields->first <= INT64_MAX - fields->count && offset == fields->first + fields->count)
            return true;
        fields->offsets = PyList_New(0);
        for (Py_ssize_t row = 0; fields->offsets && row < fields->count; row++)
            if (!append_new(fields->offsets, PyLong_FromLongLong(fields->first + row)))
                return false;
    }
    return fields->offsets && append_new(fields->offsets, PyLong_FromLongLong(offset));
}

static bool append_fields(const Selection *selection, Fields *fields)
{
    Cursor cursor = {0};
    Message message;
    Found found;
    for (; (found = next_message(selection, &cursor, &message)) == MESSAGE; fields->count++)
        if (!append_offset(fields, message.offset) || !append_key(fields, &message.key)
            || !append_new(fields->values, blob_object(&message.value)))
            return false;
    return found == OTHER || refuse_runs();
}

PyDoc_STRVAR(values_doc, "values(runs, first, last, /) -> (values, keys, offsets)");

static PyObject *values(PyObject *module, PyObject *args)
{
    PyObject *runs, *answer = NULL;
    long long first, last;
    if (!PyArg_ParseTuple(args, "O!LL:values", &PyTuple_Type, &runs, &first, &last))
        return NULL;
    Selection selection = {.first = first, .last = last};
    if (!take_selection(runs, &selection))
        return NULL;
    Fields fields = {.values = PyList_New(0)};
    if (fields.values && append_fields(&selection, &fields))
        answer = Py_BuildValue("(OOO)", fields.values, fields.keys ? fields.keys : Py_None,
                               fields.offsets ? fields.offsets : Py_None);
    Py_XDECREF(fields.values);
    Py_XDECREF(fields.keys);
    Py_XDECREF(fields.offsets);
    drop_selection(&selection);
    return answer;
}

/* ------------------------------------------------------------------ module */

static int fill_module(PyObject *module)
{
    prepare_crc32();
    return PyModule_AddIntConstant(module, "STOPPED", STOPPED)
        || PyModule_AddIntConstant(module, "STOPPED_BEHIND", STOPPED_BEHIND)
        || PyModule_AddIntConstant(module, "STOPPED_BY_LENGTH", STOPPED_BY_LENGTH)
        || PyModule_AddIntConstant(module, "STOPPED_BY_CRC", STOPPED_BY_CRC) ? -1 : 0;
}

static PyMethodDef methods[] = {
    {"check", check, METH_VARARGS, check_doc},
    {"wrapper", wrapper, METH_VARARGS, wrapper_doc},
    {"crc_matches", crc_matches, METH_O, crc_matches_doc},
    {"span", span, METH_VARARGS, span_doc},
    {"columns", columns, METH_VARARGS, columns_doc},
    {"records", records, METH_VARARGS, records_doc},
    {"values", values, METH_VARARGS, values_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill_module}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_messages",
    .m_doc = "Plain messages of magic 0: checked, and taken apart into columns, records or values.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__messages(void)
{
    return PyModuleDef_Init(&definition);
}
