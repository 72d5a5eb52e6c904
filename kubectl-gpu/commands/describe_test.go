// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

func TestDescribe(t *testing.T) {
	s := newCluster(t)
	sick := s.device(t, "a", "gpu-3b-00-0")
	sick.Taints = []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/gpu-lost",
		Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	const uuid = "GPU-11111111-0000-0000-0000-000000000000"
	*sick.Attributes["uuid"].StringValue = uuid
	s.Claims[0].Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: driver, Pool: "a", Device: "gpu-3b-00-0",
		Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Message: "it does not answer"}}}}
	for _, ref := range []string{"a/gpu-3b-00-0", uuid} {
		out, _, err := s.run(t, "describe", ref)
		if err != nil {
			t.Fatal(err)
		}
		got := squeezed(out) + "\n"
		for _, want := range []string{
			"Name: gpu-3b-00-0\n", "Node: a\n", "UUID: " + uuid + "\n", "Model: Tesla T4\n",
			"Compute capability: 7.5\n",
			"Memory: ███████░░░ 11Gi/15Gi\n", "Cores: ███░░░░░░░ 30%\n", "Health: tainted: new claims do not get it\n",
			"Taints:\ngpu.nvidia.com/gpu-lost:NoSchedule, for <unknown>: the GPU does not answer;",
			"Partitions: <none>\n", "\narchitecture=\"Turing\"\n", "\nmultiprocessors=40\n", "\nsharedOnly=false\n",
			"\nCapacity:\ncores=100\nmemory=15Gi\n",
			"\nml serve gpu-3b-00-0 6Gi no limit pod-serve 120m <none>\n",
			"\nml train gpu-3b-00-0 5Gi 30% pod-train 120m it does not answer\n",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: got\n%s\nwant in it %q", ref, got, want)
			}
		}
	}
}

// A claim may be reserved for a PodGroup instead of its pods.
func TestDescribePodGroup(t *testing.T) {
	s := newCluster(t)
	s.Claims = []*resourceapi.ResourceClaim{claim("train", "a", "gpu-3b-00-0")}
	s.Claims[0].Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{APIGroup: "scheduling.k8s.io",
		Resource: "podgroups", Name: "workers"}}
	out, _, err := s.run(t, "describe", "a/gpu-3b-00-0")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := squeezed(out), " podgroups/workers 120m <none>"; !strings.Contains(got, want) {
		t.Errorf("got\n%s\nwant in it %q", got, want)
	}
}

// A GPU whose MIG mode stays on has partitions only.
func TestDescribePartitions(t *testing.T) {
	s := newCluster(t)
	s.Slices[0].Spec.Devices = nil
	for _, start := range []string{"0", "1"} {
		d := s.device(t, "b", "gpu-1b-00-0-mig-1g10gb-"+start).DeepCopy()
		d.Name, d.ConsumesCounters = "gpu-3b-00-0-mig-1g10gb-"+start, nil
		d.Taints = []resourceapi.DeviceTaint{{Key: "k", Effect: resourceapi.DeviceTaintEffectNone}}
		s.Slices[0].Spec.Devices = append(s.Slices[0].Spec.Devices, *d)
	}
	s.Claims = []*resourceapi.ResourceClaim{claim("small", "a", "gpu-3b-00-0-mig-1g10gb-1")}
	out, _, err := s.run(t, "describe", "a/gpu-3b-00-0")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Memory: █████░░░░░ 9.8Gi/19.5Gi\n", "Health: tainted for information only\n",
		"Taints:\nk:None, for <unknown>\nPartitions:\n" +
			"gpu-3b-00-0-mig-1g10gb-0 (1g.10gb), free\ngpu-3b-00-0-mig-1g10gb-1 (1g.10gb)\nHeld by:\n",
		"\nml small gpu-3b-00-0-mig-1g10gb-1 9.8Gi 50% pod-small 120m <none>\n",
	} {
		if got := squeezed(out) + "\n"; !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant in it %q", got, want)
		}
	}
}

