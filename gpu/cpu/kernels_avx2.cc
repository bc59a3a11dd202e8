#define RP_KERNELS_TABLE kAvx2Kernels
#define RP_KERNELS_NAME "avx2"
#include "gpu/cpu/kernel_table.h"
