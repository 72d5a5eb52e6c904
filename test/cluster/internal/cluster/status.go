// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/machine"
)

// Status prints the cluster's machines. It returns ErrNotUp unless all of them run.
func Status(p Place, out io.Writer) error {
	r, err := p.get()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "cluster\t%s\t%s\n", p.Name, r.Phase)
	fmt.Fprintf(w, "server\t%s\t\n", r.Server)
	fmt.Fprintf(w, "kubeconfig\t%s\t\n", p.Kubeconfig())
	dead := 0
	for _, name := range r.machines() {
		state := "not running"
		if process, err := machine.Load(p.machine(name)); err == nil && process.Alive() {
			state = fmt.Sprintf("running (process %d)", process.PID)
			if process.Frozen() {
				state = fmt.Sprintf("paused (process %d)", process.PID)
			}
		} else {
			dead++
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", name, state, r.Config.Profiles[name])
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if dead > 0 || r.Phase != running {
		return fmt.Errorf("cluster %s: %w; run up or down", p.Name, ErrNotUp)
	}
	return nil
}

// FindKubeconfig returns the path of the cluster's kubeconfig.
func FindKubeconfig(p Place) (string, error) {
	if _, err := p.up(); err != nil {
		return "", err
	}
	if _, err := os.Stat(p.Kubeconfig()); err != nil {
		return "", fmt.Errorf("find kubeconfig: %w", err)
	}
	return p.Kubeconfig(), nil
}
