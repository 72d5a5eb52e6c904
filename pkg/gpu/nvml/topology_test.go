// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// onSwitches are n GPUs on NVSwitches that nobody divides.
func onSwitches(n int) []links { return slices.Repeat([]links{{toSwitch: true}}, n) }

// to is a GPU with live links to those GPUs, by their place in the list.
func to(peers ...int) links {
	var l links
	for _, p := range peers {
		l.peers = append(l.peers, address(p))
	}
	return l
}

func address(i int) gpu.PCIAddress { return gpu.PCIAddress{Bus: uint8(i + 1)} }

// inClique is a GPU on NVSwitches that reaches those of the same clique.
func inClique(id uint32) links {
	return links{toSwitch: true, clique: clique{cluster: [16]uint8{1}, id: id}}
}

// cubeMesh is the DGX-1: two quads, and an edge from each GPU to its counterpart.
func cubeMesh() []links {
	return []links{to(1, 2, 3, 4), to(0, 2, 3, 5), to(0, 1, 3, 6), to(0, 1, 2, 7), to(0, 5, 6, 7), to(1, 4, 6, 7),
		to(2, 4, 5, 7), to(3, 4, 5, 6)}
}

// renumbered is the mesh as it is when the GPUs are enumerated in that order.
func renumbered(mesh []links, order ...int) []links {
	out := make([]links, len(order))
	for place, old := range order {
		var peers []int
		for _, p := range mesh[old].peers {
			if at := slices.Index(order, int(p.Bus)-1); at >= 0 {
				peers = append(peers, at)
			}
		}
		out[place] = to(peers...)
	}
	return out
}

