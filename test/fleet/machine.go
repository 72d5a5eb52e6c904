// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator"
)

// readProfile reads the profile from a file if name contains a "/", and uses a built-in one otherwise. The profile's
// own name must be a valid label value.
func readProfile(name string) (simulator.Profile, error) {
	if !strings.Contains(name, "/") {
		p, err := simulator.BuiltIn(name)
		if err != nil {
			err = fmt.Errorf("%w; the path of a file, such as ./%s.yaml, names one of your own", err, name)
		}
		return p, err
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return simulator.Profile{}, fmt.Errorf("read profile: %w", err)
	}
	p, err := simulator.ParseProfile(text)
	if err != nil {
		return simulator.Profile{}, fmt.Errorf("profile %s: %w", name, err)
	}
	if problems := validation.IsValidLabelValue(p.Name); p.Name == "" || len(problems) > 0 {
		return simulator.Profile{}, fmt.Errorf("profile %s: its name %q is to be a label of nodes: want 1 to 63 "+
			"letters, digits, '-', '_' and '.', a letter or digit at both ends", name, p.Name)
	}
	return p, nil
}

// model is a kind of machine.
type model struct {
	simulator.Profile
	dir   string // for what is simulated
	sysfs string // the same for all machines of the kind
}

// newModel returns the kind of machine that the named profile describes.
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

// machine creates a machine of this kind with unique UUIDs.
func (m *model) machine() (*simulator.Node, error) {
	dir, err := os.MkdirTemp(m.dir, "")
	if err != nil {
		return nil, err
	}
	return simulator.Open(dir, m.Profile)
}

// discover creates a machine, reads it through NVML and sysfs as a node's plugin does, and returns its inventory with
// that use of each GPU, and the possible partitions of all.
func (m *model) discover(use gpu.SharingMode) (inventory.Inventory, error) {
	machine, err := m.machine()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(machine.Dir()) // 1000 machines take 1 GB
	devices, err := m.read(machine)
	if err != nil {
		return nil, fmt.Errorf("read the GPUs of profile %s: %w", m.Name, err)
	}
	return inventory.Possible(devices, func(gpu.Device) gpu.SharingMode { return use }), nil
}

func (m *model) read(machine *simulator.Node) (devices []gpu.Device, err error) {
	session, err := nvml.Open(nvml.MachineConfig{Library: machine.NVML(), Sysfs: m.sysfs, Proc: machine.Proc(),
		Timeout: time.Hour}) // it answers, however slow this machine is
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	look, err := session.Discover(context.Background())
	devices, broken := look.Devices, look.Broken
	// A recorded profile may have a GPU that does not respond. As the plugin does, a fleet publishes the others.
	if err == nil && len(devices) == 0 {
		err = errors.Join(broken...)
	}
	return devices, err
}
