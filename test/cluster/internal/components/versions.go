// SPDX-License-Identifier: Apache-2.0

package components

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// olderPrefix begins the names of the folders that pin older versions of Kubernetes: by minor version,
// "kubernetes-v1.34", and the first patch of one, "kubernetes-v1.36.0".
const olderPrefix = Kubernetes + "-"

// Kubernetes returns the component of a pinned version: "v1.34.4", or "v1.34" for its newest patch. Empty: the newest.
// The older ones have no kubectl, because the newest is for users of all of them. The error names the versions that are
// pinned.
func (c Cache) Kubernetes(version string) (Component, error) {
	pinned, err := c.pinned()
	if err != nil {
		return Component{}, err
	}
	for i, component := range pinned {
		has, err := c.version(component)
		if err != nil {
			return Component{}, err
		}
		if version == "" && i == 0 || version == has || strings.HasPrefix(has, version+".") && strings.Count(version,
			".") == 1 {
			return component, nil
		}
	}
	known, err := c.Versions()
	if err != nil {
		return Component{}, err
	}
	return Component{}, fmt.Errorf("kubernetes %q: want one of %s, or its minor version", version,
		strings.Join(known, ", "))
}

// Versions returns the pinned versions of Kubernetes, the newest first.
func (c Cache) Versions() ([]string, error) {
	pinned, err := c.pinned()
	if err != nil {
		return nil, err
	}
	var all []string
	for _, component := range pinned {
		version, err := c.version(component)
		if err != nil {
			return nil, err
		}
		all = append(all, version)
	}
	return all, nil
}

// pinned returns the Kubernetes of each pinned version, the newest first.
func (c Cache) pinned() ([]Component, error) {
	folders, err := filepath.Glob(filepath.Join(c.Source, olderPrefix+"v*"))
	if err != nil {
		return nil, err
	}
	all := []Component{newest()}
	for _, folder := range folders {
		all = append(all, kubernetesIn(filepath.Base(folder)))
	}
	return all, c.sort(all)
}

// sort sorts by version, the newest first.
func (c Cache) sort(all []Component) error {
	numbers := map[string][]int{}
	for _, component := range all {
		text, err := c.version(component)
		if err != nil {
			return err
		}
		of := make([]int, 3)
		if _, err := fmt.Sscanf(text, "v%d.%d.%d", &of[0], &of[1], &of[2]); err != nil {
			return fmt.Errorf("%s pins %q: %w", component.folder(), text, err)
		}
		numbers[component.folder()] = of
	}
	slices.SortFunc(all, func(a, b Component) int { return slices.Compare(numbers[b.folder()], numbers[a.folder()]) })
	return nil
}

// version returns the version that the component's go.mod pins.
func (c Cache) version(component Component) (string, error) {
	mod, err := os.ReadFile(filepath.Join(c.Source, component.folder(), "go.mod"))
	if err != nil {
		return "", fmt.Errorf("read pinned version of %s: %w", component.Name, err)
	}
	return component.versionIn(string(mod))
}
