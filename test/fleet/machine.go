// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// readProfile reads a profile from the file where the name has a "/", and else takes the built-in one. Its own name must fit in the
// label of the nodes.
func readProfile(name string) (sim.Profile, error) {
	if !strings.Contains(name, "/") {
		p, err := sim.BuiltIn(name)
		if err != nil {
			err = fmt.Errorf("%w; the path of a file, such as ./%s.yaml, names one of your own", err, name)
		}
		return p, err
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return sim.Profile{}, fmt.Errorf("read profile: %w", err)
	}
	p, err := sim.ParseProfile(text)
	if err != nil {
		return sim.Profile{}, fmt.Errorf("profile %s: %w", name, err)
	}
	if problems := validation.IsValidLabelValue(p.Name); p.Name == "" || len(problems) > 0 {
		return sim.Profile{}, fmt.Errorf("profile %s: its name %q is to be a label of nodes: want 1 to 63 letters, digits, '-', '_' and '.', a letter or digit at both ends", name, p.Name)
	}
	return p, nil
}

// model is a kind of machine.
type model struct {
	sim.Profile
	dir   string // for what is simulated
	sysfs string // the same for all machines of the kind
}

// newModel is the kind of machine that the profile of that name describes.
func newModel(name, dir string) (*model, error) {
	p, err := readProfile(name)
	if err != nil {
		return nil, err
	}
	m := &model{Profile: p, dir: dir}
	machine, err := m.machine()
	if err == nil {
		err = machine.LayOutSysfs()
	}
	if err != nil {
		return nil, fmt.Errorf("profile %s: %w", name, err)
	}
	m.sysfs = filepath.Join(machine.DriverRoot(), "sys")
	return m, nil
}

// machine makes one of them, with UUIDs that no other has.
func (m *model) machine() (*sim.Node, error) {
	dir, err := os.MkdirTemp(m.dir, "")
	if err != nil {
		return nil, err
	}
	return sim.Open(dir, m.Profile)
}

// discover makes a machine, reads it as the plugin of a node does, by NVML and by what sysfs says, and returns what it has to offer.
func (m *model) discover() (inventory.Inventory, error) {
	machine, err := m.machine()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(machine.Dir()) // a thousand of them are a gigabyte
	devices, err := m.read(machine)
	if err != nil {
		return nil, fmt.Errorf("read the GPUs of profile %s: %w", m.Name, err)
	}
	return inventory.Untouched(devices), nil
}

func (m *model) read(machine *sim.Node) (devices []gpu.Device, err error) {
	session, err := nvml.Open(nvml.Config{Library: machine.NVML(), Sysfs: m.sysfs, Proc: machine.Proc()})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	devices, broken, err := session.Discover()
	// A machine may have been recorded with a GPU that does not answer: the plugin publishes the others, and so does a fleet.
	if err == nil && len(devices) == 0 {
		err = errors.Join(broken...)
	}
	return devices, err
}
