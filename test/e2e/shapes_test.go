//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// shape is a way in which containers differ, with which hooks and mounts must cope.
type shape struct {
	name    string
	image   string // of gpu-dra-shape-…; empty: the demo's, which has glibc and no shell
	options []podOption
}

// shapes has no user namespaces: there, runc mounts the node's device nodes by their names in the container, and
// simulated ones have other names. Package survive gives a node such names.
func shapes() []shape {
	user := int64(1000)
	secure := func(c *corev1.SecurityContext) podOption {
		return func(p *corev1.PodSpec) { p.Containers[0].SecurityContext = c }
	}
	restricted := secure(&corev1.SecurityContext{RunAsUser: &user, RunAsNonRoot: new(true),
		AllowPrivilegeEscalation: new(false),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}})
	readOnlyRoot := secure(&corev1.SecurityContext{ReadOnlyRootFilesystem: new(true)})
	return []shape{
		{"read-only-root", "", []podOption{readOnlyRoot}},
		{"restricted", "", []podOption{restricted}},
		{"read-only-volumes", "", []podOption{withReadOnly("/etc/ld.so.conf.d", "/etc/nvidia", "/usr/local")}},
		{"read-only-etc", "", []podOption{withReadOnly("/etc")}},
		{"static", "static", nil},
		{"static-read-only-root", "static", []podOption{readOnlyRoot}},
		{"musl", "musl", nil},
		{"links", "links", nil},
	}
}

// files is a ConfigMap that can be a container's /etc: the kubelet mounts files there.
var files = map[string]string{"hosts": "", "hostname": "", "resolv.conf": "", "ld.so.cache": ""}

// withReadOnly mounts the ConfigMap "files" read-only at these directories.
func withReadOnly(dirs ...string) podOption {
	return func(p *corev1.PodSpec) {
		p.Volumes = append(p.Volumes, corev1.Volume{Name: "files", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "files"}}}})
		for _, dir := range dirs {
			p.Containers[0].VolumeMounts = append(p.Containers[0].VolumeMounts,
				corev1.VolumeMount{Name: "files", MountPath: dir, ReadOnly: true})
		}
	}
}

// testShapes runs containers of every shape with each kind of access. They start at once and wait for GPUs.
func (s *suite) testShapes(t *testing.T) {
	s.needs(t, sharesOfMIG...)
	ns := s.namespace(t, "shapes")
	s.must(t, s.ApplyTyped(t.Context(), &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: "files", Namespace: ns}, Data: files}))
	type started struct {
		pod  client.ObjectKey
		want string // in its output
	}
	var all []started
	for _, access := range []struct {
		name, template string
		args           []string
		want           string
	}{
		{"whole", s.template(t, ns, "whole"), []string{"show"}, "GPU 0: "},
		{"share", s.templateFor(t, ns, "share", share("gpu", h100, "1Gi", "")), []string{"alloc", "512Mi"},
			"granted 512MiB of "},
		{"partition", s.templateFor(t, ns, "partition", partition("gpu", small, "")), []string{"show"}, "MIG 1g.10gb"},
	} {
		for _, shape := range shapes() {
			options := append([]podOption{withTemplate(access.template), withArgs(access.args...)}, shape.options...)
			if shape.image != "" {
				options = append(options, func(p *corev1.PodSpec) {
					p.Containers[0].Image = strings.Replace(s.image, "gpu-dra-demo", "gpu-dra-shape-"+shape.image, 1)
				})
			}
			all = append(all, started{s.pod(t, ns, shape.name+"-"+access.name, options...), access.want})
		}
	}
	for _, p := range all {
		t.Run(p.pod.Name, func(t *testing.T) {
			if _, err := s.WaitPod(t.Context(), 4*soon, p.pod, "finished", succeeded); err != nil {
				events, _ := s.Events(t.Context(), p.pod)
				t.Fatalf("%v\n%s", err, strings.Join(events, "\n"))
			}
			if got, err := s.Log(t.Context(), p.pod); err != nil || !strings.Contains(got, p.want) {
				t.Errorf("got %q, %v, want it to contain %q", got, err, p.want)
			}
		})
	}
}
