// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/placement"
)

// strand notes which GPUs are idle, in part or as a whole, and fit no pod like those that have GPUs, and why. Pods that
// wait do not matter: they would have the GPUs that fit them. The snapshot needs all claims, nodes and pods, and the
// GPUs must be all of a node.
func strand(s *cluster.Snapshot, all []*GPU) error {
	if s.Unread[cluster.Claims] != nil || s.Unread[cluster.Nodes] != nil || s.Unread[cluster.Pods] != nil {
		return errors.Join(errors.New("--stranded needs all claims, nodes and pods of the cluster"), s.Err())
	}
	idle, ofPod := map[string]int64{}, map[types.NamespacedName]int64{} // thousandths of a core
	for _, n := range s.Nodes {
		idle[n.Name] = n.Status.Allocatable.Cpu().MilliValue()
	}
	for _, p := range s.Pods {
		if p.Spec.NodeName != "" && !cluster.Finished(p) {
			requests := cluster.PodRequests(p)
			cpu := requests.Cpu().MilliValue()
			idle[p.Spec.NodeName] -= cpu
			ofPod[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = cpu
		}
	}
	shapes := shapesOf(all, ofPod)
	nodes := map[string][]*GPU{}
	for _, g := range all {
		if g.NodeProblem == "" {
			nodes[g.Node] = append(nodes[g.Node], g)
		}
	}
	for name, gpus := range nodes {
		n := placement.Node{CPU: idle[name]}
		for _, g := range gpus {
			n.GPUs = append(n.GPUs, placement.GPU{Idle: g.idle()})
		}
		withCPU := n
		withCPU.CPU = math.MaxInt64
		amounts, anyCPU := placement.Stranded(n, shapes), placement.Stranded(withCPU, shapes)
		for i, g := range gpus {
			switch {
			case amounts[i] == 0:
				continue
			case anyCPU[i] == 0:
				cores := strconv.FormatFloat(float64(max(0, n.CPU))/1000, 'f', -1, 64)
				g.Stranded = "the node has " + cores + " idle CPUs"
			case amounts[i] == placement.Whole:
				g.Stranded = "the node has too few idle GPUs"
			default:
				g.Stranded = "no pod has so small a share"
			}
			g.Stranded = fmt.Sprintf("%d%%: %s", max(1, amounts[i]*100/placement.Whole), g.Stranded)
		}
	}
	return nil
}

// shapesOf returns what the pods that have GPUs request, by their CPUs.
func shapesOf(all []*GPU, cpus map[types.NamespacedName]int64) []placement.Shape {
	pods := map[types.NamespacedName]*placement.Pod{}
	for i, g := range all {
		for _, h := range g.Holders {
			for _, name := range h.Pods {
				key := types.NamespacedName{Namespace: h.Namespace, Name: name}
				if pods[key] == nil {
					pods[key] = &placement.Pod{CPU: cpus[key]}
				}
				amount := max(part(h.Memory, g.Memory.Total), part(h.Cores, g.Cores.Total))
				pods[key].Takes = append(pods[key].Takes, placement.Take{GPU: i, Amount: amount})
			}
		}
	}
	shapes := sets.New[placement.Shape]()
	for _, p := range pods {
		shapes.Insert(placement.ShapeOf(*p))
	}
	return shapes.UnsortedList()
}

// idle returns how many thousandths of the GPU new claims can get.
func (g *GPU) idle() int64 {
	if slices.ContainsFunc(g.Taints, Taint.prevents) {
		return 0
	}
	return placement.Whole - max(part(*g.Memory.Used, g.Memory.Total), part(*g.Cores.Used, g.Cores.Total))
}

// part returns thousandths of a total, rounded up, at most all of it.
func part(used, total int64) int64 {
	if total <= 0 {
		return 0
	}
	return min(placement.Whole, int64(math.Ceil(float64(used)/float64(total)*placement.Whole)))
}

// slimPods returns a function that keeps of a pod its name, node, phase and CPUs. Large clusters have many.
func slimPods() func(runtime.Object) runtime.Object {
	return func(o runtime.Object) runtime.Object {
		p, ok := o.(*corev1.Pod)
		if !ok {
			return o
		}
		slim := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}}
		slim.Spec.NodeName, slim.Status.Phase = p.Spec.NodeName, p.Status.Phase
		requests := cluster.PodRequests(p)
		slim.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: *requests.Cpu()}}}}
		return slim
	}
}
