// SPDX-License-Identifier: Apache-2.0

package nodeconfig

import (
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
)

// node has four GPUs. MIG mode of an A100 changes by a reset; that of the second is on.
var node = []gpu.Device{
	{Name: "gpu-0", UUID: "GPU-aaaa", Index: 0, Product: gpu.Product{Name: "NVIDIA A100-SXM4-40GB",
		Architecture: "Ampere"}, MIG: gpu.MIG{Capable: true}},
	{Name: "gpu-1", UUID: "GPU-bbbb", Index: 1, Product: gpu.Product{Name: "NVIDIA A100-SXM4-80GB",
		Architecture: "Ampere"}, MIG: gpu.MIG{Capable: true, Enabled: true}},
	{Name: "gpu-2", UUID: "GPU-cccc", Index: 2, Product: gpu.Product{Name: "NVIDIA H100 80GB HBM3",
		Architecture: "Hopper"}, MIG: gpu.MIG{Capable: true, Switchable: true}},
	{Name: "gpu-3", UUID: "GPU-dddd", Index: 3, Product: gpu.Product{Name: "Tesla T4", Architecture: "Turing"}},
}

const ownHead = "apiVersion: resource.nvidia.com/v1beta1\nkind: NodeConfig\n"

// usesOf is what a configuration means for the node, one line per GPU, then the warnings; or the error.
func usesOf(text string) string {
	c, err := Parse([]byte(text))
	if err != nil {
		return err.Error()
	}
	var lines []string
	for _, d := range node {
		lines = append(lines, d.Name+" "+c.For(d).String())
	}
	return strings.Join(append(lines, c.Warnings...), "\n")
}

const untouched = "gpu-0 fractional, isolation mps\ngpu-1 fractional, isolation mps\ngpu-2 fractional, isolation " +
	"mps\ngpu-3 fractional, isolation mps"

func TestOwnFormat(t *testing.T) {
	for _, row := range []struct{ name, gpus, want string }{
		{"no entries leave every GPU at its default", "gpus: []", untouched},
		{"an entry without a selection is for every GPU", "gpus: [{sharing: exclusive}]",
			"gpu-0 exclusive\ngpu-1 exclusive\ngpu-2 exclusive\ngpu-3 exclusive"},
		{"the first entry that selects a GPU decides", `
gpus:
  - select: {product: "NVIDIA A100*"}
    sharing: {replicated: 4}
  - select: {architecture: Ampere, index: [1, 2]}
    sharing: exclusive
  - select: {uuid: GPU-cccc}
    sharing: fractional
    isolation: none
  - sharing: exclusive`,
			"gpu-0 replicated: 4, isolation mps\ngpu-1 replicated: 4, isolation mps\ngpu-2 fractional, isolation " +
				"none\ngpu-3 exclusive"},
		{"a GPU has to meet every criterion, and of each any value", `
gpus:
  - select: {product: ["*A100*", "*H100*"], index: [1, 2, 3]}
    sharing: exclusive`,
			"gpu-0 fractional, isolation mps\ngpu-1 exclusive\ngpu-2 exclusive\ngpu-3 fractional, isolation mps"},
		{"a pattern describes the whole name", `gpus: [{select: {product: A100}, sharing: exclusive}]`, untouched},
		{"a star stands for any text, none included", `gpus: [{select: {product: "*Tesla*T4*"}, sharing: exclusive}]`,
			"gpu-0 fractional, isolation mps\ngpu-1 fractional, isolation mps\ngpu-2 fractional, isolation " +
				"mps\ngpu-3 exclusive"},
		{"several UUIDs", `gpus: [{select: {uuid: [GPU-aaaa, GPU-dddd]}, sharing: exclusive}]`,
			"gpu-0 exclusive\ngpu-1 fractional, isolation mps\ngpu-2 fractional, isolation mps\ngpu-3 exclusive"},
		{"everything that replicas can have",
			`gpus: [{sharing: {replicated: 10}, isolation: none, sharedOnly: true, onePerClaim: true}]`,
			strings.Repeat("gpu-N replicated: 10, isolation none, shared only, one per claim\n", 4)},
		{"a library enforces fractions", `gpus: [{isolation: hook, hook: {library: /opt/hook/libhook.so}}]`,
			strings.Repeat("gpu-N fractional, isolation hook (/opt/hook/libhook.so)\n", 4)},
		{"a library enforces replicas",
			`gpus: [{sharing: {replicated: 100}, isolation: hook, hook: {library: /opt/hook/libhook.so}}]`,
			strings.Repeat("gpu-N replicated: 100, isolation hook (/opt/hook/libhook.so)\n", 4)},
		{"the kernel enforces fractions", `gpus: [{isolation: cgroup}]`,
			strings.Repeat("gpu-N fractional, isolation cgroup\n", 4)},
		{"any number of users without limits", `gpus: [{sharing: unlimited}]`,
			strings.Repeat("gpu-N unlimited, isolation none\n", 4)},
		{"everything that unlimited users can have",
			`gpus: [{sharing: unlimited, isolation: none, sharedOnly: true, partitions: none}]`,
			strings.Repeat("gpu-N unlimited, isolation none, shared only, partitions none\n", 4)},
		{"as many replicas as an MPS server has clients", `gpus: [{sharing: {replicated: 48}}]`,
			strings.Repeat("gpu-N replicated: 48, isolation mps\n", 4)},
		{"partitions beside every way of sharing", `
gpus:
  - select: {index: 0}
    partitions: none
  - select: {index: 1}
    sharing: exclusive
    partitions: static
  - sharing: {replicated: 4}
    partitions: dynamic`,
			"gpu-0 fractional, isolation mps, partitions none\ngpu-1 exclusive, partitions static\n" +
				"gpu-2 replicated: 4, isolation mps, partitions dynamic\ngpu-3 replicated: 4, isolation mps, " +
				"partitions dynamic"},
		{"an anchor saves writing", "gpus:\n  - {select: {index: 0}, sharing: &four {replicated: 4}}\n  - {select: " +
			"{index: 3}, sharing: *four}",
			"gpu-0 replicated: 4, isolation mps\ngpu-1 fractional, isolation mps\ngpu-2 fractional, isolation " +
				"mps\ngpu-3 replicated: 4, isolation mps"},
	} {
		t.Run(row.name, func(t *testing.T) { compare(t, usesOf(ownHead+row.gpus), row.want) })
	}
}

