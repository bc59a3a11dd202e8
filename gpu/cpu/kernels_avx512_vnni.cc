#define RP_KERNELS_TABLE kAvx512VnniKernels
#define RP_KERNELS_NAME "avx512vnni"
#include "gpu/cpu/kernel_table.h"
