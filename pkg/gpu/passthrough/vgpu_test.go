// SPDX-License-Identifier: Apache-2.0

package passthrough

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

const (
	vf0, vf1 = "0000:3b:00.4", "0000:3b:00.5"
	uuid     = "6d8ba0b6-2d0c-4c5e-9a31-2f6c3c2a5d10"
	other    = "7d8ba0b6-2d0c-4c5e-9a31-2f6c3c2a5d10"
)

// mediated adds a type of mediated devices to the function, and the devices that exist.
func (k *tree) mediated(at, id, name, description, available string, uuids ...string) {
	k.t.Helper()
	dir := "bus/pci/devices/" + at + "/mdev_supported_types/" + id
	for file, text := range map[string]string{"name": name, "description": description, "create": "",
		"available_instances": available} {
		k.file(dir+"/"+file, text+"\n")
	}
	for i, uuid := range uuids {
		own := "bus/mdev/devices/" + uuid
		k.file(dir+"/devices/"+uuid+"/file", "")
		k.file(own+"/mdev_type/name", name+"\n")
		k.file(own+"/remove", "")
		k.link("../../../"+own+"/iommu_group", fmt.Sprint("../../kernel/iommu_groups/", 60+i))
	}
}

// virtual adds a virtual function to that at the address, with the number.
func (k *tree) virtual(at string, number int, function string) {
	k.t.Helper()
	k.link(at+"/virtfn"+fmt.Sprint(number), "../"+function)
	k.file("bus/pci/devices/"+function+"/vendor", "0x10de\n")
	k.link(function+"/iommu_group", fmt.Sprint("../../../../kernel/iommu_groups/", 80+number))
}

func describe(all *gpu.VGPUs) string {
	if all == nil {
		return "none"
	}
	var b strings.Builder
	for _, t := range all.Types {
		fmt.Fprintf(&b, "%dx %s %dMi; ", t.Max, t.Name, t.Memory>>20)
	}
	for _, v := range all.Existing {
		fmt.Fprintf(&b, "%s %dMi on %s group %d; ", v, v.Type.Memory>>20, v.Function, v.Group)
	}
	return strings.TrimSuffix(b.String(), "; ")
}

func TestVGPUs(t *testing.T) {
	const four = "num_heads=4, frl_config=60, framebuffer=4096M, max_resolution=5120x2880, max_instance=4"
	for _, row := range []struct {
		name string
		add  func(*tree)
		want string
	}{
		{"no vGPU driver", func(*tree) {}, "none"},
		{"virtual functions only", func(k *tree) { k.virtual(at, 0, vf0) }, "none"},
		{"types, by number", func(k *tree) {
			eight := strings.NewReplacer("4096", "8192", "ce=4", "ce=2").Replace(four)
			k.mediated(at, "nvidia-1000", "GRID T4-8Q", eight, "2")
			k.mediated(at, "nvidia-231", "GRID T4-4Q", four, "4")
		}, "4x T4-4Q 4096Mi; 2x T4-8Q 8192Mi"},
		{"one without a size cannot be made", func(k *tree) { k.mediated(at, "nvidia-1", "GRID T4-4Q", "", "4") }, ""},
		{"existing ones", func(k *tree) { k.mediated(at, "nvidia-231", "GRID T4-4Q", four, "2", other, uuid) },
			"4x T4-4Q 4096Mi; T4-4Q, mediated device " + uuid + " 4096Mi on " + at + " group 61; T4-4Q, mediated " +
				"device " + other + " 4096Mi on " + at + " group 60"},
		{"of virtual functions", func(k *tree) {
			k.virtual(at, 0, vf0)
			k.virtual(at, 1, vf1)
			k.mediated(vf0, "nvidia-703", "NVIDIA A16-4Q", four, "0", uuid)
			k.mediated(vf1, "nvidia-703", "NVIDIA A16-4Q", four, "1")
		}, "4x A16-4Q 4096Mi; A16-4Q, mediated device " + uuid + " 4096Mi on " + vf0 + " group 60"},
		{"virtual functions that are vGPUs", func(k *tree) {
			k.virtual(at, 0, vf0)
			k.virtual(at, 1, vf1)
			for f, current := range map[string]string{vf0: "0", vf1: "1151"} {
				k.file("bus/pci/devices/"+f+"/nvidia/creatable_vgpu_types",
					"ID    : vGPU Name\n1145  : NVIDIA L40S-1B\n1151  : NVIDIA L40S-4Q\n")
				k.file("bus/pci/devices/"+f+"/nvidia/current_vgpu_type", current+"\n")
			}
		}, "L40S-4Q, virtual function " + vf1 + " 4096Mi on " + vf1 + " group 81"},
		{"one whose type no function lists any more", func(k *tree) {
			k.virtual(at, 0, vf0)
			k.file("bus/pci/devices/"+vf0+"/nvidia/current_vgpu_type", "1151\n")
		}, "type 1151, virtual function " + vf0 + " 0Mi on " + vf0 + " group 80"},
	} {
		t.Run(row.name, func(t *testing.T) {
			k := newTree(t, bound)
			row.add(k)
			if got := describe(k.bus().VGPUs(address(t, at))); got != row.want {
				t.Errorf("got  %s\nwant %s", got, row.want)
			}
		})
	}
}

