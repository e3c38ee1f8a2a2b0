/*
 * Computes the CRC-32 of gzip and Kafka (reflected, polynomial 0x04C11DB7), without a library to link with.
 *
 * Tables process sixteen bytes a step. On processors with carry-less multiplication, folding processes sixty-four, by
 * V. Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009.
 */
#ifndef KIEL_GROUPS_CRC32_H
#define KIEL_GROUPS_CRC32_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STEP = 16 };
static uint32_t crc_tables[STEP][256];

static void make_crc_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1)));
        crc_tables[0][byte] = crc;
    }
    for (int table = 1; table < STEP; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = crc_tables[table - 1][byte];
            crc_tables[table][byte] = (before >> 8) ^ crc_tables[0][before & 0xFF];
        }
}

/* Continues from `crc`, without the inversions at the beginning and the end. */
static uint32_t crc32_by_tables(uint32_t crc, const uint8_t *bytes, ptrdiff_t count)
{
    for (; count >= STEP; bytes += STEP, count -= STEP) {
        uint32_t next = 0;
        for (int i = 0; i < 4; i++)
            next ^= crc_tables[STEP - 1 - i][bytes[i] ^ ((crc >> (8 * i)) & 0xFF)];
        for (int i = 4; i < STEP; i++)
            next ^= crc_tables[STEP - 1 - i][bytes[i]];
        crc = next;
    }
    while (count-- > 0)
        crc = (crc >> 8) ^ crc_tables[0][(crc ^ *bytes++) & 0xFF];
    return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define CAN_FOLD __builtin_cpu_supports("pclmul")

/* Moves the lane forward by the number of bits that the factors are for, and adds (XOR) the bytes there. */
__attribute__((target("pclmul"))) static inline __m128i fold(__m128i lane, __m128i factors, const uint8_t *bytes)
{
    __m128i low = _mm_clmulepi64_si128(lane, factors, 0x00), high = _mm_clmulepi64_si128(lane, factors, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), _mm_loadu_si128((const __m128i *)bytes));
}

/* The same as crc32_by_tables(); `count` is LEAST_FOLDED or more. */
__attribute__((target("pclmul"))) static uint32_t crc32_by_folding(uint32_t crc, const uint8_t *bytes, ptrdiff_t count)
{
    enum { LANES = 4 };
    /* Powers of x modulo the polynomial, reflected: x^(512+32) and x^(512-32), x^(128+32) and x^(128-32). */
    const __m128i by_512 = _mm_set_epi64x(0x1C6E41596, 0x154442BD4), by_128 = _mm_set_epi64x(0x0CCAA009E, 0x1751997D0);
    __m128i lanes[LANES];
    for (int lane = 0; lane < LANES; lane++)
        lanes[lane] = _mm_loadu_si128((const __m128i *)(bytes + STEP * lane));
    lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128((int)crc));
    ptrdiff_t at = LANES * STEP;
    for (; count - at >= LANES * STEP; at += LANES * STEP)
        for (int lane = 0; lane < LANES; lane++)
            lanes[lane] = fold(lanes[lane], by_512, bytes + at + STEP * lane);
    uint8_t joined[STEP];
    for (int lane = 1; lane < LANES; lane++) {
        _mm_storeu_si128((__m128i *)joined, lanes[lane]);
        lanes[lane] = fold(lanes[lane - 1], by_128, joined);
    }
    for (; count - at >= STEP; at += STEP)
        lanes[LANES - 1] = fold(lanes[LANES - 1], by_128, bytes + at);
    /* One lane is left: sixteen bytes with the same remainder as all the bytes before `at`. */
    _mm_storeu_si128((__m128i *)joined, lanes[LANES - 1]);
    return crc32_by_tables(crc32_by_tables(0, joined, STEP), bytes + at, count - at);
}
#else
#define CAN_FOLD false

static uint32_t crc32_by_folding(uint32_t crc, const uint8_t *bytes, ptrdiff_t count)
{
    return crc32_by_tables(crc, bytes, count);
}
#endif

/* Below this size the tables are as fast. */
enum { LEAST_FOLDED = 64 };
static bool can_fold;

/* Must be called once, before the first crc32_of(). */
static void prepare_crc32(void)
{
    make_crc_tables();
    can_fold = CAN_FOLD;
}

static uint32_t crc32_of(const uint8_t *bytes, ptrdiff_t count)
{
    bool folds = can_fold && count >= LEAST_FOLDED;
    return ~(folds ? crc32_by_folding : crc32_by_tables)(0xFFFFFFFFu, bytes, count);
}

#endif
