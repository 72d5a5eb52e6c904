// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/gpudra/gpu-dra-driver/test/chaos/check"
	"github.com/gpudra/gpu-dra-driver/test/controlplane"
)

// placeTimeout limits the wait for the next pod to be bound or the next claim to be deleted.
const placeTimeout = 10 * time.Minute

// atOnce is how many pods are created in parallel.
const atOnce = 16

// lab is a control plane without nodes: an API server, a scheduler, the controller of claims, and the driver's
// controller. Its data is in memory.
type lab struct {
	dir        string
	plane      *controlplane.Plane
	client     kubernetes.Interface
	scheduler  *controlplane.Scheduler
	manager    *controlplane.Process
	controller *controlplane.Controller
	batches    int
	warm       bool // pods of each kind were placed before
}

// programs are the files that a lab starts.
type programs struct {
	kubernetes string // the folder with Kubernetes' programs
	controller string // the driver's controller; empty: a lab has none
	classes    string // the chart's device classes, in YAML
}

// open starts a lab.
func open(ctx context.Context, p programs) (*lab, error) {
	dir, err := os.MkdirTemp(controlplane.MemoryDir(), "scale-")
	if err != nil {
		return nil, err
	}
	l := &lab{dir: dir}
	if err := l.start(ctx, p); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *lab) start(ctx context.Context, p programs) (err error) {
	if l.plane, err = controlplane.New(p.kubernetes, filepath.Join(l.dir, "plane")); err != nil {
		return err
	}
	if err := l.plane.Open(ctx); err != nil {
		return err
	}
	if l.client, err = kubernetes.NewForConfig(l.plane.REST()); err != nil {
		return err
	}
	if err := l.createClasses(ctx, p.classes); err != nil {
		return err
	}
	if l.scheduler, err = l.plane.StartScheduler(ctx, controlplane.DefaultScheduler, ""); err != nil {
		return err
	}
	if l.manager, err = l.plane.StartManager("resourceclaim-controller"); err != nil {
		return err
	}
	if p.controller != "" {
		l.controller, err = l.plane.StartController(ctx, p.controller)
	}
	return err
}

// close ends all programs and removes the data.
func (l *lab) close() error {
	if l.controller != nil {
		l.controller.Stop()
	}
	l.manager.Stop()
	if l.scheduler != nil {
		l.scheduler.Stop()
	}
	if l.plane != nil {
		l.plane.Close()
	}
	return os.RemoveAll(l.dir)
}

// createClasses creates the device classes of the file, and the one of scheduler_perf.
func (l *lab) createClasses(ctx context.Context, file string) error {
	classes, err := controlplane.ReadClasses(file)
	if err != nil {
		return err
	}
	classes[perfClass] = &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: perfClass},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
			CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == '" + perfDriver + "'"}}}}}
	for _, class := range classes {
		if _, err := l.client.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// place creates pods of a kind in a new namespace, and returns when all are bound. It measures the time from the first
// request until then. Node returns the only node that a pod may have; nil: any.
func (l *lab) place(ctx context.Context, k kind, count int, node func(int) string) (string, time.Duration, error) {
	l.batches++
	namespace := fmt.Sprintf("batch-%d", l.batches)
	_, err := l.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil {
		return "", 0, err
	}
	template, err := k.template(namespace)
	if err != nil {
		return "", 0, err
	}
	if template != nil {
		_, err := l.client.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, template, metav1.CreateOptions{})
		if err != nil {
			return "", 0, fmt.Errorf("%s: %w", k.name, err)
		}
	}
	pods := l.client.CoreV1().Pods(namespace)
	events, err := pods.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return "", 0, err
	}
	defer func() { events.Stop() }()
	begin := time.Now()
	creators, creation := errgroup.WithContext(ctx)
	creators.SetLimit(atOnce)
	created := make(chan error, 1)
	go func() {
		for i := range count {
			creators.Go(func() error {
				var nodes map[string]string
				if node != nil {
					nodes = map[string]string{corev1.LabelHostname: node(i)}
				}
				_, err := pods.Create(creation, k.pod(namespace, fmt.Sprintf("pod-%04d", i), nodes),
					metav1.CreateOptions{})
				return err
			})
		}
		created <- creators.Wait()
	}()
	bound, message := map[string]bool{}, ""
	for len(bound) < count {
		select {
		case <-ctx.Done():
			return "", 0, context.Cause(ctx)
		case err := <-created:
			if err != nil {
				return "", 0, fmt.Errorf("%s: create pods: %w", k.name, err)
			}
		case <-time.After(placeTimeout):
			return "", 0, fmt.Errorf("%s: %d of %d pods are bound, and none was in %s; the scheduler said last: %s",
				k.name, len(bound), count, placeTimeout, message)
		case e, ok := <-events.ResultChan():
			if !ok || e.Type == watch.Error && apierrors.IsTimeout(apierrors.FromObject(e.Object)) {
				// The API server has closed it, or is behind its etcd. A new one tells of all pods again.
				events.Stop()
				if ok {
					time.Sleep(time.Second)
				}
				again, err := pods.Watch(ctx, metav1.ListOptions{})
				if err != nil {
					return "", 0, fmt.Errorf("%s: watch pods again: %w", k.name, err)
				}
				events = again
				continue
			}
			pod, isPod := e.Object.(*corev1.Pod)
			if !isPod {
				return "", 0, fmt.Errorf("%s: watch pods: %v", k.name, e.Object)
			}
			if pod.Spec.NodeName != "" {
				bound[pod.Name] = true
			}
			for _, c := range pod.Status.Conditions {
				if c.Status == corev1.ConditionFalse {
					message = pod.Name + ": " + c.Message
				}
			}
		}
	}
	return namespace, time.Since(begin), nil
}

// clear deletes the pods of a namespace, and returns when their claims are gone.
func (l *lab) clear(ctx context.Context, namespace string) error {
	err := l.client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	if err != nil {
		return err
	}
	claims := l.client.ResourceV1().ResourceClaims(namespace)
	if err := claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		left, err := claims.List(ctx, metav1.ListOptions{})
		if err != nil || len(left.Items) == 0 {
			return err
		}
		if time.Since(begin) > placeTimeout {
			return fmt.Errorf("%d claims of %s are not deleted after %s", len(left.Items), namespace, placeTimeout)
		}
	}
}

// read returns all pods, claims and slices.
func (l *lab) read(ctx context.Context) (w check.World, err error) {
	pods, err := l.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return w, err
	}
	claims, err := l.client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return w, err
	}
	w.Pods, w.Claims = pods.Items, claims.Items
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return l.client.ResourceV1().ResourceSlices().List(ctx, o)
	}
	return w, pager.New(list).EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		w.Slices = append(w.Slices, *o.(*resourceapi.ResourceSlice))
		return nil
	})
}

// memory returns the memory of the programs in MiB, and the most that each has had.
func (l *lab) memory() (now, peak map[string]float64, err error) {
	now, peak = map[string]float64{}, map[string]float64{}
	of := map[string]*controlplane.Process{"API server": l.plane.Server, "scheduler": l.scheduler.Process}
	if l.controller != nil {
		of["controller"] = l.controller.Process
	}
	for name, p := range of {
		has, err := p.Memory()
		if err != nil {
			return nil, nil, err
		}
		had, err := p.PeakMemory()
		if err != nil {
			return nil, nil, err
		}
		now[name], peak[name] = float64(has)/(1<<20), float64(had)/(1<<20)
	}
	return now, peak, nil
}
