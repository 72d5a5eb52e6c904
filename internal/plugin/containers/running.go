// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// Running finds running containers of a claim.
type Running struct {
	Proc string // where the proc file system of the host's PID namespace is mounted
	// Metadata is mounted into the containers of claims.
	Metadata *Metadata
	// Reserved returns the UID of the claim that has this namespace and name now, and the pods that it is reserved for.
	// nil: no other claim had that name.
	Reserved func(namespace, name string) (claim types.UID, pods []types.UID, err error)

	mounted atomic.Pointer[string] // what inFileSystem has found
}

// With returns descriptions of the containers that run with the claim. If there is none, the files of its metadata are
// gone, and no container starts with it until it is prepared again: a runtime starts none without the file that is to
// be mounted. Otherwise they are there again; an error that comes with containers says why one is not.
//
// Where the files do not tell that there is no container, it reads /proc, because the kubelet forgets a pod that was
// deleted by force, and a stopped runtime does not answer, while the container still runs. It misses a container whose
// processes have all changed their root directory: mountinfo shows only mounts below the root of a process. It also
// misses one whose runtime has opened the file and not yet mounted it, as runc may for a pod with a user namespace.
// Mounts have the name of the claim and not its UID, so pods of another claim of that name are left out.
func (r *Running) With(claim sharing.Claim) ([]string, error) {
	if r.Metadata.unmounted(claim) {
		return nil, nil
	}
	found, err := r.find(claim)
	left := r.without(found, claim)
	if err != nil || len(left) > 0 {
		return left, errors.Join(err, r.Metadata.restore(claim.UID))
	}
	r.Metadata.forget(claim.UID)
	return nil, nil
}

// find looks for the containers in the mounts of all processes.
func (r *Running) find(claim sharing.Claim) ([]running, error) {
	entries, err := os.ReadDir(r.Proc)
	if err != nil {
		return nil, fmt.Errorf("look for containers of claim %s: %w", claim, err)
	}
	dir, err := r.metadata()
	if err != nil {
		return nil, fmt.Errorf("look for containers of claim %s: %w", claim, err)
	}
	// Spaces inside of a field are escaped, so this is nowhere else in a line, whatever paths a pod has chosen.
	mounted := []byte(" " + dir + "/" + claim.Namespace + "_" + claim.Name + "/")
	without := map[string]bool{} // mount namespaces without the mount
	if host, err := r.link("1", "ns/mnt"); err == nil {
		without[host] = true // most processes of a node are in no container
	}
	seen := map[string]bool{} // cgroups of containers already found
	// os.ReadFile would begin with 512 bytes, and need three times as many system calls.
	groupFile, mountFile := bytes.NewBuffer(make([]byte, 0, 4<<10)), bytes.NewBuffer(make([]byte, 0, 32<<10))
	var found []running
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		namespace, unknown := r.link(e.Name(), "ns/mnt")
		if unknown == nil && without[namespace] {
			continue
		}
		var group []byte
		if unknown != nil { // without the right to see it, each process is looked at, but only in pods
			if group, err = r.read(pid, "cgroup", groupFile); err != nil {
				return nil, err
			}
			if !bytes.Contains(group, []byte("pod")) {
				continue
			}
		}
		mounts, err := r.read(pid, "mountinfo", mountFile)
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(mounts, mounted) {
			// If this process has ended or changed its root, another one of the namespace may show the mount.
			if root, err := r.link(e.Name(), "root"); err == nil && root == "/" && unknown == nil {
				without[namespace] = true
			}
			continue
		}
		if group == nil {
			if group, err = r.read(pid, "cgroup", groupFile); err != nil {
				return nil, err
			}
		}
		if !bytes.Contains(group, []byte("pod")) || seen[string(group)] {
			continue
		}
		seen[string(group)] = true
		container := "a container"
		pod, name, ok := ownerOf(mounts)
		if ok {
			container = fmt.Sprintf("container %s of pod %s", name, pod)
		}
		found = append(found, running{pod, fmt.Sprintf("%s (process %d)", container, pid)})
	}
	return found, nil
}

