// SPDX-License-Identifier: Apache-2.0

// Command chaos is the program behind `make chaos`: it breaks a cluster of test/cluster in every way that it knows
// while pods come and go, and judges what it sees from outside. The seed decides what happens.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/test/chaos/check"
	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

const (
	release = "gpu-dra-driver" // of helm, and its namespace
	chart   = "deployments/helm/gpu-dra-driver"

	// roundLength is after how long all pods have to go, so that what is left can be seen.
	roundLength = 3 * time.Minute
	lookEvery   = time.Second
	// minEvery is the shortest time between two faults: a plan is made before the first one.
	minEvery = time.Millisecond
	// patience is how long the cluster may take to recover with nothing new: longer than any pause of its programs.
	patience = 10 * time.Minute
)

// options are the flags.
type options struct {
	seed       uint64
	length     time.Duration
	every      time.Duration
	margin     time.Duration
	cluster    string
	name       string
	kubeconfig string
	helm       string
	plan       bool
}

func main() {
	var o options
	flag.Uint64Var(&o.seed, "seed", 1, "decides the pods and the faults")
	flag.DurationVar(&o.length, "for", 3*time.Minute, "how long things are broken")
	flag.DurationVar(&o.every, "every", 4*time.Second, "the average time from the beginning of a fault to the next")
	flag.DurationVar(&o.margin, "margin", check.Margin, "how much longer than the longest outage something may wait")
	flag.StringVar(&o.cluster, "cluster", "_output/bin/cluster", "the program of test/cluster")
	flag.StringVar(&o.name, "name", "chaos", "name of the cluster, which has the driver installed")
	flag.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig of the cluster")
	flag.StringVar(&o.helm, "helm", "helm", "the program helm")
	flag.BoolVar(&o.plan, "plan", false, "print what would happen, and break nothing")
	flag.Parse()
	ctx, end := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := o.run(ctx)
	end()
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

func (o options) run(ctx context.Context) error {
	if o.every < minEvery {
		return fmt.Errorf("-every %s: want at least %s", o.every, minEvery)
	}
	if o.plan {
		for round, length := range o.rounds() {
			fmt.Printf("round %d\n%s", round, o.planOf(round, length, planned))
		}
		return nil
	}
	version, err := os.ReadFile("VERSION")
	if err != nil {
		return fmt.Errorf("run it in the root of the repository: %w", err)
	}
	connection, err := kube.Connect(o.kubeconfig)
	if err != nil {
		return err
	}
	l := &lab{Cluster: connection, options: o, image: "localhost/gpu-dra-demo:" + strings.TrimSpace(string(version)),
		began: time.Now(), hits: map[string]int{}, reported: map[check.Violation]bool{},
		waits: check.Waits{Margin: o.margin}}
	var nodes corev1.NodeList
	if err := l.List(ctx, &nodes); err != nil {
		return err
	}
	for i := range nodes.Items {
		l.nodes = append(l.nodes, nodes.Items[i].Name)
	}
	if err := l.prepare(ctx); err != nil {
		return err
	}
	l.say("seed %d, for %s; repeat it with CHAOS_SEED=%d CHAOS_FOR=%s make chaos", o.seed, o.length, o.seed, o.length)
	if l.clean, err = l.settled(ctx); err != nil {
		return err
	}
	for round, length := range o.rounds() {
		if err = l.round(ctx, o.planOf(round, length, l.nodes)); err != nil {
			break
		}
	}
	l.say("seed %d: %d pods, %d faults, longest outage %s, %d looks at %d containers and %d CDI specs: %d violations",
		o.seed, l.pods.Load(), l.faults.Load(), l.outage.Longest.Round(time.Second), l.looks, l.checker.Containers,
		l.checker.Specs, len(l.found))
	if err == nil && (l.checker.Containers == 0 || l.checker.Specs == 0) {
		return errors.New("no container ran at two looks: nothing was judged")
	}
	return err
}

// rounds returns the lengths of the rounds.
func (o options) rounds() []time.Duration {
	var out []time.Duration
	for left := o.length; left > 0; left -= roundLength {
		out = append(out, min(left, roundLength))
	}
	return out
}

func (o options) planOf(round int, length time.Duration, nodes []string) plan {
	return newPlan(o.seed, uint64(round), length, o.every, nodes)
}

// planned are the nodes of make chaos.
var planned = []string{"node-1", "node-2", "node-3"}

// lab is the cluster that is broken, and what is known of it.
type lab struct {
	*kube.Cluster
	options options
	nodes   []string
	image   string
	clean   check.World // before any pod
	began   time.Time

	pods    atomic.Int64
	faults  atomic.Int64
	looks   int
	checker check.Checker
	waits   check.Waits

	ending bool   // the stream has ended
	left   string // what was left at the last look

	mu       sync.Mutex
	breaking time.Time      // since when a fault happens; zero: none does
	outage   check.Outage   // only the judge writes it
	broke    time.Time      // when the outage began; only the judge uses it
	why      string         // what was broken at the last look; only the judge uses it
	hits     map[string]int // by "node gpu": how often its health was hurt
	reported map[check.Violation]bool
	found    []check.Violation
	looked   [2]check.World // at the look before, and at the last one; only the judge uses them
	said     bytes.Buffer
}

func (l *lab) say(format string, args ...any) {
	now := time.Now()
	line := fmt.Sprintf("[%6.1fs] %s\n", now.Sub(l.began).Seconds(), fmt.Sprintf(format, args...))
	fmt.Print(line)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said.WriteString(now.UTC().Format(time.RFC3339Nano+" ") + line) // the scheduler's log has the time of day
}

// settled waits until everything works, and returns the world as it is without pods.
func (l *lab) settled(ctx context.Context) (check.World, error) {
	var w check.World
	err := kube.Until(ctx, kube.Patience, "the cluster to settle", func(ctx context.Context) (bool, string, error) {
		var err error
		if w, err = l.look(ctx); err != nil {
			return false, "", err
		}
		rest := w.Rest(check.World{Nodes: map[string]check.Node{}})
		return l.broken(ctx) == "" && len(w.Nodes) == len(l.nodes) && len(w.Pods)+len(w.Claims) == 0,
			l.broken(ctx) + strings.Join(rest, "\n"), nil
	})
	return w, err
}

// round lets the plan happen and waits until nothing of it is left.
func (l *lab) round(ctx context.Context, p plan) error {
	var all sync.WaitGroup
	stream, endStream := context.WithCancel(ctx)
	defer endStream()
	start := time.Now()
	for _, pod := range p.pods {
		all.Go(func() {
			pause(stream, time.Until(start.Add(pod.at)))
			l.live(stream, pod)
		})
	}
	broken := make(chan error, 1)
	all.Go(func() {
		broken <- l.breakThings(ctx, start, p)
		endStream()
	})
	over := make(chan struct{})
	go func() {
		all.Wait()
		close(over)
	}()
	for clean := false; !clean; pause(ctx, lookEvery) {
		l.ending = closed(over)
		clean = l.judge(ctx)
		select {
		case err := <-broken:
			if err != nil {
				return err
			}
		default:
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case len(l.found) > 0:
			return l.fail(ctx)
		case l.ending && !l.broke.IsZero() && time.Since(l.broke) > patience:
			return errors.Join(fmt.Errorf("the cluster does not recover: %s", l.why), l.fail(ctx))
		}
	}
	l.say("nothing is left")
	return nil
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// judge looks once. At the end of the stream, it returns whether everything works and is as it was before all pods.
func (l *lab) judge(ctx context.Context) (clean bool) {
	before := l.breakingSince()
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // for a server that does not answer at all
	defer cancel()
	w, err := l.look(ctx)
	var why string
	if err != nil {
		why = err.Error()
	} else {
		why = l.broken(ctx)
	}
	if !before.IsZero() || !l.breakingSince().IsZero() {
		why = faulty
	}
	now := time.Now()
	l.account(now, why)
	if err != nil {
		l.checker.Forget()
		return false
	}
	l.looks++
	l.looked = [2]check.World{l.looked[1], w}
	found := l.checker.Look(w)
	var left []string
	if l.ending && why == "" {
		l.clear(ctx)
		left = w.Rest(l.clean)
		if text := strings.Join(left, "; "); text != l.left {
			l.left = text
			l.say("left: %s", text)
		}
	}
	for _, v := range append(found, l.waits.Look(w, now, l.outage, left...)...) {
		if !l.reported[v] {
			l.reported[v] = true
			l.found = append(l.found, v)
			l.say("VIOLATION %s", v)
		}
	}
	return l.ending && why == "" && len(left) == 0
}

// faulty is what is broken while a fault happens.
const faulty = "a fault"

// breakingSince returns since when a fault happens; zero: none does.
func (l *lab) breakingSince() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.breaking
}

// account notes whether something is broken now.
func (l *lab) account(now time.Time, why string) {
	switch {
	case why != "" && l.broke.IsZero():
		l.broke = now
	case why == "" && !l.broke.IsZero():
		l.outage.End, l.outage.Longest = now, max(l.outage.Longest, now.Sub(l.broke))
		l.broke = time.Time{}
	}
	if why != l.why && why != faulty && why != "" {
		l.say("broken: %s", why)
	}
	l.why, l.outage.Ongoing = why, why != ""
}

// breakThings lets one fault after the other happen, until the time of the plan is over and every kind has happened.
func (l *lab) breakThings(ctx context.Context, start time.Time, p plan) error {
	do := map[string]func(context.Context, *lab, faultPlan) error{}
	for _, f := range faults {
		do[f.kind] = f.do
	}
	setBreaking := func(since time.Time) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.breaking = since
	}
	for i, f := range p.faults {
		if i >= len(faults) && time.Since(start) > p.length {
			break
		}
		pause(ctx, max(time.Until(start.Add(f.at)), p.every/4))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		l.say("%s", f)
		setBreaking(time.Now())
		err := do[f.kind](ctx, l, f)
		setBreaking(time.Time{})
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", f, err)
		}
		l.faults.Add(1)
	}
	return nil
}

