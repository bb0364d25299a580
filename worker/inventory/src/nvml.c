// NVIDIA's management library, loaded at run time. Names, numbers and layouts are those of its
// published interface (nvml.h); nothing of it is needed to build.

#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "parts.h"

enum { NVML_OK = 0, NVML_NOT_SUPPORTED = 3, NVML_LINKS_MAX = 18, NVML_TEXT_MAX = 96 };
enum { NVML_FABRIC_COMPLETED = 3 };

typedef struct nvml_device *nvml_device;

struct nvml_memory {
    unsigned long long total, free, used;
};
struct nvml_pci {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};
struct nvml_fabric {
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
};

// The functions that are used; one that is missing is NULL.
struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*error_text)(int code);
    int (*driver_version)(char *text, unsigned size);
    int (*count)(unsigned *count);
    int (*by_index)(unsigned index, nvml_device *device);
    int (*name)(nvml_device device, char *text, unsigned size);
    int (*uuid)(nvml_device device, char *text, unsigned size);
    int (*memory)(nvml_device device, struct nvml_memory *memory);
    int (*pci)(nvml_device device, struct nvml_pci *pci);
    int (*capability)(nvml_device device, int *major, int *minor);
    int (*mig_mode)(nvml_device device, unsigned *current, unsigned *pending);
    int (*mig_count)(nvml_device device, unsigned *count);
    int (*mig_by_index)(nvml_device device, unsigned index, nvml_device *instance);
    int (*link_state)(nvml_device device, unsigned link, unsigned *active);
    int (*fabric)(nvml_device device, struct nvml_fabric *fabric);
};

static void find(void *library, const char *name, void *function, size_t size)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, size); // POSIX: an object pointer holds it
}

#define FIND(member, name) find(nvml->library, name, &nvml->member, sizeof(nvml->member))

static bool load(const char *library, struct nvml *nvml)
{
    nvml->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (nvml->library == NULL) {
        return false;
    }
    FIND(init, "nvmlInit_v2");
    FIND(shutdown, "nvmlShutdown");
    FIND(error_text, "nvmlErrorString");
    FIND(driver_version, "nvmlSystemGetDriverVersion");
    FIND(count, "nvmlDeviceGetCount_v2");
    FIND(by_index, "nvmlDeviceGetHandleByIndex_v2");
    FIND(name, "nvmlDeviceGetName");
    FIND(uuid, "nvmlDeviceGetUUID");
    FIND(memory, "nvmlDeviceGetMemoryInfo");
    FIND(pci, "nvmlDeviceGetPciInfo_v3");
    FIND(capability, "nvmlDeviceGetCudaComputeCapability");
    FIND(mig_mode, "nvmlDeviceGetMigMode");
    FIND(mig_count, "nvmlDeviceGetMaxMigDeviceCount");
    FIND(mig_by_index, "nvmlDeviceGetMigDeviceHandleByIndex");
    FIND(link_state, "nvmlDeviceGetNvLinkState");
    FIND(fabric, "nvmlDeviceGetGpuFabricInfo");
    return true;
}

static const char *text_of(const struct nvml *nvml, int code)
{
    const char *text = nvml->error_text == NULL ? NULL : nvml->error_text(code);
    return text == NULL ? "unknown error" : text;
}

// What failed, after what failed before.
static void note(const struct nvml *nvml, const char *what, int code, char *error)
{
    size_t length = strlen(error);
    snprintf(error + length, DP_INVENTORY_TEXT_MAX - length, "%s%s: %s", length > 0 ? "; " : "",
             what, text_of(nvml, code));
}

// A text that a function gives; failures are noted.
static void ask_text(const struct nvml *nvml, nvml_device device,
                     int (*ask)(nvml_device, char *, unsigned), const char *what, char *target,
                     size_t size, char *error)
{
    char text[NVML_TEXT_MAX] = "";
    int code = ask == NULL ? NVML_NOT_SUPPORTED : ask(device, text, sizeof(text));
    text[sizeof(text) - 1] = '\0';
    if (code == NVML_OK) {
        dp_inventory_copy(target, size, text);
    } else {
        note(nvml, what, code, error);
    }
}

