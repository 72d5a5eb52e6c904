// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	sim "github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/test/chaos/check"
)

const pluginDir = "/var/lib/kubelet/plugins/" + check.Driver

// mark begins a line between parts of what lookScript prints.
const mark = "@@chaos "

// lookScript prints the CDI specs, what there is of claims, and at the end the containers of the namespace that run,
// with the device nodes of GPUs that they have: the name, and the minor number in hexadecimal.
const lookScript = `
cd /run/cdi && for f in k8s.` + check.Driver + `-claim_*.json; do
	[ -e "$f" ] && { printf '\n` + mark + `spec %s\n' "$f"; cat "$f"; }
done
printf '\n` + mark + `left\n'
cd ` + pluginDir + ` && find claims devices dra-device-metadata mps -mindepth 1 ! -type d ! -name .lock 2>/dev/null
find /run/cdi -name '*_*-*-*'
pgrep -fa '[n]vidia-cuda-mps-control'
for d in /run/containerd/io.containerd.runtime.v2.task/k8s.io/*/; do
	grep -q '"io.kubernetes.cri.sandbox-namespace":"` + namespace + `"' $d/config.json 2>/dev/null || continue
	grep -q '"io.kubernetes.cri.container-type":"container"' $d/config.json 2>/dev/null || continue
	cd /proc/$(cat $d/init.pid)/root/dev 2>/dev/null || continue
	printf '\n` + mark + `container %s\n' $(basename $d); cat $d/config.json
	printf '\n` + mark + `devices\n'; find . -path './vfio/*' -type c
	find . -path './nvidia*' -type c -exec stat -c '%n %T' {} +
done
printf '\n` + mark + `end\n'`

// look sees the world. Nodes that do not answer are missing.
func (l *lab) look(ctx context.Context) (check.World, error) {
	w := check.World{Nodes: map[string]check.Node{}}
	pods, err := l.Pods(ctx, namespace)
	if err != nil {
		return w, err
	}
	var claims resourceapi.ResourceClaimList
	if err := l.List(ctx, &claims, client.InNamespace(namespace)); err != nil {
		return w, err
	}
	w.Pods, w.Claims = pods, claims.Items
	if w.Slices, err = l.Slices(ctx, check.Driver); err != nil {
		return w, err
	}
	for _, s := range w.Slices {
		for _, d := range s.Spec.Devices {
			for _, t := range d.Taints {
				if t.Effect != resourceapi.DeviceTaintEffectNone {
					w.Taints = append(w.Taints, fmt.Sprintf("%s/%s %s=%s:%s", s.Spec.Pool.Name, d.Name, t.Key,
						t.Value, t.Effect))
				}
			}
		}
	}
	var nodes corev1.NodeList
	if err := l.List(ctx, &nodes); err != nil {
		return w, err
	}
	for i := range nodes.Items {
		for _, t := range nodes.Items[i].Spec.Taints {
			w.Taints = append(w.Taints, nodes.Items[i].Name+" "+t.ToString())
		}
	}
	var all sync.WaitGroup
	var lock sync.Mutex
	for _, name := range l.nodes {
		all.Go(func() {
			if n, err := l.lookAt(ctx, name); err == nil {
				lock.Lock()
				defer lock.Unlock()
				w.Nodes[name] = n
			}
		})
	}
	all.Wait()
	return w, nil
}

// machine returns the simulated hardware of the node.
func (l *lab) machine(node string) (*sim.Node, error) {
	return sim.Attach(filepath.Join(filepath.Dir(l.options.kubeconfig), node, "disk", sim.DefaultDir))
}

