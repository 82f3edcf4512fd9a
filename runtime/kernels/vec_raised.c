/* What an operation has done wrong, from its operands and results; only programs with traps ask. */
#include "vec.h"

#include <string.h>

/* Class of a float: 0 zero, 1 other finite number, 2 infinity, 3 not a number. */
static int of_f16(const void *x, long i)
{
    unsigned m = ((const uint16_t *)x)[i] & 0x7fffu;
    return m > 0x7c00 ? 3 : m == 0x7c00 ? 2 : m != 0;
}
static int of_f32(const void *x, long i)
{
    uint32_t m;
    memcpy(&m, (const char *)x + 4 * i, 4);
    m &= 0x7fffffffu;
    return m > 0x7f800000u ? 3 : m == 0x7f800000u ? 2 : m != 0;
}

uint32_t vec_raised(int op, int dtype, long n, const void *out, const void *a, const void *b)
{
    int (*of)(const void *, long) = dtype == DT_F32 ? of_f32 : dtype == DT_F16 ? of_f16 : 0;
    const int arity = vec_op_arity(op);
    uint32_t raised = 0;
    if (!of || op == VEC_COPY || op == VEC_SELECT || op == VEC_IS_FINITE || op == VEC_ABS || op == VEC_NEGATE)
        return 0;
    if (op >= VEC_COMPARE_EQ && op <= VEC_COMPARE_GE) {
        for (long i = 0; i < n; i++)
            if (of(a, i) == 3 || of(b, i) == 3)
                return TRAP_INV;
        return 0;
    }
    for (long i = 0; i < n; i++) {
        int result = of(out, i);
        if (result == 3)
            raised |= TRAP_INV;
        else if (result == 2 && of(a, i) < 2 && (arity < 2 || of(b, i) < 2)) {
            /* An infinity of finite operands: from a pole, or too large. */
            int pole = op == VEC_DIVIDE ? of(b, i) == 0 : op == VEC_POWER ? of(a, i) == 0
                     : op == VEC_LOG || op == VEC_LOG_PLUS_ONE || op == VEC_RSQRT;
            raised |= pole ? TRAP_DIV0 : TRAP_OFLO;
        }
    }
    return raised;
}

int vec_nonfinite(int dtype, long n, const void *x)
{
    int (*of)(const void *, long) = dtype == DT_F32 ? of_f32 : dtype == DT_F16 ? of_f16 : 0;
    int found = 0;
    for (long i = 0; of && i < n; i++) {
        int class = of(x, i);
        found |= class == 3 ? 1 : class == 2 ? 2 : 0;
    }
    return found;
}
