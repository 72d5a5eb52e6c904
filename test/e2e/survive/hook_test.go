//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// stub is a library in the place of a CUDA interposer: it says that it was loaded, and what it was told.
const stub = `
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void loaded(void) {
	const char *memory = getenv("CUDA_DEVICE_MEMORY_LIMIT"), *cores = getenv("CUDA_DEVICE_SM_LIMIT");
	fprintf(stderr, "hook loaded: memory %s, cores %s\n", memory ? memory : "unlimited", cores ? cores : "unlimited");
}
`

// hookLibrary is where the node configuration "hook" has the library, on the nodes.
const hookLibrary = "/var/lib/gpu-dra-driver/hook/libstub-1.so"

// hookConfig is that configuration, as a value for helm.
const hookConfig = `nodeConfigs={"hook":{"apiVersion":"resource.nvidia.com/v1beta1","kind":"NodeConfig",` +
	`"gpus":[{"isolation":"hook","hook":{"library":"` + hookLibrary + `"}}]}}`

// testHook has a container with a share load the administrator's library: a glibc program that knows nothing of it.
func (n node) testHook(t *testing.T) {
	library := n.disk(hookLibrary)
	must(t, os.MkdirAll(filepath.Dir(library), 0o755))
	defer os.RemoveAll(filepath.Dir(library))
	source := filepath.Join(t.TempDir(), "stub.c")
	must(t, os.WriteFile(source, []byte(stub), 0o644))
	run(t, "gcc", "-shared", "-fPIC", "-o", library, source)

	ns := n.namespace(t, "hook")
	program := func(p *corev1.Pod) {
		p.Spec.Containers[0].Image = strings.Replace(n.image, "gpu-dra-demo", "gpu-dra-driver", 1)
		p.Spec.Containers[0].Command, p.Spec.Containers[0].Args = []string{"/usr/bin/dra-kubelet-plugin", "--help"}, nil
	}
	for _, row := range []struct{ name, memory, want string }{
		{"share", "1Gi", "hook loaded: memory 1024m, cores unlimited\n"},
		{"whole", "", ""},
	} {
		var pod client.ObjectKey
		if row.memory != "" {
			pod = n.share(t, ns, row.name, row.memory, program, once)
		} else {
			pod = n.pod(t, ns, row.name, "", program, once)
		}
		_, err := n.WaitPod(t.Context(), soon, pod, "finished", func(got *corev1.Pod) bool { return got.Status.Phase == corev1.PodSucceeded })
		must(t, err)
		got := n.logged(t, pod)
		if loaded := strings.Contains(got, "hook loaded"); loaded != (row.want != "") || !strings.Contains(got, row.want) {
			t.Errorf("%s: got\n%s\nwant it to say %q", row.name, got, row.want)
		}
		n.remove(t, pod)
		n.gone(t, pod)
	}
	n.clean(t)
}
