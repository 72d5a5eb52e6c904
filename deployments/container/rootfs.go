// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// writeRootfs writes the files of each image into a folder of its name, which must not be there yet.
func writeRootfs(dir string, contents []content) error {
	for _, c := range contents {
		root := filepath.Join(dir, c.name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make directory for root file systems: %w", err)
		}
		if err := os.Mkdir(root, 0o755); err != nil {
			return fmt.Errorf("make root of %s: %w", c.name, err)
		}
		var all []entry
		for _, layer := range c.layers {
			all = append(all, layer...)
		}
		for _, e := range withParents(all) { // a directory comes before what is in it
			if err := e.install(filepath.Join(root, e.path)); err != nil {
				return fmt.Errorf("write %s of %s: %w", e.path, c.name, err)
			}
		}
	}
	return nil
}

// install makes what the entry says at a path of this machine.
func (e entry) install(path string) error {
	if e.link != "" {
		return os.Symlink(e.link, path)
	}
	data := []byte(e.text)
	switch {
	case e.source != "":
		var err error
		if data, err = os.ReadFile(e.source); err != nil {
			return err
		}
	case e.text == "":
		if err := os.Mkdir(path, 0o755); err != nil {
			return err
		}
		return os.Chmod(path, e.fileMode()) // whatever the umask
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		return err
	}
	return os.Chmod(path, e.fileMode())
}

func (e entry) fileMode() fs.FileMode {
	mode := fs.FileMode(e.mode).Perm()
	if e.mode&0o1000 != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}
