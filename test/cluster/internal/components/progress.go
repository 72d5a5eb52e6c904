// SPDX-License-Identifier: Apache-2.0

package components

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// tellPeriod is how often a build says how far it is.
const tellPeriod = 10 * time.Second

// buildOutput collects the output of go build -v: the packages that are compiled, and messages.
type buildOutput struct {
	mu       sync.Mutex
	rest     []byte
	packages int
	other    []string
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
		if text := string(line); text == "" || strings.ContainsAny(text, " \t") {
			o.other = append(o.other, text)
		} else {
			o.packages++
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

func (o *buildOutput) compiled() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.packages
}

// tell says every ten seconds how far a build is, until the returned function is called. of is the number of packages;
// 0 if it is not known.
func (c Cache) tell(out *buildOutput, of int) (end func()) {
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
			}
			text := fmt.Sprintf("  %d packages compiled", out.compiled())
			if of > 0 {
				text = fmt.Sprintf("  %d of %d packages compiled", out.compiled(), of)
			}
			fmt.Fprintln(c.Out, text)
		}
	})
	return func() {
		close(done)
		ended.Wait()
	}
}

// countPackages returns how many packages the component has; 0 if they cannot be listed. Those that Go has in its own
// cache are not compiled again.
func countPackages(ctx context.Context, module, cgo string, component Component) int {
	args := []string{"list", "-deps"}
	if component.Tags != "" {
		args = append(args, "-tags", component.Tags)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, component.Packages...)...)
	cmd.Dir, cmd.Env = module, goEnv(cgo)
	list, err := cmd.Output()
	if err != nil {
		return 0
	}
	return bytes.Count(list, []byte("\n"))
}
