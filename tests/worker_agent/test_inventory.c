// What a node has inside: a fake NVML, and files as the kernel writes them.

#include "dp_test.h"

#include <sys/stat.h>
#include <unistd.h>

#include "dp/buf.h"
#include "dp/inventory.h"

static char root[] = "/tmp/dp-inventory-XXXXXX";

static void put(const char *path, const char *text)
{
    char full[512], directory[512];
    snprintf(full, sizeof(full), "%s/%s", root, path);
    snprintf(directory, sizeof(directory), "%.*s", (int)(strrchr(full, '/') - full), full);
    struct dp_error err = {0};
    assert_ok(dp_make_directories(directory, &err), &err);
    assert_ok(dp_write_file(full, text, strlen(text), &err), &err);
}

static int make_files(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(root));
    put("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    put("sys/class/infiniband/mlx5_0/ports/1/phys_state", "5: LinkUp\n");
    put("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
    put("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n");
    put("sys/class/infiniband/mlx5_0/device/numa_node", "0\n");
    put("sys/class/infiniband/mlx5_10/ports/1/state", "1: DOWN\n");
    put("sys/class/infiniband/mlx5_10/ports/1/phys_state", "3: Disabled\n");
    put("sys/class/infiniband/mlx5_10/ports/1/rate", "25 Gb/sec (1X EDR)\n");
    put("sys/class/infiniband/mlx5_10/ports/1/link_layer", "Ethernet\n");
    put("sys/class/infiniband/mlx5_10/device/numa_node", "-1\n");
    put("sys/class/infiniband/mlx5_2/ports/1/rate", "much\xff\n");
    put("sys/class/infiniband/mlx5_2/ports/2/state", "4: ACTIVE\n");
    put("sys/devices/system/node/node0/cpulist", "0-55,112-167\n");
    put("sys/devices/system/node/node0/meminfo",
        "Node 0 MemTotal:       131821912 kB\nNode 0 MemFree:        1 kB\n");
    put("sys/devices/system/node/node1/cpulist", "56-111,168-223\n");
    put("sys/devices/system/node/possible", "0-1\n");
    put("sys/bus/pci/devices/0000:2b:00.0/numa_node", "1\n");
    return 0;
}

static int remove_files(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", root);
    return system(command);
}

static void read_with(const char *behaviour, struct dp_inventory *ret_inventory)
{
    setenv("DP_FAKE_NVML", behaviour, 1);
    dp_inventory_read(root, DP_FAKE_NVML_LIBRARY, ret_inventory);
}

static void accelerators_are_listed_as_the_driver_describes_them(void **state)
{
    (void)state;
    struct dp_inventory inventory;
    read_with("", &inventory);
    assert_int_equal(inventory.gpus_count, 3);
    assert_string_equal(inventory.driver_version, "570.86.15");
    assert_string_equal(inventory.error, "");
    const struct dp_inventory_gpu *gpu = &inventory.gpus[0];
    assert_string_equal(gpu->name, "NVIDIA H100 80GB HBM3");
    assert_string_equal(gpu->uuid, "GPU-00000000-0000-0000-0000-000000000000");
    assert_string_equal(gpu->bus_id, "00000000:1B:00.0");
    assert_true(gpu->memory_bytes == 85520809984ull);
    assert_string_equal(gpu->compute_capability, "9.0");
    assert_int_equal(gpu->links, 17);
    assert_string_equal(gpu->fabric, "abababababababababababababababab");
    assert_int_equal(gpu->clique, 7);
    assert_int_equal(gpu->numa_node, -1);
    assert_false(gpu->mig);
    assert_string_equal(gpu->error, "");
    dp_inventory_deinit(&inventory);
}

static void a_split_accelerator_counts_its_instances(void **state)
{
    (void)state;
    struct dp_inventory inventory;
    read_with("", &inventory);
    assert_true(inventory.gpus[1].mig);
    assert_int_equal(inventory.gpus[1].mig_instances, 2);
    assert_string_equal(inventory.gpus[1].fabric, ""); // it has not joined one yet
    assert_int_equal(inventory.gpus[1].numa_node, 1);  // of 0000:2b:00.0
    dp_inventory_deinit(&inventory);
}

static void a_call_that_fails_leaves_the_rest(void **state)
{
    (void)state;
    struct dp_inventory inventory;
    read_with("", &inventory);
    assert_string_equal(inventory.gpus[2].error, "memory: GPU is lost");
    assert_true(inventory.gpus[2].memory_bytes == 0);
    assert_string_equal(inventory.gpus[2].name, "NVIDIA H100 80GB HBM3");
    assert_int_equal(inventory.gpus[2].links, 0);
    dp_inventory_deinit(&inventory);
}

static void a_driver_that_does_not_start_is_said(void **state)
{
    (void)state;
    struct dp_inventory inventory;
    read_with("broken", &inventory);
    assert_int_equal(inventory.gpus_count, 0);
    assert_string_equal(inventory.error, "starting NVML: Driver Not Loaded");
    dp_inventory_deinit(&inventory);
    read_with("empty", &inventory);
    assert_int_equal(inventory.gpus_count, 0);
    assert_string_equal(inventory.error, "");
    dp_inventory_deinit(&inventory);
}

static void no_library_is_no_error_and_another_one_is_said(void **state)
{
    (void)state;
    struct dp_inventory inventory;
    dp_inventory_read(root, "libnvidia-ml-that-is-not-there.so.1", &inventory);
    assert_int_equal(inventory.gpus_count, 0);
    assert_string_equal(inventory.error, "");
    dp_inventory_deinit(&inventory);
    dp_inventory_read(root, "libm.so.6", &inventory);
    assert_string_equal(inventory.error, "libm.so.6 is too old or something else");
    dp_inventory_deinit(&inventory);
}

static void ports_come_from_the_kernel_in_the_order_of_people(void **state)
{
    (void)state;
    struct dp_inventory inventory;
    read_with("", &inventory);
    assert_int_equal(inventory.ports_count, 4);
    const struct dp_inventory_port *port = &inventory.ports[0];
    assert_string_equal(port->adapter, "mlx5_0");
    assert_int_equal(port->port, 1);
    assert_string_equal(port->state, "ACTIVE");
    assert_string_equal(port->physical_state, "LinkUp");
    assert_true(port->bytes_per_s == 50e9);
    assert_string_equal(port->link_layer, "InfiniBand");
    assert_int_equal(port->numa_node, 0);
    assert_string_equal(inventory.ports[1].adapter, "mlx5_2");
    assert_string_equal(inventory.ports[1].rate, "much?");
    assert_true(inventory.ports[1].bytes_per_s == 0);
    assert_int_equal(inventory.ports[2].port, 2);
    assert_string_equal(inventory.ports[3].adapter, "mlx5_10");
    assert_string_equal(inventory.ports[3].state, "DOWN");
    assert_int_equal(inventory.ports[3].numa_node, -1);
    dp_inventory_deinit(&inventory);
}

static void numa_nodes_have_their_cores_and_memory(void **state)
{
    (void)state;
    struct dp_inventory inventory;
    read_with("", &inventory);
    assert_int_equal(inventory.numa_count, 2);
    assert_string_equal(inventory.numa[0].cpus, "0-55,112-167");
    assert_true(inventory.numa[0].memory_bytes == 131821912ull * 1024);
    assert_int_equal(inventory.numa[1].id, 1);
    assert_true(inventory.numa[1].memory_bytes == 0);
    dp_inventory_deinit(&inventory);
}

static void a_machine_with_nothing_has_nothing(void **state)
{
    (void)state;
    struct dp_inventory inventory;
    dp_inventory_read("/nonexistent", "/nonexistent/nvml", &inventory);
    assert_int_equal(inventory.gpus_count + inventory.ports_count + inventory.numa_count, 0);
    dp_inventory_deinit(&inventory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accelerators_are_listed_as_the_driver_describes_them),
        cmocka_unit_test(a_split_accelerator_counts_its_instances),
        cmocka_unit_test(a_call_that_fails_leaves_the_rest),
        cmocka_unit_test(a_driver_that_does_not_start_is_said),
        cmocka_unit_test(no_library_is_no_error_and_another_one_is_said),
        cmocka_unit_test(ports_come_from_the_kernel_in_the_order_of_people),
        cmocka_unit_test(numa_nodes_have_their_cores_and_memory),
        cmocka_unit_test(a_machine_with_nothing_has_nothing),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
