/* The one list of element-wise operations: X(constant, HLO opcode, number of operands).
 * runtime/opcodes.py mirrors it (tests/runtime/test_kernels.py checks that), and saved executables hold the numbers:
 * append, never reorder. */
#ifndef IPU_VEC_OPS_H
#define IPU_VEC_OPS_H

#define VEC_OPS(X)                                       \
    X(COPY, "copy", 1)                                   \
    X(ABS, "abs", 1)                                     \
    X(NEGATE, "negate", 1)                               \
    X(SIGN, "sign", 1)                                   \
    X(CEIL, "ceil", 1)                                   \
    X(FLOOR, "floor", 1)                                 \
    X(ROUND_NEAREST_AFZ, "round-nearest-afz", 1)         \
    X(ROUND_NEAREST_EVEN, "round-nearest-even", 1)       \
    X(EXPONENTIAL, "exponential", 1)                     \
    X(EXPONENTIAL_MINUS_ONE, "exponential-minus-one", 1) \
    X(LOG, "log", 1)                                     \
    X(LOG_PLUS_ONE, "log-plus-one", 1)                   \
    X(SQRT, "sqrt", 1)                                   \
    X(RSQRT, "rsqrt", 1)                                 \
    X(CBRT, "cbrt", 1)                                   \
    X(SINE, "sine", 1)                                   \
    X(COSINE, "cosine", 1)                               \
    X(TAN, "tan", 1)                                     \
    X(TANH, "tanh", 1)                                   \
    X(LOGISTIC, "logistic", 1)                           \
    X(ERF, "erf", 1)                                     \
    X(IS_FINITE, "is-finite", 1)                         \
    X(NOT, "not", 1)                                     \
    X(POPCNT, "popcnt", 1)                               \
    X(COUNT_LEADING_ZEROS, "count-leading-zeros", 1)     \
    X(ADD, "add", 2)                                     \
    X(SUBTRACT, "subtract", 2)                           \
    X(MULTIPLY, "multiply", 2)                           \
    X(DIVIDE, "divide", 2)                               \
    X(REMAINDER, "remainder", 2)                         \
    X(MAXIMUM, "maximum", 2)                             \
    X(MINIMUM, "minimum", 2)                             \
    X(POWER, "power", 2)                                 \
    X(ATAN2, "atan2", 2)                                 \
    X(AND, "and", 2)                                     \
    X(OR, "or", 2)                                       \
    X(XOR, "xor", 2)                                     \
    X(SHIFT_LEFT, "shift-left", 2)                       \
    X(SHIFT_RIGHT_ARITHMETIC, "shift-right-arithmetic", 2) \
    X(SHIFT_RIGHT_LOGICAL, "shift-right-logical", 2)     \
    X(COMPARE_EQ, "compare-eq", 2)                       \
    X(COMPARE_NE, "compare-ne", 2)                       \
    X(COMPARE_LT, "compare-lt", 2)                       \
    X(COMPARE_LE, "compare-le", 2)                       \
    X(COMPARE_GT, "compare-gt", 2)                       \
    X(COMPARE_GE, "compare-ge", 2)                       \
    X(SELECT, "select", 3)                               \
    X(CLAMP, "clamp", 3)

#endif