func (l *lab) lookAt(ctx context.Context, name string) (check.Node, error) {
	var n check.Node
	machine, err := l.machine(name)
	if err != nil {
		return n, err
	}
	v, err := machine.View()
	if err != nil {
		return n, err
	}
	n.Machine = strings.Split(strings.TrimSpace(v.String()), "\n")
	for _, c := range v.OnBus() {
		g := check.GPU{Name: c.Name, Minor: c.Minor, Group: v.IOMMUGroup(c)}
		for _, p := range c.Partitions() {
			g.Partitions = append(g.Partitions, check.Partition{Profile: p.Name, Start: p.Instance.Span.Start,
				Capabilities: c.Capabilities(p)})
		}
		for _, t := range c.VGPUTypes() {
			for _, d := range c.State.VGPUs {
				if d.Type == t.ID {
					g.VGPUs = append(g.VGPUs, check.VGPU{Type: strings.TrimPrefix(t.Name, "NVIDIA "), Group: d.Group})
				}
			}
		}
		n.GPUs = append(n.GPUs, g)
	}
	text, err := l.control(ctx, "exec", name, "--", "sh", "-c", lookScript)
	if err != nil {
		return n, err
	}
	return n, parseNode(&n, text)
}

// parseNode adds what lookScript has printed to the node.
func parseNode(n *check.Node, text string) error {
	parts := strings.Split(text, "\n"+mark)
	if parts[len(parts)-1] != "end\n" {
		return fmt.Errorf("the look at the node was cut off: %q", parts[len(parts)-1])
	}
	n.Specs = map[types.UID]string{}
	for _, part := range parts {
		head, body, _ := strings.Cut(part, "\n")
		switch verb, rest, _ := strings.Cut(head, " "); verb {
		case "spec":
			_, uid, _ := strings.Cut(strings.TrimSuffix(rest, ".json"), "_")
			n.Specs[types.UID(uid)] = body
		case "left":
			n.Left = append(n.Left, strings.FieldsFunc(body, func(r rune) bool { return r == '\n' })...)
		case "container":
			var config struct{ Annotations map[string]string }
			if err := json.Unmarshal([]byte(body), &config); err != nil {
				return fmt.Errorf("container %s: %w", rest, err)
			}
			n.Containers = append(n.Containers, check.Container{ID: rest,
				Pod:  types.UID(config.Annotations["io.kubernetes.cri.sandbox-uid"]),
				Name: config.Annotations["io.kubernetes.cri.container-name"]})
		case "devices":
			last := &n.Containers[len(n.Containers)-1]
			for line := range strings.Lines(body) {
				device, err := parseDevice(strings.TrimSpace(line))
				if err != nil {
					return err
				}
				last.Devices = append(last.Devices, device)
			}
			slices.Sort(last.Devices)
		}
	}
	return nil
}

// parseDevice returns the path of a device node. The minor number is what counts, not the name.
func parseDevice(line string) (string, error) {
	name, minor, ok := strings.Cut(strings.TrimPrefix(line, "./"), " ")
	if !ok {
		return name, nil
	}
	n, err := strconv.ParseUint(minor, 16, 32)
	if err != nil {
		return "", fmt.Errorf("device node %q: %w", line, err)
	}
	if stem := strings.TrimRight(name, "0123456789"); stem != name {
		return stem + strconv.FormatUint(n, 10), nil
	}
	return name, nil
}

// broken says what of the cluster or of the driver does not work; empty: all works.
func (l *lab) broken(ctx context.Context) string {
	var nodes corev1.NodeList
	if err := l.List(ctx, &nodes); err != nil {
		return err.Error()
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		for _, t := range n.Spec.Taints {
			if strings.HasPrefix(t.Key, "node.kubernetes.io/") {
				return n.Name + " has the taint " + t.Key
			}
		}
	}
	var sets appsv1.DaemonSetList
	if err := l.List(ctx, &sets, client.InNamespace(release)); err != nil {
		return err.Error()
	}
	for i := range sets.Items {
		if s := &sets.Items[i].Status; s.NumberReady != s.DesiredNumberScheduled {
			return fmt.Sprintf("%s: %d of %d pods are ready", sets.Items[i].Name, s.NumberReady,
				s.DesiredNumberScheduled)
		}
	}
	var deployments appsv1.DeploymentList
	if err := l.List(ctx, &deployments, client.InNamespace(release)); err != nil {
		return err.Error()
	}
	for i := range deployments.Items {
		if s := &deployments.Items[i].Status; s.ReadyReplicas != s.Replicas || s.UpdatedReplicas != s.Replicas {
			return fmt.Sprintf("%s: %d of %d pods are ready", deployments.Items[i].Name, s.ReadyReplicas, s.Replicas)
		}
	}
	return ""
}