func TestDevicePluginFormat(t *testing.T) {
	for _, row := range []struct{ name, text, want string }{
		{"time-slicing counts and does not enforce", `
version: v1
sharing:
  timeSlicing:
    resources:
      - {name: nvidia.com/gpu, replicas: 10}`,
			strings.Repeat("gpu-N replicated: 10, isolation none\n", 4)},
		{"MPS enforces, and one container has one of them", `
version: v1
sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}`,
			strings.Repeat("gpu-N replicated: 10, isolation mps, one per claim\n", 4)},
		{"MPS for those who want several", `
sharing: {mps: {failRequestsGreaterThanOne: false, resources: [{name: gpu, replicas: 10}]}}`,
			strings.Repeat("gpu-N replicated: 10, isolation mps\n", 4)},
		{"renamed by default, and one per container", `
version: v1
sharing: {timeSlicing: {renameByDefault: true, failRequestsGreaterThanOne: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}`,
			strings.Repeat("gpu-N replicated: 4, isolation none, shared only, one per claim\n", 4)},
		{"MPS renamed by default", `
version: v1
sharing: {mps: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 2}]}}`,
			strings.Repeat("gpu-N replicated: 2, isolation mps, shared only, one per claim\n", 4)},
		{"renamed by hand", `
version: v1
sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, rename: nvidia.com/gpu.shared, replicas: 4}]}}`,
			strings.Repeat("gpu-N replicated: 4, isolation none, shared only\n", 4)},
		{"all devices by name", `
version: v1
sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, devices: all, replicas: 4}]}}`,
			strings.Repeat("gpu-N replicated: 4, isolation none\n", 4)},
		{"a number of devices is the first ones", `
version: v1
sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, devices: 2, replicas: 4}]}}`,
			"gpu-0 replicated: 4, isolation none\ngpu-1 replicated: 4, isolation none\ngpu-2 fractional, isolation " +
				"mps\ngpu-3 fractional, isolation mps"},
		{"indexes and UUIDs mixed", `
version: v1
sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, devices: [0, "1", GPU-dddd], replicas: 4}]}}`,
			"gpu-0 replicated: 4, isolation none\ngpu-1 replicated: 4, isolation none\ngpu-2 fractional, isolation " +
				"mps\ngpu-3 replicated: 4, isolation none"},
		{"different numbers for different devices", `
version: v1
sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, devices: [0], replicas: 4}, {name: nvidia.com/gpu, replicas: 8}]}}`,
			"gpu-0 replicated: 4, isolation none\ngpu-1 replicated: 8, isolation none\ngpu-2 replicated: 8, " +
				"isolation none\ngpu-3 replicated: 8, isolation none"},
		{"one replica needs no MPS", `
version: v1
sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 1}]}}`,
			strings.Repeat("gpu-N replicated: 1, isolation none, one per claim\n", 4)},
		{"nothing about sharing", "version: v1\nflags: {failOnInitError: true}", untouched},
		{"nothing about partitions", "version: v1\nflags: {migStrategy: }", untouched},
		{"an empty word about partitions", "version: v1\nflags: {migStrategy: ''}", untouched},
		{"no partitions", "version: v1\nflags: {migStrategy: none}", strings.Repeat("gpu-N fractional, isolation "+
			"mps, partitions none\n", 4)},
		{"partitions that are there, and replicas", `
version: v1
flags: {migStrategy: mixed}
sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}`,
			strings.Repeat("gpu-N replicated: 4, isolation none, partitions static\n", 4)},
		{"partitions also of the GPUs that are not replicated", `
version: v1
flags: {migStrategy: mixed}
sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, devices: [3], replicas: 4}]}}`,
			"gpu-0 fractional, isolation mps, partitions static\ngpu-1 fractional, isolation mps, partitions static\n" +
				"gpu-2 fractional, isolation mps, partitions static\ngpu-3 replicated: 4, isolation none, partitions " +
				"static"},
		{"partitions under the name of a whole GPU", "version: v1\nflags: {migStrategy: single}",
			strings.Repeat("gpu-N fractional, isolation mps, partitions static\n", 4) +
				`line 2: flags.migStrategy: "single" is taken as mixed: a partition is asked for as nvidia.com/mig-<profile> here, and nvidia.com/gpu is a whole GPU`},
		{"what a file that is carried over often has", `
version: v1
flags:
  migStrategy: none
  failOnInitError: true
  nvidiaDriverRoot: /
  gdsEnabled: false
  plugin: {passDeviceSpecs: false, deviceListStrategy: [envvar], deviceIDStrategy: uuid}
  gfd: {oneshot: false, noTimestamp: false, sleepInterval: 60s}
resources: {}
imex: {required: false}
sharing: {}`, strings.Repeat("gpu-N fractional, isolation mps, partitions none\n", 4)},
		{"what would be missed is warned of", `
version: v1
flags:
  gdsEnabled: true
  mofedEnabled: true
resources: {gpus: [{pattern: "*", name: nvidia.com/gpu}]}
imex: {channelIDs: [0]}`, untouched + `
line 4: flags.gdsEnabled: ignored: containers do not get its device nodes from this driver
line 5: flags.mofedEnabled: ignored: containers do not get its device nodes from this driver
line 6: resources: ignored, as the device plugin does too: what GPUs are called is for device classes to say
line 7: imex.channelIDs: ignored: IMEX channels are not offered by this driver`},
		{"as JSON, too",
			`{"version": "v1", "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 3}]}}}`,
			strings.Repeat("gpu-N replicated: 3, isolation none\n", 4)},
	} {
		t.Run(row.name, func(t *testing.T) { compare(t, usesOf(row.text), row.want) })
	}
}

