// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const head = `"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"`

const migHead = `"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig"`

const ipcHead = `"apiVersion":"resource.nvidia.com/v1beta1","kind":"LocalIPCConfig"`

func timeSlicing(interval string) DeviceConfig {
	return DeviceConfig{Kind: KindGpuConfig, Sharing: Sharing{TimeSlicing: &TimeSlicing{Interval: interval}}}
}

func mps(m MPS) DeviceConfig { return DeviceConfig{Kind: KindGpuConfig, Sharing: Sharing{MPS: &m}} }

func TestDecode(t *testing.T) {
	for _, row := range []struct {
		name string
		raw  string
		want DeviceConfig
	}{
		{"nothing said means the defaults", `{` + head + `}`, DeviceConfig{Kind: KindGpuConfig}},
		{"an empty object means its defaults", `{` + head + `,"sharing":{},"environment":{}}`,
			DeviceConfig{Kind: KindGpuConfig, Environment: map[string]string{}}},
		{"null means not said", `{` + head + `,"sharing":null,"environment":null}`, DeviceConfig{Kind: KindGpuConfig}},
		{"time slices without an interval", `{` + head + `,"sharing":{"strategy":"TimeSlicing"}}`,
			timeSlicing("Default")},
		{"time slices with an empty config", `{` + head +
			`,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{}}}`, timeSlicing("Default")},
		{"an interval", `{` + head + `,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}}`,
			timeSlicing("Long")},
		{"MPS without limits", `{` + head + `,"sharing":{"strategy":"MPS"}}`, mps(MPS{})},
		{"MPS with an empty config", `{` + head + `,"sharing":{"strategy":"MPS","mpsConfig":{}}}`, mps(MPS{})},
		{"MPS with all there is", `{` + head + `,"sharing":{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":50,
			"defaultPinnedDeviceMemoryLimit":"10Gi","defaultPerDevicePinnedMemoryLimit":{"0":"1Gi","GPU-ab":2097152},"multiUser":true}}}`,
			mps(MPS{ThreadPercentage: 50, Memory: 10 << 30, MemoryPerDevice: map[string]uint64{"0": 1 << 30,
				"GPU-ab": 2 << 20}, MultiUser: true})},
		{"a MIG partition with MPS", `{` + migHead + `,"sharing":{"strategy":"MPS"}}`, DeviceConfig{Kind: KindMigDeviceConfig,
			Sharing: Sharing{MPS: &MPS{}}}},
		{"a MIG partition with time slices", `{` + migHead + `,"sharing":{"strategy":"TimeSlicing"}}`,
			DeviceConfig{Kind: KindMigDeviceConfig, Sharing: Sharing{TimeSlicing: &TimeSlicing{Interval: "Default"}}}},
		{"local IPC", `{` + ipcHead + `,"enabled":true}`, DeviceConfig{Kind: KindLocalIPCConfig, LocalIPC: true}},
		{"local IPC that is off, for a class that has it on", `{` + ipcHead + `}`, DeviceConfig{Kind: KindLocalIPCConfig}},
		{"environment is kept", `{` + head + `,"environment":{"A":"1","B_2":""}}`,
			DeviceConfig{Kind: KindGpuConfig, Environment: map[string]string{"A": "1", "B_2": ""}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := Decode([]byte(row.raw), field.NewPath("p"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got, row.want); diff != "" {
				t.Errorf("got - want +\n%s", diff)
			}
		})
	}
}

func sharing(fields string) string { return `{` + head + `,"sharing":{` + fields + `}}` }

func TestDecodeRefuses(t *testing.T) {
	for _, row := range []struct {
		name string
		raw  string
		want []string // each a part of the error
	}{
		{"no object", `[]`, []string{"p: Invalid value: want an object, not array"}},
		{"nothing", ``, []string{"p: "}},
		{"no kind", `{}`, []string{`p.apiVersion: Unsupported value: ""`,
			`p.kind: Unsupported value: "": supported values: "GpuConfig"`}},
		{"another kind", `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GPUConfig","x":1}`,
			[]string{`p.kind: Unsupported value: "GPUConfig"`}},
		{"another version", `{"apiVersion":"resource.nvidia.com/v1","kind":"GpuConfig"}`,
			[]string{`p.apiVersion: Unsupported value: "resource.nvidia.com/v1": supported values: "resource.nvidia.com/v1beta1"`}},
		{"an unknown field", `{` + head + `,"sharring":{}}`, []string{`p.sharring: Forbidden: unknown field; did you mean sharing?`}},
		{"an unknown field that is near none", `{` + head + `,"gpus":1}`, []string{
			`p.gpus: Forbidden: unknown field; the known fields here are apiVersion, kind, environment, sharing`}},
		{"a field in the wrong case", `{` + head + `,"Environment":{}}`,
			[]string{`p.Environment: Forbidden: unknown field; did you mean environment?`}},
		{"a variable that no runtime can read", `{` + head + `,"environment":{"A":"\u007f","B":"\u001b"}}`,
			[]string{`p.environment[A]: Invalid value: "\x7f": must not contain the character U+007F: ` +
				`container runtimes cannot read it`}},
		{"a field twice", `{` + head + `,"environment":{},"environment":{}}`,
			[]string{`p.environment: Forbidden: duplicate field`}},
		{"a list in place of an object", `{` + head + `,"environment":["A=1"]}`,
			[]string{"p.environment: Invalid value: want an object, not array"}},
		{"a number in place of a text", `{` + head + `,"environment":{"A":1}}`,
			[]string{"p.environment: Invalid value: want a text, not number"}},
		{"a text in place of a number", sharing(`"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":"50"}`),
			[]string{"p.sharing.mpsConfig.defaultActiveThreadPercentage: Invalid value: want a whole number, not " +
				"string"}},
		{"a text in place of true", sharing(`"strategy":"MPS","mpsConfig":{"multiUser":"yes"}`),
			[]string{"p.sharing.mpsConfig.multiUser: Invalid value: want true or false, not string"}},
		{"a kind that is a number", `{"apiVersion":"resource.nvidia.com/v1beta1","kind":1}`,
			[]string{"p.kind: Invalid value: want a text, not number"}},
		{"a kind that is not served", `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"VgpuConfig"}`,
			[]string{`p.kind: Unsupported value: "VgpuConfig": supported values: "GpuConfig", "LocalIPCConfig", "MigDeviceConfig", "VfioDeviceConfig"`}},
		{"a size of a directory for local IPC", `{` + ipcHead + `,"enabled":true,"size":"1Gi"}`, []string{
			`p.size: Forbidden: unknown field; the known fields here are apiVersion, kind, enabled`}},
		{"a text for the switch of local IPC", `{` + ipcHead + `,"enabled":"yes"}`, []string{
			`p.enabled: Invalid value: want true or false, not string`}},
		{"the variable of local IPC", `{` + head + `,"environment":{"NVIDIA_DRA_LOCAL_IPC_DIR":"/"}}`, []string{
			`p.environment[NVIDIA_DRA_LOCAL_IPC_DIR]: Forbidden: the driver sets this variable itself`}},
		{"an unknown backend", vfio(`"iommu":{"backendPolicy":"Legacy"}`), []string{
			`p.iommu.backendPolicy: Unsupported value: "Legacy": supported values: "LegacyOnly", "PreferIommuFD"`}},
		{"a misspelt field of a backend", vfio(`"iommu":{"enableApiDevice":true}`), []string{
			`p.iommu.enableApiDevice: Forbidden: unknown field; did you mean enableAPIDevice?`}},
		{"a text for a switch", vfio(`"iommu":{"enableAPIDevice":"no"}`), []string{
			`p.iommu.enableAPIDevice: Invalid value: want true or false, not string`}},
		{"sharing in a virtual machine", vfio(`"sharing":{"strategy":"MPS"}`), []string{
			`p.sharing: Forbidden: unknown field; the known fields here are apiVersion, kind, environment, iommu`}},
		{"a variable of the driver in a virtual machine", vfio(`"environment":{"NVIDIA_VISIBLE_DEVICES":"all"}`),
			[]string{`p.environment[NVIDIA_VISIBLE_DEVICES]: Forbidden`}},
		{"an unknown strategy", sharing(`"strategy":"mps"`),
			[]string{`p.sharing.strategy: Unsupported value: "mps": supported values: "TimeSlicing", "MPS"`}},
		{"no strategy", sharing(`"mpsConfig":{}`),
			[]string{`p.sharing.strategy: Required value: one of ["TimeSlicing" "MPS"]`}},
		{"two strategies at once", sharing(`"strategy":"TimeSlicing","timeSlicingConfig":{},"mpsConfig":{}`),
			[]string{`p.sharing.mpsConfig: Forbidden: the strategy is TimeSlicing`}},
		{"the other two", sharing(`"strategy":"MPS","timeSlicingConfig":{},"mpsConfig":{}`),
			[]string{`p.sharing.timeSlicingConfig: Forbidden: the strategy is MPS`}},
		{"an unknown interval", sharing(`"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"long"}`),
			[]string{`p.sharing.timeSlicingConfig.interval: Unsupported value: "long": supported values: "Default", "Short", "Medium", "Long"`}},
		{"an unknown field of MPS", sharing(`"strategy":"MPS","mpsConfig":{"threads":1}`),
			[]string{`p.sharing.mpsConfig.threads: Forbidden: unknown field; the known fields here are ` +
				`defaultActiveThreadPercentage, `}},
		{"a misspelt field of MPS", sharing(`"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentge":1}`),
			[]string{`unknown field; did you mean defaultActiveThreadPercentage?`}},
		{"a misspelt strategy", sharing(`"stratgy":"MPS"`), []string{
			`p.sharing.stratgy: Forbidden: unknown field; did you mean strategy?`}},
		{"limits out of range", sharing(`"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":0,"defaultPinnedDeviceMemoryLimit":"0",
			"defaultPerDevicePinnedMemoryLimit":{"0":"10 Gi","first":"1Gi","1":"1Ki"}}`), []string{
			`p.sharing.mpsConfig.defaultActiveThreadPercentage: Invalid value: 0: must be from 1 to 100`,
			`p.sharing.mpsConfig.defaultPinnedDeviceMemoryLimit: Invalid value: "0": must be a whole number of bytes, at least 1Mi`,
			`p.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[0]: Invalid value: "10 Gi": want an amount of memory such as 10Gi or 512Mi`,
			`p.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[1]: Invalid value: "1Ki": must be`,
			`p.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[first]: Invalid value: "first": want the index of a device, such as "0", or its UUID`}},
		{"more threads than there are", sharing(`"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":101}`),
			[]string{`p.sharing.mpsConfig.defaultActiveThreadPercentage: Invalid value: 101: must be from 1 to 100`}},
		{"time slices for a partition", `{` + migHead +
			`,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}}`,
			[]string{`p.sharing.timeSlicingConfig: Forbidden: a MIG partition has no time-slice of its own`}},
		{"a variable that is no name", `{` + head + `,"environment":{"A=B":"1"}}`,
			[]string{`p.environment[A=B]: Invalid value: "A=B"`}},
		{"a variable of the driver", `{` + head +
			`,"environment":{"NVIDIA_VISIBLE_DEVICES":"all","CUDA_MPS_PIPE_DIRECTORY":"x"}}`,
			[]string{`p.environment[NVIDIA_VISIBLE_DEVICES]: Forbidden`,
				`p.environment[CUDA_MPS_PIPE_DIRECTORY]: Forbidden`}},
		{"a value that no process can have", `{` + head + `,"environment":{"A":"\u0000"}}`,
			[]string{`p.environment[A]: Invalid value`}},
		{"every problem at once", `{` + head + `,"x":1,"sharing":{"strategy":"?"},"environment":{"":"1"}}`,
			[]string{"p.x: ", "p.sharing.strategy: ", "p.environment[]: "}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := Decode([]byte(row.raw), field.NewPath("p"))
			if err == nil {
				t.Fatalf("accepted as %+v", got)
			}
			for _, part := range row.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("got  %v\nwant %s", err, part)
				}
			}
		})
	}
}
