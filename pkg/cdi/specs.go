// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

const (
	// for what every container needs, in one spec, because runtimes parse all specs again on every change
	driverClass = "driver"
	claimClass  = "claim" // for what one claim adds, in a spec of its own

	vendorPrefix = "k8s." // before the driver's name

	driverDevice = "common" // the only device of the driver's spec
)

// Specs manages the spec files of one driver in a CDI directory.
type Specs struct {
	dir    string
	vendor string
}

// NewSpecs manages the specs of the driver in dir. The first write creates dir.
func NewSpecs(driver, dir string) (*Specs, error) {
	vendor := vendorPrefix + driver
	if err := parser.ValidateVendorName(vendor); err != nil {
		return nil, fmt.Errorf("driver name %q: %w", driver, err)
	}
	return &Specs{dir: dir, vendor: vendor}, nil
}

// WriteDriver writes the driver's spec with common, and returns the qualified name of the device that every container
// with a GPU needs. An unchanged spec is not written again.
func (s *Specs) WriteDriver(common gpu.Access) (string, error) {
	// A CDI device must edit something. The variable keeps NVIDIA's container runtime, if installed, from adding GPUs.
	device := Device{Name: driverDevice, Access: gpu.Access{Env: []string{"NVIDIA_VISIBLE_DEVICES=void"}}}
	name := parser.QualifiedName(s.vendor, driverClass, driverDevice)
	spec, err := render(s.kind(driverClass), common, []Device{device})
	if err != nil {
		return "", err
	}
	return name, s.write(spec, s.driverFile())
}

// WriteClaim writes the spec of a claim. Containers with any of the devices also get common. An unchanged spec is not
// written again.
func (s *Specs) WriteClaim(claim types.UID, common gpu.Access, devices []Device) error {
	spec, err := render(s.kind(claimClass), common, devices)
	if err != nil {
		return err
	}
	return s.write(spec, s.claimFile(claim))
}

// ClaimDevice returns the qualified name of a device in the spec of a claim.
func (s *Specs) ClaimDevice(name string) string {
	return parser.QualifiedName(s.vendor, claimClass, name)
}

// RemoveClaim removes the spec of a claim. It is no error if there is none.
func (s *Specs) RemoveClaim(claim types.UID) error {
	return remove(filepath.Join(s.dir, s.claimFile(claim)))
}

// RemoveTemporary removes temporary files of specs that are older than orphanAge and empty or of this driver. A plugin
// leaves one when it is killed while it writes a spec.
func (s *Specs) RemoveTemporary() error {
	files, err := filepath.Glob(filepath.Join(s.dir, temporaryName))
	errs := []error{err}
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil || time.Since(info.ModTime()).Abs() < orphanAge {
			continue // it is gone, or may be written now
		}
		if data, err := os.ReadFile(file); err == nil && (len(data) == 0 ||
			bytes.Contains(data, []byte(`"`+s.vendor+`/`))) {
			errs = append(errs, remove(file))
		}
	}
	return errors.Join(errs...)
}

// remove removes the file. It is no error if it is gone.
func remove(file string) error {
	if err := os.Remove(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// RemoveDriver removes the driver's spec. It is no error if there is none.
func (s *Specs) RemoveDriver() error {
	return remove(filepath.Join(s.dir, s.driverFile()))
}

// orphanAge is the age at which a claim's spec without a record is an orphan, also if the clock was ahead when it was
// written. A plugin that is killed while it releases the claim leaves one. Older versions of the driver also wrote the
// record after the spec, within one call of the kubelet, which ends after 45 s.
const orphanAge = 5 * time.Minute

// Orphans returns the unknown claims with specs older than orphanAge. It includes the metadata specs that kubeletplugin
// writes beside ours.
func (s *Specs) Orphans(known func(claim types.UID) bool) ([]types.UID, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var orphans []types.UID
	for _, e := range entries {
		claim, ok := s.claimOf(e.Name())
		info, err := e.Info()
		if !ok || err != nil || time.Since(info.ModTime()).Abs() < orphanAge || known(claim) ||
			slices.Contains(orphans, claim) {
			continue
		}
		orphans = append(orphans, claim)
	}
	return orphans, nil
}

// claimOf returns the claim that a file of the CDI directory belongs to.
func (s *Specs) claimOf(file string) (types.UID, bool) {
	if rest, ok := strings.CutPrefix(file, strings.TrimSuffix(s.claimFile(""), ".json")); ok {
		claim, ok := strings.CutSuffix(rest, ".json")
		return types.UID(claim), ok
	}
	// <driver>_metadata_<claim UID>_<request>.json, and a temporary file with a dot before it
	rest, ok := strings.CutPrefix(strings.TrimPrefix(file, "."), s.metadataPrefix())
	claim, _, found := strings.Cut(rest, "_")
	return types.UID(claim), ok && found
}

// metadataPrefix begins the names of metadata specs.
func (s *Specs) metadataPrefix() string {
	return strings.TrimPrefix(s.vendor, vendorPrefix) + "_metadata_"
}

func (s *Specs) kind(class string) string { return s.vendor + "/" + class }

func (s *Specs) driverFile() string { return cdiapi.GenerateSpecName(s.vendor, driverClass) + ".json" }

func (s *Specs) claimFile(claim types.UID) string {
	return cdiapi.GenerateTransientSpecName(s.vendor, claimClass, string(claim)) + ".json"
}

// write writes the spec unless the file is the same.
func (s *Specs) write(spec *specs.Spec, name string) error {
	if err := validate(spec); err != nil {
		return fmt.Errorf("CDI spec %s: %w", name, err)
	}
	// Runtimes parse JSON as YAML, and that parser looks ahead to the end of the line. With short lines, containerd
	// needs half the memory and four fifths of the processor time.
	data, err := json.MarshalIndent(spec, "", " ")
	if err != nil {
		return err
	}
	present, err := os.ReadFile(filepath.Join(s.dir, name))
	if err == nil && bytes.Equal(present, data) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.replace(name, data); err != nil {
		return fmt.Errorf("write CDI spec %s: %w", name, err)
	}
	return nil
}

// validate refuses what runtimes refuse.
func validate(spec *specs.Spec) error {
	errs := []error{(&cdiapi.ContainerEdits{ContainerEdits: &spec.ContainerEdits}).Validate()}
	for _, d := range spec.Devices {
		errs = append(errs, parser.ValidateDeviceName(d.Name),
			(&cdiapi.ContainerEdits{ContainerEdits: &d.ContainerEdits}).Validate())
	}
	return errors.Join(errs...)
}

// temporaryName is the pattern of the names of temporary files. The CDI library uses it, too.
const temporaryName = "spec.*.tmp"

// replace replaces the file atomically. The temporary file must be in the same directory and have a name: runtimes with
// a CDI library before 1.1.1 notice only that it loses this name, not that the spec appears.
func (s *Specs) replace(name string, data []byte) error {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(s.dir, temporaryName)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(s.dir, name))
	}
	if err != nil {
		return errors.Join(err, remove(f.Name()))
	}
	return nil
}