func TestInvalidConfigurations(t *testing.T) {
	for _, row := range []struct{ name, text, want string }{
		{"nothing", "", "line 1: empty"},
		{"only a comment", "# later\n", "line 1: empty"},
		{"a word", "exclusive",
			`line 1: "exclusive": want a node configuration (apiVersion: resource.nvidia.com/v1beta1, kind: NodeConfig, gpus: […]), or one of NVIDIA's device plugin (version: v1, sharing: {…})`},
		{"another file", "foo: bar\n",
			`line 1: a map: want a node configuration (apiVersion: resource.nvidia.com/v1beta1, kind: NodeConfig, gpus: […]), or one of NVIDIA's device plugin (version: v1, sharing: {…})`},
		{"no YAML", ownHead + "gpus:\n  - {sharing: exclusive\n", "line 4: did not find expected ',' or '}'"},
		{"a colon that was forgotten", ownHead + "gpus:\n  - select: {index: 0}\n    sharing exclusive\n  - sharing: " +
			"exclusive\n", "line 5: could not find expected ':'"},
		{"an indentation that is no column", ownHead + "gpus:\n  - select:\n      index: 0\n    sharing: exclusive\n " +
			"  isolation: none\n", "line 7: did not find expected '-' indicator"},
		{"a quote that is not closed", ownHead + "gpus:\n  - select: {index: 0}\n    sharing: \"exclusive\n  - " +
			"sharing: exclusive\n", "line 5: found unexpected end of stream"},
		{"a tab", ownHead + "gpus:\n\t- sharing: exclusive\n", "line 4: found character that cannot start any token"},
		{"two documents", ownHead + "gpus: []\n---\ngpus: []\n", "line 4: a second YAML document: want one"},
		{"a second document that is no YAML", ownHead + "gpus: []\n---\n}\n",
			"line 5: did not find expected node content"},
		{"another version and kind", "apiVersion: resource.nvidia.com/v1\nkind: GpuConfig\ngpus: []", `
line 1: apiVersion: "resource.nvidia.com/v1": want resource.nvidia.com/v1beta1
line 2: kind: "GpuConfig": want NodeConfig`},
		{"no head", "gpus: []", `
line 1: apiVersion: missing: want resource.nvidia.com/v1beta1
line 1: kind: missing: want NodeConfig`},
		{"no list", ownHead, "line 1: gpus: missing: want a list"},
		{"every typo at once", ownHead + `
gpu: []
gpus:
  - selects: {index: 0}
    sharing: exclusiv
  - select: {index: first, produkt: A100}
    sharing: {replicas: 4}
    isolation: msp
  - {select: {uuid: MIG-1}, sharing: replicated, onePerClaim: often}
`, `
line 4: gpu: unknown field; accepted here: apiVersion, kind, gpus
line 6: gpus[0].selects: unknown field; accepted here: select, sharing, partitions, isolation, hook, sharedOnly, onePerClaim, passthrough, health
line 7: gpus[0].sharing: "exclusiv": want fractional, exclusive, unlimited or {replicated: N}
line 8: gpus[1].select.produkt: unknown field; accepted here: product, uuid, index, architecture
line 8: gpus[1].select.index: "first": want a whole number from 0 to 1023
line 9: gpus[1].sharing.replicas: unknown field; accepted here: replicated
line 10: gpus[1].isolation: "msp": want mps, none, hook or cgroup
line 11: gpus[2].select.uuid: "MIG-1": want the UUID of a whole GPU, such as GPU-5f2a1c7e-…; its partitions have no configuration of their own
line 11: gpus[2].sharing: "replicated": want fractional, exclusive, unlimited or {replicated: N}
line 11: gpus[2].onePerClaim: "often": want true or false`},
		{"a field twice", ownHead + "gpus:\n  - sharing: exclusive\n    sharing: fractional\n",
			"line 5: gpus[0].sharing: given twice"},
		{"an entry that is no map", ownHead + "gpus: [exclusive]",
			`line 3: gpus[0]: "exclusive": want a map with the fields select, sharing, partitions, isolation, hook, sharedOnly, onePerClaim, passthrough, health`},
		{"a list that is none", ownHead + "gpus: {sharing: exclusive}", "line 3: gpus: a map: want a list"},
		{"a selection that was commented out", ownHead + "gpus:\n  - select:\n    # index: 0\n    sharing: exclusive",
			"line 4: gpus[0].select: nothing: want a map with the fields product, uuid, index, architecture"},
		{"a selection of nothing", ownHead + "gpus:\n  - select: {}\n",
			"line 4: gpus[0].select: empty: want one or more of product, uuid, index, architecture; an entry for " +
				"every GPU has no select"},
		{"a list of nothing", ownHead + "gpus:\n  - select: {uuid: []}\n",
			"line 4: gpus[0].select.uuid: empty: want one value or more"},
		{"an index below 0", ownHead + "gpus: [{select: {index: [0, -1]}}]",
			`line 3: gpus[0].select.index[1]: "-1": want a whole number from 0 to 1023`},
		{"a pattern of UUIDs", ownHead + "gpus: [{select: {uuid: GPU-*}}]",
			`line 3: gpus[0].select.uuid: "GPU-*": want the UUID of a whole GPU, such as GPU-5f2a1c7e-…; its partitions have no configuration of their own`},
		{"no replicas", ownHead + "gpus: [{sharing: {replicated: 0}}]",
			`line 3: gpus[0].sharing.replicated: "0": want a whole number from 1 to 1024`},
		{"no number of replicas", ownHead + "gpus: [{sharing: {replicated: }}]",
			`line 3: gpus[0].sharing.replicated: nothing: want a whole number from 1 to 1024`},
		{"more replicas than clients", ownHead + "gpus:\n  - sharing: {replicated: 49}\n",
			"line 4: gpus[0].sharing.replicated: 49: want at most 48 with isolation mps, an MPS server has no more " +
				"clients"},
		{"replicas of less than a percent", ownHead + "gpus: [{sharing: {replicated: 101}, isolation: cgroup}]",
			"line 3: gpus[0].sharing.replicated: 101: want at most 100 with isolation cgroup, none would be left " +
				"with a whole percent of the GPU"},
		{"isolation of one user", ownHead + "gpus: [{sharing: exclusive, isolation: mps}]",
			"line 3: gpus[0].isolation: an exclusive GPU has one user and nothing to isolate: leave it out"},
		{"partitions in a way that does not exist", ownHead + "gpus:\n  - sharing: exclusive\n    partitions: mixed\n",
			`line 5: gpus[0].partitions: "mixed": want none, static, dynamic or onDemand; without the field it depends on the GPU`},
		{"partitions by default", ownHead + "gpus: [{partitions: auto}]",
			`line 3: gpus[0].partitions: "auto": want none, static, dynamic or onDemand; without the field it depends on the GPU`},
		{"partitions, and then nothing", ownHead + "gpus:\n  - partitions:\n",
			`line 4: gpus[0].partitions: nothing: want none, static, dynamic or onDemand; without the field it depends on the GPU`},
		{"partitions by profile", ownHead + "gpus: [{partitions: {1g.10gb: 7}}]",
			`line 3: gpus[0].partitions: a map: want none, static, dynamic or onDemand; without the field it depends on the GPU`},
		{"a hook without a library", ownHead + "gpus: [{isolation: hook}]",
			"line 3: gpus[0].hook: missing: isolation: hook wants hook: {library: PATH}, a CUDA interposer on the " +
				"node"},
		{"a hook with an empty library", ownHead + "gpus: [{isolation: hook, hook: {}}]",
			"line 3: gpus[0].hook.library: missing: want the path of a CUDA interposer on the node"},
		{"a library without a hook", ownHead + "gpus: [{hook: {library: /opt/libhook.so}}]",
			"line 3: gpus[0].hook: only isolation: hook has a library"},
		{"a library somewhere", ownHead + "gpus: [{isolation: hook, hook: {library: opt/libhook.so}}]",
			`line 3: gpus[0].hook.library: "opt/libhook.so": want an absolute path, without .. and double slashes`},
		{"a library above", ownHead + "gpus: [{isolation: hook, hook: {library: /opt/../libhook.so}}]",
			`line 3: gpus[0].hook.library: "/opt/../libhook.so": want an absolute path, without .. and double slashes`},
		{"only for those who ask for a shared one, and there is none", ownHead +
			"gpus: [{sharing: exclusive, sharedOnly: true}]", "line 3: gpus[0].sharedOnly: is for sharing: " +
			"{replicated: N} and sharing: unlimited, and sharing is exclusive here"},
		{"a limit for users without limits", ownHead + "gpus: [{sharing: unlimited, isolation: mps}]",
			`line 3: gpus[0].isolation: "mps": nothing limits the users of an unlimited GPU: leave it out`},
		{"a library for users without limits", ownHead +
			"gpus: [{sharing: unlimited, hook: {library: /opt/hook/libhook.so}}]",
			"line 3: gpus[0].hook: only isolation: hook has a library"},
		{"one replica per claim, of any number", ownHead + "gpus: [{sharing: unlimited, onePerClaim: true}]",
			"line 3: gpus[0].onePerClaim: is for sharing: {replicated: N}, and sharing is unlimited here"},
		{"a number of unlimited users", ownHead + "gpus: [{sharing: {unlimited: 4}}]",
			"line 3: gpus[0].sharing.unlimited: unknown field; accepted here: replicated"},
		{"one fraction per claim", ownHead + "gpus: [{onePerClaim: true}]",
			"line 3: gpus[0].onePerClaim: is for sharing: {replicated: N}, and sharing is fractional here"},
		{"an entry after one for every GPU", ownHead + "gpus:\n  - sharing: exclusive\n  - select: {index: 0}\n",
			"line 5: gpus[1]: never decides: gpus[0] of line 4 selects the same GPUs, and the first entry that " +
				"selects a GPU decides"},
		{"an entry whose GPUs an earlier one has", ownHead + `gpus:
  - {select: {product: ["Tesla T4", "NVIDIA A100*"]}, sharing: exclusive}
  - {select: {product: "NVIDIA A100*80GB", index: 0}}`, "line 5: gpus[1]: never decides: gpus[0] of line 4 selects the same GPUs, and the first entry that selects a GPU decides"},

		{"another version of the device plugin's file", "version: v2\nsharing: {}", `line 1: version: "v2": want v1`},
		{"typos in the device plugin's file", `
version: v1
sharings: {}
sharing:
  timeSlicing:
    renameByDefaults: true
    resources:
      - {name: nvidia.com/gpu, replica: 4}`, `
line 3: sharings: unknown field; accepted here: version, flags, resources, sharing, imex
line 6: sharing.timeSlicing.renameByDefaults: unknown field; accepted here: renameByDefault, failRequestsGreaterThanOne, resources
line 8: sharing.timeSlicing.resources[0].replica: unknown field; accepted here: name, rename, devices, replicas
line 8: sharing.timeSlicing.resources[0].replicas: missing: want a whole number of at least 1`},
		{"both ways of sharing", `
version: v1
sharing:
  mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}
  timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}`, "line 4: sharing.mps: sharing.timeSlicing is there too: want one of them"},
		{"nothing to replicate", "version: v1\nsharing: {timeSlicing: {}}",
			"line 2: sharing.timeSlicing.resources: missing: want a list such as [{name: nvidia.com/gpu, replicas: " +
				"4}]"},
		{"no replicas of the device plugin", "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, " +
			"replicas: 0}]}}", `line 2: sharing.mps.resources[0].replicas: "0": want a whole number from 1 to 1024`},
		{"more replicas than clients in the device plugin's file", "version: v1\nsharing: {mps: {resources: [{name: " +
			"nvidia.com/gpu, replicas: 64}]}}",
			"line 2: sharing.mps.resources[0].replicas: 64: want at most 48 with isolation mps, an MPS server has no " +
				"more clients"},
		{"partitions", `
version: v1
sharing:
  timeSlicing:
    resources:
      - {name: nvidia.com/gpu, replicas: 4}
      - {name: nvidia.com/mig-1g.5gb, replicas: 2}`, `line 7: sharing.timeSlicing.resources[1].name: "nvidia.com/mig-1g.5gb": want nvidia.com/gpu; a partition is for one claim here, which containers and pods can share`},
		{"another resource", "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/a100, replicas: 2}]}}",
			`line 2: sharing.mps.resources[0].name: "nvidia.com/a100": want nvidia.com/gpu; other resources of the device plugin do not exist here`},
		{"another name", "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, rename: nvidia.com/slice, " +
			"replicas: 2}]}}",
			`line 2: sharing.mps.resources[0].rename: "nvidia.com/slice": want nvidia.com/gpu.shared, the resource of the device class for shared GPUs; a name of your own belongs into the class`},
		{"some devices", "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, devices: some, replicas: " +
			"2}]}}",
			`line 2: sharing.mps.resources[0].devices: "some": want all, a number of GPUs, or a list of indexes and UUIDs`},
		{"no devices", "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, devices: [], replicas: 2}]}}",
			`line 2: sharing.mps.resources[0].devices: a list: want all, a number of GPUs, or a list of indexes and UUIDs`},
		{"a partition by index and one by UUID", "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, " +
			"devices: [\"0:1\", MIG-1], replicas: 2}]}}", `
line 2: sharing.mps.resources[0].devices[0]: "0:1": want the UUID of a whole GPU, such as GPU-5f2a1c7e-…; its partitions have no configuration of their own
line 2: sharing.mps.resources[0].devices[1]: "MIG-1": want the UUID of a whole GPU, such as GPU-5f2a1c7e-…; its partitions have no configuration of their own`},
		{"the same devices twice", "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}, " +
			"{name: nvidia.com/gpu, replicas: 4}]}}",
			"line 2: sharing.mps.resources[1]: never decides: sharing.mps.resources[0] of line 2 selects the same " +
				"GPUs, and the first entry that selects a GPU decides"},
		{"a strategy that does not exist", "version: v1\nflags:\n  migStrategy: mix\n",
			`line 3: flags.migStrategy: "mix": want none, single or mixed`},
		{"a list of strategies", "version: v1\nflags:\n  migStrategy: [mixed]\n",
			`line 3: flags.migStrategy: a list: want none, single or mixed`},
		{"channels that pods need", "version: v1\nimex: {channelIDs: [0], required: true}",
			"line 2: imex.required: IMEX channels are not offered by this driver: want false"},
	} {
		t.Run(row.name, func(t *testing.T) { compare(t, usesOf(row.text), row.want) })
	}
}

