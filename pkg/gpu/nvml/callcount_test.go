// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"reflect"
	"strings"
	"sync"
	"testing"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// counter keeps the handles that a library returns. Each of them remembers its calls.
type counter struct {
	nvmllib.Interface
	mu      sync.Mutex
	handles []nvmllib.Device
}

func (c *counter) DeviceGetHandleByIndex(index int) (nvmllib.Device, nvmllib.Return) {
	d, ret := c.Interface.DeviceGetHandleByIndex(index)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handles = append(c.handles, d)
	return d, ret
}

// calls returns how often each call of a GPU was made since it was last asked.
func (c *counter) calls() map[string]int {
	all := map[string]int{}
	for _, d := range c.handles {
		v := reflect.ValueOf(d)
		for i := range v.NumMethod() {
			name, ok := strings.CutSuffix(v.Type().Method(i).Name, "Calls")
			if ok && v.Method(i).Type().NumIn() == 0 {
				if n := v.Method(i).Call(nil)[0].Len(); n > 0 {
					all[name] += n
				}
			}
		}
	}
	all["DeviceGetHandleByIndex"] = len(c.handles)
	c.handles = nil
	return all
}

// callsBefore are the calls of a minute for each GPU before silent faults were looked for: a full reading with a look
// at the health, another look at it, and four short readings.
var callsBefore = map[string]int{"t4-x2": 166, "l40s-x4": 166, "dgx-a100": 180, "dgx-h100": 180}

// A look for silent faults costs at most a tenth more calls of NVML.
func TestCallsOfAMinute(t *testing.T) {
	for _, profile := range []string{"t4-x2", "l40s-x4", "dgx-a100", "dgx-h100"} {
		_, n, l := with(t, profile, "", "")
		c := &counter{Interface: l.Interface}
		n.Library = c
		look, err := n.Discover(t.Context())
		must(t, err)
		for range 4 {
			_, err = n.Discover(t.Context())
			must(t, err)
		}
		for _, d := range look.Devices {
			n.Recheck(d.UUID)
		}
		_, err = n.Discover(t.Context())
		must(t, err)
		sum, calls := 0, c.calls()
		for _, k := range calls {
			sum += k
		}
		t.Logf("%s: %d calls a minute for each GPU, %d before", profile, sum/len(look.Devices), callsBefore[profile])
		got, before := sum/len(look.Devices), callsBefore[profile]
		if got > before+before/10 {
			t.Errorf("%s: got %d calls a minute for each GPU, want at most a tenth more than %d: %v", profile, got,
				before, calls)
		}
	}
}
