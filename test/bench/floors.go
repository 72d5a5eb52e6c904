// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"
)

// floorProgram is test/floor, where make bench has built it.
const floorProgram = "_output/bin/floor"

// floorDomain ends the driver names of floors.
const floorDomain = ".floor.example.com"

const (
	floorRounds = 5
	floorCycles = 30 // of one claim on each plugin, in each round
	floorBursts = 6  // of eight claims on each plugin, in each round
)

// subject is a plugin that is measured: the driver, or a floor.
type subject struct {
	driver  string
	process process
	kubelet drapb.DRAPluginClient
	stop    func() error
}

// startFloor starts test/floor in the namespaces of the plugin's container, with the plugin's rights at the API server.
func (b *bench) startFloor(name string, edits *cdispecs.ContainerEdits, args ...string) (*subject, error) {
	s := &subject{driver: name + floorDomain}
	program, err := os.Open(floorProgram)
	if err != nil {
		return nil, err
	}
	defer program.Close()
	input, err := json.Marshal(edits)
	if err != nil {
		return nil, err
	}
	// The program file is not in these namespaces, but its descriptor is.
	cmd := exec.Command("nsenter", append([]string{"--target", strconv.Itoa(b.process.pid), "--mount", "--net", "--pid",
		"--", "/proc/self/fd/3", "-driver", s.driver, "-node", b.node}, args...)...)
	cmd.ExtraFiles, cmd.Stdin, cmd.Stderr = []*os.File{program}, bytes.NewReader(input), os.Stderr
	for name, value := range b.process.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if line, err := bufio.NewReader(output).ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("floor %s: got %q: %w", name, line, err), cmd.Wait())
	}
	// To enter the PID namespace, nsenter forks, and waits for its child.
	if s.process.pid, err = childOf(cmd.Process.Pid); err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	end := func() error { return errors.Join(syscall.Kill(s.process.pid, syscall.SIGTERM), cmd.Wait()) }
	kubelet, hangUp, err := dialPlugin(b.process.path(filepath.Join(filepath.Dir(pluginDir), s.driver, "dra.sock")))
	if err != nil {
		return nil, errors.Join(err, end())
	}
	s.kubelet = kubelet
	s.stop = func() error {
		hangUp()
		return end()
	}
	return s, nil
}

// childOf returns the only child of a process.
func childOf(pid int) (int, error) {
	children, err := os.ReadFile(proc(pid, "task/"+strconv.Itoa(pid)+"/children"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(children)))
}

// edits returns what the driver's CDI files say for a whole GPU.
func (b *bench) edits(ctx context.Context) (*cdispecs.ContainerEdits, error) {
	claims, err := b.allocatedGPUs(ctx, 1)
	if err != nil {
		return nil, err
	}
	answer, err := b.kubelet.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: claims})
	if err != nil {
		return nil, err
	}
	cache, err := cdiapi.NewCache(cdiapi.WithSpecDirs(b.process.path(cdiDir)), cdiapi.WithAutoRefresh(false))
	if err != nil {
		return nil, err
	}
	var all cdiapi.ContainerEdits
	seen := map[*cdiapi.Spec]bool{}
	for _, device := range answer.Claims[claims[0].Uid].GetDevices() {
		for _, id := range device.CdiDeviceIds {
			d := cache.GetDevice(id)
			if d == nil {
				return nil, fmt.Errorf("no CDI file has the device %s", id)
			}
			if strings.Contains(id, "metadata") { // the kubeletplugin helper adds it in every driver
				continue
			}
			if !seen[d.GetSpec()] {
				seen[d.GetSpec()] = true
				all.Append(&cdiapi.ContainerEdits{ContainerEdits: &d.GetSpec().ContainerEdits})
			}
			all.Append(&cdiapi.ContainerEdits{ContainerEdits: &d.ContainerEdits})
		}
	}
	if all.ContainerEdits == nil || len(all.Hooks) == 0 {
		return nil, fmt.Errorf("the CDI files of a GPU have no hooks: %v", answer)
	}
	_, err = b.unprepare(ctx, claims...)
	return all.ContainerEdits, errors.Join(err, b.deleteClaims(ctx))
}

// comparison is one figure of the driver and of the floors: a list of samples for each round.
type comparison struct {
	what  string
	aims  []float64 // the driver ÷ the safe floor: at the median, and at the 99th percentile if there is a second
	why   string    // as of a row
	times [3][]samples
}

const (
	driverIndex = iota
	nullIndex
	safeIndex
)