func TestSelectionsWithoutEffect(t *testing.T) {
	for _, row := range []struct{ name, text, want string }{
		{"every entry decides about a GPU", ownHead + "gpus:\n  - select: {index: 0}\n  - sharing: exclusive\n", ""},
		{"nothing is left for the entry that is for the rest", ownHead +
			"gpus:\n  - select: {product: '*'}\n  - sharing: exclusive\n", ""},
		{"a model that is not there", ownHead + "gpus:\n  - select: {product: NVIDIA-A100-SXM4-40GB}\n",
			"line 4: gpus[0]: selects no GPU of this node"},
		{"criteria that no GPU meets together", ownHead + "gpus:\n  - select: {index: 0, architecture: Hopper}\n",
			"line 4: gpus[0]: selects no GPU of this node"},
		{"one of two values", ownHead + "gpus:\n  - select:\n      uuid:\n        - GPU-aaaa\n        - GPU-aaab\n",
			"line 7: gpus[0].select.uuid[1]: no GPU of this node has the uuid GPU-aaab"},
		{"earlier entries have them all", ownHead + "gpus:\n  - select: {index: [0, 1]}\n  - select: {product: " +
			"'*A100*'}\n",
			"line 5: gpus[1]: decides about no GPU of this node: those that it selects are ruled by earlier entries, " +
				"the first by gpus[0] of line 4"},
		{"partitions where some GPUs can have them", ownHead + "gpus:\n  - {select: {index: [1, 2, 3]}, partitions: " +
			"dynamic}\n  - partitions: static\n", ""},
		{"partitions of GPUs that can have none", ownHead + "gpus:\n  - select: {index: 3}\n    partitions: " +
			"dynamic\n  - partitions: static\n",
			"line 5: gpus[0].partitions: no GPU of this node that it is for can be partitioned"},
		{"no partitions of GPUs that can have none", ownHead + "gpus:\n  - select: {index: 3}\n    partitions: none\n",
			""},
		{"partitions that wait for a reset", ownHead + "gpus:\n  - partitions: dynamic\n",
			"line 4: gpus[0].partitions: gpu-0 has MIG mode off, and only a reset can change that: nvidia-smi -i " +
				"GPU-aaaa -mig 1"},
		{"a file of the device plugin for nodes of all kinds", "version: v1\nflags: {migStrategy: mixed}\nsharing: " +
			"{mps: {resources: [{name: nvidia.com/gpu, devices: [3], replicas: 2}]}}", ""},
		{"more devices than there are", "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, devices: 5, " +
			"replicas: 2}]}}",
			"line 2: sharing.mps.resources[0].devices: no GPU of this node has the index 4"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c, err := Parse([]byte(row.text))
			if err != nil {
				t.Fatal(err)
			}
			compare(t, strings.Join(c.Unmatched(node), "\n"), row.want)
		})
	}
}

