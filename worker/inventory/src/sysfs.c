// What the kernel tells below /sys.

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/cleanup.h"
#include "dp/limits.h"
#include "parts.h"

// The text of a small file without its last newline; "" when it cannot be read.
static void read_text(const char *path, struct dp_buf *text)
{
    if (dp_read_file(path, DP_SYSFS_FILE_BYTES_MAX, text, NULL) != DP_OK) {
        dp_buf_clear(text);
    }
    while (text->length > 0 && isspace((unsigned char)text->bytes[text->length - 1])) {
        text->bytes[--text->length] = '\0';
    }
    dp_buf_append(text, "", 0); // never NULL
}

static void read_line(char *target, size_t size, const char *directory, const char *file)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, file);
    read_text(path, &text);
    dp_inventory_copy(target, size, text.length == 0 ? "" : text.bytes);
}

// -1 where there is no number.
static int32_t read_number(const char *directory, const char *file)
{
    char text[32], *end;
    read_line(text, sizeof(text), directory, file);
    long value = strtol(text, &end, 10);
    return end != text && *end == '\0' && value >= 0 && value < 65536 ? (int32_t)value : -1;
}

// Names of a directory's entries, sorted as people count; owned.
struct names {
    char **items;
    size_t count;
};

static void names_deinit(struct names *names)
{
    for (size_t i = 0; i < names->count; i++) {
        free(names->items[i]);
    }
    free(names->items);
}

static int compare_names(const void *a, const void *b)
{
    return strverscmp(*(char *const *)a, *(char *const *)b);
}

static void list_directory(const char *path, const char *prefix, struct names *names)
{
    DIR *directory = opendir(path);
    for (struct dirent *entry = directory == NULL ? NULL : readdir(directory);
         entry != NULL && names->count < DP_SYSFS_ENTRIES_MAX; entry = readdir(directory)) {
        if (entry->d_name[0] != '.' && strncmp(entry->d_name, prefix, strlen(prefix)) == 0) {
            names->items = dp_realloc(names->items, names->count + 1, sizeof(char *));
            names->items[names->count++] = dp_strdup(entry->d_name);
        }
    }
    if (directory != NULL) {
        closedir(directory);
    }
    if (names->count > 0) {
        qsort(names->items, names->count, sizeof(char *), compare_names);
    }
}

// "4: ACTIVE" without the number.
static void strip_number(char *text)
{
    char *colon = strstr(text, ": ");
    if (colon != NULL) {
        memmove(text, colon + 2, strlen(colon + 2) + 1);
    }
}

// "400 Gb/sec (4X NDR)" in bytes per second.
static double parse_rate(const char *text)
{
    char *end;
    double value = strtod(text, &end);
    bool good = end != text && value > 0 && value < 1e6 && strncmp(end, " Gb/sec", 7) == 0;
    return good ? value * 1e9 / 8 : 0;
}

static void read_port(const char *adapter, const char *directory, const char *name,
                      struct dp_inventory *inventory)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/ports/%s", directory, name);
    DP_AUTO_FREE char *device = dp_asprintf("%s/device", directory);
    struct dp_inventory_port port = {.port = (uint32_t)strtoul(name, NULL, 10)};
    dp_inventory_copy(port.adapter, sizeof(port.adapter), adapter);
    read_line(port.state, sizeof(port.state), path, "state");
    read_line(port.physical_state, sizeof(port.physical_state), path, "phys_state");
    read_line(port.rate, sizeof(port.rate), path, "rate");
    read_line(port.link_layer, sizeof(port.link_layer), path, "link_layer");
    strip_number(port.state);
    strip_number(port.physical_state);
    port.bytes_per_s = parse_rate(port.rate);
    port.numa_node = read_number(device, "numa_node");
    inventory->ports =
        dp_realloc(inventory->ports, inventory->ports_count + 1, sizeof(*inventory->ports));
    inventory->ports[inventory->ports_count++] = port;
}

void dp_inventory_read_ports(const char *root, struct dp_inventory *inventory)
{
    DP_AUTO_FREE char *class = dp_asprintf("%s/sys/class/infiniband", root);
    DP_CLEANUP(names_deinit) struct names adapters = {0};
    list_directory(class, "", &adapters);
    for (size_t i = 0; i < adapters.count; i++) {
        DP_AUTO_FREE char *directory = dp_asprintf("%s/%s", class, adapters.items[i]);
        DP_AUTO_FREE char *ports_path = dp_asprintf("%s/ports", directory);
        DP_CLEANUP(names_deinit) struct names ports = {0};
        list_directory(ports_path, "", &ports);
        for (size_t p = 0; p < ports.count && inventory->ports_count < DP_NODE_PORTS_MAX; p++) {
            read_port(adapters.items[i], directory, ports.items[p], inventory);
        }
    }
}

// "Node 0 MemTotal:  131821912 kB"
static uint64_t parse_memory(const char *text)
{
    const char *at = text == NULL ? NULL : strstr(text, "MemTotal:");
    uint64_t kib = at == NULL ? 0 : strtoull(at + strlen("MemTotal:"), NULL, 10);
    return kib < UINT64_MAX / 1024 ? kib * 1024 : 0;
}

void dp_inventory_read_numa(const char *root, struct dp_inventory *inventory)
{
    DP_AUTO_FREE char *all = dp_asprintf("%s/sys/devices/system/node", root);
    DP_CLEANUP(names_deinit) struct names nodes = {0};
    list_directory(all, "node", &nodes);
    for (size_t i = 0; i < nodes.count && inventory->numa_count < DP_NODE_NUMA_MAX; i++) {
        if (!isdigit((unsigned char)nodes.items[i][4])) {
            continue;
        }
        DP_AUTO_FREE char *directory = dp_asprintf("%s/%s", all, nodes.items[i]);
        DP_AUTO_FREE char *memory = dp_asprintf("%s/meminfo", directory);
        DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
        read_text(memory, &text);
        struct dp_inventory_numa node = {.memory_bytes = parse_memory(text.bytes)};
        node.id = (uint32_t)strtoul(nodes.items[i] + 4, NULL, 10);
        read_line(node.cpus, sizeof(node.cpus), directory, "cpulist");
        inventory->numa =
            dp_realloc(inventory->numa, inventory->numa_count + 1, sizeof(*inventory->numa));
        inventory->numa[inventory->numa_count++] = node;
    }
}

int32_t dp_inventory_numa_of_device(const char *root, const char *bus_id)
{
    // NVML writes the domain with eight digits, in capitals; the kernel with four, in small ones.
    size_t length = strlen(bus_id);
    if (length < strlen("0000:00:00.0") || strchr(bus_id, '/') != NULL) {
        return -1;
    }
    const char *tail = bus_id + length - strlen("0000:00:00.0");
    DP_AUTO_FREE char *path = dp_asprintf("%s/sys/bus/pci/devices/%s", root, tail);
    for (char *at = path + strlen(path) - strlen(tail); *at != '\0'; at++) {
        *at = (char)tolower((unsigned char)*at);
    }
    return read_number(path, "numa_node");
}
