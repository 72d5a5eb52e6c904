// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/cgroups"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/components"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/controlplane"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/machine"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/network"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/node"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/pki"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/preflight"
)

// Stages of a start, in order. A test can stop a start at a stage and kill it there.
const (
	StageRecorded     = "recorded"      // the folder and the record exist
	StageControlPlane = "control-plane" // its machine exists, with the bridge; it waits
	StageCable        = "cable"         // the first node is on the network; the others do not exist
	StageNodes        = "nodes"         // everything runs, nothing is ready
	StageAPI          = "api"           // the API server answers, the nodes are starting
	StageReady        = "ready"         // everything is ready, but not yet recorded
)

// Stages returns the stages in order.
func Stages() []string {
	return []string{StageRecorded, StageControlPlane, StageCable, StageNodes, StageAPI, StageReady}
}

// Starter starts a cluster.
type Starter struct {
	Place    Place
	Config   Config
	Programs components.Dirs
	Out      io.Writer // progress
	// KeepFailed keeps the files of a failed start, to find the reason.
	KeepFailed bool
	// Reached is called at each stage; it may be nil.
	Reached func(stage string)

	began    time.Time
	cgroups  cgroups.Layout
	ca       *pki.Authority
	api      *api
	spec     string // base spec of every container
	record   record
	machines []*machine.Running
	failed   chan error // a machine that ended
}

// Up starts the cluster and returns when every node is ready. It first removes the rest of an earlier cluster of that
// name. If the cluster already runs with the same configuration, Up does nothing. A failed start leaves nothing.
func (s *Starter) Up(ctx context.Context) error {
	unlock, err := s.Place.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if done, err := s.alreadyUp(); done || err != nil {
		return err
	}
	if err := undo(s.Place); err != nil {
		return fmt.Errorf("clear what is left of cluster %s: %w", s.Place.Name, err)
	}
	if err := preflight.CheckWatches(s.Config.Nodes); err != nil {
		return err
	}
	s.began = time.Now()
	if err := s.start(ctx); err != nil {
		err = fmt.Errorf("start cluster %s: %w", s.Place.Name, err)
		if !errors.Is(err, context.Canceled) {
			s.explain()
		}
		if s.KeepFailed {
			return err
		}
		return errors.Join(err, undo(s.Place))
	}
	return nil
}

func (s *Starter) alreadyUp() (bool, error) {
	r, err := s.Place.up()
	if errors.Is(err, ErrNotUp) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, name := range r.machines() {
		if record, err := machine.Load(s.Place.machine(name)); err != nil || !record.Alive() {
			return false, nil //nolint:nilerr // a machine without a record does not run
		}
	}
	if !reflect.DeepEqual(r.Config, s.Config) {
		return false, fmt.Errorf("cluster %s is up with other settings; run down first", s.Place.Name)
	}
	fmt.Fprintf(s.Out, "cluster %s is up already\n", s.Place.Name)
	return true, nil
}

func (s *Starter) start(ctx context.Context) error {
	var err error
	if s.cgroups, err = cgroups.Detect(); err != nil {
		return err
	}
	if s.spec, err = node.NewContainerSpec(s.Programs); err != nil {
		return err
	}
	if s.ca, err = pki.NewAuthority("gpu-dra-cluster"); err != nil {
		return err
	}
	listener, err := s.listen()
	if err != nil {
		return err
	}
	defer listener.Close()
	if err := s.prepare(); err != nil {
		return err
	}
	s.reached(StageRecorded)
	s.failed = make(chan error, 1+s.Config.Nodes)
	hub, err := s.startControlPlane(listener)
	if err != nil {
		return err
	}
	s.reached(StageControlPlane)
	if err := hub.Release(); err != nil {
		return err
	}
	if err := s.startNodes(hub); err != nil {
		return err
	}
	s.reached(StageNodes)
	if err := s.await(ctx); err != nil {
		return err
	}
	s.reached(StageReady)
	s.record.Phase = running
	return s.Place.put(s.record)
}

func (s *Starter) reached(stage string) {
	if s.Reached != nil {
		s.Reached(stage)
	}
}

