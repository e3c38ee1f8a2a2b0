/*
 * The module: check, decode and encode plain messages of magic 0, many in one call.
 *
 * check() verifies a run of them and finds its end; span() counts the messages of such runs, columns() copies them into
 * the buffers of Arrow's columns, records() makes tuples of them, values() makes lists of their fields. wrapper() finds
 * the compressed value of a wrapper, whose CRC crc_matches() verifies. encode() makes a set of keys and values. Everything
 * else in a set (the content of wrappers, garbage, unfinished messages) is left to the callers in message_sets.
 *
 * Safety: no result of an earlier pass is trusted. Each pass checks the bounds again (see _message.h), and writing
 * stops at the end of the measured room. Only crc_matches() releases the interpreter's lock; for an interpreter without
 * one, this module is not built.
 */
#include "_functions.h"

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, add_check},
    {Py_mod_exec, add_span},
    {Py_mod_exec, add_columns},
    {Py_mod_exec, add_records},
    {Py_mod_exec, add_values},
    {Py_mod_exec, add_encode},
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_messages",
    .m_doc = "Plain messages of magic 0: encoded, checked, and taken apart into columns, records or values.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__messages(void)
{
    return PyModuleDef_Init(&definition);
}
