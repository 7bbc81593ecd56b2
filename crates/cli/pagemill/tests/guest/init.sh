#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/
dmesg -n 1; echo GUEST-UP
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp; mount -t tmpfs run /run
mount -t debugfs debug /sys/kernel/debug
mkdir -p /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup
sh /guest.sh 2>&1
poweroff -f
