// SPDX-License-Identifier: Apache-2.0

package components

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cache is the folder of built components.
type Cache struct {
	Root   string    // one folder per build
	Source string    // the folder test/cluster/components
	Out    io.Writer // progress, one line per component
}

// Open returns this user's cache: ${XDG_CACHE_HOME:-~/.cache}/gpu-dra-driver. If source is empty, Open searches for the
// folder with the pinned modules.
func Open(source string, out io.Writer) (Cache, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return Cache{}, fmt.Errorf("find cache folder: %w", err)
	}
	if source == "" {
		if source, err = findSource(); err != nil {
			return Cache{}, err
		}
	}
	return Cache{Root: filepath.Join(base, "gpu-dra-driver"), Source: source, Out: out}, nil
}

// findSource searches for the pinned modules where this program was compiled, then in the working folder and its
// parents.
func findSource() (string, error) {
	var candidates []string
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		candidates = append(candidates, filepath.Join(filepath.Dir(file), "..", "..", "components"))
	}
	if dir, err := os.Getwd(); err == nil {
		for ; dir != "/"; dir = filepath.Dir(dir) {
			candidates = append(candidates, filepath.Join(dir, "components"), filepath.Join(dir, "test", "cluster",
				"components"))
		}
	}
	for _, c := range candidates {
		if _, err := os.Stat(filepath.Join(c, programs, "go.mod")); err == nil {
			return filepath.Clean(c), nil
		}
	}
	return "", errors.New("find folder test/cluster/components: run this inside the repository, or name it with " +
		"--components")
}

// Dirs maps a component's name to its folder.
type Dirs map[string]string

// Build builds the components that are not cached and returns the folders of all. A lock prevents parallel builds of
// two processes.
func (c Cache) Build(ctx context.Context, list []Component) (Dirs, error) {
	dirs := Dirs{}
	work := &work{out: c.Out}
	for _, component := range list {
		if err := c.plan(ctx, component, work); err != nil {
			return nil, err
		}
	}
	for _, component := range list {
		dir, err := c.build(ctx, component, work)
		if err != nil {
			return nil, err
		}
		for _, part := range component.parts() {
			dirs[part] = dir
		}
	}
	return dirs, nil
}

// plan adds to the work what building the component takes, if it is not cached.
func (c Cache) plan(ctx context.Context, component Component, work *work) error {
	key, _, err := c.key(ctx, component)
	if err != nil || exists(filepath.Join(c.Root, key)) {
		return err
	}
	if err := Ensure(ctx, c.Out, component.Debian); err != nil {
		return err
	}
	return work.add(ctx, filepath.Join(c.Source, component.folder()), component)
}

func (c Cache) build(ctx context.Context, component Component, work *work) (string, error) {
	key, version, err := c.key(ctx, component)
	if err != nil {
		return "", err
	}
	return c.fill(ctx, key, component.title(version), func(dir string) error {
		return c.compile(ctx, component, dir, work)
	})
}

func (c Cache) key(ctx context.Context, component Component) (key, version string, err error) {
	in := Inputs{Platform: runtime.GOOS + "/" + runtime.GOARCH}
	module := filepath.Join(c.Source, component.folder())
	for name, text := range map[string]*string{"go.mod": &in.GoMod, "go.sum": &in.GoSum} {
		data, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", "", fmt.Errorf("read pinned versions of %s: %w", component.Name, err)
		}
		*text = string(data)
	}
	if in.GoVersion, err = goVersion(ctx, module); err != nil {
		return "", "", err
	}
	if version, err = component.versionIn(in.GoMod); err != nil {
		return "", "", err
	}
	key, err = component.Key(in)
	return key, version, err
}

// fill returns the folder of the key, and calls build if it does not exist. The folder gets its name only when it is
// complete, so a killed build leaves no partial result.
func (c Cache) fill(ctx context.Context, key, title string, build func(dir string) error) (string, error) {
	dir := filepath.Join(c.Root, key)
	if exists(dir) {
		return dir, nil
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	if exists(dir) { // another process built it while this one waited
		return dir, nil
	}
	start := time.Now()
	fmt.Fprintf(c.Out, "building %s\n", title)
	if err := c.fillLocked(dir, build); err != nil {
		return "", fmt.Errorf("build %s: %w", title, err)
	}
	fmt.Fprintf(c.Out, "built %s in %.1f s\n", title, time.Since(start).Seconds())
	return dir, nil
}

const unfinished = ".unfinished-"

func (c Cache) fillLocked(dir string, build func(dir string) error) error {
	// With the lock held, every unfinished folder is from a killed build.
	leftovers, _ := filepath.Glob(filepath.Join(c.Root, unfinished+"*"))
	for _, l := range leftovers {
		_ = os.RemoveAll(l)
	}
	tmp, err := os.MkdirTemp(c.Root, unfinished)
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if err := build(tmp); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

func (c Cache) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(c.Root, 0o755); err != nil {
		return nil, fmt.Errorf("make cache folder: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(c.Root, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock cache: %w", err)
	}
	for reported := false; ; reported = true {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			_ = file.Close()
			return nil, fmt.Errorf("lock cache: %w", err)
		}
		if !reported {
			fmt.Fprintln(c.Out, "waiting for another process that is building")
		}
		select {
		case <-ctx.Done():
			_ = file.Close()
			return nil, fmt.Errorf("wait for another build: %w", ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// compile builds the component's commands into dir.
func (c Cache) compile(ctx context.Context, component Component, dir string, work *work) error {
	module := filepath.Join(c.Source, component.folder())
	mod, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return err
	}
	linker, err := component.linkerFlags(string(mod))
	if err != nil {
		return err
	}
	args := append([]string{"build", "-v", "-p", fmt.Sprint(min(runtime.NumCPU(), 4)), "-ldflags", linker},
		component.flags()...)
	args = append(append(args, "-o", dir+"/"), component.Packages...) // go build names each file after its package
	out := &buildOutput{compiled: work.compiled}
	told := work.tell()
	err = goBuild(ctx, module, component.cgo(), args, out)
	told()
	if err != nil {
		return err
	}
	for i, name := range component.Binaries {
		built := filepath.Join(dir, programOf(component.Packages[i]))
		if err := os.Rename(built, filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("find what go build made of %s: %w", component.Packages[i], err)
		}
	}
	return nil
}

// programOf returns the name that go build gives to the program of a package: a version at the end does not count.
func programOf(pkg string) string {
	if base := path.Base(pkg); majorVersion.MatchString(base) {
		return path.Base(path.Dir(pkg))
	}
	return path.Base(pkg)
}

var majorVersion = regexp.MustCompile(`^v[0-9]+$`)

// goBuild runs go with the arguments. It writes its output to out.
func goBuild(ctx context.Context, dir, cgo string, args []string, out *buildOutput) error {
	// If this process is killed, the compiler ends too. The kernel tracks the parent thread, not the process, hence the
	// lock.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = goEnv(cgo)
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out.messages())
	}
	return nil
}

// goEnv is the environment of the go command. The user's Go settings must not affect the result.
func goEnv(cgo string) []string {
	return append(os.Environ(), cgo, "GOFLAGS=-mod=readonly -buildvcs=false", "GOWORK=off")
}

func goVersion(ctx context.Context, dir string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "env", "GOVERSION")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", errors.New("find Go: there is no program go on PATH; it is needed to build the cluster's programs")
	}
	if err != nil {
		return "", fmt.Errorf("ask Go for its version: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
