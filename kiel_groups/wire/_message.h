/*
 * Reads one message of magic 0: [offset int64, size int32, crc int32, magic int8, attributes int8, key, value], where
 * key and value are [length int32, bytes], and a length of -1 is null.
 *
 * read_any() is the only function that reads these fields; it rejects a field that reaches beyond the message.
 */
#ifndef KIEL_GROUPS_MESSAGE_H
#define KIEL_GROUPS_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    OVERHEAD = 12, /* offset and size, which do not count in the size */
    CRC_AT = 12,
    CHECKED_AT = 16, /* magic, attributes, key, value */
    ATTRIBUTES_AT = 17,
    KEY_AT = 18,
    LEAST_MESSAGE = 26,
    CODEC_BITS = 7,
};

typedef struct {
    const uint8_t *bytes;
    int32_t size; /* -1: null */
} Blob;

typedef struct {
    int64_t offset;
    ptrdiff_t end; /* the byte after the message */
    Blob key, value;
} Message;

/* OTHER: not a whole message of the wanted kind; often the end of the bytes. */
typedef enum { MESSAGE, OTHER, BAD_LENGTH } Found;

static inline uint32_t uint32_at(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline int64_t int64_at(const uint8_t *at)
{
    return (int64_t)((uint64_t)uint32_at(at) << 32 | uint32_at(at + 4));
}

/* Reads the blob at *at and moves *at behind it; false if it would reach beyond end. */
static inline bool read_blob(const uint8_t **at, const uint8_t *end, Blob *blob)
{
    if (end - *at < 4)
        return false;
    blob->size = (int32_t)uint32_at(*at);
    blob->bytes = *at += 4;
    if (blob->size == -1)
        return true;
    if (blob->size < 0 || blob->size > end - *at)
        return false;
    *at += blob->size;
    return true;
}

/* Reads the message at `at`, 0 <= at <= size, if it is a wrapper or plain, as is wanted. */
static inline Found read_any(const uint8_t *data, ptrdiff_t size, ptrdiff_t at, bool is_wrapper, Message *message)
{
    if (size - at < LEAST_MESSAGE)
        return OTHER;
    const uint8_t *start = data + at;
    int32_t length = (int32_t)uint32_at(start + 8);
    if (length < LEAST_MESSAGE - OVERHEAD || length > size - at - OVERHEAD)
        return OTHER;
    if (start[CHECKED_AT] != 0 || ((start[ATTRIBUTES_AT] & CODEC_BITS) != 0) != is_wrapper)
        return OTHER;
    message->offset = int64_at(start);
    message->end = at + OVERHEAD + length;
    const uint8_t *rest = start + KEY_AT, *end = data + message->end;
    bool whole = read_blob(&rest, end, &message->key) && read_blob(&rest, end, &message->value);
    return whole ? MESSAGE : BAD_LENGTH;
}

static inline Found read_plain(const uint8_t *data, ptrdiff_t size, ptrdiff_t at, Message *message)
{
    return read_any(data, size, at, false, message);
}

static inline Found read_wrapper(const uint8_t *data, ptrdiff_t size, ptrdiff_t at, Message *message)
{
    return read_any(data, size, at, true, message);
}

#endif
