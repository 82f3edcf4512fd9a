/* Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"); part of vec_impl.h.
 *
 * HLO's rng-bit-generator with RNG_PHILOX has the state u64[3]: state[0] is the key (low word first), state[1] the low
 * and state[2] the high half of the 128-bit counter. Block i is the cipher of counter + i and gives four words, which
 * are the result's u32 elements in order; a u64 element is two words, the low one first. An output that needs
 * B = ceil(words / 4) blocks leaves the key and counter + B as the new state. Checked against XLA by the tests. */

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