// NVIDIA's DRA driver names partitions by the number of the profile, the start and the size.
func TestDescribeForeignPartitions(t *testing.T) {
	s := newCluster(t)
	s.Slices[0].Spec.Devices = nil
	for profile, name := range map[string]string{"1g10gb": "gpu-0-mig-19-4-1", "3g40gb": "gpu-0-mig-9-0-4"} {
		d := s.device(t, "b", "gpu-1b-00-0-mig-"+profile+"-0").DeepCopy()
		d.Name, d.ConsumesCounters = name, nil
		s.Slices[0].Spec.Devices = append(s.Slices[0].Spec.Devices, *d)
	}
	s.Claims = []*resourceapi.ResourceClaim{claim("small", "a", "gpu-0-mig-19-4-1"),
		claim("half", "a", "gpu-0-mig-9-0-4")}
	out, _, err := s.run(t, "ls", "a", "--no-headers")
	want := "1x1g.10gb, 1x3g.40gb <none> ml/half (3g.40gb), ml/small (1g.10gb)"
	if got := squeezed(out); err != nil || !strings.HasSuffix(got, want) {
		t.Errorf("got %q, %v, want at its end %q", got, err, want)
	}
	out, _, err = s.run(t, "describe", "a/gpu-0")
	want = "\nml half gpu-0-mig-9-0-4 39.5Gi 78% pod-half 120m <none>\n" +
		"ml small gpu-0-mig-19-4-1 9.8Gi 21% pod-small 120m <none>"
	if got := squeezed(out); err != nil || !strings.HasSuffix(got, want) {
		t.Errorf("got\n%s\n%v, want at its end %q", got, err, want)
	}
}

// Attributes of devices and messages may have any characters.
func TestDescribeControlCharacters(t *testing.T) {
	s := newCluster(t)
	*s.device(t, "a", "gpu-3b-00-0").Attributes["productName"].StringValue = "T4\x1b[31m\nT4"
	s.Claims[0].Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: driver, Pool: "a", Device: "gpu-3b-00-0",
		Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Message: "it does\nnot answer"}}}}
	for args, want := range map[string]string{
		"describe a/gpu-3b-00-0": "\nModel: T4 [31m T4\n", "ls a": "\na gpu-3b-00-0 T4 [31m T4 ",
		"models -o name": "\nT4 [31m T4\n", "describe --driver=gpu.nvidia.com a/gpu-3b-00-0": " it does not answer\n"} {
		out, _, err := s.run(t, strings.Fields(args)...)
		if err != nil {
			t.Fatal(err)
		}
		if got := squeezed(out) + "\n"; !strings.Contains(got, want) || strings.Contains(out, "\x1b") {
			t.Errorf("%s: got\n%q\nwant in it %q", args, out, want)
		}
	}
}

func TestDescribeJSON(t *testing.T) {
	out, _, err := newCluster(t).run(t, "describe", "a/gpu-3b-00-0", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Items []GPU }
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Items) != 1 || got.Items[0].Device == nil || got.Items[0].Device.Name != "gpu-3b-00-0" {
		t.Errorf("got %s, want the GPU with its published device", out)
	}
}

// A GPU is found by its device name. Several that have it are all described.
func TestDescribeShortName(t *testing.T) {
	s := newCluster(t)
	out, _, err := s.run(t, "describe", "gpu-af-00-0")
	if err != nil || !strings.HasPrefix(squeezed(out), "Name: gpu-af-00-0\nNode: a\n") {
		t.Errorf("got %q, %v, want the GPU of that name", out, err)
	}
	s.device(t, "b", "gpu-43-00-0").Name = "gpu-af-00-0"
	out, _, err = s.run(t, "describe", "gpu-af-00-0")
	if err != nil || strings.Count(out, "Name: ") != 2 {
		t.Errorf("got %q, %v, want both GPUs of that name", out, err)
	}
}

