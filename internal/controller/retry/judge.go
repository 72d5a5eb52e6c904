// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// judge judges whether pods fit, in one round. It knows neither nodes nor what else a pod asks for: a pod that it takes
// to fit may have to wait. A share that was counted twice is on a GPU that is in use, because the scheduler tries all
// pods when a claim ends. So a pod fits only if a share of it fits on a GPU that others use in part.
type judge struct {
	view  *cluster.View
	known map[*shape]verdict
}

// verdict says whether the devices of a request seem to be free, and whether one is a share beside others.
type verdict struct{ fits, beside bool }

// pod reports whether a pod that lacks these devices fits.
func (j judge) pod(ctx context.Context, shapes []*shape) bool {
	beside := false
	for _, s := range shapes {
		v, judged := j.known[s]
		if !judged {
			v = j.request(ctx, s.alternatives)
			j.known[s] = v
		}
		if !v.fits {
			return false
		}
		beside = beside || v.beside
	}
	return beside
}

func (j judge) request(ctx context.Context, alternatives []resourceapi.DeviceSubRequest) (of verdict) {
	for _, a := range alternatives {
		v := j.alternative(ctx, a)
		of = verdict{of.fits || v.fits, of.beside || v.beside}
	}
	return of
}

// alternative takes devices to be free that are no whole GPUs, or another driver's.
func (j judge) alternative(ctx context.Context, a resourceapi.DeviceSubRequest) (of verdict) {
	class, ok := j.view.Class(a.DeviceClassName)
	switch {
	case !ok || a.AllocationMode == resourceapi.DeviceAllocationModeAll:
		return verdict{}
	case !j.view.Ours(a.DeviceClassName):
		return verdict{fits: true}
	}
	var asked map[resourceapi.QualifiedName]resource.Quantity
	if a.Capacity != nil {
		asked = a.Capacity.Requests
	}
	count, devices := max(1, a.Count), int64(0)
	for _, kind := range j.view.Kinds() {
		if !j.view.AcceptsAll(ctx, kind, class.Spec.Selectors) || !j.view.AcceptsAll(ctx, kind, a.Selectors) {
			continue
		}
		if kind.Type() != gpu.TypeGPU {
			of.fits = true
			continue
		}
		devices += j.view.Available(kind, asked, count, count)
		of.beside = of.beside || j.view.FitsBeside(kind, asked)
	}
	enough := devices >= count
	return verdict{of.fits || enough, of.beside && enough}
}
