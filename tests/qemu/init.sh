#!/bin/busybox sh
# The first process of the virtual machine: an RDMA device in software, then the tests.
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs tmp /dev/shm
for module in $(cat /modules/order); do
  insmod "/modules/$module.ko" || echo "FAIL module $module"
done
ip link set lo up
ip link add dummy0 type dummy 2>/dev/null
ip link set dummy0 mtu 4200
ip addr add 10.0.0.1/24 dev dummy0
ip link set dummy0 up
rdma link add rxe0 type rxe netdev dummy0
# A queue pair can be made once the port is up and has its addresses.
tries=0
until grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state || [ $tries -gt 50 ]; do
  tries=$((tries + 1))
  usleep 100000
done
while read -r program; do
  $program || echo "FAIL $program"
done </programs
echo "END after $(cut -d' ' -f1 /proc/uptime) s"
poweroff -f