// MPS limits nothing on GPUs before Volta, and an older driver of NVIDIA limits no memory by cgroup.
func TestIsolationThatIsNotEnforced(t *testing.T) {
	old := []gpu.Device{{Name: "gpu-0", DriverVersion: "580.95.05", Product: gpu.Product{Name: "Tesla P100-PCIE-16GB",
		ComputeCapability: gpu.Version{Major: 6}}}}
	for _, row := range []struct{ name, text, want string }{
		{"shares of a GPU that cannot limit them", ownHead + "gpus:\n  - select: {index: 0}\n",
			"line 4: gpus[0]: gpu-0 (Tesla P100-PCIE-16GB) is exclusive, because MPS limits nothing before Volta: " +
				"isolation: none counts its shares"},
		{"only counted ones", ownHead + "gpus:\n  - {select: {index: 0}, isolation: none}\n", ""},
		{"replicas of such a GPU", ownHead + "gpus:\n  - {select: {index: 0}, sharing: {replicated: 2}}\n",
			"line 4: gpus[0]: gpu-0 (Tesla P100-PCIE-16GB): its replicas have isolation none, because MPS limits " +
				"nothing before Volta"},
		{"shares by cgroup", ownHead + "gpus:\n  - {select: {index: 0}, isolation: cgroup}\n",
			"line 4: gpus[0]: gpu-0 (Tesla P100-PCIE-16GB) is exclusive, because driver 580.95.05 is older than " +
				"R615: isolation: none counts its shares"},
		{"replicas by cgroup", ownHead +
			"gpus:\n  - {select: {index: 0}, sharing: {replicated: 2}, isolation: cgroup}\n",
			"line 4: gpus[0]: gpu-0 (Tesla P100-PCIE-16GB): its replicas have isolation none, because driver " +
				"580.95.05 is older than R615"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c, err := Parse([]byte(row.text))
			if err != nil {
				t.Fatal(err)
			}
			compare(t, strings.Join(c.Unmatched(old), "\n"), row.want)
		})
	}
}

