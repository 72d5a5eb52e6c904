// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/test/controlplane"
	"github.com/gpudra/gpu-dra-driver/test/fleet"
	"github.com/gpudra/gpu-dra-driver/test/placement/trace"
)

// lab has a control plane whose data has the nodes of a trace. Every run starts with a copy of that data.
type lab struct {
	dir   string // in memory
	plane *controlplane.Plane
	gpus  int
}

// newLab starts a control plane, adds the nodes with the fleet, and keeps the data.
func newLab(ctx context.Context, programs, classes string, nodes []trace.Node) (*lab, error) {
	dir, err := os.MkdirTemp(controlplane.MemoryDir(), "placement-")
	if err != nil {
		return nil, err
	}
	l := &lab{dir: dir}
	if err := l.prepare(ctx, programs, classes, nodes); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *lab) prepare(ctx context.Context, programs, classes string, nodes []trace.Node) (err error) {
	if l.plane, err = controlplane.New(programs, filepath.Join(l.dir, "plane")); err != nil {
		return err
	}
	l.plane.Env = []string{"GOGC=400"} // less work for Go's memory, which is measured of the controller
	defer l.plane.Close()
	if err := l.plane.Open(ctx); err != nil {
		return err
	}
	client, err := l.client()
	if err != nil {
		return err
	}
	if err := createClasses(ctx, client, classes); err != nil {
		return err
	}
	profiles := filepath.Join(l.dir, "profiles")
	if err := os.Mkdir(profiles, 0o755); err != nil {
		return err
	}
	members, err := fleetNodes(nodes, profiles)
	if err != nil {
		return err
	}
	begin := time.Now()
	f, err := fleet.Start(ctx, l.plane.REST(), fleet.Config{Nodes: members, Inert: true})
	if err != nil {
		return err
	}
	size := f.Size()
	l.gpus = size.GPUs
	say("%d nodes with %d GPUs are published after %.0f s", size.Nodes, size.GPUs, time.Since(begin).Seconds())
	l.plane.Close()
	return l.plane.Save(filepath.Join(l.dir, "nodes"))
}

// createClasses creates the driver's device classes, from a file that Helm has rendered, and the class of priority. It
// returns when the default namespace exists.
func createClasses(ctx context.Context, client kubernetes.Interface, file string) error {
	classes, err := controlplane.ReadClasses(file)
	if err != nil {
		return err
	}
	class := classes[fleet.Driver]
	if class == nil {
		return fmt.Errorf("%s has no device class %s", file, fleet.Driver)
	}
	if _, err := client.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err = client.SchedulingV1().PriorityClasses().Create(ctx, &schedulingv1.PriorityClass{
		ObjectMeta:       metav1.ObjectMeta{Name: priorityClass},
		PreemptionPolicy: ptr.To(corev1.PreemptNever)}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	// The API server creates the namespace itself, a little later.
	_, err = client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// open starts the control plane with the nodes and nothing else.
func (l *lab) open(ctx context.Context) (kubernetes.Interface, error) {
	l.plane.Close()
	if err := l.plane.Restore(filepath.Join(l.dir, "nodes")); err != nil {
		return nil, err
	}
	if err := l.plane.Open(ctx); err != nil {
		return nil, err
	}
	return l.client()
}

func (l *lab) client() (kubernetes.Interface, error) { return kubernetes.NewForConfig(l.plane.REST()) }

// close ends everything and removes the data.
func (l *lab) close() error {
	if l.plane != nil {
		l.plane.Close()
	}
	return os.RemoveAll(l.dir)
}

// read returns what the API server has.
func read(ctx context.Context, c kubernetes.Interface) (s state, err error) {
	nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return s, err
	}
	published, err := c.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return s, err
	}
	claims, err := c.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return s, err
	}
	pods, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return s, err
	}
	return state{nodes.Items, published.Items, claims.Items, pods.Items}, nil
}
