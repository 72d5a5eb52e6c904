#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs a command on a virtual machine with Debian's kernel. It has cgroup v2 only, as most computers have today:
#
#   go build -C test/cluster -o ../../_output/bin/cluster .
#   hack/guest.sh _output/bin/cluster up --nodes 1 --profile node-1=mixed
#
# GUEST_QEMU has more arguments for QEMU, and GUEST_KERNEL more for the kernel: make test-vfio runs it with an IOMMU.
# GUEST_BOOT is the path of a directory with another kernel, not below /tmp: boot/vmlinuz-VERSION and
# lib/modules/VERSION, with modules.dep.
#
# The machine sees the files of this one; what it writes is gone when it stops. It has no network, so everything must
# have been built and downloaded before. It is emulated, so programs take about ten times as long: a cluster of one node
# starts in 70 s on two processors, and one of three nodes is too slow for the demos. GUEST_ACCEL=kvm is fast where KVM
# works. GUEST_CPUS and GUEST_MEMORY (MiB) change its size.
#
# Needs root, and Debian's qemu-system-x86 and busybox-static. Debian's kernel is downloaded once.
set -euo pipefail
if [ $# -eq 0 ]; then
	echo "usage: hack/guest.sh COMMAND [ARGUMENT...]" >&2
	exit 2
fi
cd "$(dirname "$0")/.."
for program in qemu-system-x86_64 busybox; do
	if ! command -v "$program" >/dev/null; then
		echo "$program is missing: apt-get install qemu-system-x86 busybox-static" >&2
		exit 1
	fi
done

caches=${XDG_CACHE_HOME:-$HOME/.cache}
cache=${GUEST_BOOT:-$caches/gpu-dra-driver/guest}
new=$cache.$$
work=$(mktemp -d)
trap 'rm -rf "$work" "$new"' EXIT
if [ ! -d "$cache" ]; then
	package=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: //p' | head -n 1)
	(cd "$work" && apt-get download -qq "$package")
	mkdir -p "$new"
	dpkg-deb -x "$work/$package"_*.deb "$new"
	busybox depmod -b "$new" "$(basename "$new"/lib/modules/*)"
	mv "$new" "$cache" # complete, or not there
fi
version=$(basename "$cache"/lib/modules/*)

root=$work/initramfs
mkdir -p "$root"/{bin,dev,lower,modules,proc,root,rw,sys} "$work/out"
cp "$(command -v busybox)" "$root/bin/busybox"
for module in virtio_pci 9pnet_virtio 9p overlay; do
	for file in $(grep "/$module\.ko:" "$cache/lib/modules/$version/modules.dep" | tr -d :); do
		cp "$cache/lib/modules/$version/$file" "$root/modules"
	done
done

cat >"$root/init" <<'EOF'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
for round in 1 2 3 4; do # a module cannot be loaded before those that it needs
	for module in /modules/*; do insmod "$module" 2>/dev/null; done
done
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=1048576,cache=loose host /lower
mount -t tmpfs -o size=80% tmpfs /rw
mkdir /rw/upper /rw/work
mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work overlay /root
for dir in proc sys dev; do mount -o move /$dir /root/$dir; done
cp /start /root/start
exec switch_root /root /bin/bash /start
EOF
chmod +x "$root/init"

cat >"$root/start" <<EOF
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for dir in /dev/pts /dev/shm /run /tmp /lib/modules/$version; do mkdir -p \$dir; done
mount -t devpts devpts /dev/pts
for dir in /dev/shm /run /tmp /var/lib; do mount -t tmpfs tmpfs \$dir; done
mkdir -p /run/lock /run/out
mount -t 9p -o trans=virtio,version=9p2000.L out /run/out
mount --bind "$cache/lib/modules/$version" "/lib/modules/$version"
[ -e /sbin/modprobe ] || ln -s "$(command -v busybox)" /sbin/modprobe # for the kernel
ip link set lo up
ulimit -n 1048576
export HOME=$HOME PATH=$PATH XDG_CACHE_HOME=$caches
cd $PWD
$(printf '%q ' "$@")
echo \$? >/run/out/status
echo o >/proc/sysrq-trigger
while :; do :; done
EOF
(cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null) | gzip -1 >"$work/initramfs.gz"

read -ra more <<<"${GUEST_QEMU:-}"
qemu-system-x86_64 -accel "${GUEST_ACCEL:-tcg,thread=multi}" -cpu max -smp "${GUEST_CPUS:-2}" \
	-m "${GUEST_MEMORY:-8192}" -nic none -nographic -no-reboot \
	-kernel "$cache/boot/vmlinuz-$version" -initrd "$work/initramfs.gz" \
	-append "console=ttyS0 quiet panic=-1 no_timer_check ${GUEST_KERNEL:-}" "${more[@]}" \
	-virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
	-virtfs "local,path=$work/out,mount_tag=out,security_model=none" </dev/null
exit "$(cat "$work/out/status" 2>/dev/null || echo 1)"
