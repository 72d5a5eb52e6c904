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

// stub is a replacement of HAMi-core's library: it prints that it was loaded, and the limits that HAMi-core would
// apply. By its rules a GPU's limit overrides the limit of all, and a policy disables the limit of cores.
const stub = `
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static const char *either(const char *one, const char *all) {
	const char *limit = getenv(one) ? getenv(one) : getenv(all);
	return limit ? limit : "unlimited";
}
__attribute__((constructor)) static void loaded(void) {
	const char *policy = getenv("GPU_CORE_UTILIZATION_POLICY"), *over = getenv("CUDA_OVERSUBSCRIBE");
	fprintf(stderr, "hook loaded: memory %s, cores %s%s%s\n", either("CUDA_DEVICE_MEMORY_LIMIT_3", "CUDA_DEVICE_MEMORY_LIMIT"),
		either("CUDA_DEVICE_SM_LIMIT_3", "CUDA_DEVICE_SM_LIMIT"), policy && strcmp(policy, "disable") == 0 ? ", not enforced" : "",
		over && strcmp(over, "true") == 0 ? ", oversubscribed" : "");
}
`

// hookLibrary is the path of the library on the nodes in the node configuration "hook".
const hookLibrary = "/var/lib/gpu-dra-driver/hook/libstub-1.so"

// hookConfig is that configuration as a helm value.
const hookConfig = `nodeConfigs={"hook":{"apiVersion":"resource.nvidia.com/v1beta1","kind":"NodeConfig",` +
	`"gpus":[{"isolation":"hook","hook":{"library":"` + hookLibrary + `"}}]}}`

// testHook checks that a container with a share, a glibc program, loads the administrator's library.
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
		// What a pod may try in order to exceed its share.
		p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: "CUDA_DEVICE_MEMORY_LIMIT_3",
			Value: "40g"},
			corev1.EnvVar{Name: "CUDA_DEVICE_SM_LIMIT_3", Value: "100"}, corev1.EnvVar{Name: "CUDA_OVERSUBSCRIBE",
				Value: "true"},
			corev1.EnvVar{Name: "GPU_CORE_UTILIZATION_POLICY", Value: "disable"})
	}
	for _, row := range []struct{ name, memory, want string }{
		{"share", "1Gi", "hook loaded: memory 1024m, cores 20\n"},
		{"whole", "", ""},
	} {
		var pod client.ObjectKey
		if row.memory != "" {
			pod = n.share(t, ns, row.name, row.memory, program, once)
		} else {
			pod = n.pod(t, ns, row.name, "", program, once)
		}
		_, err := n.WaitPod(t.Context(), soon, pod, "finished",
			func(got *corev1.Pod) bool { return got.Status.Phase == corev1.PodSucceeded })
		must(t, err)
		got := n.logged(t, pod)
		if loaded := strings.Contains(got, "hook loaded"); loaded != (row.want != "") ||
			!strings.Contains(got, row.want) {
			t.Errorf("%s: got\n%s\nwant it to say %q", row.name, got, row.want)
		}
		n.remove(t, pod)
		n.gone(t, pod)
	}
	n.clean(t)
}
