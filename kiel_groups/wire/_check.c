/*
 * Check messages where they are: a run of plain ones by check(); the head and the CRC of a wrapper by wrapper() and
 * crc_matches().
 *
 * Only crc_matches() releases the interpreter's lock.
 */
#include "_functions.h"

#include "_crc32.h"
#include "_message.h"

/* ------------------------------------------------------------------ plain messages */

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
        /* After BAD_LENGTH, the value is not set. */
        bool fills = found == MESSAGE && message.value.bytes + message.value.size == bytes + message.end;
        answer = Py_BuildValue("(nLin)", (Py_ssize_t)message.end, (long long)message.offset,
                               bytes[at + ATTRIBUTES_AT] & CODEC_BITS,
                               fills ? (Py_ssize_t)(message.value.bytes - (bytes + at)) : (Py_ssize_t)-1);
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

/* ------------------------------------------------------------------ module */

static PyMethodDef methods[] = {
    {"check", check, METH_VARARGS, check_doc},
    {"wrapper", wrapper, METH_VARARGS, wrapper_doc},
    {"crc_matches", crc_matches, METH_O, crc_matches_doc},
    {NULL, NULL, 0, NULL},
};

int add_check(PyObject *module)
{
    prepare_crc32();
    return PyModule_AddFunctions(module, methods)
        || PyModule_AddIntConstant(module, "STOPPED", STOPPED)
        || PyModule_AddIntConstant(module, "STOPPED_BEHIND", STOPPED_BEHIND)
        || PyModule_AddIntConstant(module, "STOPPED_BY_LENGTH", STOPPED_BY_LENGTH)
        || PyModule_AddIntConstant(module, "STOPPED_BY_CRC", STOPPED_BY_CRC) ? -1 : 0;
}
