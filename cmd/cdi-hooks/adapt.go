// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/sirupsen/logrus"
)

// container is the container that hooks run for.
type container struct {
	program string   // the name of this one
	state   *os.File // the runtime's
	// held are hooks that wait for a writable /etc.
	held [][]string
}

// do runs a hook. Where the container refuses what the hook writes, the same is reached in another way, or left out if
// programs on GPUs work without it.
func (c *container) do(hook []string) error {
	err := c.run(hook)
	if err == nil && len(c.held) == 0 || len(hook) == 0 {
		return err
	}
	switch hook[0] {
	case "update-ldcache":
		return c.updateCache(hook, err)
	case "enable-cuda-compat": // it writes what update-ldcache reads
		c.held = append(c.held, hook)
		return nil
	case "disable-device-node-modification":
		return c.hideParams(err)
	}
	if !isRefused(err) {
		return err
	}
	switch hook[0] {
	case "create-symlinks":
		return c.createEach(hook)
	case "update-application-profile", "chmod": // which GPUs EGL lists; device nodes have their mode from the host
		leaveOut(err)
		return nil
	}
	return err
}

// leaveOut logs what the container goes without.
func leaveOut(err error) { logrus.Warnf("left out: %v", err) }

// passing are errors that are not of the container, and that a later start need not have.
var passing = []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE}

// isRefused reports whether the error is that of a file which the container does not let the hook write.
func isRefused(err error) bool {
	var errno syscall.Errno
	var path *fs.PathError // also without a number: os.Root refuses absolute links
	if !errors.As(err, &errno) && !errors.As(err, &path) {
		return false
	}
	return !slices.ContainsFunc(passing, func(p error) bool { return errors.Is(err, p) })
}

// createEach runs create-symlinks for each link alone, and leaves out those that are refused. A program that needs one
// says so itself; the others of the container run.
func (c *container) createEach(hook []string) error {
	for link := range slices.Chunk(hook[1:], 2) { // --link target::path
		err := c.run(slices.Concat(hook[:1], link))
		if err != nil && !isRefused(err) {
			return err
		}
		if err != nil {
			leaveOut(err)
		}
	}
	return nil
}

// paramsFile has the parameters of NVIDIA's kernel module.
const paramsFile = "/proc/driver/nvidia/params"

// hideParams does what disable-device-node-modification does, without a directory below the container's /run: NVIDIA's
// libraries read there that they must not make device nodes.
func (c *container) hideParams(cause error) error {
	if cause == nil {
		return nil
	}
	params, err := os.ReadFile(paramsFile)
	if err != nil {
		return cause
	}
	root, err := c.root()
	if err != nil {
		return err
	}
	params = bytes.ReplaceAll(params, []byte("ModifyDeviceFiles: 1\n"), []byte("ModifyDeviceFiles: 0\n"))
	if err := mountFile(root, paramsFile, params); err != nil {
		return fmt.Errorf("%w; mount %s: %w", cause, paramsFile, err)
	}
	return nil
}

// updateCache runs update-ldcache, after the held hooks, while a writable layer covers the container's /etc. The cache
// that it leaves is put into the container, or mounted on the one that is there. In a container that admits neither,
// programs find only libraries in the directories that their loader searches by itself.
func (c *container) updateCache(hook []string, cause error) error {
	root, err := c.root()
	if err != nil {
		return err
	}
	hooks := append(c.held, hook)
	c.held = nil
	cache, err := onLayer(root, func() error {
		for _, hook := range hooks {
			if err := c.run(hook); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return errors.Join(cause, fmt.Errorf("on a writable layer: %w", err))
	}
	if err := putFile(root, cacheFile, cache); err == nil {
		return nil
	}
	if err := mountFile(root, cacheFile, cache); err != nil {
		leaveOut(fmt.Errorf("%s: %w", cacheFile, err))
	}
	return nil
}

// root returns the root directory of the container. Some runtimes name it in the state, all in the bundle.
func (c *container) root() (string, error) {
	if _, err := c.state.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	var state struct{ Bundle, Root string }
	if err := json.NewDecoder(c.state).Decode(&state); err != nil {
		return "", fmt.Errorf("read the container's state: %w", err)
	}
	root := state.Root
	if root == "" {
		var spec struct{ Root struct{ Path string } }
		text, err := os.ReadFile(filepath.Join(state.Bundle, "config.json"))
		if err == nil {
			err = json.Unmarshal(text, &spec)
		}
		if err != nil {
			return "", fmt.Errorf("read the container's configuration: %w", err)
		}
		root = spec.Root.Path
	}
	if !filepath.IsAbs(root) {
		root = filepath.Join(state.Bundle, root)
	}
	return root, nil
}
