// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	starts = 5
	soon   = 30 * time.Second
	// lookPeriod is the polling period for new processes: a start is noticed at most this much later.
	lookPeriod = 3 * time.Millisecond
)

// measureStart starts the plugin on a node without slices and waits for them.
func measureStart(ctx context.Context, b *bench) error {
	var first, all samples
	for range starts {
		if err := b.stopPlugin(ctx); err != nil {
			return fmt.Errorf("stop the plugin: %w", err)
		}
		one, every, err := b.startPlugin(ctx)
		if err != nil {
			return fmt.Errorf("start the plugin: %w", err)
		}
		first, all = append(first, one), append(all, every)
	}
	b.results["start"], b.results["startall"] = []float64{first.p50() / 1000}, []float64{all.p50() / 1000}
	return nil
}

// stopPlugin makes the DaemonSet match no node, waits until the plugin has stopped, and removes its slices, as the
// kubelet does later.
func (b *bench) stopPlugin(ctx context.Context) error {
	if err := b.selectNodes(ctx, `{"bench": "off"}`); err != nil {
		return err
	}
	pods := b.client.CoreV1().Pods(namespace)
	err := until(ctx, "the plugin to end", func() (bool, error) {
		list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: pluginLabel})
		return err == nil && len(list.Items) == 0, err
	})
	if err != nil {
		return err
	}
	return b.client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: "spec.driver=" + driver})
}

// startPlugin lets the DaemonSet start the plugin again. It returns the time from the start of the program, not of its
// container, until a watch delivers the first slice, and the last.
func (b *bench) startPlugin(ctx context.Context) (first, last time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	events, err := b.client.ResourceV1().ResourceSlices().Watch(ctx, metav1.ListOptions{FieldSelector: "spec.driver=" +
		driver})
	if err != nil {
		return 0, 0, err
	}
	defer events.Stop()
	looking, stopLooking := context.WithCancel(ctx)
	defer stopLooking()
	starts := make(chan map[int]time.Time, 1)
	go func() { starts <- newPrograms(looking) }()
	if err := b.selectNodes(ctx, `{"bench": null}`); err != nil {
		return 0, 0, err
	}
	visible, complete, err := slicesVisible(ctx, events, len(b.gpus))
	if err != nil {
		return 0, 0, err
	}
	stopLooking()
	seen := <-starts
	if err := until(ctx, "the plugin", func() (bool, error) { return b.attach(ctx) == nil, nil }); err != nil {
		return 0, 0, err
	}
	begin, ok := seen[b.process.pid]
	if !ok {
		return 0, 0, errors.New("the start of the program was not seen")
	}
	return visible.Sub(begin), complete.Sub(begin), b.pluginReady(ctx)
}

func (b *bench) selectNodes(ctx context.Context, selector string) error {
	sets := b.client.AppsV1().DaemonSets(namespace)
	list, err := sets.List(ctx, metav1.ListOptions{LabelSelector: pluginLabel})
	if err != nil {
		return err
	}
	if len(list.Items) != 1 {
		return fmt.Errorf("found %d DaemonSets of the plugin, want 1", len(list.Items))
	}
	patch := `{"spec": {"template": {"spec": {"nodeSelector": ` + selector + `}}}}`
	_, err = sets.Patch(ctx, list.Items[0].Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// pluginReady waits until the kubelet has registered the plugin.
func (b *bench) pluginReady(ctx context.Context) error {
	return until(ctx, "the plugin to be ready", func() (bool, error) {
		list, err := b.client.AppsV1().DaemonSets(namespace).List(ctx, metav1.ListOptions{LabelSelector: pluginLabel})
		return err == nil && !slices.ContainsFunc(list.Items, func(d appsv1.DaemonSet) bool {
			return d.Status.NumberReady != 1 || d.Status.ObservedGeneration != d.Generation
		}), err
	})
}

// slicesVisible returns the times at which a slice with at least that number of devices was seen, and all slices of
// the pools of the node and of its monitor device.
func slicesVisible(ctx context.Context, events watch.Interface, devices int) (first, last time.Time, err error) {
	const pools = 2
	for known, missing := map[string]bool{}, int64(0); ; {
		select {
		case <-ctx.Done():
			return first, last, fmt.Errorf("wait for the slices: %w", ctx.Err())
		case event, open := <-events.ResultChan():
			now := time.Now()
			if !open {
				return first, last, errors.New("wait for the slices: the watch ended")
			}
			slice, ok := event.Object.(*resourceapi.ResourceSlice)
			if !ok || event.Type != watch.Added {
				continue
			}
			if pool := slice.Spec.Pool; !known[pool.Name] {
				known[pool.Name] = true
				missing += pool.ResourceSliceCount
			}
			missing--
			if first.IsZero() && len(slice.Spec.Devices) >= devices {
				first = now
			}
			if !first.IsZero() && len(known) == pools && missing == 0 {
				return first, now, nil
			}
		}
	}
}

// newPrograms records when processes exec the plugin, until ctx ends: the time of the last poll before the exec. The
// start time of the process is too early, because the runtime creates it before it starts the container.
func newPrograms(ctx context.Context) map[int]time.Time {
	old := map[int]bool{}
	for _, pid := range pids() {
		old[pid] = true
	}
	seen := map[int]time.Time{}
	for before := time.Now(); ; {
		now := time.Now()
		for _, pid := range pids() {
			if _, known := seen[pid]; !old[pid] && !known && executable(pid) == program {
				seen[pid] = before
			}
		}
		before = now
		if sleep(ctx, lookPeriod) != nil {
			return seen
		}
	}
}

// until polls look until it is done.
func until(ctx context.Context, what string, look func() (done bool, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	for {
		done, err := look()
		if err == nil && done {
			return nil
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return errors.Join(fmt.Errorf("wait for %s: %w", what, ctx.Err()), err)
		}
	}
}