// sick notes that the GPU's health is hurt. Only the goroutine of the faults calls it.
func (l *lab) sick(node, gpu string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hits[node+" "+gpu]++
}

// clear ends what is wrong with GPUs that were hit more than once, as a person does: a cause that comes back lasts
// twice as long each time.
func (l *lab) clear(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	plugins, err := l.Pods(ctx, release, kube.PluginLabels)
	if err != nil {
		return
	}
	for hit, count := range l.hits {
		node, gpu, _ := strings.Cut(hit, " ")
		for i := range plugins {
			if count > 1 && plugins[i].Spec.NodeName == node {
				_, err := l.Exec(ctx, client.ObjectKeyFromObject(&plugins[i]), kube.SimulatedPlugin, "health",
					"--clear", gpu)
				if err == nil {
					l.hits[hit] = 1
				}
			}
		}
	}
}

// fail keeps the logs, and what was seen and said, and returns what was found.
func (l *lab) fail(ctx context.Context) error {
	dir, err := l.KeepLogs(context.WithoutCancel(ctx), "chaos")
	l.say("the logs are in %s", dir)
	err = errors.Join(err, l.keep(dir))
	var lines []string
	for _, v := range l.found {
		lines = append(lines, v.String())
	}
	return errors.Join(fmt.Errorf("seed %d: %d violations:\n%s", l.options.seed, len(lines),
		strings.Join(lines, "\n")), err)
}

// keep writes the last two looks and all lines of the program. The objects that KeepLogs reads are later ones.
func (l *lab) keep(dir string) error {
	var failed []error
	for i, name := range []string{"look-before.yaml", "look.yaml"} {
		text, err := yaml.Marshal(l.looked[i])
		failed = append(failed, err, os.WriteFile(filepath.Join(dir, name), text, 0o644))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(append(failed, os.WriteFile(filepath.Join(dir, "chaos.log"), l.said.Bytes(), 0o644))...)
}

// control runs a command of test/cluster.
func (l *lab) control(ctx context.Context, command string, args ...string) (string, error) {
	return run(ctx, l.options.cluster, append([]string{command, "--name", l.options.name}, args...)...)
}

// run runs a program and returns its output.
func run(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args[:min(4, len(args))], " "), err,
			strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
