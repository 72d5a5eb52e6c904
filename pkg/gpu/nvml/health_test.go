// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// A GPU that is not registered with the fabric after some minutes has no fabric manager. Before, nobody knows. In MIG
// mode it needs none.
func TestFabricManagerDoesNotRun(t *testing.T) {
	const healthy, unknown, wrong = " false", " true", "not registered for 5 minutes false"
	synctest.Test(t, func(t *testing.T) {
		m, n := following(t, "dgx-h100")
		id := first(t, n).UUID
		set := func(health string) {
			t.Helper()
			change, err := node.ParseHealth([]string{"fabric=" + health})
			must(t, err)
			must(t, m.ChangeHealth("0", change))
		}
		want := func(when, want string) {
			t.Helper()
			time.Sleep(time.Second)
			n.Recheck(id)
			look, err := n.Discover(t.Context())
			must(t, err)
			is := look.Health[id]
			if got := fmt.Sprint(is.Fabric, " ", is.FabricUnknown); got != want {
				t.Errorf("%s: got %q, want %q", when, got, want)
			}
		}
		want("it runs", healthy)
		set("not-started")
		want("it was ended", unknown)
		time.Sleep(4 * time.Minute)
		want("4 minutes ago", unknown)
		time.Sleep(time.Minute)
		want("5 minutes ago", wrong)
		must(t, m.SwitchMIG("0", 1))
		want("in MIG mode", healthy)
		must(t, m.SwitchMIG("0", 0))
		want("out of MIG mode, the time begins anew", unknown)
		time.Sleep(5 * time.Minute)
		want("it does not run", wrong)
		set("healthy")
		want("it runs again", healthy)
		set("not-started")
		want("and is ended again", unknown)
	})
}
