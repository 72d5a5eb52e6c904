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

// DefaultState is the folder below which each cluster has one of its own.
const DefaultState = "/var/lib/gpu-dra-cluster"

// ErrNotUp means there is no cluster of that name.
var ErrNotUp = errors.New("cluster is not up")

// Place is where a cluster of a name has its things, whether or not it runs.
type Place struct {
	State string // the folder for all clusters
	Name  string
}

// Dir is the folder with everything of the cluster; Down removes it.
func (p Place) Dir() string { return filepath.Join(p.State, p.Name) }

// Kubeconfig is the file for people and tests outside the cluster.
func (p Place) Kubeconfig() string { return filepath.Join(p.Dir(), "kubeconfig") }

func (p Place) machine(name string) string { return filepath.Join(p.Dir(), name) }

// cgroup is the control group of the cluster, or of one of its nodes.
func (p Place) cgroup(node string) string {
	return strings.TrimSuffix("/gpu-dra-cluster."+p.Name+"/"+node, "/")
}

// phase says how far `up` came.
type phase string

const (
	starting phase = "starting"
	running  phase = "running"
)

// record is what is remembered of a cluster between commands.
type record struct {
	Config Config `json:"config"`
	Phase  phase  `json:"phase"`
	Server string `json:"server"` // the API server for the machine's users
}

func (p Place) recordFile() string { return filepath.Join(p.Dir(), "cluster.json") }

func (p Place) put(r record) error {
	if err := jsonfile.Write(p.recordFile(), r); err != nil {
		return fmt.Errorf("write record of cluster %s: %w", p.Name, err)
	}
	return nil
}

// get returns what is remembered of the cluster, or ErrNotUp.
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

// up returns the record of a cluster that has been started to the end.
func (p Place) up() (record, error) {
	r, err := p.get()
	if err == nil && r.Phase != running {
		err = fmt.Errorf("cluster %s was not started to the end; run up or down: %w", p.Name, ErrNotUp)
	}
	return r, err
}

// machines returns the names of the machines of the configuration, the control
// plane first.
func (r record) machines() []string {
	names := []string{controlplane.Name}
	for i := range r.Config.Nodes {
		names = append(names, node.Name(i+1))
	}
	return names
}

func (r record) nodes() []string { return r.machines()[1:] }

// Names returns the names of all clusters that have something here.
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

// lock keeps two commands from starting or ending the same cluster at once.
// The lock is an abstract socket: it leaves no file, and the kernel lets go of
// it when the process dies. It waits a moment for a process that is ending.
func (p Place) lock(ctx context.Context) (unlock func(), err error) {
	address := &net.UnixAddr{Net: "unix", Name: "@gpu-dra-cluster/" + p.Name}
	deadline := time.Now().Add(5 * time.Second)
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