func TestMemoryOfATypeByItsName(t *testing.T) {
	for name, want := range map[string]uint64{"L40S-4Q": 4096, "M10-0B": 512, "A100-1-5C": 5120, "A16-16A": 16384,
		"other": 0, "": 0} {
		if got := memoryOf(name) >> 20; got != want {
			t.Errorf("%q: got %d MiB, want %d", name, got, want)
		}
	}
}

// Making and removing can be repeated, and the errors say what is in the way.
func TestCreateAndRemoveVGPU(t *testing.T) {
	const description = "framebuffer=4096M, max_instance=4"
	types := "bus/pci/devices/" + vf1 + "/mdev_supported_types/nvidia-703/create"
	for _, row := range []struct {
		name    string
		add     func(*tree)
		remove  bool
		writes  string
		refused error
		want    string // part of the error
		is      error
	}{
		{"on the first function with room", func(k *tree) {
			k.mediated(vf0, "nvidia-703", "NVIDIA A16-4Q", description, "0", other)
			k.mediated(vf1, "nvidia-703", "NVIDIA A16-4Q", description, "1")
		}, false, types + " " + uuid, nil, "", nil},
		{"it exists", func(k *tree) {
			k.mediated(vf0, "nvidia-703", "NVIDIA A16-4Q", description, "0", uuid)
		}, false, "", nil, "", nil},
		{"it exists with another type", func(k *tree) {
			k.mediated(vf0, "nvidia-704", "NVIDIA A16-8Q", description, "0", uuid)
		}, false, "", nil, "it exists with the type A16-8Q", nil},
		{"no room", func(k *tree) {
			k.mediated(vf0, "nvidia-703", "NVIDIA A16-4Q", description, "0", other)
		}, false, "", nil, "the GPU has no room for it", gpu.ErrBusy},
		{"the kernel refuses it", func(k *tree) {
			k.mediated(vf1, "nvidia-703", "NVIDIA A16-4Q", description, "1")
		}, false, types + " " + uuid, syscall.ENOSPC, "make the vGPU " + uuid + " of type A16-4Q: write ",
			syscall.ENOSPC},
		{"removed", func(k *tree) {
			k.mediated(vf0, "nvidia-703", "NVIDIA A16-4Q", description, "0", uuid)
		}, true, "bus/mdev/devices/" + uuid + "/remove 1", nil, "", nil},
		{"there is none", func(*tree) {}, true, "", nil, "", nil},
		{"a program has it open", func(k *tree) {
			k.mediated(vf0, "nvidia-703", "NVIDIA A16-4Q", description, "0", uuid)
		}, true, "bus/mdev/devices/" + uuid + "/remove 1", syscall.EBUSY, "remove the vGPU " + uuid, gpu.ErrBusy},
	} {
		t.Run(row.name, func(t *testing.T) {
			k := newTree(t, bound)
			k.virtual(at, 0, vf0)
			k.virtual(at, 1, vf1)
			row.add(k)
			var writes []string
			b := k.bus()
			b.Write = func(file, text string) error {
				name, err := filepath.Rel(k.dir, file)
				writes = append(writes, name+" "+text)
				return errors.Join(err, row.refused)
			}
			err := b.CreateVGPU(t.Context(), address(t, at), "A16-4Q", uuid)
			if row.remove {
				writes = nil
				err = b.RemoveVGPU(t.Context(), address(t, at), uuid)
			}
			if row.want == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), row.want) ||
				row.is != nil && !errors.Is(err, row.is) {
				t.Errorf("got %v, want %q", err, row.want)
			}
			if got := strings.Join(writes, "; "); got != row.writes {
				t.Errorf("got the writes %s, want %s", got, row.writes)
			}
		})
	}
	k := newTree(t, "") // a GPU that is gone has no vGPUs
	if err := k.bus().RemoveVGPU(t.Context(), address(t, at), uuid); err != nil {
		t.Errorf("removed with its GPU: %v", err)
	}
}
