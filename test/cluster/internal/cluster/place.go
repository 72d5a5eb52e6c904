// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/controlplane"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/jsonfile"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/node"
)

// DefaultState is the folder of all clusters.
const DefaultState = "/var/lib/gpu-dra-cluster"

// ErrNotUp means that no cluster with that name runs.
var ErrNotUp = errors.New("cluster is not up")

// Place locates the files of a named cluster, whether or not it runs.
type Place struct {
	State string // the folder for all clusters
	Name  string
}

// Dir is the cluster's folder; Down removes it.
func (p Place) Dir() string { return filepath.Join(p.State, p.Name) }

// Kubeconfig is the kubeconfig for users and tests outside the cluster.
func (p Place) Kubeconfig() string { return filepath.Join(p.Dir(), "kubeconfig") }

func (p Place) machine(name string) string { return filepath.Join(p.Dir(), name) }

// cgroup is the control group of the cluster or of one of its nodes.
func (p Place) cgroup(node string) string {
	return strings.TrimSuffix("/gpu-dra-cluster."+p.Name+"/"+node, "/")
}

// phase is the progress of `up`.
type phase string

const (
	starting phase = "starting"
	running  phase = "running"
)

// record is the state of a cluster between commands.
type record struct {
	Config Config `json:"config"`
	Phase  phase  `json:"phase"`
	Server string `json:"server"` // the API server for users on this machine
}

func (p Place) recordFile() string { return filepath.Join(p.Dir(), "cluster.json") }

func (p Place) put(r record) error {
	if err := jsonfile.Write(p.recordFile(), r); err != nil {
		return fmt.Errorf("write record of cluster %s: %w", p.Name, err)
	}
	return nil
}

// get returns the record of the cluster, or ErrNotUp.
func (p Place) get() (record, error) {
	var r record
	err := jsonfile.Read(p.recordFile(), &r)
	if errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("cluster %s: %w", p.Name, ErrNotUp)
	}
	if err != nil {
		return r, fmt.Errorf("read record of cluster %s: %w", p.Name, err)
	}
	return r, nil
}

// up returns the record of a cluster whose start has completed.
func (p Place) up() (record, error) {
	r, err := p.get()
	if err == nil && r.Phase != running {
		err = fmt.Errorf("cluster %s was not started to the end; run up or down: %w", p.Name, ErrNotUp)
	}
	return r, err
}

// machines returns the names of the machines, the control plane first.
func (r record) machines() []string {
	names := []string{controlplane.Name}
	for i := range r.Config.Nodes {
		names = append(names, node.Name(i+1))
	}
	return names
}

func (r record) nodes() []string { return r.machines()[1:] }

// Names returns the names of all clusters with a folder here.
func Names(state string) []string {
	entries, _ := os.ReadDir(state)
	var names []string
	for _, e := range entries {
		if e.IsDir() && CheckName(e.Name()) == nil {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names
}

// lockTimeout is how long a command waits for another one that works on the same cluster.
const lockTimeout = 30 * time.Second

// lock prevents concurrent starts and ends of the same cluster. It is an abstract socket, which leaves no file and
// which the kernel releases when the process dies. It waits a while for a process that is ending.
func (p Place) lock(ctx context.Context) (unlock func(), err error) {
	address := &net.UnixAddr{Net: "unix", Name: "@gpu-dra-cluster/" + p.Name}
	deadline := time.Now().Add(lockTimeout)
	for {
		socket, err := net.ListenUnix("unix", address)
		if err == nil {
			return func() { _ = socket.Close() }, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("lock cluster %s: %w", p.Name, err)
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("lock cluster %s: another up or down of it is at work", p.Name)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}
