// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

const usage = `The simulated nvidia-cuda-mps-control.

    nvidia-cuda-mps-control -f [-multiuser-server]   the daemon, in the foreground
    nvidia-cuda-mps-control -d [-multiuser-server]   the daemon, in the background
    nvidia-cuda-mps-control                          commands for the daemon, from the standard input
`

// Program is one invocation of nvidia-cuda-mps-control.
type Program struct {
	Path     string // of the program, in usr/bin of a simulated driver root
	Args     []string
	Env      func(string) string
	In       io.Reader
	Out, Err io.Writer
}

// Run runs the program and returns its exit code.
func (p Program) Run(ctx context.Context) int {
	if len(p.Args) == 0 {
		return p.shell(ctx)
	}
	n, err := p.node()
	hasMultiUser := err != nil || knowsMultiUser(n) // an error is reported instead
	var foreground, background, multiUser bool
	for _, arg := range p.Args {
		switch arg {
		case "-f":
			foreground = true
		case "-d":
			background = true
		case "-multiuser-server":
			multiUser = true
		default:
			if hasMultiUser {
				fmt.Fprint(p.Out, usage)
				return 1
			}
			return p.shell(ctx) // an unknown flag makes older ones the program that sends commands
		}
	}
	if !foreground && !background || multiUser && !hasMultiUser {
		return p.shell(ctx)
	}
	switch {
	case err != nil:
	case foreground:
		err = p.daemon(ctx, n, multiUser)
	default:
		err = p.detach(multiUser)
	}
	if err != nil {
		fmt.Fprintln(p.Err, err)
		return 1
	}
	return 0
}

func (p Program) pipe() string {
	if dir := p.Env(PipeVariable); dir != "" {
		return dir
	}
	return DefaultPipe
}

// node returns the simulated machine whose driver the program belongs to.
func (p Program) node() (*node.Node, error) {
	root, ok := strings.CutSuffix(filepath.Dir(p.Path), "/usr/bin")
	if !ok || filepath.Base(root) != "root" {
		return nil, fmt.Errorf("%s lies in no simulated driver root", p.Path)
	}
	return node.Attach(filepath.Dir(root))
}

// multiUserSince is the first branch of the driver whose control program knows -multiuser-server.
const multiUserSince = 555

func knowsMultiUser(n *node.Node) bool {
	v, err := n.View()
	if err != nil {
		return true
	}
	branch, _, _ := strings.Cut(v.Profile.Driver(), ".")
	number, err := strconv.Atoi(branch)
	return err != nil || number >= multiUserSince
}

func (p Program) daemon(ctx context.Context, n *node.Node, multiUser bool) (err error) {
	c := &config{node: n, pipe: p.pipe(), multiUser: multiUser, log: log.New(p.Err, "", 0)}
	if c.gpus, err = visible(n, p.Env("CUDA_VISIBLE_DEVICES")); err != nil {
		return err
	}
	if c.defaults, err = parseLimits(p.Env(ThreadsVariable), p.Env(MemoryVariable)); err != nil {
		return err
	}
	if err := os.MkdirAll(c.pipe, 0o755); err != nil {
		return err
	}
	err = run(ctx, *c)
	if err != nil {
		c.logf("%v", err)
	}
	return err
}

// visible returns the UUIDs of the GPUs and partitions in the variable, given by UUID or index; all if it is empty.
func visible(n *node.Node, names string) ([]string, error) {
	v, err := n.View()
	if err != nil {
		return nil, err
	}
	var out []string
	if names == "" {
		for _, c := range v.GPUs {
			for _, d := range c.Devices() {
				out = append(out, d.ID())
			}
		}
		return out, nil
	}
	for _, name := range strings.Split(names, ",") {
		d, err := v.Device(name)
		if err == nil && d.Partition == nil && d.Partitioned() {
			err = fmt.Errorf("%s is in MIG mode: name one of its partitions", d.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("CUDA_VISIBLE_DEVICES: %w", err)
		}
		out = append(out, d.ID())
	}
	return out, nil
}

// detach starts the daemon as a process of its own and returns when it answers or has ended.
func (p Program) detach(multiUser bool) error {
	args := []string{"-f"}
	if multiUser {
		args = append(args, "-multiuser-server")
	}
	cmd := exec.Command(p.Path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if dir := p.Env(LogVariable); dir != "" { // in the foreground it writes no file
		file, err := os.OpenFile(filepath.Join(dir, "control.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		defer file.Close()
		cmd.Stderr = file
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		if conn, err := net.Dial("unix", filepath.Join(p.pipe(), commandSocket)); err == nil {
			return conn.Close()
		}
		select {
		case err := <-ended:
			if err == nil {
				err = errors.New("the daemon has ended")
			}
			return err
		case <-time.After(pollPeriod / 5):
		}
	}
}

// shell sends commands to the daemon and prints its answers.
func (p Program) shell(ctx context.Context) int {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(p.pipe(), commandSocket))
	if err != nil {
		fmt.Fprintln(p.Out, "Cannot find MPS control daemon process")
		return 1
	}
	defer conn.Close()
	answers := json.NewDecoder(bufio.NewReader(conn))
	for in := bufio.NewScanner(p.In); in.Scan(); {
		var r result
		_, err := fmt.Fprintln(conn, in.Text())
		if err == nil {
			err = answers.Decode(&r)
		}
		if err != nil {
			fmt.Fprintln(p.Out, "Lost connection to MPS control daemon process")
			return 1
		}
		fmt.Fprint(p.Out, r.Text)
	}
	return 0
}
