#include <ctype.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "parts.h"

void dp_inventory_read(const char *root, const char *library, struct dp_inventory *ret_inventory)
{
    struct dp_inventory inventory = {.gpus_count = 0};
    dp_inventory_ask_nvml(library == NULL ? DP_INVENTORY_NVML : library, &inventory);
    for (size_t i = 0; i < inventory.gpus_count; i++) {
        inventory.gpus[i].numa_node = dp_inventory_numa_of_device(root, inventory.gpus[i].bus_id);
    }
    dp_inventory_read_ports(root, &inventory);
    dp_inventory_read_numa(root, &inventory);
    *ret_inventory = inventory;
}

void dp_inventory_copy(char *target, size_t size, const char *text)
{
    dp_copy_text(target, size, text);
    for (char *at = target; *at != '\0'; at++) {
        *at = isprint((unsigned char)*at) ? *at : '?';
    }
}

void dp_inventory_deinit(struct dp_inventory *inventory)
{
    free(inventory->gpus);
    free(inventory->ports);
    free(inventory->numa);
    *inventory = (struct dp_inventory){0};
}
