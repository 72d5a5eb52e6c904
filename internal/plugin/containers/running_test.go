// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clientgotesting "k8s.io/client-go/testing"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// TestRunning: the processes on the machine that run in containers of a claim.
func TestRunning(t *testing.T) {
	const (
		pods     = "/var/lib/kubelet/pods/0f-1/containers/main/1a2b /dev/termination-log"
		metadata = "/var/lib/kubelet/plugins/gpu.nvidia.com/dra-device-metadata/%s/gpu/metadata.json " +
			"/var/run/x/metadata.json"
		group = "0::/kubepods.slice/kubepods-pod0f_1.slice/cri-containerd-%s.scope\n"
	)
	mine := fmt.Sprintf(metadata, "ns_c")
	for _, row := range []struct {
		name      string
		processes map[int]string // the control group and the roots of the mounts, after each other; "": it has ended
		want      []string
	}{
		{"no process", nil, nil},
		{"a container with the claim", map[int]string{7: "a|" + pods + "|" + mine},
			[]string{"container main of pod 0f-1 (process 7)"}},
		{"its metadata was replaced since", map[int]string{7: "a|" + pods + "|" + strings.Replace(mine, "json /",
			"json//deleted /", 1)},
			[]string{"container main of pod 0f-1 (process 7)"}},
		{"several processes of a container", map[int]string{7: "a|" + pods + "|" + mine, 8: "a|" + pods + "|" + mine},
			[]string{"container main of pod 0f-1 (process 7)"}},
		{"two containers", map[int]string{7: "a|" + mine, 8: "b|" + mine}, []string{"a container (process 7)",
			"a container (process 8)"}},
		{"the first process of the container is ending", map[int]string{7: "a", 8: "a|" + mine},
			[]string{"a container (process 8)"}},
		{"the first process of the container sees only a directory", map[int]string{7: "a|" + pods, 8: "a|" + mine},
			[]string{"a container (process 8)"}},
		{"another claim of that name", map[int]string{7: "a|" + pods + "|" + fmt.Sprintf(metadata, "other_c")}, nil},
		{"a claim whose name begins so", map[int]string{7: "a|" + pods + "|" + fmt.Sprintf(metadata, "ns_c-2")}, nil},
		{"a process of the host", map[int]string{7: "system.slice|" + mine}, nil},
		{"a process that has ended", map[int]string{7: ""}, nil},
		{"a volume of another pod that is mounted at such a path", map[int]string{7: "a|" + pods +
			"|/var/lib/kubelet/pods/0f-1/volumes/kubernetes.io~empty-dir/v " + strings.Fields(mine)[0]}, nil},
		{"a path of that name in a volume", map[int]string{7: "a|" + pods +
			"|/var/lib/kubelet/pods/0f-1/volumes/kubernetes.io~empty-dir/v" + mine}, nil},
		{"a path of that name in another file system", map[int]string{7: "a|" + pods + "|0:9 " + mine}, nil},
	} {
		proc := procOf(t, "/", "/")
		for pid, text := range row.processes {
			dir := filepath.Join(proc, fmt.Sprint(pid))
			must(t, os.Mkdir(dir, 0o755))
			if text == "" {
				continue
			}
			parts := strings.Split(text, "|")
			cgroup, mounts := fmt.Sprintf(group, parts[0]), ""
			if parts[0] == "system.slice" {
				cgroup = "0::/system.slice/containerd.service\n"
			}
			for _, root := range parts[1:] {
				if strings.HasPrefix(root, "/") {
					root = "8:1 " + root
				}
				mounts += "1 2 " + root + " rw,relatime - ext4 /dev/sda1 rw\n"
			}
			must(t, os.WriteFile(filepath.Join(dir, "cgroup"), []byte(cgroup), 0o600))
			must(t, os.WriteFile(filepath.Join(dir, "mountinfo"), []byte(mounts), 0o600))
		}
		r := Running{Proc: proc,
			Metadata: &Metadata{Dir: "/var/lib/kubelet/plugins/gpu.nvidia.com/dra-device-metadata"}}
		got, err := r.With(sharing.Claim{Namespace: "ns", Name: "c"})
		if err != nil || fmt.Sprint(got) != fmt.Sprint(row.want) {
			t.Errorf("%s: got %q, error %v, want %q", row.name, got, err, row.want)
		}
	}
	if _, err := (&Running{Proc: "/nowhere", Metadata: &Metadata{}}).With(sharing.Claim{}); err == nil {
		t.Error("no error where processes cannot be seen")
	}
	other := Running{Proc: procOf(t, "/", "/other"), Metadata: &Metadata{Dir: "/plugins/metadata"}}
	if _, err := other.With(sharing.Claim{}); err == nil {
		t.Error("no error where the file system of the metadata is not known")
	}
}