// A taint about health says what is wrong and what to do, with the UUID of the GPU.
func TestDescribeRemedy(t *testing.T) {
	const uuid = "GPU-00000000-0000-0000-0000-000000000001"
	for _, row := range []struct{ key, value, want string }{
		{"gpu.nvidia.com/xid", "48", "XID 48: A memory error that could not be corrected. What to do: End the " +
			"programs on the GPU, and reset it: nvidia-smi -r -i " + uuid + "."},
		{"gpu.nvidia.com/unhealthy", "RecoveryActionReset", "RecoveryActionReset: NVIDIA's driver asks for a reset " +
			"of the GPU. What to do: End the programs on the GPU, and reset it: nvidia-smi -r -i " + uuid + "."},
		{"gpu.nvidia.com/xid", "many", "an XID, the value"},
	} {
		s := newCluster(t)
		s.device(t, "a", "gpu-af-00-0").Taints = []resourceapi.DeviceTaint{{Key: row.key, Value: row.value,
			Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		out, _, err := s.run(t, "describe", "a/gpu-af-00-0")
		if err != nil || !strings.Contains(out, row.want) {
			t.Errorf("got\n%s\n%v, want in it %q", out, err, row.want)
		}
	}
}

// Wrong arguments are answered with how the command is called, and no kubeconfig with where to name one.
func TestUsage(t *testing.T) {
	s := newCluster(t)
	for args, want := range map[string]string{
		"describe": "write: kubectl gpu describe NODE|GPU...", "why x y": "write: kubectl gpu why [POD|KIND/NAME]",
		"models x": "write: kubectl gpu models", "fits x -f y": "write: kubectl gpu fits -f FILE",
	} {
		if _, _, err := s.run(t, strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", args, err, want)
		}
	}
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, args := range []string{"ls", "why x", "models"} {
		cmd := Command(genericiooptions.NewTestIOStreamsDiscard(), "")
		cmd.SetArgs(strings.Fields(args))
		err := cmd.ExecuteContext(t.Context())
		if want := "there is no kubeconfig that names a cluster; set KUBECONFIG"; err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", args, err, want)
		}
	}
}

// Each command has examples.
func TestExamples(t *testing.T) {
	for _, sub := range Command(genericiooptions.NewTestIOStreamsDiscard(), "").Commands() {
		if sub.Example == "" {
			t.Errorf("%s has no example", sub.Name())
		}
	}
}

func TestDescribeUnknown(t *testing.T) {
	out, _, err := newCluster(t).run(t, "describe", "a/gpu-af-00-0", "x")
	if err == nil || !strings.Contains(err.Error(), `there is no node or GPU "x"`) {
		t.Errorf("got error %v, want that there is no such GPU", err)
	}
	if !strings.HasPrefix(squeezed(out), "Name: gpu-af-00-0\n") {
		t.Errorf("got %q, want the GPU that exists", out)
	}
}

// A wrong argument or value of a flag is named before the API server is looked for.
func TestArgumentsFirst(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for line, want := range map[string]string{
		"top --sort-by size":            `--sort-by "size": want memory, utilization`,
		"why pod/x -A":                  "leave out the name",
		"why node/x":                    `"node/x" is no pod, claim or workload`,
		"reserve Vision --gpus 1":       `"Vision" is no name of a team`,
		"reserve vision --gpus -1":      "--gpus -1: write a positive number",
		"reserve vision":                "say which GPUs to keep",
		"fits -f x --profile no":        "no",
		"ls -o table":                   `unable to match a printer suitable for the output format "table"`,
		"defrag --node a --nodes":       "[node nodes]",
		"ui --port 70000":               "--port",
		"describe":                      "write: kubectl gpu describe",
		"ls":                            "there is no kubeconfig that names a cluster",
		"why x -n ml --kubeconfig none": "none",
	} {
		t.Setenv("KUBECONFIG", none)
		cmd := Command(genericiooptions.NewTestIOStreamsDiscard(), "")
		cmd.SetArgs(strings.Fields(line))
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", line, err, want)
		}
	}
}
