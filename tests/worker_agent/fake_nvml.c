// A library with NVML's names: three accelerators, of which one is split and one fails in parts.
// DP_FAKE_NVML: "broken" = it cannot be started, "empty" = there is no device, "other" = devices
// that no preset knows.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NOT_SUPPORTED = 3, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };

struct device {
    int index;
};
static struct device devices[3] = {{0}, {1}, {2}};
static struct device instances[2] = {{10}, {11}};

struct memory {
    unsigned long long total, free, used;
};
struct pci {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};
struct fabric {
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
};

static int is(const char *word)
{
    const char *wanted = getenv("DP_FAKE_NVML");
    return wanted != NULL && strcmp(wanted, word) == 0;
}

int nvmlInit_v2(void);
int nvmlInit_v2(void)
{
    return is("broken") ? DRIVER_NOT_LOADED : OK;
}

int nvmlShutdown(void);
int nvmlShutdown(void)
{
    return OK;
}

const char *nvmlErrorString(int code);
const char *nvmlErrorString(int code)
{
    return code == DRIVER_NOT_LOADED ? "Driver Not Loaded"
           : code == GPU_IS_LOST     ? "GPU is lost"
                                     : "Not Supported";
}

int nvmlSystemGetDriverVersion(char *text, unsigned size);
int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    snprintf(text, size, "570.86.15");
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = is("empty") ? 0 : 3;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device)
{
    *device = &devices[index];
    return OK;
}

int nvmlDeviceGetName(struct device *device, char *text, unsigned size);
int nvmlDeviceGetName(struct device *device, char *text, unsigned size)
{
    (void)device;
    snprintf(text, size, is("other") ? "NVIDIA L4" : "NVIDIA H100 80GB HBM3");
    return OK;
}

int nvmlDeviceGetUUID(struct device *device, char *text, unsigned size);
int nvmlDeviceGetUUID(struct device *device, char *text, unsigned size)
{
    snprintf(text, size, "GPU-00000000-0000-0000-0000-00000000000%d", device->index);
    return OK;
}

int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *memory);
int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *memory)
{
    if (device->index == 2) {
        return GPU_IS_LOST;
    }
    *memory = (struct memory){85520809984ull, 85520809984ull, 0};
    return OK;
}

int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci *pci);
int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci *pci)
{
    snprintf(pci->bus_id, sizeof(pci->bus_id), "00000000:%d%c:00.0", device->index + 1, 'B');
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor);
int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor)
{
    (void)device;
    *major = 9;
    *minor = 0;
    return OK;
}

int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending);
int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending)
{
    *current = *pending = device->index == 1;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count);
int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count)
{
    (void)device;
    *count = 7;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index,
                                        struct device **instance);
int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index,
                                        struct device **instance)
{
    (void)device;
    if (index >= 2) {
        return NOT_SUPPORTED;
    }
    *instance = &instances[index];
    return OK;
}

int nvmlDeviceGetNvLinkState(struct device *device, unsigned link, unsigned *active);
int nvmlDeviceGetNvLinkState(struct device *device, unsigned link, unsigned *active)
{
    *active = link != 17;
    return device->index == 2 ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetGpuFabricInfo(struct device *device, struct fabric *fabric);
int nvmlDeviceGetGpuFabricInfo(struct device *device, struct fabric *fabric)
{
    *fabric = (struct fabric){.clique = 7, .state = device->index == 0 ? 3 : 1};
    memset(fabric->cluster, 0xab, sizeof(fabric->cluster));
    return OK;
}