// measureFloors measures the driver, the null floor and the safe floor in turn.
func measureFloors(ctx context.Context, b *bench) (err error) {
	edits, err := b.edits(ctx)
	if err != nil {
		return err
	}
	subjects := []*subject{{driver: driver, process: b.process, kubelet: b.kubelet}}
	for _, floor := range []struct {
		name string
		args []string
	}{{"null", nil}, {"safe", []string{"-safe"}}} {
		s, failed := b.startFloor(floor.name, edits, floor.args...)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, s.stop()) }()
		subjects = append(subjects, s)
	}
	one := &comparison{what: "Prepare, one claim", aims: []float64{1.3, 2}, why: whyPrepare}
	release := &comparison{what: "Unprepare, one claim", aims: []float64{1.3}, why: whyUnprepare}
	cpu := &comparison{what: "processor time of a claim: Prepare, Unprepare", aims: []float64{1.5}, why: whyOwn}
	calls := &comparison{what: "8 calls at once, 8 GPUs", aims: []float64{1.5}, why: whyCalls8}
	call := &comparison{what: "one call with 8 claims", aims: []float64{1.3}, why: whyClaims8}
	all := []*comparison{one, release, cpu, calls, call}
	for range floorRounds {
		if err := b.quiet(ctx); err != nil {
			return err
		}
		for _, c := range all {
			for i := range c.times {
				c.times[i] = append(c.times[i], nil)
			}
		}
		for n := range floorCycles + floorBursts {
			for turn := range subjects {
				i := (turn + n) % len(subjects)
				s := subjects[i]
				if n < floorCycles {
					err = b.oneClaim(ctx, s, n, one.last(i), release.last(i), cpu.last(i))
				} else {
					err = errors.Join(b.eightClaims(ctx, s, calls.last(i), callEach),
						b.eightClaims(ctx, s, call.last(i), prepareOn))
				}
				if err != nil {
					return fmt.Errorf("%s: %w", s.driver, err)
				}
			}
		}
	}
	floor, err := subjects[safeIndex].process.memory()
	if err != nil {
		return err
	}
	b.comparisons = all
	b.results["floorrss"] = []float64{floor.rss, floor.anon}
	b.results["calls8"] = []float64{slices.Concat(calls.times[driverIndex]...).p50()}
	return b.deleteClaims(ctx)
}

func (c *comparison) last(i int) *samples { return &c.times[i][len(c.times[i])-1] }

func (b *bench) oneClaim(ctx context.Context, s *subject, number int, prepares, unprepares, cpu *samples) error {
	claims, err := b.claimsOf(ctx, s.driver, number, 1)
	if err != nil {
		return err
	}
	held, err := b.hold(ctx, s, prepareOn, claims)
	*prepares, *unprepares = append(*prepares, held.prepare), append(*unprepares, held.unprepare)
	*cpu = append(*cpu, held.cpu)
	return err
}

// prepareFunc prepares claims and returns how long that takes.
type prepareFunc = func(context.Context, drapb.DRAPluginClient, ...*drapb.Claim) (time.Duration, error)

// held is how long a plugin takes to prepare claims, to unprepare them in one call, and how much processor time it uses
// for both.
type held struct{ prepare, unprepare, cpu time.Duration }

// hold prepares the claims and unprepares them after claimPause.
func (b *bench) hold(ctx context.Context, s *subject, prepare prepareFunc, claims []*drapb.Claim) (h held, err error) {
	for _, claim := range claims {
		if _, err := b.get(ctx, claim); err != nil { // the API server's cache is warm for all
			return h, err
		}
	}
	before, err := s.process.cpu()
	if err != nil {
		return h, err
	}
	if h.prepare, err = prepare(ctx, s.kubelet, claims...); err != nil {
		return h, err
	}
	if err := sleep(ctx, claimPause); err != nil {
		return h, err
	}
	if h.unprepare, err = unprepareOn(ctx, s.kubelet, claims...); err != nil {
		return h, err
	}
	after, err := s.process.cpu()
	h.cpu = after - before
	return h, err
}

// callEach prepares each claim in a call of its own, at once.
func callEach(ctx context.Context, plugin drapb.DRAPluginClient, claims ...*drapb.Claim) (time.Duration, error) {
	begin := time.Now()
	err := atOnce(len(claims), len(claims), func(i int) error {
		_, err := prepareOn(ctx, plugin, claims[i])
		return err
	})
	return time.Since(begin), err
}

// eightClaims prepares eight claims at once.
func (b *bench) eightClaims(ctx context.Context, s *subject, times *samples, prepare prepareFunc) error {
	claims, err := b.claimsOf(ctx, s.driver, 0, burst)
	if err != nil {
		return err
	}
	held, err := b.hold(ctx, s, prepare, claims)
	*times = append(*times, held.prepare)
	return err
}

// ratios returns the driver ÷ the safe floor at a quantile: the median of the rounds, the smallest and the largest.
func (c *comparison) ratios(q float64) (median, least, most float64) {
	var all []float64
	for round, ours := range c.times[driverIndex] {
		all = append(all, ours.at(q)/c.times[safeIndex][round].at(q))
	}
	slices.Sort(all)
	return all[len(all)/2], all[0], all[len(all)-1]
}

// floorsTable returns the table of all comparisons, and a line for each that misses its aim.
func (b *bench) floorsTable() (table, misses string) {
	if len(b.comparisons) == 0 {
		return "", ""
	}
	var text strings.Builder
	text.WriteString("| ms | null floor | safe floor | here | here ÷ safe floor, in each of " +
		strconv.Itoa(floorRounds) + " rounds | aim | |\n|---|---:|---:|---:|---:|---:|---|\n")
	for _, c := range b.comparisons {
		for i, aim := range c.aims {
			q, label := 0.5, "p50"
			if i > 0 {
				q, label = 0.99, "p99"
			}
			var values [3]float64
			for of, rounds := range c.times {
				values[of] = slices.Concat(rounds...).at(q)
			}
			median, least, most := c.ratios(q)
			verdict := "ok"
			if median > aim {
				verdict = "**miss**"
				misses += fmt.Sprintf("- %s, %s: %s\n", c.what, label, c.why)
			}
			fmt.Fprintf(&text, "| %s, %s | %s | %s | %s | %s (%s to %s) | ≤ %s | %s |\n", c.what, label,
				formatValues(values[nullIndex:nullIndex+1]), formatValues(values[safeIndex:]),
				formatValues(values[:nullIndex]), formatValues([]float64{median}), formatValues([]float64{least}),
				formatValues([]float64{most}), formatValues([]float64{aim}), verdict)
		}
	}
	return text.String(), misses
}
