// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/publish"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// tooBusy reports whether the API server was too busy to answer, or has broken the connection.
func tooBusy(err error) bool {
	var transport *url.Error
	return apierrors.IsTimeout(err) || errors.As(err, &transport) && !errors.Is(err, context.Canceled)
}

// patient tries again when the API server was too busy.
var patient = wait.Backoff{Steps: 5, Duration: time.Second, Factor: 2, Jitter: 0.5}

// publish writes the node's slices as its plugin does at start, and returns them. The plugin also runs a slice
// controller, which finds nothing to do, as a test of its package verifies. A fleet does without, because its devices
// change seldom. Each controller has a watch and a second copy of the devices: with 200 nodes of eight H100 that took
// 1.6 GB instead of 0.25, and three times the processor time.
func (f *Fleet) publish(ctx context.Context, node string, pools map[string]inventory.Pool) (
	[]*resourceapi.ResourceSlice, error) {
	var written []*resourceapi.ResourceSlice
	err := retry.OnError(patient, tooBusy, func() (err error) {
		written, err = publish.FirstSlices(ctx, f.client, f.driver, node, pools)
		return err
	})
	if err == nil && len(written) == 0 {
		// Somebody deleted another fleet's node, and its slices remain, or an attempt was interrupted.
		if err = f.removeSlices(ctx, node); err == nil {
			written, err = publish.FirstSlices(ctx, f.client, f.driver, node, pools)
		}
	}
	wanted := inventory.Slices(f.driver, node, pools)
	if err == nil && len(written) != len(wanted) {
		err = errors.New("slices of that node exist, and another writer keeps them")
	}
	if err == nil {
		err = checkComplete(written, wanted)
	}
	if err != nil {
		return nil, err
	}
	return written, nil
}

// checkComplete returns an error if the API server dropped fields of the slices. The plugin tolerates that; a fleet
// does not, because the scheduler would decide about other devices.
func checkComplete(written, wanted []*resourceapi.ResourceSlice) error {
	for i := range wanted {
		if lacks := (&resourceslice.DroppedFieldsError{DesiredSlice: wanted[i],
			ActualSlice: written[i]}).DisabledFeatures(); len(lacks) > 0 {
			return fmt.Errorf("the API server leaves out some of what describes them: enable the feature gates %s",
				strings.Join(lacks, ", "))
		}
	}
	return nil
}

// removeSlices removes all slices of the node, regardless of their author.
func (f *Fleet) removeSlices(ctx context.Context, node string) error {
	err := f.client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: inventory.SelectSlices(f.driver, node)})
	if err != nil {
		return fmt.Errorf("remove its slices: %w", err)
	}
	return nil
}
