#define RP_KERNELS_TABLE kAvx512Kernels
#define RP_KERNELS_NAME "avx512"
#include "gpu/cpu/kernel_table.h"
