#define RP_KERNELS_TABLE kPortableKernels
#define RP_KERNELS_NAME "portable"
#include "gpu/cpu/kernel_table.h"