func (s *Starter) progress(format string, args ...any) {
	fmt.Fprintf(s.Out, "%5.1f s  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// listen opens the port for users on this machine. The kernel chooses the number, so two clusters cannot collide.
func (s *Starter) listen() (*os.File, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for users: %w", err)
	}
	defer listener.Close()
	s.record = record{Config: s.Config, Phase: starting, Server: "https://" + listener.Addr().String()}
	return listener.(*net.TCPListener).File()
}

// prepare records what is about to be created, and writes the files.
func (s *Starter) prepare() error {
	if err := os.MkdirAll(s.Place.State, 0o755); err != nil {
		return fmt.Errorf("make folder for state: %w", err)
	}
	if err := os.Mkdir(s.Place.Dir(), 0o700); err != nil {
		return fmt.Errorf("make folder of the cluster: %w", err)
	}
	if err := s.Place.put(s.record); err != nil {
		return err
	}
	admin, err := s.ca.Issue(pki.Subject{CommonName: "admin", Organizations: []string{"system:masters"}})
	if err != nil {
		return err
	}
	kubeconfig, err := pki.Kubeconfig("gpu-dra-"+s.Place.Name, s.record.Server, s.ca.CertPEM(), admin)
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.Place.Kubeconfig(), kubeconfig, 0o600); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	s.api, err = newAPI(s.record.Server, s.ca.CertPEM(), admin)
	return err
}

func (s *Starter) startControlPlane(listener *os.File) (*machine.Running, error) {
	dir := s.Place.machine(controlplane.Name)
	if err := controlplane.WriteCredentials(dir, s.ca); err != nil {
		return nil, err
	}
	options := controlplane.Options{
		FeatureGates: s.Config.FeatureGates, RuntimeConfig: s.Config.RuntimeConfig, Audit: s.Config.Audit,
		SchedulerConfig: s.Config.SchedulerConfig, SchedulerVModule: s.Config.SchedulerVModule,
	}
	hub, err := s.startMachine(controlplane.Spec(dir, s.Programs, options), listener)
	if err != nil {
		return nil, err
	}
	return hub, network.MakeBridge(hub.Process.PID)
}

func (s *Starter) startNodes(hub *machine.Running) error {
	for i := 1; i <= s.Config.Nodes; i++ {
		n, err := s.startNode(i)
		if err != nil {
			return err
		}
		if err := network.Connect(hub.Process.PID, n.Process.PID, i, s.Config.Nodes); err != nil {
			return fmt.Errorf("connect %s: %w", n.Name, err)
		}
		if i == 1 {
			s.reached(StageCable)
		}
		if err := n.Release(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Starter) startNode(i int) (*machine.Running, error) {
	name := node.Name(i)
	dir := s.Place.machine(name)
	if err := node.WriteCredentials(dir, s.ca, i); err != nil {
		return nil, err
	}
	config := node.Config{
		Index:         i,
		Cgroup:        s.Place.cgroup(name),
		Labels:        s.Config.labels(name),
		FeatureGates:  s.Config.FeatureGates,
		ContainerSpec: s.spec,
	}
	if err := s.cgroups.Make(config.Cgroup); err != nil {
		return nil, err
	}
	spec, err := node.Spec(dir, s.Programs, config)
	if err != nil {
		return nil, err
	}
	return s.startMachine(spec, nil)
}

func (s *Starter) startMachine(spec machine.Spec, listener *os.File) (*machine.Running, error) {
	started, err := machine.Start(spec, listener)
	if err != nil {
		return nil, err
	}
	s.machines = append(s.machines, started)
	go func() {
		<-started.Ended()
		s.failed <- fmt.Errorf("machine %s ended", started.Name)
	}()
	return started, nil
}

// await returns when the cluster can be used.
func (s *Starter) await(ctx context.Context) error {
	if err := poll(ctx, s.failed, s.api.ready); err != nil {
		return fmt.Errorf("wait for the API server: %w", err)
	}
	s.progress("API server ready")
	s.reached(StageAPI)
	ready := map[string]bool{}
	err := poll(ctx, s.failed, func(ctx context.Context) error {
		names, err := s.api.readyNodes(ctx)
		if err != nil {
			return err
		}
		for _, name := range names {
			if !ready[name] {
				ready[name] = true
				s.progress("%s ready", name)
			}
		}
		var missing []string
		for _, name := range s.record.nodes() {
			if !slices.Contains(names, name) {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			return errors.New("not ready: " + strings.Join(missing, ", "))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("wait for nodes: %w", err)
	}
	if err := poll(ctx, s.failed, s.api.usable); err != nil {
		return fmt.Errorf("wait for the default service account: %w", err)
	}
	return nil
}