static void ask_place(const struct nvml *nvml, nvml_device device, struct dp_inventory_gpu *gpu)
{
    struct nvml_memory memory = {0};
    struct nvml_pci pci = {0};
    int major = 0, minor = 0;
    int code = nvml->memory == NULL ? NVML_NOT_SUPPORTED : nvml->memory(device, &memory);
    if (code == NVML_OK) {
        gpu->memory_bytes = memory.total;
    } else {
        note(nvml, "memory", code, gpu->error);
    }
    code = nvml->pci == NULL ? NVML_NOT_SUPPORTED : nvml->pci(device, &pci);
    if (code == NVML_OK) {
        pci.bus_id[sizeof(pci.bus_id) - 1] = '\0';
        dp_inventory_copy(gpu->bus_id, sizeof(gpu->bus_id), pci.bus_id);
    } else {
        note(nvml, "bus id", code, gpu->error);
    }
    if (nvml->capability != NULL && nvml->capability(device, &major, &minor) == NVML_OK) {
        snprintf(gpu->compute_capability, sizeof(gpu->compute_capability), "%d.%d", major, minor);
    }
}

// Devices without MIG, links or a fabric answer "not supported": that is no failure.
static void ask_parts(const struct nvml *nvml, nvml_device device, struct dp_inventory_gpu *gpu)
{
    unsigned current = 0, pending = 0, instances = 0;
    if (nvml->mig_mode != NULL && nvml->mig_mode(device, &current, &pending) == NVML_OK) {
        gpu->mig = current == 1;
    }
    if (gpu->mig && nvml->mig_count != NULL && nvml->mig_by_index != NULL &&
        nvml->mig_count(device, &instances) == NVML_OK) {
        for (unsigned i = 0; i < instances && i < DP_NODE_SLOTS_MAX; i++) {
            nvml_device instance = NULL;
            gpu->mig_instances += nvml->mig_by_index(device, i, &instance) == NVML_OK;
        }
    }
    for (unsigned link = 0; nvml->link_state != NULL && link < NVML_LINKS_MAX; link++) {
        unsigned active = 0;
        gpu->links += nvml->link_state(device, link, &active) == NVML_OK && active == 1;
    }
    struct nvml_fabric fabric = {0};
    if (nvml->fabric != NULL && nvml->fabric(device, &fabric) == NVML_OK &&
        fabric.state == NVML_FABRIC_COMPLETED && fabric.status == NVML_OK) {
        bool known = false;
        for (size_t i = 0; i < sizeof(fabric.cluster); i++) {
            known = known || fabric.cluster[i] != 0; // all zero: a host of its own
            snprintf(gpu->fabric + 2 * i, sizeof(gpu->fabric) - 2 * i, "%02x", fabric.cluster[i]);
        }
        gpu->fabric[0] = known ? gpu->fabric[0] : '\0';
        gpu->clique = fabric.clique;
    }
}

static void ask_gpu(const struct nvml *nvml, unsigned index, struct dp_inventory_gpu *gpu)
{
    nvml_device device = NULL;
    *gpu = (struct dp_inventory_gpu){.index = index, .numa_node = -1};
    int code = nvml->by_index(index, &device);
    if (code != NVML_OK) {
        note(nvml, "device", code, gpu->error);
        return;
    }
    ask_text(nvml, device, nvml->name, "name", gpu->name, sizeof(gpu->name), gpu->error);
    ask_text(nvml, device, nvml->uuid, "uuid", gpu->uuid, sizeof(gpu->uuid), gpu->error);
    ask_place(nvml, device, gpu);
    ask_parts(nvml, device, gpu);
}

static void ask_all(const struct nvml *nvml, struct dp_inventory *inventory)
{
    char version[NVML_TEXT_MAX] = "";
    if (nvml->driver_version != NULL && nvml->driver_version(version, sizeof(version)) == NVML_OK) {
        version[sizeof(version) - 1] = '\0';
        dp_inventory_copy(inventory->driver_version, sizeof(inventory->driver_version), version);
    }
    unsigned count = 0;
    int code = nvml->count(&count);
    if (code != NVML_OK) {
        note(nvml, "counting devices", code, inventory->error);
        return;
    }
    count = count < DP_NODE_SLOTS_MAX ? count : DP_NODE_SLOTS_MAX;
    inventory->gpus = dp_new_array(struct dp_inventory_gpu, count);
    for (unsigned i = 0; i < count; i++) {
        ask_gpu(nvml, i, &inventory->gpus[inventory->gpus_count++]);
    }
}

void dp_inventory_ask_nvml(const char *library, struct dp_inventory *inventory)
{
    struct nvml nvml = {.library = NULL};
    if (!load(library, &nvml)) {
        return;
    }
    if (nvml.init == NULL || nvml.count == NULL || nvml.by_index == NULL) {
        snprintf(inventory->error, sizeof(inventory->error), "%s is too old or something else",
                 library);
    } else {
        int code = nvml.init();
        if (code != NVML_OK) {
            note(&nvml, "starting NVML", code, inventory->error);
        } else {
            ask_all(&nvml, inventory);
            if (nvml.shutdown != NULL) {
                nvml.shutdown();
            }
        }
    }
    dlclose(nvml.library);
}
