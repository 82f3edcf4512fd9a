#include "vec.h"
const vec_table VEC_TABLE = { .name = VEC_TABLE_NAME };
