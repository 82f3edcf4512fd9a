/* Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"); part of vec_impl.h.
 *
 * HLO's rng-bit-generator with RNG_PHILOX has the state u64[3]: state[0] is the key (low word first), state[1] the low
 * and state[2] the high half of the 128-bit counter. Block i is the cipher of counter + i and gives four words, which
 * are the result's u32 elements in order; a u64 element is two words, the low one first. An output that needs
 * B = ceil(words / 4) blocks leaves the key and counter + B as the new state. Checked against XLA by the tests. */

#if VEC_LEVEL > 0
/* 4 * `vectors` blocks. A lane of 64 bits holds a word in its low half and anything in its high one: the multiplication
 * looks at low halves only, and the words of the result are put together from them. */
static ALWAYS_INLINE void philox_blocks(const int vectors, uint64_t key, uint64_t ctr_lo, uint64_t ctr_hi,
                                        uint32_t *out)
{
    const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
    __m256i c0[4], c1[4], c2[4], c3[4];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int v = 0; v < vectors; v++) {
        uint64_t lo[4], hi[4];
        for (int i = 0; i < 4; i++) {
            lo[i] = ctr_lo + (uint64_t)(4 * v + i);
            hi[i] = ctr_hi + (lo[i] < ctr_lo);
        }
        c0[v] = _mm256_loadu_si256((const __m256i *)lo);
        c2[v] = _mm256_loadu_si256((const __m256i *)hi);
        c1[v] = _mm256_srli_epi64(c0[v], 32);
        c3[v] = _mm256_srli_epi64(c2[v], 32);
    }
    for (int round = 0; round < 10; round++) {
        const __m256i r0 = _mm256_set1_epi64x(k0), r1 = _mm256_set1_epi64x(k1);
        for (int v = 0; v < vectors; v++) {
            const __m256i p0 = _mm256_mul_epu32(c0[v], m0), p1 = _mm256_mul_epu32(c2[v], m1);
            c0[v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1[v]), r0);
            c1[v] = p1;
            c2[v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3[v]), r1);
            c3[v] = p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int v = 0; v < vectors; v++, out += 16) {
        const __m256i low = _mm256_blend_epi32(c0[v], _mm256_slli_epi64(c1[v], 32), 0xaa);
        const __m256i high = _mm256_blend_epi32(c2[v], _mm256_slli_epi64(c3[v], 32), 0xaa);
        const __m256i even = _mm256_unpacklo_epi64(low, high), odd = _mm256_unpackhi_epi64(low, high);
        _mm256_storeu_si256((__m256i *)out, _mm256_permute2x128_si256(even, odd, 0x20));
        _mm256_storeu_si256((__m256i *)out + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
}

static void philox(long n_blocks, uint64_t key, uint64_t ctr_lo, uint64_t ctr_hi, uint32_t *out)
{
    uint32_t last[16];
    long left = n_blocks;
    for (; left >= 16; left -= 16, out += 64) {
        philox_blocks(4, key, ctr_lo, ctr_hi, out);
        ctr_hi += ctr_lo + 16 < ctr_lo, ctr_lo += 16;
    }
    for (; left >= 4; left -= 4, out += 16) {
        philox_blocks(1, key, ctr_lo, ctr_hi, out);
        ctr_hi += ctr_lo + 4 < ctr_lo, ctr_lo += 4;
    }
    if (left) {
        philox_blocks(1, key, ctr_lo, ctr_hi, last);
        memcpy(out, last, (size_t)left * 16);
    }
}
#else
#define PHILOX_LANES 16

static void philox(long n_blocks, uint64_t key, uint64_t ctr_lo, uint64_t ctr_hi, uint32_t *out)
{
    for (long done = 0; done < n_blocks; done += PHILOX_LANES) {
        uint32_t c0[PHILOX_LANES], c1[PHILOX_LANES], c2[PHILOX_LANES], c3[PHILOX_LANES];
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
        for (int i = 0; i < PHILOX_LANES; i++) {
            uint64_t lo = ctr_lo + (uint64_t)done + (uint64_t)i;
            uint64_t hi = ctr_hi + (lo < ctr_lo);
            c0[i] = (uint32_t)lo;
            c1[i] = (uint32_t)(lo >> 32);
            c2[i] = (uint32_t)hi;
            c3[i] = (uint32_t)(hi >> 32);
        }
        for (int round = 0; round < 10; round++) {
            for (int i = 0; i < PHILOX_LANES; i++) {
                uint64_t p0 = (uint64_t)c0[i] * 0xD2511F53u, p1 = (uint64_t)c2[i] * 0xCD9E8D57u;
                c0[i] = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0;
                c1[i] = (uint32_t)p1;
                c2[i] = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
                c3[i] = (uint32_t)p0;
            }
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        int m = n_blocks - done < PHILOX_LANES ? (int)(n_blocks - done) : PHILOX_LANES;
        for (int i = 0; i < m; i++, out += 4) {
            out[0] = c0[i];
            out[1] = c1[i];
            out[2] = c2[i];
            out[3] = c3[i];
        }
    }
}
#undef PHILOX_LANES
#endif
