//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// deviceNodes gives a node a /dev of its own, which has the simulated device nodes at the paths that real ones have:
// for containers in a user namespace, runc mounts the node's. Those of partitions are of the GPU with minor number 0.
// It also mounts a second /proc: the kernel lets a user namespace have one only where another is seen whole, and
// test/cluster has mounted the node's boot ID over a file of the first.
const deviceNodes = `set -e
mkdir -p /run/dev/nvidia-caps
for name in null zero full random urandom tty ptmx; do cp -a /dev/$name /run/dev; done
cp -a ` + simDir + `/root/dev/nvidia* /run/dev
major=$((0x$(stat -c %t /run/dev/nvidiactl)))
sed -n 's/^gpu0.* //p' ` + simDir + `/proc/driver/nvidia-caps/mig-minors | while read minor; do
	mknod -m 444 /run/dev/nvidia-caps/nvidia-cap$minor c $major $minor
done
mount --bind /run/dev /dev
mkdir -p /run/proc
mount -t proc proc /run/proc`

// testUserNamespaces runs pods with hostUsers: false. Their root is a user without rights on the node, and the kubelet
// closes its directories to such users.
func (n node) testUserNamespaces(t *testing.T) {
	n.sh(t, deviceNodes)
	defer n.sh(t, "umount -l /dev && umount /run/proc && rm -r /run/dev /run/proc")
	ns := n.namespace(t, "users")
	inUserNamespace := func(p *corev1.Pod) { p.Spec.HostUsers = new(false) }
	readOnly := func(p *corev1.Pod) {
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{ReadOnlyRootFilesystem: new(true)}
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "empty",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts,
			corev1.VolumeMount{Name: "empty", MountPath: "/etc/ld.so.conf.d", ReadOnly: true})
	}
	first, _, _ := strings.Cut(n.gpus(t), "\n")
	alloc := runs("gpu-demo", "alloc", "512Mi")
	for _, row := range []struct {
		pod  client.ObjectKey
		want string // in its output
	}{
		{n.pod(t, ns, "whole", "", runs("gpu-demo", "show"), inUserNamespace, once), "GPU 0: "},
		{n.pod(t, ns, "whole-read-only", "", runs("gpu-demo", "show"), inUserNamespace, readOnly, once), "GPU 0: "},
		{n.share(t, ns, "share", "1Gi", alloc, inUserNamespace, once), "granted 512MiB of "},
		{n.share(t, ns, "share-read-only", "1Gi", alloc, inUserNamespace, readOnly, once), "granted 512MiB of "},
		{n.partition(t, ns, "partition", first, runs("gpu-demo", "show"), inUserNamespace, once), "MIG 1g.10gb"},
	} {
		if _, err := n.WaitPod(t.Context(), soon, row.pod, "finished", func(p *corev1.Pod) bool {
			return p.Status.Phase == corev1.PodSucceeded
		}); err != nil {
			t.Errorf("%s: %v", row.pod.Name, err)
			continue
		}
		if got := n.logged(t, row.pod); !strings.Contains(got, row.want) {
			t.Errorf("%s: got %q, want it to contain %q", row.pod.Name, got, row.want)
		}
	}
	if got := n.sh(t, "stat -c %a /var/lib/kubelet /var/lib/kubelet/plugins"); got != "750\n750\n" {
		t.Errorf("the kubelet's directories have the modes %q, want 750, as on any node", got)
	}
}