// procOf returns a proc file system in which this process has a file system, from that root on, mounted at point.
func procOf(t *testing.T, root, point string) string {
	t.Helper()
	proc := t.TempDir()
	must(t, os.Mkdir(filepath.Join(proc, "self"), 0o755))
	mounts := "1 0 0:7 / /proc rw - proc proc rw\n1 0 8:1 " + root + " " + point + " rw - ext4 /dev/sda1 rw\n"
	must(t, os.WriteFile(filepath.Join(proc, "self/mountinfo"), []byte(mounts), 0o600))
	return proc
}

// Where the metadata is within its file system: the kubelet's directory can have one of its own, a bind mount or a
// subvolume.
func TestRunningInFileSystems(t *testing.T) {
	const dir = "/var/lib/kubelet/plugins/gpu.nvidia.com/dra-device-metadata"
	for _, row := range []struct{ name, root, point, want string }{
		{"the root of the host", "/", "/", "8:1 " + dir},
		{"in a container", "/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins", "8:1 " + dir},
		{"the kubelet has a file system of its own", "/", "/var/lib/kubelet",
			"8:1 /plugins/gpu.nvidia.com/dra-device-metadata"},
		{"another directory, by a bind mount", "/data/kubelet/plugins", "/var/lib/kubelet/plugins",
			"8:1 /data/kubelet/plugins/gpu.nvidia.com/dra-device-metadata"},
		{"a subvolume", "/@", "/", "8:1 /@" + dir},
		{"a mount with such a beginning", "/", "/var/lib/kube", ""},
	} {
		got, err := (&Running{Proc: procOf(t, row.root, row.point)}).inFileSystem(dir)
		if got != row.want || (err != nil) != (row.want == "") {
			t.Errorf("%s: got %q, error %v, want %q", row.name, got, err, row.want)
		}
	}
}

// The control groups of two containers and of the kubelet, on hosts with cgroup v1, v2 and both, and with both cgroup
// drivers of the kubelet.
func TestRunningInControlGroups(t *testing.T) {
	const (
		v1 = "12:pids:%[1]s\n11:memory:%[1]s\n10:cpuset:%[1]s\n9:cpu,cpuacct:%[1]s\n1:name=systemd:%[1]s\n"
		v2 = "0::%[1]s\n"
	)
	for _, row := range []struct{ name, file, pod, kubelet string }{
		{"v1, cgroupfs", v1, "/kubepods/besteffort/pod0f-1/%s", "/system.slice/kubelet.service"},
		{"v1, systemd", v1, "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f_1.slice/" +
			"cri-containerd-%s.scope", "/system.slice/kubelet.service"},
		{"hybrid, cgroupfs", v1 + "0::/system.slice/containerd.service\n", "/kubepods/pod0f-1/%s",
			"/system.slice/kubelet.service"},
		{"hybrid, systemd", v1 + v2, "/kubepods.slice/kubepods-pod0f_1.slice/crio-%s.scope",
			"/system.slice/kubelet.service"},
		{"v2, cgroupfs", v2, "/kubepods/burstable/pod0f-1/%s", "/system.slice/kubelet.service"},
		{"v2, systemd", v2, "/kubepods.slice/kubepods-pod0f_1.slice/cri-containerd-%s.scope",
			"/system.slice/kubelet.service"},
		{"v2, systemd, a node of kind", v2, "/../../kubelet.slice/kubelet-kubepods.slice/" +
			"kubelet-kubepods-pod0f_1.slice/cri-containerd-%s.scope", "/../../kubelet.slice/kubelet.service"},
	} {
		proc := procOf(t, "/", "/")
		const mounts = "1 2 8:1 /plugins/gpu.nvidia.com/dra-device-metadata/ns_c/gpu/metadata.json /x rw - ext4 / rw\n"
		for pid, group := range map[int]string{7: fmt.Sprintf(row.pod, "a"), 8: fmt.Sprintf(row.pod, "b"),
			9: fmt.Sprintf(row.pod, "b"), 10: row.kubelet} {
			dir := filepath.Join(proc, fmt.Sprint(pid))
			must(t, os.Mkdir(dir, 0o755))
			must(t, os.WriteFile(filepath.Join(dir, "cgroup"), fmt.Appendf(nil, row.file, group), 0o600))
			must(t, os.WriteFile(filepath.Join(dir, "mountinfo"), []byte(mounts), 0o600))
		}
		r := Running{Proc: proc, Metadata: &Metadata{Dir: "/plugins/gpu.nvidia.com/dra-device-metadata"}}
		got, err := r.With(sharing.Claim{Namespace: "ns", Name: "c"})
		if want := "[a container (process 7) a container (process 8)]"; err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s: got %q, error %v, want %s", row.name, got, err, want)
		}
	}
}

