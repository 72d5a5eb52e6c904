// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/test/controlplane"
	"github.com/gpudra/gpu-dra-driver/test/page"
)

const (
	peerRounds  = 5
	peerCycles  = 100 // of one claim on each plugin, in each round
	peerSlices  = 40  // the same with a time slice
	peerCrowded = 15  // the same among standing claims
	peerBursts  = 6   // of eight claims on each plugin, in each round
	peerPause   = 5 * time.Second

	leastUnprepare = 1.2 // the aim of Unprepare
)

// standingClaims are how many claims stay prepared: with admin access, as a GPU has only one other holder.
var standingClaims = []int{50, 200}

// contest is this driver and its peer, in this order, and what was measured of them.
type contest struct {
	plane   *controlplane.Plane
	sides   []*side
	figures []*figure
}

// figure is a figure of both sides in each round.
type figure struct {
	what   string
	aim    float64 // the least quotient of the peer's by this driver's
	values [][2]float64
}

// times are those of the calls of one side.
type times struct{ prepare, unprepare, cpu samples }

// claimsFunc creates the claims of the n-th call.
type claimsFunc func(b *bench, n int) ([]*drapb.Claim, error)

// comparePeer measures this driver and NVIDIA's in turn, both as processes of this machine with an API server. It
// prints the table, and writes it to docs unless that is "".
func comparePeer(ctx context.Context, programs, peer, docs string) (err error) {
	built, err := buildinfo.ReadFile(peer)
	if err != nil {
		return fmt.Errorf("the peer's plugin: %w", err)
	}
	disk, err := os.MkdirTemp("_output", "peer-")
	if err != nil {
		return fmt.Errorf("run this in the repository root: %w", err)
	}
	memory, err := os.MkdirTemp(controlplane.MemoryDir(), "peer-")
	if err != nil {
		return err
	}
	c := &contest{}
	if c.plane, err = controlplane.New(programs, memory); err != nil {
		return err
	}
	defer func() {
		for _, s := range c.sides {
			s.running.Stop()
		}
		c.plane.Close()
		if err == nil {
			err = errors.Join(os.RemoveAll(disk), os.RemoveAll(memory))
		} else {
			err = fmt.Errorf("%w; the logs are in %s", err, memory)
		}
	}()
	if err := c.open(ctx, peer, disk, memory); err != nil {
		return err
	}
	for n := range peerRounds {
		begin := time.Now()
		if err := c.round(ctx); err != nil {
			return fmt.Errorf("round %d: %w", n+1, err)
		}
		fmt.Printf("[%5.1fs] round %d of %d\n", time.Since(begin).Seconds(), n+1, peerRounds)
	}
	text := fmt.Sprintf("%s NVIDIA's is commit %s, built with Go %s.\n\n%s",
		thisMachine(ctx, c.sides[0].bench, peerDocs), commitOf(built), strings.TrimPrefix(built.GoVersion, "go"),
		c.table())
	fmt.Println("\n" + text)
	if docs == "" {
		return nil
	}
	return page.Insert(docs, "make compare", text)
}

// commitOf returns from which commit a program was built, and of which day that is.
func commitOf(program *buildinfo.BuildInfo) string {
	commit, day, changes := "unknown", "", ""
	for _, s := range program.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = "`" + s.Value[:min(len(s.Value), 7)] + "`"
		case s.Key == "vcs.time":
			day = " of " + s.Value[:min(len(s.Value), len(time.DateOnly))]
		case s.Key == "vcs.modified" && s.Value == "true":
			changes = " with changes"
		}
	}
	return commit + day + changes
}

// restart starts both sides and returns how long each takes until its first slice, in milliseconds.
func (c *contest) restart(ctx context.Context, peerArgs ...string) (took [2]float64, err error) {
	for i, args := range [][]string{nil, peerArgs} {
		d, err := c.sides[i].restart(ctx, args...)
		if err != nil {
			return took, fmt.Errorf("start %s: %w", c.sides[i].name, err)
		}
		took[i] = ms(d)
	}
	return took, nil
}

// round takes all figures once.
func (c *contest) round(ctx context.Context) error {
	start, err := c.restart(ctx)
	if err != nil {
		return err
	}
	if err := sleep(ctx, peerPause); err != nil {
		return err
	}
	var memory [2]float64
	for i, s := range c.sides {
		used, err := s.process.memory()
		if err != nil {
			return err
		}
		memory[i] = used.rss
	}
	if err := c.calls(ctx); err != nil {
		return err
	}
	c.note("start until the first slice", 1, start[0], start[1])
	c.note("RSS when idle, MiB", 1, memory[0], memory[1])
	// With this gate, the peer runs nvidia-smi also for claims without a time slice.
	if _, err := c.restart(ctx, "--feature-gates=TimeSlicingSettings=true"); err != nil {
		return err
	}
	err = c.callsOf(ctx, "a time slice", peerSlices, func(b *bench, n int) ([]*drapb.Claim, error) {
		return b.configured(ctx, longTimeSlice(), b.gpu(n))
	})
	if err != nil {
		return err
	}
	return c.sides[0].bench.deleteClaims(ctx)
}

