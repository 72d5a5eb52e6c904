// SPDX-License-Identifier: Apache-2.0

package components

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// tellPeriod is how often a build says how far it is.
const tellPeriod = 10 * time.Second

// buildOutput collects the output of go build -v: the packages that are compiled, and messages.
type buildOutput struct {
	compiled func(pkg string) // may be nil

	mu    sync.Mutex
	rest  []byte
	other []string
}

func (o *buildOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rest = append(o.rest, p...)
	for {
		line, rest, whole := bytes.Cut(o.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		o.rest = slices.Clone(rest)
		text := string(line)
		switch {
		case text == "" || strings.ContainsAny(text, " \t"):
			o.other = append(o.other, text)
		case o.compiled != nil:
			o.compiled(text)
		}
	}
}

// messages returns the last messages of the compiler.
func (o *buildOutput) messages() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := append(slices.Clone(o.other), string(o.rest))
	return strings.TrimSpace(strings.Join(all[max(0, len(all)-15):], "\n"))
}

// work is what the builds of several components compile and link. The zero value is nothing to do.
type work struct {
	out io.Writer

	mu      sync.Mutex
	sizes   map[string]int64 // of what is still to be compiled: bytes of source, by package
	all     int64            // bytes of source
	done    int64
	number  int // packages compiled
	of      int
	started time.Time // of the first build
}

// linked is what linking a program takes, as bytes of source that are compiled in that time: measured for Kubernetes.
const linked = 1_000_000

// add adds the packages of a component that Go does not have in its own cache, and its programs.
func (w *work) add(ctx context.Context, module string, component Component) error {
	args := append([]string{"list", "-deps", "-f", `{{if .Stale}}{{.ImportPath}} {{.Dir}} {{join .GoFiles " "}} {{join ` +
		`.CgoFiles " "}}{{end}}`}, component.flags()...)
	cmd := exec.CommandContext(ctx, "go", append(args, component.Packages...)...)
	cmd.Dir, cmd.Env = module, goEnv(component.cgo())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	list, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("list the packages of %s: %w: %s", component.Name, err, lastLine(stderr.String()))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sizes == nil {
		w.sizes = map[string]int64{}
	}
	for line := range strings.Lines(string(list)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || w.sizes[fields[0]] > 0 {
			continue
		}
		size := int64(1) // without Go files, it is still a package
		for _, file := range fields[2:] {
			if info, err := os.Stat(filepath.Join(fields[1], file)); err == nil {
				size += info.Size()
			}
		}
		if slices.Contains(component.Packages, fields[0]) {
			size += linked
		}
		w.sizes[fields[0]] = size
		w.all += size
		w.of++
	}
	return nil
}

// compiled counts a package once.
func (w *work) compiled(pkg string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if size, ok := w.sizes[pkg]; ok {
		delete(w.sizes, pkg)
		w.done += size
		w.number++
	}
}

// tell says every ten seconds how far all builds are, until the returned function is called.
func (w *work) tell() (end func()) {
	w.mu.Lock()
	if w.started.IsZero() {
		w.started = time.Now()
	}
	w.mu.Unlock()
	done := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		tick := time.NewTicker(tellPeriod)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				fmt.Fprintln(w.out, "  "+w.String())
			}
		}
	})
	return func() {
		close(done)
		ended.Wait()
	}
}

// String says how much of all is done. It does not say how long the rest takes: packages of the same size take very
// different times, and Go's cache has some of them.
func (w *work) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == 0 {
		return "linking"
	}
	text := fmt.Sprintf("%d %% of all: %d of %d packages compiled in %s", 100*w.done/w.all, w.number, w.of,
		time.Since(w.started).Truncate(time.Second))
	if w.done == w.all {
		return text + ", linking"
	}
	return text
}