// Processes in the mount namespace of the host's first process are in no container. Others are looked at, also where
// namespaces cannot be read.
func TestRunningOutsideTheHostsMounts(t *testing.T) {
	for _, row := range []struct{ first, process, want string }{
		{"mnt:[1]", "mnt:[2]", "[a container (process 7)]"},
		{"mnt:[1]", "mnt:[1]", "[]"},
		{"", "mnt:[1]", "[a container (process 7)]"},
		{"mnt:[1]", "", "[a container (process 7)]"},
		{"", "", "[a container (process 7)]"},
	} {
		proc := procOf(t, "/", "/")
		for pid, namespace := range map[string]string{"1": row.first, "7": row.process} {
			must(t, os.MkdirAll(filepath.Join(proc, pid, "ns"), 0o755))
			if namespace != "" {
				must(t, os.Symlink(namespace, filepath.Join(proc, pid, "ns/mnt")))
			}
		}
		must(t, os.WriteFile(filepath.Join(proc, "7/cgroup"), []byte("0::/kubepods/pod0f-1/a\n"), 0o600))
		must(t, os.WriteFile(filepath.Join(proc, "7/mountinfo"),
			[]byte("1 2 8:1 /plugins/gpu.nvidia.com/metadata/ns_c/gpu/metadata.json /x rw - ext4 / rw\n"), 0o600))
		r := Running{Proc: proc, Metadata: &Metadata{Dir: "/plugins/gpu.nvidia.com/metadata"}}
		got, err := r.With(sharing.Claim{Namespace: "ns", Name: "c"})
		if err != nil || fmt.Sprint(got) != row.want {
			t.Errorf("first process in %q, process in %q: got %q, error %v, want %s", row.first, row.process, got, err,
				row.want)
		}
	}
}