func TestAssignNVLinkDomains(t *testing.T) {
	for _, row := range []struct {
		name  string
		links []links
		want  string // groups of GPUs, by their place in the list
	}{
		{"no GPU", nil, ""},
		{"one GPU", []links{{}}, "0"},
		{"GPUs without NVLink", make([]links, 3), "0 1 2"},
		{"all on switches", onSwitches(8), "0,1,2,3,4,5,6,7"},
		{"as many on switches as a machine can have", onSwitches(64),
			strings.Join(strings.Split(strings.Trim(fmt.Sprint(upTo(64)), "[]"), " "), ",")},
		{"one of them without a live link", append(onSwitches(2), links{}, links{toSwitch: true}), "0,1,3 2"},
		{"on the same switches in two cliques", []links{inClique(1), inClique(2), inClique(1), inClique(2)}, "0,2 1,3"},
		{"a GPU on switches and one that is not", []links{{toSwitch: true}, to(0)}, "0 1"},
		{"a bridge", []links{to(1), to(0)}, "0,1"},
		{"a bridge and one more GPU between", []links{to(2), {}, to(0)}, "0,2 1"},
		{"two bridges", []links{to(3), to(2), to(1), to(0)}, "0,3 1,2"},
		{"a bridge that only one end says is alive", []links{to(1), {}}, "0 1"},
		{"two bridges, one of them dead at one end", []links{to(1), to(0), to(3), {}}, "0,1 2 3"},
		{"a link to what is no GPU of ours", []links{to(9), to(9)}, "0 1"},
		{"a link to itself", []links{to(0), {}}, "0 1"},
		{"a chain of three falls into a pair and one", []links{to(1), to(0, 2), to(1)}, "0,1 2"},
		{"a ring of four falls into pairs", []links{to(1, 3), to(0, 2), to(1, 3), to(0, 2)}, "0,1 2,3"},
		{"a triangle goes before the pair that comes first", []links{to(1), to(0, 2, 3), to(1, 3), to(1, 2)},
			"0 1,2,3"},
		{"four in a mesh, each to each", []links{to(1, 2, 3), to(0, 2, 3), to(0, 1, 3), to(0, 1, 2)}, "0,1,2,3"},
		{"a hybrid cube mesh falls into its two quads", cubeMesh(), "0,1,2,3 4,5,6,7"},
		{"in whatever order they come", renumbered(cubeMesh(), 0, 4, 1, 5, 2, 6, 3, 7), "0,2,4,6 1,3,5,7"},
		{"or the other way round", renumbered(cubeMesh(), 7, 6, 5, 4, 3, 2, 1, 0), "0,1,2,3 4,5,6,7"},
		{"with a GPU missing", renumbered(cubeMesh(), 0, 1, 2, 4, 5, 6, 7), "0,1,2 3,4,5,6"},
		{"with a dead edge in one quad", withoutEdge(cubeMesh(), 0, 3), "0,1,2 3 4,5,6,7"},
		{"with a dead edge between the quads", withoutEdge(cubeMesh(), 0, 4), "0,1,2,3 4,5,6,7"},
	} {
		t.Run(row.name, func(t *testing.T) {
			devices := make([]gpu.Device, len(row.links))
			for i := range devices {
				devices[i] = gpu.Device{UUID: gpu.UUID(fmt.Sprint(i)), PCI: address(i)}
			}
			assignNVLinkDomains(devices, row.links)
			if got := groups(t, devices); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

func upTo(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// withoutEdge kills the link at one end only.
func withoutEdge(mesh []links, from, end int) []links {
	mesh[from].peers = slices.DeleteFunc(mesh[from].peers, func(p gpu.PCIAddress) bool { return p == address(end) })
	return mesh
}

// groups are the domains as lists of GPUs, each domain being named after its first.
func groups(t *testing.T, devices []gpu.Device) string {
	t.Helper()
	members := map[string][]string{}
	for _, d := range devices {
		members[d.Topology.NVLinkDomain] = append(members[d.Topology.NVLinkDomain], string(d.UUID))
	}
	var out []string
	for _, d := range devices {
		group, ok := members[string(d.UUID)]
		if ok && group[0] != string(d.UUID) {
			t.Errorf("domain %s has the members %v", d.UUID, group)
		}
		if ok {
			out = append(out, strings.Join(group, ","))
		}
	}
	return strings.Join(out, " ")
}

// What the profiles come to, and what is left when links die or the fabric is not ready.
func TestNVLinkAndFabricDomainsOfMachines(t *testing.T) {
	const alone = "0 1 2 3 4 5 6 7"
	for _, row := range []struct {
		name, profile string
		spoil         map[string]string // GPU and call → error
		nvlink        string
		fabric        string
	}{
		{"eight on NVSwitch", "dgx-a100", nil, "0,1,2,3,4,5,6,7", alone},
		{"on Hopper", "hgx-h200", nil, "0,1,2,3,4,5,6,7", alone},
		{"on Blackwell", "hgx-b200", nil, "0,1,2,3,4,5,6,7", alone},
		{"a tray of a rack", "gb200-nvl4", nil, "0,1,2,3", "cluster.32766=0,1,2,3"},
		{"two quads", "dgx1-v100", nil, "0,1,2,3 4,5,6,7", alone},
		{"a bridge and a card beside it", "workstation", nil, "0,1 2", "0 1 2"},
		{"cards that could have a bridge", "a30-x2", nil, "0 1", "0 1"},
		{"GeForce", "rtx2080ti-x4", nil, "0 1 2 3", "0 1 2 3"},
		{"cards without NVLink", "l40s-x4", nil, "0 1 2 3", "0 1 2 3"},
		{"the links of one end are gone", "workstation", map[string]string{"0": "GetNvLinkState"}, "0 1 2", "0 1 2"},
		{"of one of eight", "hgx-h200", map[string]string{"3": "GetNvLinkState"}, "0,1,2,4,5,6,7 3", alone},
		{"of one of a quad", "dgx1-v100", map[string]string{"1": "GetNvLinkState"}, "0,2,3 1 4,5,6,7", alone},
		{"one does not say who is at the other end", "workstation", map[string]string{"1": "GetNvLinkRemotePciInfo"},
			"0 1 2", "0 1 2"},
		{"one does not know of the fabric", "gb200-nvl4", map[string]string{"2": "GetGpuFabricInfo"}, "0,1,3 2",
			"cluster.32766=0,1,3 2"},
	} {
		t.Run(row.name, func(t *testing.T) {
			devices := discoverMachine(t, row.profile, row.spoil)
			if got := groups(t, devices); got != row.nvlink {
				t.Errorf("NVLink: got %s, want %s", got, row.nvlink)
			}
			if got := fabrics(devices); got != row.fabric {
				t.Errorf("fabric: got %s, want %s", got, row.fabric)
			}
		})
	}
}

// discoverMachine reads a simulated machine on which calls about some GPUs fail. UUIDs and domains are written as
// indexes.
func discoverMachine(t *testing.T, profile string, spoil map[string]string) []gpu.Device {
	t.Helper()
	p, err := simulator.BuiltIn(profile)
	if err != nil {
		t.Fatal(err)
	}
	machine, err := simulator.Open(tmpfs.Dir(t), p)
	if err != nil {
		t.Fatal(err)
	}
	for which, call := range spoil {
		if err := machine.Fail(which, call, "ERROR_NOT_SUPPORTED"); err != nil {
			t.Fatal(err)
		}
	}
	node, err := Open(MachineConfig{Library: machine.NVML(), Sysfs: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	look, err := node.Discover(t.Context())
	devices, broken := look.Devices, look.Broken
	if err != nil || len(broken) > 0 {
		t.Fatal(err, broken)
	}
	index := map[string]string{}
	for i, d := range devices {
		index[string(d.UUID)] = fmt.Sprint(i)
	}
	for i := range devices {
		d := &devices[i]
		d.UUID, d.Topology.NVLinkDomain = gpu.UUID(index[string(d.UUID)]), index[d.Topology.NVLinkDomain]
		if own, ok := index[d.Topology.FabricDomain]; ok {
			d.Topology.FabricDomain = own
		}
	}
	return devices
}

// fabrics are the fabric domains: a GPU that is in none by its own index, one of a fabric as clique=members.
func fabrics(devices []gpu.Device) string {
	var out []string
	members := map[string][]string{}
	for _, d := range devices {
		domain := d.Topology.FabricDomain
		if _, id, ok := strings.Cut(domain, "."); ok {
			domain = "cluster." + id
		}
		if members[domain] == nil {
			out = append(out, domain)
		}
		members[domain] = append(members[domain], string(d.UUID))
	}
	for i, domain := range out {
		if strings.HasPrefix(domain, "cluster.") {
			out[i] += "=" + strings.Join(members[domain], ",")
		}
	}
	return strings.Join(out, " ")
}

// From Hopper on a GPU must have joined its clique before the switches carry anything.
func TestLinksOnTheFabric(t *testing.T) {
	const completed, progress, notSupported = nvmllib.GPU_FABRIC_STATE_COMPLETED, nvmllib.GPU_FABRIC_STATE_IN_PROGRESS,
		nvmllib.GPU_FABRIC_STATE_NOT_SUPPORTED
	cluster := [16]uint8{7}
	for _, row := range []struct {
		name string
		info nvmllib.GpuFabricInfo
		want links
	}{
		{"one machine for itself", nvmllib.GpuFabricInfo{State: completed}, links{toSwitch: true}},
		{"a clique of a cluster", nvmllib.GpuFabricInfo{State: completed, ClusterUuid: cluster, CliqueId: 3},
			links{toSwitch: true, clique: clique{cluster, 3}}},
		{"not yet", nvmllib.GpuFabricInfo{State: progress, ClusterUuid: cluster}, links{}},
		{"not started", nvmllib.GpuFabricInfo{State: nvmllib.GPU_FABRIC_STATE_NOT_STARTED}, links{}},
		{"completed with an error", nvmllib.GpuFabricInfo{State: completed, Status: uint32(nvmllib.ERROR_UNKNOWN)},
			links{}},
		{"a generation without", nvmllib.GpuFabricInfo{State: notSupported}, links{toSwitch: true}},
	} {
		got := links{toSwitch: true}
		got.onFabric(row.info)
		if got, want := fmt.Sprint(got), fmt.Sprint(row.want); got != want {
			t.Errorf("%s: got %s, want %s", row.name, got, want)
		}
	}
}
