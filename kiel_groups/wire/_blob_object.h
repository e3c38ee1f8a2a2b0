/* Makes the Python object of a key or value. */
#ifndef KIEL_GROUPS_BLOB_OBJECT_H
#define KIEL_GROUPS_BLOB_OBJECT_H

#include "_functions.h"
#include "_message.h"

static inline PyObject *blob_object(const Blob *blob)
{
    return blob->size < 0 ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize((const char *)blob->bytes, blob->size);
}

#endif
