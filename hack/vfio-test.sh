#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the tests of pkg/gpu/passthrough that need a kernel with an IOMMU, on a virtual machine: see hack/guest.sh. Its
# network cards of Intel stand for GPUs. pkg/gpu/passthrough/guest_test.go says where they are.
# usage: vfio-test.sh [if-possible]     "if-possible" skips them where QEMU, busybox or Debian's kernel cannot be had
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" = if-possible ]; then
	for needs in "command -v qemu-system-x86_64" "command -v busybox" "apt-cache show linux-image-amd64"; do
		if ! $needs >/dev/null 2>&1; then
			echo "SKIPPED: the tests with the kernel's own vfio-pci, because this fails: $needs" >&2
			exit 0
		fi
	done
fi
CGO_ENABLED=0 ${GO:-go} test -c -tags guest -o _output/bin/passthrough.test ./pkg/gpu/passthrough

devices=(
	-machine q35 -device intel-iommu,intremap=on
	-global ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off # so that bridges have the kernel's own drivers
	-device pcie-root-port,id=p1,slot=1
	-device e1000e,bus=p1,addr=0.0,multifunction=on,romfile=
	-device virtio-rng-pci,bus=p1,addr=0.1
	-device edu,bus=p1,addr=0.2
	-device ioh3420,id=p2,slot=2 # does not isolate (ACS): it is in the group of its card
	-device e1000e,bus=p2,romfile=
	-device pcie-root-port,id=p3,slot=3 -device pcie-pci-bridge,id=b3,bus=p3
	-device e1000,bus=b3,addr=1,romfile= -device rtl8139,bus=b3,addr=2,romfile=
	-device pcie-root-port,id=p4,slot=4 -device pcie-pci-bridge,id=b4,bus=p4
	-device e1000,bus=b4,addr=1,romfile= -device e1000,bus=b4,addr=2,romfile=
)
GUEST_MEMORY=1024 GUEST_KERNEL=intel_iommu=on GUEST_QEMU="${devices[*]}" \
	exec hack/guest.sh _output/bin/passthrough.test -test.v -test.run '^TestGuest'