// Of a container's processes only one is looked at, unless that one has another root: such a process shows only the
// mounts below it.
func TestRunningOncePerMountNamespace(t *testing.T) {
	const with = "/plugins/gpu.nvidia.com/metadata/ns_c/gpu/metadata.json"
	for _, row := range []struct {
		name          string
		root          string // of the first process; "": cannot be read
		first, second string // mount namespaces; "": cannot be read
		want          string
	}{
		{"the second is not looked at", "/", "mnt:[2]", "mnt:[2]", "[]"},
		{"the first has changed its root", "/chroot", "mnt:[2]", "mnt:[2]", "[a container (process 8)]"},
		{"the first has ended", "", "mnt:[2]", "mnt:[2]", "[a container (process 8)]"},
		{"another namespace", "/", "mnt:[2]", "mnt:[3]", "[a container (process 8)]"},
		{"unknown namespaces", "/", "", "", "[a container (process 8)]"},
	} {
		proc := procOf(t, "/", "/")
		for pid, p := range map[string]struct{ namespace, root, mount string }{
			"7": {row.first, row.root, "/other"}, "8": {row.second, "/", with}} {
			dir := filepath.Join(proc, pid)
			must(t, os.MkdirAll(filepath.Join(dir, "ns"), 0o755))
			if p.namespace != "" {
				must(t, os.Symlink(p.namespace, filepath.Join(dir, "ns/mnt")))
			}
			if p.root != "" {
				must(t, os.Symlink(p.root, filepath.Join(dir, "root")))
			}
			must(t, os.WriteFile(filepath.Join(dir, "cgroup"), []byte("0::/kubepods/pod0f-1/a\n"), 0o600))
			must(t, os.WriteFile(filepath.Join(dir, "mountinfo"), []byte("1 2 8:1 "+p.mount+" /x rw - ext4 / rw\n"),
				0o600))
		}
		r := Running{Proc: proc, Metadata: &Metadata{Dir: "/plugins/gpu.nvidia.com/metadata"}}
		got, err := r.With(sharing.Claim{Namespace: "ns", Name: "c"})
		if err != nil || fmt.Sprint(got) != row.want {
			t.Errorf("%s: got %q, error %v, want %s", row.name, got, err, row.want)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The kubelet has lost its state, so claim c was never unprepared. Its user has created another claim c, which runs.
func TestRunningWithAnotherClaimOfTheSameName(t *testing.T) {
	proc := procOf(t, "/", "/")
	for pid, pod := range map[string]string{"7": "0f-1", "8": "0f-2"} {
		dir := filepath.Join(proc, pid)
		must(t, os.Mkdir(dir, 0o755))
		must(t, os.WriteFile(filepath.Join(dir, "cgroup"), []byte("0::/kubepods.slice/kubepods-pod"+pod+".slice\n"),
			0o600))
		must(t, os.WriteFile(filepath.Join(dir, "mountinfo"), []byte("1 2 8:1 /var/lib/kubelet/pods/"+pod+
			"/containers/main/1a2b /dev/termination-log rw - ext4 /dev/sda1 rw\n"+
			"1 2 8:1 /var/lib/kubelet/plugins/gpu.nvidia.com/dra-device-metadata/ns_c/gpu/metadata.json "+
			"/var/run/x/metadata.json rw - ext4 /dev/sda1 rw\n"), 0o600))
	}
	client := fake.NewClientset(&resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "new"},
		Status: resourceapi.ResourceClaimStatus{ReservedFor: []resourceapi.ResourceClaimConsumerReference{
			{Resource: "pods", Name: "p", UID: "0f-1"}}}}, member("ours", "q", "0f-2"))
	r := Running{Proc: proc, Metadata: &Metadata{Dir: "/var/lib/kubelet/plugins/gpu.nvidia.com/dra-device-metadata"},
		Reserved: ReservedFor(client, func(context.Context, string) ([]string, error) { return []string{"q"}, nil })}
	for _, row := range []struct{ name, uid, want string }{
		{"c", "new", "container main of pod 0f-1 (process 7), container main of pod 0f-2 (process 8)"},
		{"c", "old", "container main of pod 0f-2 (process 8)"},
	} {
		got, err := r.With(sharing.Claim{Namespace: "ns", Name: row.name, UID: types.UID(row.uid)})
		if err != nil || strings.Join(got, ", ") != row.want {
			t.Errorf("%s: got %q and error %v, want %q", row.uid, got, err, row.want)
		}
	}
	// The new claim is also reserved for the PodGroup of the second pod.
	now, err := client.ResourceV1().ResourceClaims("ns").Get(t.Context(), "c", metav1.GetOptions{})
	must(t, err)
	now.Status.ReservedFor = append(now.Status.ReservedFor, ofGroup("ours"))
	_, err = client.ResourceV1().ResourceClaims("ns").UpdateStatus(t.Context(), now, metav1.UpdateOptions{})
	must(t, err)
	if got, err := r.With(sharing.Claim{Namespace: "ns", Name: "c", UID: "old"}); err != nil || len(got) != 0 {
		t.Errorf("with a PodGroup: got %q and error %v, want none", got, err)
	}
	client.PrependReactor("get", "resourceclaims", func(clientgotesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("away")
	})
	if got, err := r.With(sharing.Claim{Namespace: "ns", Name: "c", UID: "old"}); err != nil || len(got) != 2 {
		t.Errorf("without the API server: got %q and error %v, want both containers", got, err)
	}
}