// The zero value is what a node without a configuration has.
func TestNoConfiguration(t *testing.T) {
	var c Config
	if got := c.For(node[0]); got != (gpu.SharingMode{}) || c.Unmatched(node) != nil {
		t.Errorf("got %s and %q, want the default and nothing", got, c.Unmatched(node))
	}
	if c.Health(node[0]).Overrides(health.NVLinkDown) {
		t.Error("got a rule, want none")
	}
}

// FuzzParse reads files of any content. Each mistake has its line, what is accepted is within the limits of its
// isolation, and the same text means the same.
func FuzzParse(f *testing.F) {
	f.Add([]byte(ownHead + "gpus: [{select: {index: 0}, sharing: {replicated: 2}}]"))
	f.Add([]byte(ownHead + "gpus: [{health: [{xids: [48], conditions: [GPULost], recovery: QuietTime, quietTime: 1h}]" +
		"}]"))
	f.Add([]byte(ownHead + "gpus: [{isolation: hook, hook: {library: /opt/libhook.so}}]"))
	f.Add([]byte("version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, devices: [0], replicas: 2}]}}"))
	f.Add([]byte("version: v1\nflags: {migStrategy: mixed}\nsharing: {timeSlicing: {renameByDefault: true, " +
		"resources: [{name: gpu, replicas: 1024}]}}"))
	f.Add([]byte("a: &a {b: *a}"))
	f.Add([]byte("gpus: &a [*a]\napiVersion: resource.nvidia.com/v1beta1\nkind: NodeConfig"))
	f.Add([]byte("version: v1\nimex: {channelIDs: [0], required: }"))
	line := regexp.MustCompile(`^line (\d+): `)
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse(text)
		if err != nil {
			for problem := range strings.SplitSeq(err.Error(), "\nline ") {
				m := line.FindStringSubmatch("line " + strings.TrimPrefix(problem, "line "))
				if m == nil {
					t.Fatalf("%q has no line", problem)
				}
				if n, err := strconv.Atoi(m[1]); err != nil || n < 1 || n > len(text)+1 {
					t.Errorf("line %s of %d bytes: %s", m[1], len(text), problem)
				}
			}
			return
		}
		again, err := Parse(text)
		if err != nil {
			t.Fatalf("accepted once, and then: %v", err)
		}
		for _, d := range node {
			use := c.For(d)
			if use.Replicas < 0 || use.Replicas > maxReplicas[use.Isolation] {
				t.Errorf("%d replicas with isolation %s", use.Replicas, use.Isolation)
			}
			if (use.Isolation == gpu.IsolationHook) != path.IsAbs(use.Hook.Path) ||
				use.Hook.Path != "" && path.Clean(use.Hook.Path) != use.Hook.Path {
				t.Errorf("isolation %s has the library %q", use.Isolation, use.Hook.Path)
			}
			if use != again.For(d) || !reflect.DeepEqual(c.Health(d), again.Health(d)) {
				t.Errorf("%s: got %v, and then %v", d.Name, use, again.For(d))
			}
		}
		if !slices.Equal(c.Unmatched(node), again.Unmatched(node)) || !slices.Equal(c.Warnings, again.Warnings) {
			t.Error("the same text has other warnings")
		}
	})
}

// compare takes gpu-N in want for any GPU.
func compare(t *testing.T, got, want string) {
	t.Helper()
	if strings.Contains(want, "gpu-N") {
		for _, d := range node {
			got = strings.Replace(got, d.Name+" ", "gpu-N ", 1)
		}
	}
	if want = strings.TrimSpace(want); got != want {
		t.Errorf("\ngot\n%s\nwant\n%s", got, want)
	}
}