// running is a container that runs.
type running struct {
	pod  types.UID // empty: unknown
	text string
}

// without describes the containers, without those of pods for which another claim of the same name is reserved.
func (r *Running) without(found []running, claim sharing.Claim) []string {
	var others []types.UID
	if len(found) > 0 && r.Reserved != nil {
		now, pods, err := r.Reserved(claim.Namespace, claim.Name)
		if err == nil && now != claim.UID {
			others = pods
		} // else any of them may be the claim's
	}
	var texts []string
	for _, c := range found {
		if !slices.Contains(others, c.pod) {
			texts = append(texts, c.text)
		}
	}
	return texts
}

// reservedTimeout is how long the API server may take to tell a claim.
const reservedTimeout = 10 * time.Second

// ReservedFor returns a function for Running.Reserved that asks the API server.
func ReservedFor(client kubernetes.Interface, listed Listed) func(namespace, name string) (types.UID, []types.UID,
	error) {
	return func(namespace, name string) (types.UID, []types.UID, error) {
		ctx, cancel := context.WithTimeout(context.Background(), reservedTimeout)
		defer cancel()
		claim, err := client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil, nil
		}
		if err != nil {
			return "", nil, err
		}
		var uids []types.UID
		for _, by := range claim.Status.ReservedFor { // also a pod that the API server does not have any more
			uids = append(uids, by.UID)
		}
		claim.Status.ReservedFor = slices.DeleteFunc(claim.Status.ReservedFor,
			func(by resourceapi.ResourceClaimConsumerReference) bool { return by.Resource == "pods" })
		pods, err := reservedPods(ctx, client, listed, claim)
		if err != nil { // a container of the group then counts as one of the older claim
			klog.FromContext(ctx).Info("The pods of a PodGroup are not known", "claim", klog.KObj(claim), "err", err)
		}
		for _, pod := range pods {
			uids = append(uids, pod.UID)
		}
		return claim.UID, uids, nil
	}
}

// metadata returns how mountinfo names the directory of the metadata. It is asked for once: the volume with that
// directory is mounted without propagation.
func (r *Running) metadata() (string, error) {
	if known := r.mounted.Load(); known != nil {
		return *known, nil
	}
	dir, err := r.inFileSystem(r.Metadata.Dir)
	if err == nil {
		r.mounted.Store(&dir)
	}
	return dir, err
}

// inFileSystem returns how the third and fourth fields of mountinfo name a directory, in the mount namespace of any
// process: the device of its file system, a space, and its path below the root of that.
func (r *Running) inFileSystem(dir string) (string, error) {
	mounts, err := os.ReadFile(filepath.Join(r.Proc, "self", "mountinfo"))
	if err != nil {
		return "", err
	}
	point, found := "", ""
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line) // see proc_pid_mountinfo(5)
		if len(fields) < 5 || len(fields[4]) < len(point) {
			continue
		}
		below, ok := strings.CutPrefix(dir, strings.TrimSuffix(fields[4], "/"))
		if ok && strings.HasPrefix(below, "/") {
			point, found = fields[4], fields[2]+" "+strings.TrimSuffix(fields[3], "/")+below
		}
	}
	if found == "" {
		return "", fmt.Errorf("no file system of %s in the mounts of this process", dir)
	}
	return found, nil
}

// link returns what a link of a process says, such as the identity of a namespace.
func (r *Running) link(pid, name string) (string, error) {
	return os.Readlink(filepath.Join(r.Proc, pid, name))
}

// read reads a file of a process into buf. It is empty if the process has ended.
func (r *Running) read(pid int, file string, buf *bytes.Buffer) ([]byte, error) {
	buf.Reset()
	f, err := os.Open(filepath.Join(r.Proc, strconv.Itoa(pid), file))
	if err == nil {
		_, err = buf.ReadFrom(f)
		err = errors.Join(err, f.Close())
	}
	if hasEnded(err) {
		return nil, nil
	}
	return buf.Bytes(), err
}