// calls takes the figures of calls without a time slice.
func (c *contest) calls(ctx context.Context) error {
	one := func(b *bench, n int) ([]*drapb.Claim, error) { return b.claimsOf(ctx, driver, n, 1) }
	t, err := c.inTurn(ctx, peerCycles, prepareOn, one)
	if err != nil {
		return err
	}
	c.note("Prepare, one claim, p50", 1, t[0].prepare.p50(), t[1].prepare.p50())
	c.note("Prepare, one claim, p99", 1, t[0].prepare.at(0.99), t[1].prepare.at(0.99))
	c.note("Unprepare, one claim", leastUnprepare, t[0].unprepare.p50(), t[1].unprepare.p50())
	c.note("processor time of both", 1, t[0].cpu.p50(), t[1].cpu.p50())
	eight := func(b *bench, _ int) ([]*drapb.Claim, error) { return b.claimsOf(ctx, driver, 0, burst) }
	if t, err = c.inTurn(ctx, peerBursts, callEach, eight); err != nil {
		return err
	}
	c.note("Prepare, 8 calls at once", 1, t[0].prepare.p50(), t[1].prepare.p50())
	if err := c.callsOf(ctx, "one call with 8 claims", peerBursts, eight); err != nil {
		return err
	}
	for _, n := range standingClaims {
		if err := c.stand(ctx, n); err != nil {
			return err
		}
		if err := c.callsOf(ctx, fmt.Sprintf("one claim beside %d others", n), peerCrowded, one); err != nil {
			return err
		}
	}
	return c.stand(ctx, 0)
}

// callsOf takes the figures of Prepare and Unprepare of such claims.
func (c *contest) callsOf(ctx context.Context, what string, n int, claims claimsFunc) error {
	t, err := c.inTurn(ctx, n, prepareOn, claims)
	if err != nil {
		return err
	}
	c.note("Prepare, "+what, 1, t[0].prepare.p50(), t[1].prepare.p50())
	c.note("Unprepare, "+what, leastUnprepare, t[0].unprepare.p50(), t[1].unprepare.p50())
	return nil
}

// inTurn lets both sides hold claims n times, each of them first every second time.
func (c *contest) inTurn(ctx context.Context, n int, prepare prepareFunc, claims claimsFunc) (t [2]times, err error) {
	for n := range n {
		for turn := range c.sides {
			i := (turn + n) % len(c.sides)
			s := c.sides[i]
			all, err := claims(s.bench, n)
			if err != nil {
				return t, err
			}
			h, err := s.bench.hold(ctx, &s.subject, prepare, all)
			if err != nil {
				return t, fmt.Errorf("%s: %w", s.name, err)
			}
			t[i].prepare, t[i].unprepare = append(t[i].prepare, h.prepare), append(t[i].unprepare, h.unprepare)
			t[i].cpu = append(t[i].cpu, h.cpu)
		}
	}
	return t, nil
}

// stand lets so many claims of each side be prepared, and waits until the sides have come to rest.
func (c *contest) stand(ctx context.Context, n int) error {
	for _, s := range c.sides {
		var more []resourceapi.DeviceRequestAllocationResult
		for i := len(s.standing); i < n; i++ {
			result := s.bench.gpu(i)
			result.AdminAccess = ptr.To(true)
			more = append(more, result)
		}
		claims, err := s.bench.allocated(ctx, more...)
		if err != nil {
			return err
		}
		for _, claim := range claims {
			if _, err := prepareOn(ctx, s.kubelet, claim); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		s.standing = append(s.standing, claims...)
		for _, claim := range s.standing[n:] {
			if _, err := unprepareOn(ctx, s.kubelet, claim); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		s.standing = s.standing[:n]
	}
	return errors.Join(sleep(ctx, statusesPause), c.sides[0].bench.quiet(ctx))
}

// note adds the values of a round to the figure.
func (c *contest) note(what string, aim, ours, peers float64) {
	i := slices.IndexFunc(c.figures, func(f *figure) bool { return f.what == what })
	if i < 0 {
		i = len(c.figures)
		c.figures = append(c.figures, &figure{what: what, aim: aim})
	}
	c.figures[i].values = append(c.figures[i].values, [2]float64{ours, peers})
}

// table returns the medians of the rounds, and the quotients of each round.
func (c *contest) table() string {
	var text strings.Builder
	fmt.Fprintf(&text, "| ms, unless it says another unit | this driver | NVIDIA's | NVIDIA's ÷ this one, in each of "+
		"%d rounds | aim | |\n|---|---:|---:|---:|---:|---|\n", len(c.figures[0].values))
	for _, f := range c.figures {
		var of [3][]float64 // this driver's, the peer's, the quotients
		for _, v := range f.values {
			of[0], of[1], of[2] = append(of[0], v[0]), append(of[1], v[1]), append(of[2], v[1]/v[0])
		}
		for _, all := range of {
			slices.Sort(all)
		}
		middle, verdict := len(f.values)/2, "ok"
		if of[2][middle] < f.aim {
			verdict = "**miss**"
		}
		fmt.Fprintf(&text, "| %s | %s | %s | %.2f (%.2f to %.2f) | ≥ %.1f | %s |\n", f.what,
			formatValues(of[0][middle:middle+1]), formatValues(of[1][middle:middle+1]), of[2][middle], of[2][0],
			of[2][len(of[2])-1], f.aim, verdict)
	}
	return text.String()
}
