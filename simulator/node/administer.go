// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// What an administrator does to partitions by hand, even while a claim uses them.

// CreatePartition creates a GPU instance of the named profile with one compute instance that fills it. It returns the
// partition as the node prints it. The place is "PROFILE@START", or "PROFILE" for the first free placement.
func (n *Node) CreatePartition(which, place string) (string, error) {
	var made string
	err := n.changeMIG(which, func(c GPU, m *MIG) error {
		profile, at, err := c.parsePlace(place)
		if err != nil {
			return err
		}
		profiles, _ := c.Calls.GetGpuInstanceProfileInfo.Get()
		g, err := c.addInstance(m, profiles[profile].ID, at)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(m.Instances, func(o GPUInstance) bool { return o.ID == g.ID })
		ci, err := c.addCompute(&m.Instances[i], c.wholeCompute(profile).ID)
		if err == nil {
			made = fmt.Sprintf("%s/%s", c.Name, c.partition(g, ci, 0).place())
		}
		return err
	})
	return made, err
}

// wholeCompute is the compute instance profile that fills a GPU instance.
func (c GPU) wholeCompute(profile int) hwprofile.ComputeInstanceProfile {
	compute, _ := c.Calls.GpuInstanceGetComputeInstanceProfileInfo.Get()
	var out hwprofile.ComputeInstanceProfile
	for _, p := range compute[profile] {
		if p.SliceCount > out.SliceCount {
			out = p
		}
	}
	return out
}

// DeletePartition removes the GPU instance at the place "PROFILE@START", with its compute instances and their
// processes. An empty place means all GPU instances.
func (n *Node) DeletePartition(which, place string) error {
	return n.changeMIG(which, func(c GPU, m *MIG) error {
		if place == "" {
			m.Instances = nil
			return nil
		}
		profile, at, err := c.parsePlace(place)
		if err != nil {
			return err
		}
		if at == nil {
			return fmt.Errorf("partition %q: want PROFILE@START", place)
		}
		left := slices.DeleteFunc(slices.Clone(m.Instances), func(g GPUInstance) bool {
			return g.Profile == profile && g.Span == *at
		})
		if len(left) == len(m.Instances) {
			return fmt.Errorf("%s has no partition %s", c.Name, place)
		}
		m.Instances = left
		return nil
	})
}

// parsePlace parses "PROFILE@START" or "PROFILE". It returns NVML's number of the profile.
func (c GPU) parsePlace(place string) (profile int, at *hwprofile.Span, err error) {
	name, start, given := strings.Cut(place, "@")
	profiles, _ := c.Calls.GetGpuInstanceProfileInfo.Get()
	numbers := slices.Sorted(maps.Keys(profiles))
	i := slices.IndexFunc(numbers, func(number int) bool { return profiles[number].Name == name })
	if i < 0 {
		return 0, nil, fmt.Errorf("%s has no profile %q; it has %s", c.Name, name, strings.Join(profileNames(profiles),
			", "))
	}
	if !given {
		return numbers[i], nil, nil
	}
	possible, err := c.Placements(profiles[numbers[i]].ID)
	if err != nil {
		return 0, nil, err
	}
	var starts []string
	for _, p := range possible {
		if strconv.Itoa(p.Start) == start {
			return numbers[i], &p, nil
		}
		starts = append(starts, strconv.Itoa(p.Start))
	}
	return 0, nil, fmt.Errorf("%s: %s can start at %s", c.Name, name, strings.Join(starts, ", "))
}

func profileNames(profiles hwprofile.GPUInstanceProfiles) []string {
	var out []string
	for _, number := range slices.Sorted(maps.Keys(profiles)) {
		out = append(out, profiles[number].Name)
	}
	return out
}
