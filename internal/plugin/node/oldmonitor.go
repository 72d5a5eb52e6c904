// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// oldMonitorGrace is how long the old device stays after an upgrade without a record that names it.
const oldMonitorGrace = time.Minute

// OldMonitor decides how long the monitor device also stays in the pool of the node, where it was before the first
// release: while a record names it there, and for a minute after an instance that has published it there. The minute is
// for claims that were allocated before the upgrade and are prepared after it. They have no record yet; the plugin may
// list neither claims nor pods, and the kubelet lists only prepared claims. A claim that comes later is prepared too,
// because Prepare looks at the device and not at the pool, and its record brings the device back.
type OldMonitor struct {
	Client   kubernetes.Interface
	Driver   string
	NodeName string
	Records  report.Lister

	asked bool      // whether the API server was asked for what the last instance has published
	until time.Time // the end of the grace
	last  bool      // the last answer
}

// Stays reports whether the device stays for now. It must not be called concurrently. A record that cannot be read
// changes nothing.
func (o *OldMonitor) Stays(ctx context.Context) bool {
	if o == nil {
		return false
	}
	if !o.asked {
		published, err := o.published(ctx)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Slices of the last instance are not known", "err", err)
		}
		o.asked = err == nil
		if published {
			o.until, o.last = time.Now().Add(oldMonitorGrace), true
		}
	}
	all, err := o.Records.List()
	o.last = slices.ContainsFunc(all, o.named) || time.Now().Before(o.until) || err != nil && o.last
	return o.last
}

// named reports whether the claim was allocated the device in the pool of the node.
func (o *OldMonitor) named(rec checkpoint.Record) bool {
	return slices.ContainsFunc(rec.Plan.Assignments,
		func(a sharing.Assignment) bool { return a.IsMonitor() && a.Pool == o.NodeName })
}

// published reports whether the API server has the device in the pool of the node.
func (o *OldMonitor) published(ctx context.Context) (bool, error) {
	found, err := o.Client.ResourceV1().ResourceSlices().List(ctx,
		metav1.ListOptions{FieldSelector: inventory.SelectSlices(o.Driver, o.NodeName)})
	if err != nil {
		return false, err
	}
	isMonitor := func(d resourceapi.Device) bool { return d.Name == inventory.Monitor }
	return slices.ContainsFunc(found.Items, func(s resourceapi.ResourceSlice) bool {
		return s.Spec.Pool.Name == o.NodeName && slices.ContainsFunc(s.Spec.Devices, isMonitor)
	}), nil
}
