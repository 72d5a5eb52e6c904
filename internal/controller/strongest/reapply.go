// SPDX-License-Identifier: Apache-2.0

package strongest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	resourceapi "k8s.io/api/resource/v1"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// update handles an update of a ranked claim. kubectl apply, Flux and Argo CD send the requests again as the user wrote
// them. The spec of a claim is immutable, so the API server would refuse that. If nothing else differs, update replaces
// the requests by the lists that Expand made of them, and the update changes nothing. Otherwise the object stays as the
// user sent it, so that the API server refuses it, and a warning names what the user has changed.
//
// It compares JSON: fields that are newer than the controller count.
func (e Expander) update(req webhook.Request) webhook.Response {
	before, err := parseClaim(req.OldObject.Raw)
	if err != nil {
		return webhook.Errored(http.StatusBadRequest, fmt.Errorf("old claim %s: %w", req.Name, err))
	}
	after, err := parseClaim(req.Object.Raw)
	if err != nil {
		return webhook.Errored(http.StatusBadRequest, fmt.Errorf("claim %s: %w", req.Name, err))
	}
	var patches []jsonpatch.Operation
	for i := range min(len(before.requests), len(after.requests)) {
		was := before.requests[i]
		written, ranked := e.collapse(was)
		if !ranked || after.requests[i]["exactly"] == nil {
			continue
		}
		patches = append(patches, jsonpatch.NewOperation("replace", fmt.Sprintf("/spec/devices/requests/%d", i), was))
		before.requests[i] = written
	}
	if len(patches) == 0 {
		return webhook.Allowed("")
	}
	if changed := changes(before, after); len(changed) > 0 {
		return webhook.Allowed("").WithWarnings(fmt.Sprintf("a claim cannot be changed, and this one was created with "+
			"other values of %s: delete it and create it again", strings.Join(changed, ", ")))
	}
	return webhook.Patched("", patches...)
}

// claimJSON is the spec of a claim as JSON.
type claimJSON struct {
	spec     map[string]any
	devices  map[string]any   // of the spec
	requests []map[string]any // of the devices; nil where they are no objects
}

func parseClaim(raw []byte) (claimJSON, error) {
	var claim struct {
		Spec map[string]any `json:"spec"`
	}
	if err := json.Unmarshal(raw, &claim); err != nil {
		return claimJSON{}, err
	}
	c := claimJSON{spec: claim.Spec}
	c.devices, _ = c.spec["devices"].(map[string]any)
	requests, _ := c.devices["requests"].([]any)
	for _, r := range requests {
		request, _ := r.(map[string]any)
		c.requests = append(c.requests, request)
	}
	return c, nil
}

// collapse returns the request that Expand has made a list of, as it was.
func (e Expander) collapse(request map[string]any) (written map[string]any, ranked bool) {
	text, err := json.Marshal(request)
	if err != nil {
		return nil, false
	}
	var typed resourceapi.DeviceRequest
	if err := json.Unmarshal(text, &typed); err != nil || !e.Ranked(typed.FirstAvailable) {
		return nil, false
	}
	list, _ := request["firstAvailable"].([]any)
	last, _ := list[len(list)-1].(map[string]any)
	exactly := maps.Clone(last)
	delete(exactly, "name")
	written = maps.Clone(request)
	delete(written, "firstAvailable")
	written["exactly"] = exactly
	return written, true
}

// changes returns the paths of the fields that differ.
func changes(before, after claimJSON) []string {
	var all []string
	if len(before.requests) != len(after.requests) {
		all = append(all, "spec.devices.requests")
	}
	for i := range min(len(before.requests), len(after.requests)) {
		path, was, is := fmt.Sprintf("spec.devices.requests[%d]", i), before.requests[i], after.requests[i]
		all = append(all, differences(path, was, is, "exactly")...)
		wasExactly, _ := was["exactly"].(map[string]any)
		isExactly, _ := is["exactly"].(map[string]any)
		all = append(all, differences(path+".exactly", withDefaults(wasExactly), withDefaults(isExactly))...)
	}
	all = append(all, differences("spec.devices", before.devices, after.devices, "requests")...)
	return append(all, differences("spec", before.spec, after.spec, "devices")...)
}

// differences returns the paths of the fields that differ, except those with these names.
func differences(path string, before, after map[string]any, except ...string) []string {
	names := slices.Sorted(maps.Keys(before))
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if _, known := before[name]; !known {
			names = append(names, name)
		}
	}
	var all []string
	for _, name := range names {
		if !slices.Contains(except, name) && !reflect.DeepEqual(before[name], after[name]) {
			all = append(all, path+"."+name)
		}
	}
	return all
}

// withDefaults returns the request with the API server's defaults. adminAccess false is the same as none.
func withDefaults(exactly map[string]any) map[string]any {
	if exactly == nil {
		return nil
	}
	complete := maps.Clone(exactly)
	if complete["adminAccess"] == false {
		delete(complete, "adminAccess")
	}
	if mode, _ := complete["allocationMode"].(string); mode == "" {
		complete["allocationMode"] = string(resourceapi.DeviceAllocationModeExactCount)
	}
	if complete["allocationMode"] == string(resourceapi.DeviceAllocationModeExactCount) && complete["count"] == nil {
		complete["count"] = 1.0
	}
	return complete
}
